"""A real terminal for a command: tmux on a socket of its own, which ends with the block."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.servers import program

PATIENCE_S = 60.0  # for what comes at once or never
LOOK_S = 0.05


class Terminal:
    """A command in a terminal of that size."""

    def __init__(
        self, folder: Path, words: Sequence[str], columns: int, lines: int, env: Mapping[str, str] | None = None
    ) -> None:
        self._tmux = [program("tmux", "tmux", "tmux"), "-S", str(folder / "tmux"), "-f", "/dev/null"]
        self._begin = ["new-session", "-d", "-x", str(columns), "-y", str(lines), "exec " + shlex.join(words)]
        self._folder, self._env = folder, {"TERM": "xterm-256color", "LANG": "C.UTF-8", **(env or os.environ)}

    def __enter__(self) -> Self:
        quiet = ["set", "-g", "status", "off"]  # it would take a line from the command after its start
        self._say("start-server", ";", "set", "-g", "remain-on-exit", "on", ";", *quiet, ";", *self._begin)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._say("kill-server")

    @property
    def pid(self) -> int:
        """The process of the command."""
        return int(self._say("list-panes", "-F", "#{pane_pid}"))

    @property
    def ended(self) -> bool:
        return self._say("list-panes", "-F", "#{pane_dead}").strip() == "1"

    @property
    def text(self) -> str:
        """What is on the screen."""
        return self._say("capture-pane", "-p")

    def press(self, *keys: str) -> None:
        """Press keys, by tmux's names."""
        self._say("send-keys", *keys)

    def type(self, text: str) -> None:
        self._say("send-keys", "-l", text)

    def resize(self, columns: int, lines: int) -> None:
        self._say("resize-window", "-x", str(columns), "-y", str(lines))

    def sees(self, *texts: str) -> str:
        """Wait until all of it is on the screen; the screen."""
        end_s = time.monotonic() + PATIENCE_S
        while not all(each in (text := self.text) for each in texts):
            assert time.monotonic() < end_s, f"{texts} not in:\n{text}"
            time.sleep(LOOK_S)
        return text

    def ends(self) -> None:
        """Wait until the command has ended."""
        end_s = time.monotonic() + PATIENCE_S
        while not self.ended:
            assert time.monotonic() < end_s, self.text
            time.sleep(LOOK_S)

    def _say(self, *words: str) -> str:
        done = subprocess.run(
            [*self._tmux, *words], cwd=self._folder, env=self._env, capture_output=True, text=True, timeout=30
        )
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout
