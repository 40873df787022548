"""Tests compiled once, with their asserts rewritten, before the processes start that would each do it at the same time.

pytest keeps what it rewrote, but has no call that only writes: the two functions are its own, within the versions that
pyproject.toml allows.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from _pytest.assertion.rewrite import PYC_TAIL, _read_pyc, _rewrite_test, _write_pyc, assertstate_key, get_cache_dir


def rewrite(config: pytest.Config, folder: Path) -> None:
    """Write what pytest would keep of each file of tests in the folder, where that is not there yet."""
    state = config.stash[assertstate_key]
    for path in folder.rglob("*.py"):
        cache = get_cache_dir(path)
        kept = cache / f"{path.stem}{PYC_TAIL}"
        if _read_pyc(path, kept) is None:
            stat, code = _rewrite_test(path, config)
            cache.mkdir(parents=True, exist_ok=True)
            _write_pyc(state, code, stat, kept)
