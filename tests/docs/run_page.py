"""Run the blocks of one page, in their order, in the working directory: `python -m tests.docs.run_page PAGE`.

A process of its own per page, so that pages share no modules, no signal handlers and no event loop. Blocks of Python
share one namespace; one with a file's name is written, and if it is Python imported at once, unless a command of the
page names the file or its module. It ends at the first block that fails, with exit code 1.
"""

from __future__ import annotations

import configparser
import contextlib
import doctest
import importlib
import io
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tomllib
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.docs.endpoint import serving as endpoint
from tests.docs.in_fork import is_plain, printed_by
from tests.docs.pages import ROOT, RUN, Block, blocks
from tests.docs.policies import findings_of
from tests.docs.servers import placed
from tests.docs.servers import serving as servers
from tests.docs.transcript import Command, commands, matched, substituted

COMMAND_S = 60.0
EVENTS = b"".join(b'{"event": "order.paid", "order": %d}\n' % number for number in (1, 2, 3))
RUNBOOKS = Path("docs/runbooks")
SHOWN_MAX = 80  # lines of what a failed command printed
PORTS = ("8000", "9464", "4566")  # on pages; each stands for a free one
_SITE = re.compile(r"https://(?:[a-z]+\.)?example\.com")


class Failed(Exception):
    """A block does not do what its page says."""


