"""Processes whose wall clock is wrong."""

from __future__ import annotations

import glob


def clock(wrong: str) -> dict[str, str]:
    """The environment of a process whose wall clock is that much off, though not its monotonic one."""
    libraries = glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")  # noqa: PTH207  # of an absolute path
    assert libraries, "libfaketime is missing; on Linux these tests must run: install the package faketime"
    return {"LD_PRELOAD": libraries[0], "FAKETIME": wrong, "DONT_FAKE_MONOTONIC": "1", "FAKETIME_DONT_RESET": "1"}
