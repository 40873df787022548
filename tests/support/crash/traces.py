"""System calls of a process, traced and ended at one of them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path

from tests.support.crash.children import run, strace
from tests.support.crash.programs import Plan

CALLS = "pwrite64,fdatasync,fsync,ftruncate,unlink"  # all by which SQLite changes or syncs a file


class Trace:
    """The write and sync calls of the busiest thread of an undisturbed run, in order: (name, how many-th of it)."""

    def __init__(self, log: Path) -> None:
        calls: dict[str, list[tuple[str, int]]] = defaultdict(list)
        seen: Counter[tuple[str, str]] = Counter()
        for thread, name in re.findall(r"^(\d+) +(\w+)\(", log.read_text(), re.M):
            seen[thread, name] += 1
            calls[thread].append((name, seen[thread, name]))
        self.calls = max(calls.values(), key=len)


def traced(role: str, plan: Plan) -> Trace:
    log = Path(plan.place) / "strace.log"
    assert run(role, plan, under=strace("--seccomp-bpf", "-o", str(log), "-e", f"trace={CALLS}")) == 0
    return Trace(log)


def killed_at(role: str, plan: Plan, call: tuple[str, int]) -> int:
    name, nth = call
    log = Path(plan.place) / "strace.log"
    return run(
        role,
        plan,
        under=strace("-o", str(log), "-e", f"trace={CALLS}", "-e", f"inject={name}:signal=SIGKILL:when={nth}"),
    )
