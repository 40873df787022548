"""Copy input that cannot be read twice or by lines (standard input, a pipe, gzip), into a file first.

The copy is named by the digest of its content: the same input gives the same file.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import secrets
import sys
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import cast

from ..config import is_shared
from ..errors import RedriveError
from ..files import NotOurs, create, make_folder

CHUNK = 1024 * 1024
# Limits of unpacked gzip: UNPACKED_MIN bytes, or UNPACKED_TIMES the packed size. A file above both was probably made to
# fill a disk. JSON lines unpack to 10 to 30 times their size, one line repeated to 1,000 times.
UNPACKED_MIN, UNPACKED_TIMES = 256 * CHUNK, 100
_GZIP = b"\x1f\x8b"


class TooPacked(Exception):
    """A gzip file unpacks to more than the limit."""


class _Counting(io.RawIOBase):
    """A reader of `source` that counts the bytes read."""

    def __init__(self, source: BufferedReader) -> None:
        self._source, self.count = source, 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        part = self._source.read(size)
        self.count += len(part)
        return part


class InputError(RedriveError):
    """The input is unreadable: missing, a folder, or a broken archive. Nothing was enqueued."""


def readable(name: str, folder: Path) -> Path:
    """Return the plain file to read lines from: `name` itself, or its copy in `folder` if it is `-`, packed or a pipe.

    Gzip is recognized by its first bytes. Raises InputError.
    """
    try:
        if name == "-":
            return _spool(cast(BufferedReader, sys.stdin.buffer), folder)
        path = Path(name)
        with path.open("rb") as file:
            if path.is_file() and not _is_packed(file):
                return path
            return _spool(file, folder)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{name} is not a whole gzip file: {error}; nothing was enqueued") from error
    except TooPacked as error:
        raise InputError(f"{name} is refused: {error}; nothing was enqueued") from None
    except NotOurs as error:
        raise InputError(f"cannot copy {name} into {error.filename}: {error.strerror}; nothing was enqueued") from error
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror or error}; nothing was enqueued") from error


def spool_path(folder: Path, digest: str) -> Path:
    """Return the path of the copy of an input with that digest."""
    return folder / f"{digest}.jsonl"


def new_digest() -> hashlib.blake2b:
    """Return a new digest to name an input: 128 bits of BLAKE2b over its unpacked bytes."""
    return hashlib.blake2b(digest_size=16)


def _spool(source: BufferedReader, folder: Path) -> Path:
    make_folder(folder, shared=is_shared())
    _sweep(folder)
    digest = new_digest()
    partial = folder / f"{os.getpid()}.{secrets.token_hex(6)}.partial"
    try:
        with os.fdopen(create(partial, shared=is_shared()), "wb") as out:
            for part in _unpack(source):
                digest.update(part)
                out.write(part)
        return partial.rename(spool_path(folder, digest.hexdigest()))
    finally:
        partial.unlink(missing_ok=True)


def _unpack(source: BufferedReader) -> Iterator[bytes]:
    if _is_packed(source):
        counting = _Counting(source)
        size = 0
        with gzip.open(counting) as unpacked:
            for part in iter(lambda: unpacked.read(CHUNK), b""):
                size += len(part)
                if size > max(UNPACKED_MIN, UNPACKED_TIMES * counting.count):
                    raise TooPacked(
                        f"it unpacks to more than {UNPACKED_TIMES} times its size, {size / 1e6:,.0f} MB so far; where "
                        "that is meant, unpack it yourself (gunzip -c FILE | redrive deliver -)"
                    )
                yield part
    else:
        yield from iter(lambda: source.read(CHUNK), b"")


def _is_packed(source: BufferedReader) -> bool:
    return source.peek(len(_GZIP)).startswith(_GZIP)


def _sweep(folder: Path) -> None:
    """Remove the partial copies that killed processes left in the folder."""
    for partial in folder.glob("*.partial"):
        try:
            os.kill(int(partial.name.partition(".")[0]), 0)
        except (ProcessLookupError, ValueError):
            partial.unlink(missing_ok=True)
        except OSError:
            pass  # another user's live process writes the partial copy