class PageRun:
    """What the blocks of a page share: a namespace, the samples' meanings, the last output, processes to end."""

    def __init__(self, base_url: str, servers: Mapping[str, str], page: list[Block], *, forks: bool = False) -> None:
        self.base_url, self.servers, self.forks = base_url, servers, forks
        self.typed = "".join(block.text for block in page if block.language == "console")
        self.ports = {port: str(_free_port()) for port in PORTS}
        self.namespace: dict[str, Any] = {"__name__": "page"}
        self.known: dict[str, str] = {}
        self.printed = ""
        self.background: list[subprocess.Popen[bytes]] = []

    def run(self, block: Block) -> None:
        """Run one block. Raises what its code raises, or Failed."""
        text = self._here(block.text)
        if block.language in ("console", "output"):
            self._kinds()[block.language](text, block)
            return
        with contextlib.redirect_stdout(io.StringIO()) as out:
            if block.file is not None:
                self._write(block.file, text)
            if block.file is None or block.language in ("json", "ini", "yaml", "dockerfile"):
                self._kinds()[block.language](text, block)
        self.printed = out.getvalue()

    def _here(self, text: str) -> str:
        """The text with what holds while it runs: our endpoint's address, the working directory, free ports."""
        text = placed(_SITE.sub(self.base_url, text).replace("/srv/app", str(Path.cwd())), self.servers)
        for port, free in self.ports.items():
            text = re.sub(rf"(?<![\w-]){port}(?![\w-])", free, text)
        return text

    def _kinds(self) -> dict[str, Callable[[str, Block], None]]:
        return {
            "python": self._python,
            "console": self._console,
            "output": self._output,
            "toml": lambda text, block: _ignore(tomllib.loads(text)),
            "json": lambda text, block: _ignore(json.loads(text)),
            "ini": lambda text, block: configparser.ConfigParser(strict=False).read_string(text),
            "yaml": _yaml,
            "dockerfile": _dockerfile,
        }

    def _write(self, name: str, text: str) -> None:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        module = ".".join(path.with_suffix("").parts)
        if path.suffix == ".py" and not re.search(
            rf"(?<![\w.]){re.escape(module)}(?!\w)|{re.escape(name)}", self.typed
        ):
            sys.modules.pop(module, None)
            importlib.invalidate_caches()
            importlib.import_module(module)
        elif path.suffix == ".toml":
            tomllib.loads(text)

    def _python(self, text: str, block: Block) -> None:
        if text.lstrip().startswith(">>>"):
            self._doctest(text, block)
        else:
            exec(compile("\n" * block.line + text, ROOT / block.page, "exec"), self.namespace)

    def _doctest(self, text: str, block: Block) -> None:
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        example = doctest.DocTestParser().get_doctest(text.replace("…", "..."), {}, block.place, block.page, block.line)
        example.globs = self.namespace
        said: list[str] = []
        result = doctest.DocTestRunner(optionflags=flags).run(example, out=said.append, clear_globs=False)
        if result.failed:
            raise Failed("".join(said))

    def _output(self, text: str, block: Block) -> None:
        self._compare(tuple(text.splitlines()), self.printed, "the block above")

    def _console(self, text: str, block: Block) -> None:
        for command in commands(text):
            if command.text.startswith("pip install "):
                _check_install(command.text)
            elif command.text.endswith(" &"):
                self._start(command)
            elif self.forks and is_plain(command.text):
                text = substituted(command.text, self.known)
                self._compare(command.shown, printed_by(text), f"`{text}`")
            else:
                self._call(command)

    def _start(self, command: Command) -> None:
        text = substituted(command.text, self.known).removesuffix(" &")
        argv = ["bash", "-c", f"exec {text}"]
        self.background.append(subprocess.Popen(argv, stdout=subprocess.DEVNULL, start_new_session=True))

    def _call(self, command: Command) -> None:
        text = substituted(command.text, self.known)
        with subprocess.Popen(
            ["bash", "-c", text], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        ) as process:
            printed = "" if command.stop_after is None else _until_shown(process, command.stop_after)
            try:
                rest, _ = process.communicate(timeout=COMMAND_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise Failed(f"`{text}` took more than {COMMAND_S:g} s") from None
        self._compare(command.shown, printed + rest, f"`{text}`")

    def _compare(self, shown: tuple[str, ...], printed: str, what: str) -> None:
        """Where a page shows nothing, nothing is compared: but a traceback is never meant."""
        if not shown:
            if "Traceback (most recent" in printed or "\nerror: " in f"\n{printed}":
                raise Failed(f"{what} failed:\n{_cut(printed)}")
            return
        found = matched(shown, printed, self.known)
        if found is None:
            raise Failed(f"{what} prints\n\n{_cut(printed)}\nbut the page shows\n\n" + "\n".join(shown))
        self.known = found

    def close(self) -> None:
        for process in self.background:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(COMMAND_S)


def _until_shown(process: subprocess.Popen[str], lines: int) -> str:
    """Read as many lines as the page shows before `^C`, then press it."""
    assert process.stdout is not None
    printed = "".join(process.stdout.readline() for _ in range(lines))
    os.killpg(process.pid, signal.SIGINT)
    return printed


def _cut(printed: str) -> str:
    lines = printed.splitlines(keepends=True)
    return "".join(lines[:SHOWN_MAX]) + (
        f"… and {len(lines) - SHOWN_MAX} lines more\n" if len(lines) > SHOWN_MAX else ""
    )


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _check_install(command: str) -> None:
    """What a page tells people to install must be there to install."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for word in shlex.split(command)[2:]:
        name, _, extras = word.partition("[")
        unknown = {e for e in extras.rstrip("]").split(",") if e} - set(project["optional-dependencies"])
        if name != project["name"] or unknown:
            raise Failed(f"`{command}`: {word} is not {project['name']} with extras it has")


def _yaml(text: str, block: Block) -> None:
    import yaml

    yaml.safe_load(text)


def _dockerfile(text: str, block: Block) -> None:
    """Each line is an instruction, and what is to be executed is a list: a shell would keep signals to itself."""
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word not in ("FROM", "WORKDIR", "COPY", "RUN", "USER", "ENV", "CMD"):
            raise Failed(f"{word} is not an instruction")
        if word == "CMD":
            json.loads(rest)


def _ignore(value: object) -> None:
    """Parsing was the point."""


def runbook_of(page: str) -> str | None:
    """The name of a page that wants a store in a certain state: `docs/runbooks/backlog.md` is `backlog`."""
    path = Path(page)
    return path.stem if path.parent == RUNBOOKS and path.stem != "index" else None


def main(page: str) -> int:
    sys.path.insert(0, str(Path.cwd()))
    Path("events.jsonl").write_bytes(EVENTS)  # what pages may take for granted
    found = blocks(page)
    run_text = "".join(block.text for block in found if block.why_not is None and block.language in RUN)
    runbook = runbook_of(page)
    if runbook is not None:
        importlib.import_module("tests.docs.states").make(runbook)
    with endpoint() as base_url, servers(run_text) as places:
        run = PageRun(base_url, places, found, forks=runbook is not None)
        try:
            for block in found:
                if block.why_not is None and block.language != "text":
                    try:
                        run.run(block)
                    except BaseException as error:
                        print(f"{block.place}: this block fails\n")
                        print(str(error) if isinstance(error, Failed) else traceback.format_exc())
                        return 1
            problems = findings_of(page, found, run.namespace)
            print("\n".join(problems))
        finally:
            run.close()
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
