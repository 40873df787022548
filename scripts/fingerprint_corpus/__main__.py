"""Raise every cause of this folder and keep what the fingerprint needs in tests/data/fingerprints.

    PYTHONPATH=src REDIS_URL=… POSTGRES_URL=… python scripts/fingerprint_corpus --release 1

Run by hand, once per release, each time with another environment. The shop's code of release 2 is the same functions
at other lines and in another folder; run it with another Python and other versions of the libraries, so that their
lines and inner calls differ too.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import inspect
import json
import re
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tests" / "unit")]

import corpus  # noqa: E402
import scenery  # noqa: E402

from redrive.fault import classify  # noqa: E402

MODULES = ("web", "shop", "records", "stores")
ROOTS = {1: "/srv/shop", 2: "/app/releases/2/shop"}
PADDING = {1: "", 2: "# A release later\n" * 17}


def load(name: str, release: int) -> None:
    """The module as a program of the shop would have it: under its path, with its lines where this release has them."""
    import linecache

    source = PADDING[release] + (HERE / f"{name}.py").read_text()
    if release == 2:
        source = source.replace("\n\n\n", "\n\n\n\n# moved down\n")
    path = f"{ROOTS[release]}/{name}.py"
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    module = types.ModuleType(f"shop.{name}")
    sys.modules[name] = sys.modules[f"shop.{name}"] = module
    exec(compile(source, path, "exec"), vars(module))


def raised(function: Any, arguments: list[Any]) -> BaseException | None:
    """What the function fails with, without the frames that led to it."""
    try:
        result = function(*arguments)
        if inspect.iscoroutine(result):
            asyncio.run(result)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        step = error.__traceback__
        while step is not None and not step.tb_frame.f_code.co_filename.startswith(tuple(ROOTS.values())):
            step = step.tb_next
        return error.with_traceback(step)
    return None


def scrub(text: str) -> str:
    """The text without this machine's folders."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for folder, name in ((sys.prefix, "/venv"), (sys.base_prefix, "/usr"), (str(Path.home()), "/home/app")):
        text = text.replace(folder, name)
    text = re.sub(rf"/[\w./-]+/lib/{version}/", f"/usr/lib/{version}/", text) if "/venv/" not in text else text
    return text.replace(tempfile.gettempdir(), "/tmp")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--release", type=int, choices=sorted(ROOTS), default=1)
    parser.add_argument("--runs", type=int, default=3, help="records of each cause")
    parser.add_argument("--only", default="", help="a library")
    options = parser.parse_args()
    for name in MODULES:
        load(name, options.release)
    made: list[str] = []
    for library, cause, function in scenery.CAUSES:
        if options.only and library != options.only:
            continue
        for run in range(options.runs):
            name = f"{library}: {cause}"
            arguments: list[Any] = [scenery.Vary(f"{name} {options.release} {run}")]
            if len(inspect.signature(function).parameters) > 1:
                arguments.append(cause)
            start = time.monotonic()
            error = raised(function, arguments)
            if time.monotonic() - start > 2:
                print(name, time.monotonic() - start, file=sys.stderr)
            if error is None:
                print(f"{name}: nothing was raised", file=sys.stderr)
                continue
            record = {"group": name, "release": options.release, **corpus.record_of(error, scrub)}
            again = corpus.exception_of(json.loads(json.dumps(record)))
            if classify(again).fingerprint != classify(error).fingerprint:
                print(f"{name}: the record has another fingerprint than the exception", file=sys.stderr)
            made.append(json.dumps(record, ensure_ascii=False))
    path = corpus.CORPUS / f"release-{options.release}.jsonl.gz"
    kept = gzip.decompress(path.read_bytes()).decode().splitlines() if path.exists() and options.only else []
    lines = [line for line in kept if not json.loads(line)["group"].startswith(f"{options.only}: ")] + made
    lines.sort(key=lambda line: str(json.loads(line)["group"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))


main()
