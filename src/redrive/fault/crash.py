"""Turn the death of a process into a fault of the messages that were started in it."""

from __future__ import annotations

from hashlib import blake2b

from .model import Crash, Fault, Kind

STARTED_MAX = 20  # most ids that a Crash lists
ERROR = "ProcessDied"
_MIB = 1024 * 1024


def crash_fault(crash: Crash, at_ms: int = 0) -> Fault:
    """Return the fault of a crash: kind `crashed`, a text for people, one fingerprint per cause, signal and exit code.

    >>> print(crash_fault(Crash(cause="signal", signal="SIGSEGV", peak_bytes=2**29, run_s=1.25, alone=True)).text)
    killed by SIGSEGV after 1.2 s, peak memory 512 MiB; alone in its process
    """
    way = f"{ERROR}/{crash.cause}/{crash.signal}/{crash.code}"
    return Fault(
        Kind.CRASHED,
        error=ERROR,
        text=_text(crash),
        fingerprint=blake2b(way.encode(), digest_size=8).hexdigest(),
        errors=(ERROR,),
        at_ms=at_ms,
        worker=crash.worker,
        crash=crash,
    )


def _text(crash: Crash) -> str:
    """Return the evidence of a crash in one line, the ids of other messages last, since they are long."""
    how = _how(crash) + ("" if crash.run_s is None else f" after {crash.run_s:.1f} s")
    if crash.peak_bytes is not None:
        how += f", peak memory {crash.peak_bytes / _MIB:.0f} MiB"
    parts = [how, _company(crash)]
    if crash.worker:
        parts.append(f"worker {crash.worker}" + (f" on {crash.host}" if crash.host else ""))
    if crash.started and not crash.alone:
        more = crash.started_count - len(crash.started)
        parts.append("started: " + ", ".join(crash.started) + (f" and {more} more" if more > 0 else ""))
    return "; ".join(part for part in parts if part)


def _how(crash: Crash) -> str:
    by = f"killed by {crash.signal}" if crash.signal else "killed"
    match crash.cause:
        case "signal":
            return by
        case "exit":
            return f"ended its process with exit code {crash.code}"
        case "hung":
            return f"hung; its process was {by}"
        case "timeout":
            return f"ran past its timeout; its process was {by}"
        case "memory":
            return "ran out of memory" if not crash.signal else f"ran out of memory; its process was {by}"
        case "lease":
            return "its lease ran out unsettled: the worker died, or could not renew it"
        case _:
            return "its process died; how is not known"


def _company(crash: Crash) -> str:
    if crash.alone:
        return "alone in its process"
    count = max(crash.started_count, len(crash.started))
    if count <= 1:
        return "the only message that had been started in its process" if count else ""
    return f"{count} messages had been started in its process"
