"""The zip of a Lambda function: all that it needs but boto3, and nothing that no function calls."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from platform import machine

import pytest

from redrive.aws.bundle import LEFT_OUT, MACHINES, Packaged, package
from redrive.errors import ConfigError

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
HERE = next((name for name, processor in MACHINES.items() if processor == machine()), "x86_64")
MINE = """
from redrive import App
app = App("sqs://eu-central-1/shop")

@app.periodic("*/5 * * * *")
@app.task(name="push", queue="crm")
async def push(n: int = 0) -> None: ...

handler = app.lambda_handler()
"""
USE = """
import sys
sys.path.insert(0, sys.argv[1])
import os, redrive, work, redrive.aws.lambda_handlers as handlers
assert handlers.redriver and callable(work.handler)
ours = [m.__file__ for name, m in sys.modules.items() if name.startswith(("redrive", "msgspec"))]
assert len(ours) > 50 and all(sys.argv[1] in path for path in ours)
assert os.path.exists(redrive.__cached__)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux" or PYTHON > "3.13", reason="Lambda has no such Python")


def made(folder: Path) -> Packaged:
    (folder / "work.py").write_text(MINE)
    return package(folder / "f.zip", python=PYTHON, architecture=HERE, add=[folder / "work.py"])


def test_it_runs_with_nothing_but_itself_and_is_the_same_each_time(tmp_path: Path) -> None:
    told = made(tmp_path)
    assert told.zip_bytes == (tmp_path / "f.zip").stat().st_size < 4_500_000
    with zipfile.ZipFile(tmp_path / "f.zip") as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "task")
    assert "redrive/aws/lambda_handlers.py" in names and "work.py" in names
    left_out = ("boto", *(f"redrive/{part}/" for part in LEFT_OUT))
    assert not [name for name in names if name.startswith(left_out) or name.endswith((".js", ".css", ".html"))]
    command = [sys.executable, "-I", "-S", "-W", "error", "-c", USE, str(tmp_path / "task")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (tmp_path / "again").mkdir()
    made(tmp_path / "again")
    assert (tmp_path / "again" / "f.zip").read_bytes() == (tmp_path / "f.zip").read_bytes()


def test_what_stands_above_an_app_is_left_out_but_for_what_programs_import() -> None:
    """`contrib` is for apps; the other packages above it start from a terminal or a server."""
    settings = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    tree = next(each for each in settings["tool"]["importlinter"]["contracts"] if each["id"] == "tree")
    above = set(re.findall(r"\w+", " ".join(tree["layers"][: tree["layers"].index("(app)")])))
    assert above - set(LEFT_OUT) == {"contrib"} and set(LEFT_OUT) <= above


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a module nor a package"):
        package(tmp_path / "f.zip", python=PYTHON, architecture=HERE, add=[tmp_path / "none.py"])
    with pytest.raises(ConfigError, match="expected one of"):
        package(tmp_path / "f.zip", python="2.7", architecture=HERE)
