"""Read JSON lines: one pass that checks every line and computes the file's digest, before anything is enqueued.

A line is the bytes between two newlines, sent exactly as they are; a carriage return before the newline and a
byte-order mark at the start of the file are not part of it. Blank lines are left out.
"""

from __future__ import annotations

import contextlib
import filecmp
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from ..errors import ConfigError, Refused
from .spool import CHUNK, new_digest

LINE_MAX = 16 * 1024 * 1024  # most bytes of one line; a batch of lines is held in memory
BAD_SHOWN_MAX = 10
_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
Stamp = tuple[int, int]
_check = msgspec.json.Decoder(msgspec.Raw).decode


class FileLine(msgspec.Struct, frozen=True, gc=False):
    """A line that is not blank. For a bad one, `why` has the reason and `body` is empty. Offsets are in bytes."""

    number: int  # line number from 1, counting blank lines
    start: int
    end: int
    body: bytes
    why: str | None = None


class Checked(msgspec.Struct, frozen=True):
    """The result of checking a whole file. `first_bad` holds the first few bad lines."""

    digest: str
    good: int
    bad: int
    stamp: Stamp
    first_bad: tuple[FileLine, ...] = ()

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self.stamp[0]


def stamp(file: BinaryIO) -> Stamp:
    """Return the file's size and modification time; a change of the content changes them."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


def walk(
    file: BinaryIO, *, start: int = 0, number: int = 0, limit: int = LINE_MAX, feed: Callable[[bytes], object] = len
) -> Iterator[FileLine]:
    """Yield the lines of `file` after line `number`, which ends at byte `start`. `feed` gets every byte read."""
    file.seek(start)
    at = start
    while raw := file.readline(limit + 2):
        feed(raw)
        number, begin, at = number + 1, at, at + len(raw)
        why = None
        while not raw.endswith(b"\n") and len(raw) > limit:  # skip the rest of a line that is too long
            why = f"longer than {limit:,} bytes"
            rest = file.readline(CHUNK)
            feed(rest)
            at += len(rest)
            if not rest or rest.endswith(b"\n"):
                break
        body = raw.removesuffix(b"\n").removesuffix(b"\r")
        if begin == 0:
            body = body.removeprefix(_BOM)
        if why is None and not body.strip():
            continue
        why = why or _fault(body, limit)
        yield FileLine(number, begin, at, b"" if why else body, why)


def check(
    file: BinaryIO,
    *,
    limit: int = LINE_MAX,
    tick: Callable[[int], object] = bool,
    judge: Callable[[bytes], str | None] = lambda body: None,
) -> Checked:
    """Check every line, in one pass and constant memory. `tick` gets the number of bytes read so far, from time to
    time; `judge` returns why a line of valid JSON is bad, or None."""
    digest = new_digest()
    good = bad = at = 0
    first: list[FileLine] = []
    before = stamp(file)
    for line in walk(file, limit=limit, feed=digest.update):
        at = line.end
        if line.why is None and (why := judge(line.body)) is not None:
            line = msgspec.structs.replace(line, why=why)
        if line.why is None:
            good += 1
        else:
            bad += 1
            if len(first) < BAD_SHOWN_MAX:
                first.append(line)
        if (good + bad) % 1000 == 0:
            tick(at)
    return Checked(digest.hexdigest(), good, bad, before, tuple(first))


def _fault(body: bytes, limit: int) -> str | None:
    """Return why a line cannot be sent; None if it can."""
    if len(body) > limit:
        return f"longer than {limit:,} bytes"
    try:
        body.decode()
    except UnicodeDecodeError as error:
        hint = "; the file looks like UTF-16, save it as UTF-8" if body.startswith(_UTF16) else ""
        return f"not UTF-8: byte 0x{body[error.start]:02x} at column {error.start + 1}{hint}"
    try:
        _check(body)
    except RecursionError:
        return "not JSON that can be read: nested too deeply"
    except msgspec.DecodeError as error:
        return _json_fault(body, error)
    return None


def _json_fault(body: bytes, error: msgspec.DecodeError) -> str | None:
    """Return why the json module rejects the line, or None: the fast check also rejects lone surrogates."""
    try:
        json.loads(body, parse_constant=_refuse, parse_int=len, parse_float=len)
    except RecursionError:
        return "not JSON that can be read: nested too deeply"
    except json.JSONDecodeError as second:
        return f"not JSON: {second.msg[0].lower()}{second.msg[1:]} at column {second.pos + 1}"
    except ValueError:
        return f"not JSON: {error}"
    return None


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def write_bad(source: Path, target: Path, *, limit: int = LINE_MAX) -> None:
    """Copy the bad lines of `source`, byte by byte, into `target`, all or none.

    Raises Refused if `target` exists with another content: it may be a copy under repair.
    """
    if target.exists() and target.samefile(source):
        raise ConfigError(f"--skip-bad {target} is the input itself; name another file")
    with source.open("rb") as file, source.open("rb") as again, _beside(target) as out:
        for line in walk(file, limit=limit):
            if line.why is not None:
                _copy(again, out, line.start, line.end)
        out.flush()
        if target.exists() and not filecmp.cmp(out.name, target, shallow=False):
            raise Refused(f"--skip-bad {target} exists and holds other lines; move it away or name another file")
        Path(out.name).replace(target)


@contextlib.contextmanager
def _beside(target: Path) -> Iterator[Any]:
    with tempfile.NamedTemporaryFile(
        "wb", dir=target.absolute().parent, prefix=f".{target.name}.", delete=False
    ) as out:
        try:
            yield out
        finally:
            Path(out.name).unlink(missing_ok=True)


def _copy(source: BinaryIO, target: BinaryIO, start: int, end: int) -> None:
    source.seek(start)
    while start < end:
        part = source.read(min(CHUNK, end - start))
        target.write(part)
        start += len(part)
