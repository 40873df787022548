"""Groups of a scenario: at most so many of each run at once, in turns or in strict order."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from redrive.decide import Policy
from redrive.errors import ConfigError
from redrive.fault import Fault
from redrive.message import Message
from redrive.policy import Backoff, Retry
from redrive.simulate import FleetSize, LoadPhase, ModelService, Scenario, ServicePhase, read_scenario, simulate
from redrive.simulate.groups import GroupRule
from redrive.simulate.past import with_setting
from redrive.simulate.service import ServiceModel
from redrive.simulate.world import World

RETRY = Policy(Retry(max_attempts=10, max_elapsed=None, backoff=Backoff("3s", 1, "3s", jitter="none")))
SHORT = Scenario(
    load=(LoadPhase(0, 20, 10),), fleet=FleetSize(2, 10), policy=RETRY,
    service=ModelService(latency_ms=100, fails=0.1),
)  # fmt: skip


class Watched(ServiceModel):
    """Writes down which messages begin, and how many of each group run at once."""

    def __init__(self, service: ModelService) -> None:
        super().__init__(service, 0, 0)
        self.order: dict[str, list[str]] = {}
        self.most, self._ends = Counter[str](), dict[str, list[int]]()

    def call(self, message: Message, now_ms: int) -> tuple[int, Fault | None]:
        end_ms, fault = super().call(message, now_ms)
        assert message.group is not None
        self.order.setdefault(message.group, []).append(message.id)
        ends = self._ends[message.group] = [at for at in self._ends.get(message.group, ()) if at > now_ms] + [end_ms]
        self.most[message.group] = max(self.most[message.group], len(ends))
        return end_ms, fault


def _watch(rule: GroupRule) -> Watched:
    watched = Watched(SHORT.service)
    world = World(RETRY, watched, fleet=FleetSize(2, 10), arrivals=iter(range(0, 20_000, 50)), groups=rule)
    world.run(10**9)
    assert world.left == 0 and sum(world.counts.done) == 400
    return watched


@pytest.mark.parametrize("width", [1, 2, 3])
def test_no_more_of_a_group_run_at_once_than_its_width(width: int) -> None:
    watched = _watch(GroupRule(4, width))
    assert max(watched.most.values()) == width and len(watched.most) == 4


def test_strict_groups_run_in_order_and_try_the_first_again_before_the_next() -> None:
    for order in _watch(GroupRule(4, width=9, strict=True)).order.values():
        first_seen = [*dict.fromkeys(order)]
        assert order == sorted(order, key=first_seen.index)  # all tries of a message are beside each other
        assert first_seen == sorted(first_seen, key=lambda id: int(id.partition("-")[2]))


def test_groups_in_turns_do_not_wait_for_a_retry() -> None:
    """The broken twin of strict order: here others pass what waits."""
    orders = _watch(GroupRule(4)).order.values()
    assert any(order != sorted(order, key=[*dict.fromkeys(order)].index) for order in orders)


def test_a_group_has_a_highest_rate() -> None:
    busy = replace(SHORT, load=(LoadPhase(0, 60, 40),), service=ModelService(latency_ms=100), policy=Policy())
    free, two, four = (simulate(replace(busy, groups=rule)) for rule in (None, GroupRule(2), GroupRule(2, 2)))
    assert free.peak_per_s == pytest.approx(40, abs=1) and free.drained_s == pytest.approx(60, abs=1)
    assert two.peak_per_s <= 20 and two.drained_s == pytest.approx(40 * 60 / 20, rel=0.05)
    assert two.peak_per_s < four.peak_per_s <= 40


def test_strict_groups_try_little_in_an_outage() -> None:
    down = replace(SHORT, service=ModelService(latency_ms=100, phases=(ServicePhase(5, 15, 1.0),)))
    turns, strict = (simulate(replace(down, groups=GroupRule(5, strict=strict))) for strict in (False, True))
    assert sum(strict.calls) < sum(turns.calls) and sum(strict.retries) <= 5 * 5
    assert sum(strict.done) == sum(turns.done) == turns.messages


def test_settings_and_files_name_groups(tmp_path: Path) -> None:
    assert with_setting(SHORT, "groups=5,group_order=strict").groups == GroupRule(5, strict=True)
    assert with_setting(with_setting(SHORT, "groups=5"), "group_width=3").groups == GroupRule(5, 3)
    assert with_setting(with_setting(SHORT, "groups=5"), "groups=off").groups is None
    (tmp_path / "a.toml").write_text('[[load]]\nrate = 1\nfor = "1m"\n[policy]\ngroups = 7\ngroup_order = "strict"\n')
    assert read_scenario(tmp_path / "a.toml")[0].groups == GroupRule(7, strict=True)


@pytest.mark.parametrize("text", ["groups=0", "groups=many", "group_width=-1", "group_order=fifo", "group_width=off"])
def test_a_group_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"groups=N\|off, group_width=N, group_order=turns\|strict"):
        with_setting(SHORT, text)
