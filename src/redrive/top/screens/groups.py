"""Failure groups, the largest first, and the dead messages of one group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ...crypto import shown_text
from ...message import Filter, Message
from ...present.formats import listed, timestamp
from ...present.groups import growth_text, task_group_record
from ...present.spark import spark
from ...present.table import Column, relative
from ...redact import joined
from ...triage.annotations import NOTHING, Annotation, read_annotations
from ...triage.deaths import STEPS, DeathStep, recent_deaths
from ...triage.select.terms import as_node
from ..model import Model
from ..screen import KeyAction, Screen, ScreenPage, ScreenRow
from ..texts import COUNTS, count
from ..tones import Tone
from .messages import ACTS, DEAD_COLUMNS, SHOWN_MAX, TASK_ACTS, MessageDetail, dead_row, frame_tones

if TYPE_CHECKING:
    from ...message import FailureGroup


class GroupNotes(NamedTuple):
    """Failure groups, their annotations by fingerprint, and by that the deaths in the steps of the last hour."""

    groups: Sequence[FailureGroup]
    about: Mapping[str, Annotation]
    deaths: Mapping[str, Sequence[int]]


def _said(of: Annotation, now_ms: int) -> str | None:
    """Return the annotations of a group in a few words; None if there are none."""
    rule = f"rule {of.rule.kind}" if of.rule is not None else ""
    muted = " or ".join(filter(None, (f"muted until {timestamp(of.muted_until_ms)}", growth_text(of))))
    muted = muted if of.muted(now_ms) else ""
    owner = f"owner {of.owner}" if of.owner else ""
    return "; ".join(filter(None, [of.state.word, rule, muted, owner, of.note])) or None


def _about(row: ScreenRow) -> str:
    return f"failure group {row['fingerprint']}"


def _resolve(model: Model, row: ScreenRow, reason: str) -> str:
    model.dlq.resolve(row["fingerprint"], actor=model.actor, reason=reason)
    return f"failure group {row['fingerprint']} is resolved; a new death of it is a need"


def _reopen(model: Model, row: ScreenRow, reason: str) -> str:
    model.dlq.reopen(row["fingerprint"], actor=model.actor, reason=reason)
    return f"failure group {row['fingerprint']} is open again"


class GroupsScreen(Screen):
    reads: bool
    studies: bool

    name: ClassVar[str] = "groups"
    columns: tuple[Column, ...] = (
        Column("count"),
        Column("error", shrinks=True),
        Column("task", shrinks=True),
        Column("trend"),
        Column("drawn", "deaths 1h", spare=2),
        Column("recent", "last 10m", spare=3),
        Column("last_at", "last", spare=1),
        Column("text", shrinks=True, spare=1),
        Column("said", "note", shrinks=True, spare=1),
    )
    acts = (
        KeyAction("S", "resolve", _about, _resolve, lambda row: row["state"] != "resolved"),
        KeyAction("O", "reopen", _about, _reopen, lambda row: bool(row["state"]), ends=True),
        *TASK_ACTS,
    )
    reads, studies = False, True
    toned: ClassVar[Sequence[str]] = ("trend",)

    def __init__(self) -> None:
        super().__init__()
        self._steps: dict[int, DeathStep] = {}  # those of the last hour that are over

    def study(self, model: Model) -> GroupNotes:
        groups = model.dlq.groups(trend=True)
        about = _annotations(model, [each.fingerprint for each in groups[:500]])
        return GroupNotes(groups, about, recent_deaths(model.store, known=self._steps) if groups else {})

    def page(self) -> ScreenPage:
        studied: GroupNotes = self.studied
        dead = sum(each.count for each in studied.groups)
        head = [f"{count(dead, 'dead message')} in {count(len(studied.groups), 'failure group')}"]
        rows = [
            self._row(each, studied.about.get(each.fingerprint, NOTHING), studied.deaths.get(each.fingerprint, ()))
            for each in studied.groups
        ]
        return ScreenPage(rows, head, "nothing is dead")

    def _row(self, group: FailureGroup, about: Annotation, deaths: Sequence[int]) -> dict[str, Any]:
        row = task_group_record(group)
        drawn = spark(deaths or [0] * STEPS).replace(" ", "·")
        noted = {"said": _said(about, self.now_ms), "state": about.state.word, "drawn": drawn}
        return {"id": f"{group.fingerprint}/{group.task}", **row, **noted}

    def look(self, row: ScreenRow) -> Screen:
        return GroupDetail(row["fingerprint"], row["task"])

    def selector(self, row: ScreenRow | None) -> str | None:
        return None if row is None else group_selector(row["fingerprint"], row["task"])


def group_selector(fingerprint: str, task: str) -> str:
    """Return the selector of a group's dead messages of this task."""
    return str(as_node(Filter(task=task, fingerprint=fingerprint)))


