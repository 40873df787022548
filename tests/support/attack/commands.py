"""Commands called in this process, and all that they say."""

from __future__ import annotations

import contextlib
import io
from typing import NamedTuple

from redrive.program.main import run


class Said(NamedTuple):
    """Exit code, stdout, and stderr behind it."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


class Stream(io.TextIOWrapper):
    """What a command writes to."""

    def __init__(self, terminal: bool) -> None:
        self._terminal, self._bytes = terminal, io.BytesIO()
        super().__init__(self._bytes, encoding="utf-8", newline="", write_through=True)

    def isatty(self) -> bool:
        return self._terminal

    @property
    def text(self) -> str:
        return self._bytes.getvalue().decode()


def command(*words: str, terminal: bool = False) -> Said:
    """What the command says, to a terminal or to pipes."""
    out, err = Stream(terminal), Stream(terminal)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(words)
    return Said(code, out.text, err.text)
