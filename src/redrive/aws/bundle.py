"""Build the zip of a Lambda function: redrive, its dependencies, and your own code. boto3 is part of AWS's runtime.

`redrive aws package` writes it. Lambda compiles nothing, so msgspec's extension must match the function's Python and
processor. If they are those of this program, the installed packages are used, with compiled bytecode, since a function
cannot cache any; otherwise pip fetches the wheel that fits.
"""

from __future__ import annotations

import py_compile
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, files, version
from pathlib import Path, PurePosixPath
from platform import machine

from msgspec import Struct

from ..config import trust
from ..errors import ConfigError
from ..files import output

RUNTIMES = ("3.11", "3.12", "3.13")
MACHINES = {"arm64": "aarch64", "x86_64": "x86_64"}
PURE = ("cronsim",)  # pure-Python dependencies, for apps with schedules
COMPILED = ("msgspec",)
LEFT_OUT = (
    "check",
    "cli",
    "deliver",
    "demo",
    "present",
    "program",
    "simulate",
    "testing",
    "top",
    "web",
)  # parts of redrive that no Lambda function uses
_NO_CODE = {"__pycache__", ".git", ".venv", "node_modules"}
_WHEN = (2020, 1, 1, 0, 0, 0)  # a fixed modification time, so that the same input makes the same zip
_PIP_S = 300


class Packaged(Struct, frozen=True):
    """A written zip: its size in bytes, the total size of its files in bytes, and the number of its files."""

    zip_bytes: int
    bytes: int
    files: int


def package(out: Path, *, python: str, architecture: str, add: Sequence[Path] = ()) -> Packaged:
    """Write the zip of a Lambda function to `out`. `add`: modules and packages of yours, put at the top of the zip.

    Raises ConfigError if a wheel is unavailable or a path cannot be added; OSError.
    """
    if architecture not in MACHINES or python not in RUNTIMES:
        known = f"{', '.join(RUNTIMES)} and {', '.join(MACHINES)}"
        raise ConfigError(f"python {python!r} on {architecture!r}: expected one of {known}")
    own = python == f"{sys.version_info.major}.{sys.version_info.minor}"
    here = own and sys.platform == "linux" and machine() == MACHINES[architecture]
    with tempfile.TemporaryDirectory(prefix="redrive-package-") as folder:
        content = dict(_redrive()) | dict(_added(add)) | dict(_installed(PURE))
        content |= dict(_installed(COMPILED)) if here else dict(_fetched(Path(folder), python, architecture))
        if own:
            content |= dict(_bytecode(content, Path(folder)))
        return _write(out, content)


def _redrive() -> Iterator[tuple[str, Path]]:
    root = Path(__file__).parent.parent
    for name, path in _under(root, "redrive"):
        if PurePosixPath(name).parts[1] not in LEFT_OUT:
            yield name, path


def _added(paths: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    for path in paths:
        if path.is_dir():
            yield from _under(path.resolve(), path.resolve().name)
        elif path.is_file():
            yield path.name, path
        else:
            raise ConfigError(f"{path} is neither a module nor a package; nothing was written")


def _under(root: Path, name: str) -> Iterator[tuple[str, Path]]:
    for path in sorted(root.rglob("*")):
        inner = path.relative_to(root)
        if path.is_file() and not _NO_CODE & set(inner.parts):
            yield f"{name}/{inner.as_posix()}", path


def _installed(names: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Yield the path in the zip and the location on disk of each file of these packages, as installed here."""
    for name in names:
        try:
            paths = files(name) or ()
        except PackageNotFoundError:
            continue
        for file in paths:
            path = Path(str(file.locate()))
            if file.parts[0] == name and "__pycache__" not in file.parts and path.is_file():
                yield file.as_posix(), path


def _fetched(folder: Path, python: str, architecture: str) -> Iterator[tuple[str, Path]]:
    """Let pip fetch the compiled packages, in the installed versions, for the Python and processor."""
    target = folder / "wheels"
    platforms = [f"manylinux{kind}_{MACHINES[architecture]}" for kind in ("2014", "_2_17", "_2_28", "_2_34")]
    asked = [f"{name}=={version(name)}" for name in COMPILED]
    command = [
        *trust.python(), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--target", str(target), "--only-binary=:all:", "--implementation", "cp", "--python-version", python,
        *(word for platform in platforms for word in ("--platform", platform)), *asked,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_S)
    if done.returncode:
        why = " ".join((done.stderr or done.stdout).split())[-300:]
        raise ConfigError(
            f"no {' '.join(asked)} for Python {python} on {architecture}: {why}; package on a machine like the "
            "function, or choose another --python or --architecture"
        )
    for name in COMPILED:
        yield from _under(target / name, name)


def _bytecode(content: dict[str, Path], folder: Path) -> Iterator[tuple[str, Path]]:
    """Compile the modules to bytecode that is never checked against the source: imports take half the time."""
    tag = sysconfig.get_config_var("SOABI") and sys.implementation.cache_tag
    for name, path in content.items():
        inner = PurePosixPath(name)
        if inner.suffix != ".py" or tag is None:
            continue
        to = inner.parent / "__pycache__" / f"{inner.stem}.{tag}.pyc"
        made = folder / "bytecode" / to
        try:
            mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
            py_compile.compile(str(path), str(made), f"/var/task/{name}", doraise=True, invalidation_mode=mode)
        except py_compile.PyCompileError:
            continue  # importing the file will fail with the reason
        yield to.as_posix(), made


def _write(out: Path, content: dict[str, Path]) -> Packaged:
    total = 0
    with output(out, public=True) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, path in sorted(content.items()):
            entry = zipfile.ZipInfo(name, _WHEN)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            data = path.read_bytes()
            total += len(data)
            archive.writestr(entry, data, compresslevel=9)
    return Packaged(out.stat().st_size, total, len(content))