def _annotations(model: Model, fingerprints: Sequence[str]) -> Mapping[str, Annotation]:
    return read_annotations(model.store, fingerprints) if model.store.traits.cells else {}


class GroupReading(NamedTuple):
    """A group by its tasks, its annotations, and its oldest dead messages."""

    groups: Sequence[FailureGroup]
    about: Annotation
    dead: Sequence[Message]


class GroupDetail(Screen):
    reads: bool
    studies: bool
    fingerprint: str
    task: str

    is_open: bool
    reads, studies = False, True

    def __init__(self, fingerprint: str, task: str) -> None:
        super().__init__()
        self.fingerprint, self.task = fingerprint, task
        self.is_open = False  # True: the traceback is shown, not the messages

    @property
    def acts(self) -> Sequence[KeyAction]:  # type: ignore[override]
        return () if self.is_open else ACTS

    @property
    def columns(self) -> Sequence[Column]:  # type: ignore[override]
        return () if self.is_open else (*DEAD_COLUMNS[:1], *DEAD_COLUMNS[2:])

    @property
    def shifts(self) -> Mapping[str, str]:
        return {"t": "messages" if self.is_open else "traceback"}

    def shift(self, key: str) -> bool:
        if key == "t":
            self.is_open = not self.is_open
        return key == "t"

    def tones(self, row: ScreenRow) -> Mapping[str, Tone]:
        return frame_tones(row) if self.is_open else super().tones(row)

    @property
    def title(self) -> str:
        return f"group {self.fingerprint[:12]}"

    def study(self, model: Model) -> GroupReading:
        chosen = model.dlq.select(group_selector(self.fingerprint, self.task))
        about = _annotations(model, [self.fingerprint]).get(self.fingerprint, NOTHING)
        return GroupReading(chosen.groups(trend=True), about, list(chosen.messages(SHOWN_MAX)))

    def page(self) -> ScreenPage:
        deep: GroupReading = self.studied
        if self.is_open:
            lines = enumerate(_traceback(deep.dead, self.now_ms))
            return ScreenPage([{"id": str(n), "line": each} for n, each in lines])
        rows = [dead_row(message, self.now_ms) for message in deep.dead]
        head: list[str] = [joined(self.task, f": fingerprint {self.fingerprint}")]
        for group in deep.groups:
            head.append(f"{group.count:,} × {group.error}, {group.trend}; {group.hour:,} in the last hour")
        head += [f"  {text}" for text in _texts(rows)]
        if said := _said(deep.about, self.now_ms):
            head.append(said)
        some = sum(group.count for group in deep.groups) > len(deep.dead)
        of = f"queues of the {len(deep.dead):,} below " if some else "queues "
        head.append(of + listed(_by_queue(deep.dead), COUNTS) if deep.dead else "")
        return ScreenPage(rows, head[:8], "none of it is dead any more")

    def look(self, row: ScreenRow) -> Screen | None:
        return None if self.is_open else MessageDetail(row["id"])

    def selector(self, row: ScreenRow | None) -> str | None:
        return group_selector(self.fingerprint, self.task)


def _traceback(dead: Sequence[Message], now_ms: int) -> Iterator[str]:
    """Yield the whole traceback of the last of these messages that has one, with the exceptions that led to it."""
    told = next((message for message in reversed(dead) if message.faults and message.faults[-1].traceback), None)
    if told is None:
        yield "no traceback is kept of these messages"
        return
    yield f"traceback of {told.id}, dead {relative(timestamp(told.rested_ms) or '', now_ms)}"
    yield ""
    yield from shown_text(told.faults[-1].traceback).splitlines()


def _texts(rows: Sequence[ScreenRow]) -> Sequence[str]:
    """Return the three most frequent texts of failures in these rows."""
    counts = Counter(str(row["text"]) for row in rows if row["text"])
    return [text for text, _ in counts.most_common(3)]


def _by_queue(messages: Sequence[Message]) -> Mapping[str, int]:
    queues = [message.queue for message in messages]
    return {name: queues.count(name) for name in dict.fromkeys(queues)}
