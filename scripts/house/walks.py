"""Walk a tree on each engine: private servers, and `walk.py` in a process of its own against each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tree import HERE

sys.path[:0] = [str(HERE), str(HERE / "src")]

from tests.support.servers import PostgresServer, RedisServer, memory_disk  # noqa: E402

WITHIN_S = 300
LOG = "log"

Walks = dict[str, list[tuple[str, str]]]  # a walk, and what it entered: file and function


def walks(src: Path, engines: Sequence[str]) -> dict[str, Walks]:
    """What each walk entered on each of these engines, which are walked side by side."""
    with ExitStack() as stack:
        folders = {engine: Path(stack.enter_context(tempfile.TemporaryDirectory())) for engine in engines}
        children = {engine: _start(stack, src.resolve(), engine, folder) for engine, folder in folders.items()}
        return {engine: _entered(engine, child, folders[engine]) for engine, child in children.items()}


def _start(stack: ExitStack, src: Path, engine: str, folder: Path) -> subprocess.Popen[str]:
    env = os.environ | {"PYTHONPATH": str(src), "XDG_STATE_HOME": str(folder)}
    command = [sys.executable, "-P", str(Path(__file__).with_name("walk.py")), str(src), _url(stack, engine)]
    log = stack.enter_context((folder / LOG).open("w"))  # a pipe that nobody reads would hold the child up
    child = subprocess.Popen(command, env=env, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True)
    stack.enter_context(child)
    stack.callback(child.kill)
    return child


def _url(stack: ExitStack, engine: str) -> str:
    if engine == "sqlite":
        return "sqlite:///walk.db"
    server: Any = PostgresServer if engine == "postgres" else RedisServer
    options = {} if engine == "postgres" else {"appendonly": True}
    while True:
        url = str(stack.enter_context(server(folder=memory_disk(), **options)).url)
        if "40" not in url.rpartition(":")[2]:  # a port with an encoded @ is searched for a password
            return url


def _entered(engine: str, child: subprocess.Popen[str], folder: Path) -> Walks:
    answer, _ = child.communicate(timeout=WITHIN_S)
    if child.returncode:
        sys.exit(f"house: the walk on {engine} failed:\n{(folder / LOG).read_text()[-4000:].rstrip()}")
    walks = json.loads(answer.splitlines()[-1])
    return {name: [(file, function) for file, function in each] for name, each in walks.items()}
