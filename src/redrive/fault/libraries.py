"""Distinguish the files of libraries from a program's own."""

from __future__ import annotations

import os
import re
from functools import lru_cache

_FILES_MAX = 4_096  # most file names whose library is cached

_STDLIB = os.__file__.rpartition(os.sep)[0] + os.sep
# Code compiled by Cython has a relative file name; code made at run time has a name in angle brackets.
_LIBRARY = (
    r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python\d"
    r"|^<(?:frozen |string>|unknown>|.* generated )|^(?![/\\<]|[A-Za-z]:)"
)


@lru_cache(maxsize=_FILES_MAX)
def is_library(filename: str) -> bool:
    """Return True if the file belongs to a library or to Python itself, or was made at run time."""
    return filename.startswith(_STDLIB) or re.search(_LIBRARY, filename) is not None


def package(filename: str, qualname: str) -> str:
    """Return the library that a library's file belongs to; not the file, since releases split and join files."""
    if filename.endswith((".pyx", ".pxi", ".pxd")) or re.match(r"[/\\<]|[A-Za-z]:", filename) is None:
        return qualname.partition(".")[0]  # Cython: names are fully qualified, and files may be anywhere
    if filename[0] == "<":
        return filename
    inner = re.split(
        r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python\d[.\d]*[/\\](?![sd]i[a-z]+-packages)",
        filename.removeprefix(_STDLIB),
    )[-1]
    return re.split(r"[/\\.]", inner, maxsplit=1)[0]
