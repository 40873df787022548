"""Messages of a lane, by a selector, and the life of one. Retry and discard the dead, run now and cancel what waits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from ...errors import Refused
from ...message import RESTING, Cancel, Counts, Filter, Lane, Message
from ...present.done import done_of, done_text
from ...present.formats import state_word
from ...present.holds import holds_text
from ...present.messages import dead_message_row, message_row, reason_text
from ...present.story import story
from ...present.table import Column
from ...redact import redact_record
from ...status import run_now
from ...triage import pauses, task_pauses
from ...triage.select.parser import parse
from ...triage.select.terms import Term, as_node, both, exactly
from ..model import Model, TerminalReader
from ..screen import KeyAction, Screen, ScreenPage, ScreenRow, Text
from ..tones import Tone

SHOWN_MAX = 200  # the most messages that the screen lists
LOOKED_MAX = 2000  # the most waiting or done messages that are read to apply a filter
_LIBRARY = re.compile(r"site-packages|dist-packages|lib/python3|<frozen ")
LANES = (Lane.DEAD, Lane.QUARANTINE, Lane.READY, Lane.LEASED, Lane.DONE)
DEAD_COLUMNS = (
    Column("id"),
    Column("task", shrinks=True),
    Column("queue", shrinks=True, spare=1),
    Column("reason", show=reason_text),
    Column("attempt", spare=3),
    Column("redrives", spare=4),
    Column("error", shrinks=True, spare=2),
    Column("died_at", "died", spare=1),
    Column("text", shrinks=True),
)
_WAITING_COLUMNS = (
    Column("id"),
    Column("task", shrinks=True),
    Column("queue", shrinks=True),
    Column("state", None, state_word),
    Column("attempt", spare=1),
    Column("redrives", spare=3),
    Column("due_at", "due", spare=1),
    Column("enqueued_at", "enqueued", spare=2),
)


def dead_row(message: Message, now_ms: int) -> dict[str, Any]:
    """Return a dead message as a row. A damaged message gets its lane as its state, so that it can be discarded."""
    return {**dead_message_row(message, now_ms), "state": str(message.lane)}


def _about(row: ScreenRow) -> str:
    return f"message {row['id']}"


def _retry(model: Model, row: ScreenRow, reason: str) -> str:
    done = model.dlq.retry([row["id"]], reason=reason, actor=model.actor)
    if not done:
        raise Refused(f"message {row['id']} was not retried; it is not dead any more")
    return f"message {row['id']} is back in its queue"


def _discard(model: Model, row: ScreenRow, reason: str) -> str:
    done = model.dlq.discard([row["id"]], reason=reason, actor=model.actor)
    if not done:
        raise Refused(f"message {row['id']} was not discarded; it is not dead any more")
    return f"message {row['id']} is discarded"


def _run_now(model: Model, row: ScreenRow, reason: str) -> str:
    (answer,) = run_now(model.store, model.app, [row["id"]], actor=model.actor, reason=reason)
    if answer.result not in ("due", "held", "running"):
        raise Refused(f"message {row['id']} was not made due; {answer.text}")
    return f"message {row['id']}: {answer.text}"


def _cancel(model: Model, row: ScreenRow, reason: str) -> str:
    (word,) = pauses.cancel(model.store, [row["id"]], actor=model.actor, reason=reason)
    if word not in (Cancel.CANCELLED, Cancel.REQUESTED):
        raise Refused(f"message {row['id']} was not cancelled; the answer is {word}")
    return f"message {row['id']}: cancel {'requested' if word is Cancel.REQUESTED else 'done'}"


def _about_task(row: ScreenRow) -> str:
    return f"task {row['task']}"


def _pause_task(model: Model, row: ScreenRow, reason: str) -> str:
    task_pauses.pause_task(model.store, model.app, row["task"], reason=reason, for_=None, actor=model.actor)
    return f"task {row['task']} is paused until it is resumed; what runs goes on"


def _resume_task(model: Model, row: ScreenRow, reason: str) -> str:
    task_pauses.resume_task(model.store, model.app, row["task"], reason=reason, actor=model.actor)
    return f"task {row['task']} is resumed"


TASK_ACTS = (
    KeyAction("T", "pause task", _about_task, _pause_task),
    KeyAction("E", "end task's pause", _about_task, _resume_task, ends=True),
)


def _rests(row: ScreenRow) -> bool:
    return row["state"] in RESTING


def _waits(row: ScreenRow) -> bool:
    return row["state"] in ("ready", "scheduled", "parked", "leased")


ACTS = (
    KeyAction("R", "retry", _about, _retry, _rests),
    KeyAction("D", "discard", _about, _discard, _rests),
    KeyAction("N", "run now", _about, _run_now, lambda row: row["state"] == "scheduled"),
    KeyAction("C", "cancel", _about, _cancel, _waits),
)


class MessageList(NamedTuple):
    """The listed messages, the counts of all lanes, and True in `more` if there are more messages."""

    messages: Sequence[Message]
    counts: Counts
    more: bool


class MessagesScreen(Screen):
    """The messages of one lane, at first the dead ones; `l` changes to the next lane. The filter is a selector."""

    lane: Lane
    name: ClassVar[str] = "messages"
    asks_store: ClassVar[bool] = True
    acts = (*ACTS, *TASK_ACTS)

    def __init__(self) -> None:
        super().__init__()
        self.lane = Lane.DEAD

    @property
    def columns(self) -> Sequence[Column]:  # type: ignore[override]
        return DEAD_COLUMNS if self.lane in RESTING else _WAITING_COLUMNS

    @property
    def shifts(self) -> Mapping[str, str]:
        return {"l": "lane"}

    def shift(self, key: str) -> bool:
        if key == "l":
            self.lane = LANES[(LANES.index(self.lane) + 1) % len(LANES)]
        return key == "l"

    def check_filter(self, text: str) -> None:
        parse(text)

    def read(self, model: Model) -> MessageList:
        messages, more = self._resting(model) if self.lane in RESTING else self._others(model)
        return MessageList(messages, model.store.counts(), more)

    def _resting(self, model: Model) -> tuple[Sequence[Message], bool]:
        messages = list(model.dlq.select(self.chosen_by).messages(SHOWN_MAX + 1))
        return messages[:SHOWN_MAX], len(messages) > SHOWN_MAX

    def _others(self, model: Model) -> tuple[Sequence[Message], bool]:
        selection = model.select(self.filter, every=True)
        messages: list[Message] = []
        cursor, looked = None, 0
        while True:
            page = model.store.peek(self.lane, limit=SHOWN_MAX, cursor=cursor)
            messages += selection.matching(page.messages)
            cursor, looked = page.cursor, looked + len(page.messages)
            if cursor is None or len(messages) >= SHOWN_MAX or looked >= LOOKED_MAX:
                return messages[:SHOWN_MAX], cursor is not None

    @property
    def chosen_by(self) -> str:
        """The selector that matches the listed messages, for lanes at rest."""
        node = parse(self.filter)
        if self.lane is Lane.QUARANTINE and "lane:" not in self.filter:
            node = both((node, *_lane_term(self.lane)))
        return str(node)

    def page(self) -> ScreenPage:
        found: MessageList = self.reading
        counts = found.counts
        lanes = (("dead", counts.dead), ("quarantine", counts.quarantine), ("ready", counts.waiting))
        lanes_counted = [*lanes, ("leased", counts.leased), ("done", counts.done)]
        names = {name: f"{state_word(name)} {count:,}" for name, count in lanes_counted}
        head = "  ".join(f"[{text}]" if name == self.lane.value else text for name, text in names.items())
        note = f"the first {len(found.messages):,} that match; / narrows by a selector" if found.more else ""
        rows = [
            dead_row(message, self.now_ms) if self.lane in RESTING else message_row(message, self.now_ms)
            for message in found.messages
        ]
        return ScreenPage(rows, list(filter(None, [head, note])), f"no message is in the lane {state_word(self.lane)}")

    def look(self, row: ScreenRow) -> Screen:
        return MessageDetail(row["id"])

    def selector(self, row: ScreenRow | None) -> str | None:
        if self.lane is Lane.READY:  # the plan makes due what waits for its time
            node = parse(self.filter)
            return str(node if "lane:" in self.filter else both((exactly("lane", "scheduled"), node)))
        return self.chosen_by if self.lane in RESTING else None


def _lane_term(lane: Lane) -> tuple[Term, ...]:
    node = as_node(Filter(), lane)
    return (node,) if isinstance(node, Term) else ()


class MessageStory(NamedTuple):
    """A message's record and story, as `redrive job show` has them; the record is None if the message does not exist
    any more."""

    record: Mapping[str, Any] | None
    lines: Sequence[str]


def frame_tones(row: ScreenRow) -> Mapping[str, Tone]:
    """Return the tone of a line of a traceback: frames of libraries are quiet."""
    text = str(row["line"]).strip()
    return {"line": Tone.QUIET} if text.startswith('File "') and _LIBRARY.search(text) else {}


class MessageDetail(Text):
    """The life of a message, brief at first: the end of the last traceback. `t` shows every attempt with its whole
    traceback, and all fields."""

    acts = ACTS

    def __init__(self, message: str) -> None:
        super().__init__()
        self.message = message
        self.is_whole = False

    @property
    def shifts(self) -> Mapping[str, str]:
        return {"t": "end of traceback" if self.is_whole else "tracebacks"}

    def shift(self, key: str) -> bool:
        if key == "t":
            self.is_whole = not self.is_whole
        return key == "t"

    def tones(self, row: ScreenRow) -> Mapping[str, Tone]:
        return frame_tones(row)

    @property
    def title(self) -> str:
        return f"message {self.message[:23]}"

    def subject(self, row: ScreenRow | None) -> ScreenRow | None:
        record = None if self.reading is None else self.reading.record
        return None if record is None else {"id": self.message, "state": record["state"]}

    def selector(self, row: ScreenRow | None) -> str | None:
        subject = self.subject(row)
        if subject is None or not _rests(subject):
            return None
        return str(as_node(Filter(ids=(self.message,)), Lane(subject["state"])))

    def read(self, model: Model) -> MessageStory:
        from ...present.detail import message_detail

        (message,) = model.store.find([self.message])
        if message is None:
            gone = f"message {self.message} is not stored any more: "
            done = done_of(model.store, self.message)
            why = "it is done, or was discarded" if done is None else done_text(done, model.store.now_ms())
            return MessageStory(None, [gone + why])
        now_ms = model.store.now_ms()
        reader = TerminalReader(model.store, verbose=self.is_whole)
        record, holds, _ = message_detail(model.store, model.app, message, now_ms)
        return MessageStory(record, list(story(redact_record(record), reader, why=holds_text(holds, now_ms))))

    def lines(self) -> Sequence[str]:
        found: MessageStory = self.reading
        return found.lines
