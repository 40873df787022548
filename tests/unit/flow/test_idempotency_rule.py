"""One effect per key, as values: what a wish comes to, and that no order of events lets two hold a key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from redrive import App, Idempotency
from redrive.flow.idempotency import (
    CELL_MAX,
    WAIT_MS,
    Busy,
    Finished,
    Granted,
    KeyRecord,
    KeyWish,
    Other,
    cell_of,
    claim,
    completed,
    look_again_ms,
    payload_of,
    read,
    taking,
    written,
)

A, B = payload_of(b"a"), payload_of(b"b")
HELD = KeyRecord("one", 1, 1000, A)
DONE = completed(HELD, b"7", None, 500)


@pytest.mark.parametrize(
    "record, wish, now_ms, answer",
    [
        (None, KeyWish("one", 1, A), 0, Granted(KeyRecord("one", 1, 100, A))),
        (HELD, KeyWish("two", 1, A), 999, Busy("one", 1000)),
        (HELD, KeyWish("two", 1, A), 1000, Granted(KeyRecord("two", 1, 1100, A))),  # its time is over
        (HELD, KeyWish("one", 2, A), 10, Granted(KeyRecord("one", 2, 110, A))),  # its own earlier run: at once
        (HELD, KeyWish("one", 1, A), 10, Granted(KeyRecord("one", 1, 110, A))),  # an answer that was lost on its way
        (replace(HELD, fence=3), KeyWish("one", 2, A), 10, Busy("one", 1000)),  # a zombie
        (HELD, KeyWish("two", 1, B), 10, Other(HELD)),
        (HELD, KeyWish("two", 1, B), 1000, Granted(KeyRecord("two", 1, 1100, B))),
        (HELD, KeyWish("two", 1, B, version=2), 10, Busy("one", 1000)),  # another version: not to be compared
        (HELD, KeyWish("one", 2, B), 10, Granted(KeyRecord("one", 2, 110, B))),
        (DONE, KeyWish("two", 1, A), 9999, Finished(DONE)),
        (DONE, KeyWish("two", 1, B), 9999, Other(DONE)),
        (DONE, KeyWish("one", 2, B), 9999, Finished(DONE)),  # it is its own, whatever became of its body
        (DONE, KeyWish("two", 1, B, version=2), 9999, Finished(DONE)),
        (read(b"what is this"), KeyWish("two", 1, A), 9999, Busy("a newer redrive", 2**62)),
    ],
)
def test_what_a_wish_comes_to(record: KeyRecord | None, wish: KeyWish, now_ms: int, answer: object) -> None:
    assert claim(record, wish, now_ms, 100) == answer


def test_a_record_is_read_as_written_also_with_fields_of_a_newer_version() -> None:
    import msgspec

    assert read(written(DONE)) == DONE and read(None) is None
    longer = [*msgspec.msgpack.decode(written(DONE)), "new"]
    assert read(msgspec.msgpack.encode(longer)) == DONE


def test_a_claim_goes_away_by_itself_when_its_time_is_over() -> None:
    assert taking("cell", 3, HELD, 400).ttl_ms == 600


@given(st.text(), st.text(), st.text(), st.text())
def test_two_keys_never_share_a_cell(task: str, key: str, other_task: str, other_key: str) -> None:
    assert (cell_of(task, key) == cell_of(other_task, other_key)) == ((task, key) == (other_task, other_key))


def test_a_cell_is_named_by_its_key_where_that_is_short_and_plain() -> None:
    assert cell_of("pay.charge", "order-42") == "idem/pay.charge/order-42"
    for key in ("x" * 1000, "nul\0", "zwölf", "\ud800"):
        assert (
            len(cell_of("pay", key)) <= CELL_MAX and cell_of("pay", key).isascii() and "\0" not in cell_of("pay", key)
        )
    assert cell_of("a/b", "c") != cell_of("a", "b/c")


def test_a_duplicate_looks_again_soon_then_rarely_and_not_after_the_claim_ends() -> None:
    far = Busy("one", 10**12)
    assert [look_again_ms(far, held_ms, 0) for held_ms in (0, 4_000, 10**9)] == [WAIT_MS[0], 2_000, WAIT_MS[1]]
    assert look_again_ms(Busy("one", 30), 0, 0) == 30 and look_again_ms(Busy("one", 5), 0, 10) == 11


@pytest.mark.parametrize(
    "make, error",
    [
        (lambda: Idempotency("order"), TypeError),  # type: ignore[arg-type]
        (lambda: Idempotency(str, keep=0), ValueError),
        (lambda: Idempotency(str, keep="28"), ValueError),
        (lambda: Idempotency(lambda n: n).key_of((1,), {}), TypeError),
        (lambda: Idempotency(str).key_of((), {}), ValueError),
    ],
)
def test_what_cannot_be_meant_is_refused(make: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="idempotency"):
        make()  # type: ignore[operator]


def test_a_rule_is_a_value() -> None:
    assert Idempotency(str) == Idempotency(str, keep=28 * 86_400) and hash(Idempotency(str))
    assert Idempotency(str, keep="1h").keep_ms == 3_600_000


def test_calls_that_mean_the_same_have_one_payload() -> None:
    app = App("memory://")

    @app.task(name="pay")
    def pay(
        order: int, cents: int = 5, *, tags: set[str] | None = None, more: dict[str, int] | None = None
    ) -> None: ...

    canonical = pay.codec.canonical
    same = [((1,), {}), ((), {"order": 1}), ((1, 5), {}), ((), {"cents": 5, "order": 1}), ((1,), {"tags": None})]
    assert len({canonical(args, kwargs) for args, kwargs in same}) == 1  # type: ignore[arg-type]
    assert canonical((1, 6), {}) != canonical((1,), {})
    assert canonical((1,), {"more": {"a": 1, "b": 2}}) == canonical((1,), {"more": {"b": 2, "a": 1}})
    assert canonical((1,), {"tags": {"a", "b", "c"}}) == canonical((1,), {"tags": {"c", "b", "a"}})
    body = pay.codec.encode((1, 5), {})
    args, kwargs = pay.codec.decode(body)
    assert canonical(args, kwargs) == canonical((1,), {})


# -- every order of events

OWNERS = ("one", "two", "three")
HOLD_MS = 10


class Actor:
    """A message, or what is left of an earlier claim of it: what it read last, and what it holds."""

    def __init__(self, owner: str, fence: int) -> None:
        self.wish = KeyWish(owner, fence, A)
        self.read: tuple[int, KeyRecord | None] | None = None
        self.held: tuple[int, KeyRecord] | None = None
        self.ended = False


class Cell:
    """A cell as stores keep it: versions are never used twice, and what has expired is gone."""

    def __init__(self) -> None:
        self.version, self.record, self.expires = 0, None, 0.0
        self._last = 0

    def look(self, now_ms: int) -> tuple[int, KeyRecord | None]:
        if self.record is not None and now_ms >= self.expires:
            self.version, self.record = 0, None
        return self.version, self.record

    def swap(self, version: int, record: KeyRecord | None, expires: float, now_ms: int) -> int:
        if self.look(now_ms)[0] != version:
            return 0
        self._last += 1
        self.version, self.record, self.expires = (0 if record is None else self._last), record, expires
        return self._last


class World:
    """One key, and all who want it. An effect counts with its completion, as where both are one transaction."""

    def __init__(self) -> None:
        self.now_ms, self.cell, self.actors = 0, Cell(), [Actor(owner, 1) for owner in OWNERS]
        self.effects: list[str] = []

    def step(self, what: str, n: int) -> None:
        actor = self.actors[n % len(self.actors)]
        if what == "time":
            self.now_ms += n
        elif what == "again":  # its message is claimed anew: the earlier claim of it is a zombie from here on
            self.actors.append(Actor(actor.wish.owner, 1 + max(a.wish.fence for a in self._of(actor.wish.owner))))
        elif not actor.ended:
            getattr(self, what)(actor)

    def _of(self, owner: str) -> list[Actor]:
        return [a for a in self.actors if a.wish.owner == owner]

    def look(self, actor: Actor) -> None:
        actor.read = self.cell.look(self.now_ms)

    def take(self, actor: Actor) -> None:
        if actor.read is None or actor.held is not None:
            return
        (version, record), actor.read = actor.read, None
        match claim(record, actor.wish, self.now_ms, HOLD_MS):
            case Granted(wanted):
                won = self.cell.swap(version, wanted, wanted.until_ms, self.now_ms)
                actor.held = (won, wanted) if won else None
            case Finished():
                assert self.effects
                actor.ended = True
            case Other():
                raise AssertionError("all have the same payload")

    def complete(self, actor: Actor) -> None:
        if actor.held is None:
            return
        version, record = actor.held
        done = completed(record, b"1", None, self.now_ms)
        if self.cell.swap(version, done, self.now_ms + 10**9, self.now_ms):
            self.effects.append(actor.wish.owner)
        actor.ended = True

    def fail(self, actor: Actor) -> None:
        if actor.held is None:
            return
        before = self.cell.look(self.now_ms)
        if not self.cell.swap(actor.held[0], None, 0, self.now_ms):
            assert self.cell.look(self.now_ms) == before, "a zombie's failure leaves the new owner's claim"
        actor.held, actor.ended = None, True

    def holders(self) -> list[str]:
        """Whose completion would be taken now."""
        version, record = self.cell.look(self.now_ms)
        live = record is not None and not record.done
        return [
            a.wish.owner for a in self.actors if live and a.held is not None and a.held[0] == version and not a.ended
        ]


STEPS = st.tuples(st.sampled_from(["look", "take", "complete", "fail", "again", "time"]), st.integers(0, 12))


@given(st.lists(STEPS, max_size=60))
def test_no_order_of_events_makes_two_effects_or_lets_two_hold_a_key(steps: list[tuple[str, int]]) -> None:
    world = World()
    for what, n in steps:
        world.step(what, n)
        assert len(world.effects) <= 1 and len(world.holders()) <= 1
        _, record = world.cell.look(world.now_ms)
        assert bool(world.effects) == (record is not None and record.done), "what is done stays done"
    for _ in range(2 + 2 * len(world.actors)):  # and whoever tries for long enough gets there
        actor = Actor("last", 1)
        world.look(actor)
        world.take(actor)
        world.complete(actor)
        world.now_ms += HOLD_MS
    assert len(world.effects) == 1
