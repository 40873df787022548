"""The promises of a store, and the work that a worker checks against them."""

from __future__ import annotations

from msgspec import Struct


class Traits(Struct, frozen=True):
    """The promises of a store. The contract suite tests exactly these."""

    name: str
    batch_max: int = 1000  # most messages in one call of put, exchange or extend
    body_bytes_max: int = 64 * 1024 * 1024
    blob_threshold: int | None = None  # bytes above which a body goes to blob storage; None: no blob storage
    inline_bytes_max: int | None = None  # limit for the data that never goes to a blob; None: the limit of a body
    delay_ms_max: int | None = None  # longest delay; None: unlimited
    names_bytes_max: int | None = None  # limit for queue and group, and for task and key, together; None: unlimited
    durable: bool = True  # an acknowledged put survives kill -9 of every process
    one_machine: bool = False  # all processes that use the store are on this machine: a power cut ends them too
    shared: bool = True  # several processes may use the store at once
    fenced: bool = True  # a stale receipt is refused
    atomic_moves: bool = True  # each settlement is one commit with its follow-ups and swaps
    counts_crashes: bool = True
    unique: bool = True
    exact_counts: bool = True  # False: counts and names of queues are approximate or out of date
    cells: bool = True  # False: reads find nothing; swaps, checkpoints and pauses raise Unsupported
    finds: bool = True  # False: finds only messages at rest and own claims; cannot list or cancel the other ones
    cancels: bool = True  # without `finds`: waiting and running messages can be cancelled, and found without body
    triages: bool = True  # False: dead messages are inaccessible: failure groups, triage and restore raise Unsupported
    groups_by: tuple[str, ...] | None = None  # fields by which failure groups are indexed; None: all fields of a filter
    keeps_done: bool = True  # False: an ack always removes the message, and no result is kept
    priorities: bool = True  # True: claims go by priority, then due time; False: in any order
    skips: bool = True  # False: a claim also returns messages of tasks that it asks to skip
    batches: bool = False  # True: the members of batches are counted; False: a message with a batch is refused
    takes_over: bool = False  # True: a put may take its key over from what does not wait; False: `waiting` is refused
    replaces: bool = False  # True: a put may replace what waits with its key; False: `replace` is refused
    hastens: bool = False  # True: what waits can be made due now; False: Hasten raises Unsupported
    edits: bool = False  # True: what waits can be changed; False: Edit raises Unsupported
    widths: bool = True  # False: no width, order or block of groups except those of the queue itself (FIFO); no list
    releases: bool = True  # False: messages of a dead worker are claimable only when their leases run out
    kept_bytes_max: int | None = None  # limit of a checkpoint or a result, if lower than the limit of a body
    tick_ms: int = 1  # the store rounds waits and leases up to multiples of this, so that none ends early
    read_only: str = ""  # why this handle cannot write: every write raises ReadOnly; empty: it can

    @property
    def state_bytes_max(self) -> int:
        """The size limit of a checkpoint or result, in bytes: neither goes to blob storage."""
        most = self.body_bytes_max if self.inline_bytes_max is None else self.inline_bytes_max
        return most if self.kept_bytes_max is None else min(most, self.kept_bytes_max)


class Work(Struct, frozen=True, kw_only=True):
    """The work planned on a queue: a task's policy in figures, for `Store.preflight`. A queue without tasks is a Work
    without a task name.

    `crash_cap`: crashes that quarantine a message; `longest_s`: the longest wait between its runs; `horizon_s`: the
    latest start of a retry after the first failure; `needs`: the features in use that need cells.
    """

    queue: str
    task: str = ""
    attempts: int = 1
    crash_cap: int = 3
    longest_s: float = 0.0
    horizon_s: float = 0.0
    timeout_s: float = 0.0
    needs: tuple[str, ...] = ()
