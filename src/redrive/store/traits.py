"""The promises of a store, and the work that a worker checks against them."""

from __future__ import annotations

from msgspec import Struct


class Traits(Struct, frozen=True):
    """The promises of a store. The contract suite tests exactly these."""

    name: str
    batch_max: int = 1000  # messages per call of put, exchange or extend
    body_bytes_max: int = 64 * 1024 * 1024
    blob_threshold: int | None = None  # larger bodies go to blob storage; None: no blob storage
    inline_bytes_max: int | None = None  # limit for data that is always stored with the message; None: as for a body
    delay_ms_max: int | None = None  # longest delay; None: unlimited
    names_bytes_max: int | None = None  # of queue and group, and of task and key, together; None: unlimited
    durable: bool = True  # an acknowledged put survives kill -9 of every process
    one_machine: bool = False  # all processes that use it are on this machine, so a power cut ends them with it
    shared: bool = True  # several processes may use the store at once
    fenced: bool = True  # a stale receipt is refused
    atomic_moves: bool = True  # each settlement is one commit with its follow-ups and swaps
    counts_crashes: bool = True
    unique: bool = True
    exact_counts: bool = True  # False: counts and queue names are approximate, or delayed
    cells: bool = True  # False: reads find nothing; swaps, checkpoints and pauses raise Unsupported
    finds: bool = True  # False: finds only messages at rest and own claims, and cannot list or cancel the rest
    cancels: bool = True  # without `finds`: waiting and running messages are found by id, without body, and cancelled
    triages: bool = True  # False: dead messages are inaccessible: failure groups, triage and restore raise Unsupported
    groups_by: tuple[str, ...] | None = None  # fields by which failure groups are indexed; None: all fields of a filter
    keeps_done: bool = True  # False: an ack always removes the message; no result is kept
    priorities: bool = True  # claims go by priority, then due time; False: in any order
    skips: bool = True  # False: messages of skipped tasks are delivered anyway
    widths: bool = True  # False: no group width, order or block except that of the queue itself (FIFO); no list
    releases: bool = True  # False: claims of a dead worker return when their leases run out
    kept_bytes_max: int | None = None  # limit of a checkpoint or result, if lower than that of a body
    tick_ms: int = 1  # waits and leases are rounded up to whole ticks, so nothing is early
    read_only: str = ""  # why this handle is read-only; then every write raises ReadOnly

    @property
    def state_bytes_max(self) -> int:
        """The largest checkpoint or result, in bytes: neither goes to blob storage."""
        most = self.body_bytes_max if self.inline_bytes_max is None else self.inline_bytes_max
        return most if self.kept_bytes_max is None else min(most, self.kept_bytes_max)


class Work(Struct, frozen=True, kw_only=True):
    """The work planned on a queue: a task's policy in figures, for `Store.preflight`. A queue without tasks is a Work
    without a task name.

    `crash_cap`: crashes that quarantine a message; `longest_s`: the longest wait between two of its runs; `horizon_s`:
    the latest start of a retry after the first failure; `needs`: the features in use that need cells.
    """

    queue: str
    task: str = ""
    attempts: int = 1
    crash_cap: int = 3
    longest_s: float = 0.0
    horizon_s: float = 0.0
    timeout_s: float = 0.0
    needs: tuple[str, ...] = ()
