"""`advance` with random graphs of steps, and whatever becomes of their members."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from redrive.batch.advance import Advance, advance
from redrive.batch.parts import Part, Seen, Tolerance
from redrive.batch.state import BatchPhase, BatchState
from redrive.message import BatchCounts, Draft
from redrive.stores.batches import moved

LIST = 3  # members of a stored list


class World:
    """A workflow in a store: its state, and for each step where its members are, as `follow` and a store keep them."""

    def __init__(self, parts: tuple[Part, ...]) -> None:
        callbacks = (Draft(task="success"), Draft(task="complete"), Draft(task="death"))
        self.state = BatchState("b", "flow", 0, *callbacks, sealed=True, parts=parts)
        self.counts = {part.name: BatchCounts() for part in parts}
        self.put = Counter[str]()
        self.lists = Counter[str]()
        self.told = Counter[str]()

    def seen(self) -> dict[str, Seen]:
        made = {}
        for part in self.state.parts:
            counts = self.counts[part.name]
            made[part.name] = Seen(counts, counts.open > 0, part.is_over(counts))
        return made

    def decide(self) -> Advance:
        return advance(self.state, BatchCounts(), 5, self.seen())

    def look(self) -> None:
        """Follow the workflow until nothing is due."""
        while True:
            before, made = self.state, self.decide()
            if made.state.feeding is None and made.state == before:
                assert not made.steps and not made.callbacks
                return
            self.state = made.state
            for draft in made.callbacks:
                self.told[draft.task] += 1
            for draft in made.steps:
                self.begin(draft.task, before)
                self.put[draft.task] += 1
                self.open(draft.task, 1)
            feeding = made.state.feeding
            if feeding is not None:
                self.begin(feeding.name, before)
                self.lists[feeding.name] += 1
                self.open(feeding.name, LIST)
                fed = tuple(replace(p, put=p.put + 1) if p is feeding else p for p in made.state.parts)
                self.state = replace(made.state, parts=fed)

    def begin(self, name: str, before: BatchState) -> None:
        (part,) = (part for part in self.state.parts if part.name == name)
        done = {part.name for part in self.state.parts if part.done}
        assert {*part.after} <= done, "a step begins after those before it"
        assert not before.cancelled, "a cancelled workflow begins nothing"

    def open(self, name: str, n: int) -> None:
        for _ in range(n):
            self.counts[name] = moved(self.counts[name], None, "open")

    def move(self, old: str, new: str, at: int) -> None:
        """Move a member of the `at`-th step that has one in `old`."""
        having = [name for name, counts in self.counts.items() if getattr(counts, old)]
        if having:
            name = having[at % len(having)]
            self.counts[name] = moved(self.counts[name], old, new)


@st.composite
def graphs(draw: Any) -> tuple[Part, ...]:
    parts = list[Part]()
    for n in range(draw(st.integers(1, 6))):
        after = tuple(part.name for part in parts if draw(st.booleans()))
        kind, tolerance = draw(st.sampled_from(["one", "list", "lists", "none"])), Tolerance(draw(st.integers(0, 2)))
        draft = Draft(task=f"s{n}") if kind == "one" else None
        chunks = {"list": 1, "lists": 2}.get(kind, 0)
        parts.append(Part(f"s{n}", False, after, draft, chunks=chunks, tolerance=Tolerance() if draft else tolerance))
    return tuple(parts)


MOVES = {
    "ack": ("open", "done"), "die": ("open", "dead"), "redrive": ("dead", "open"), "discard": ("dead", "discarded"),
    "waive": ("dead", "done"), "expire": ("open", "cancelled"), "isolate": ("dead", "quarantine"),
    "readmit": ("quarantine", "dead"),
}  # fmt: skip
STEPS = st.tuples(st.sampled_from(["ack", "ack", "die", *MOVES, "look", "cancel"]), st.integers(0, 5))


@given(graphs(), st.lists(STEPS, max_size=40))
def test_each_step_is_put_once_after_those_before_it_and_success_comes_once(
    parts: tuple[Part, ...], steps: list[tuple[str, int]]
) -> None:
    world = World(parts)
    world.look()
    for what, at in steps:
        if what == "cancel":
            world.state = replace(world.state, cancelled=at == 0 or world.state.cancelled)
        elif what == "look":
            world.look()
        else:
            world.move(*MOVES[what], at)
    world.look()
    while any(counts.open for counts in world.counts.values()):
        world.move("open", "done", 0)
        world.look()
    assert max(world.put.values(), default=0) <= 1
    assert all(world.lists[part.name] <= part.chunks for part in parts)
    assert world.told["success"] <= 1 <= world.told["complete"] and world.told["death"] <= world.told["complete"]
    state, seen = world.state, world.seen()
    is_done = all(part.done for part in state.parts)
    assert state.succeeded is (world.told["success"] == 1) is is_done
    total = sum(world.counts.values(), BatchCounts())
    assert state.phase(BatchCounts(), seen) is (
        BatchPhase.DONE if is_done else BatchPhase.CANCELLED if state.cancelled else BatchPhase.PARTIAL
    )
    assert total.total == total.done + total.failed and world.decide().state == state
    assert (state.ended_ms is not None) is (total.dead + total.quarantine == 0)
