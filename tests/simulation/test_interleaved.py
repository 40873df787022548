"""Redrive runs that several carry at once, some of them killed at any store call: their books are exact at the end."""

from __future__ import annotations

import pytest
from tests.support.run_letters import letters, planned
from tests.support.simulation.interleaved import Interleaved

from redrive.message import Lane
from redrive.triage.redrive.plan import CHUNK
from redrive.triage.redrive.records import FAILURES_MAX
from redrive.triage.redrive.run import Run
from redrive.worker import redrive_outcome


def problems(scene: Interleaved) -> list[str]:
    """What is wrong with the books."""
    said = []
    said += [f"{id} was moved {n} times by {run}" for (run, id), n in scene.store.moved.items() if run and n > 1]
    said += [problem for run in scene.runs for problem in wrong(scene, run)]
    for id, message in zip(scene.ids, scene.store.find(scene.ids), strict=True):
        net = sum(n for (_, other), n in scene.store.moved.items() if other == id)
        net -= sum(n for (_, other), n in scene.store.returned.items() if other == id)
        if message is not None and message.redrives != net:
            said.append(f"{id} has {message.redrives} redrives after {net} moves")
        if message is not None and message.lane is not Lane.DEAD and message.reason != "cancelled":
            said.append(f"{id} is {message.lane}")
    return said + scene.store.check()


def wrong(scene: Interleaved, run: Run) -> list[str]:
    ids, counts, state = planned(scene, run), run.counts, run.view()
    moved = {id for id in ids if scene.store.moved[run.id, id]}
    returned = {id for id in ids if scene.store.returned[run.id, id]}
    verdicts = {id: scene.verdicts[run.id, id] for id in ids if (run.id, id) in scene.verdicts}
    done = {id for id, word in verdicts.items() if word == redrive_outcome.DONE}
    failed = verdicts.keys() - done
    # What was returned, and driven on by somebody before that was written, cannot be told from what a person ended.
    seen = {id for id in returned if sum(n for (_, other), n in scene.store.moved.items() if other == id) == 1}
    ended = scene.removed - verdicts.keys() - returned  # by a person, and maybe before anybody saw that it was moved
    told = {failure.id for failure in run.failures()}
    marks = letters(scene, run, ids)
    checks = {
        "planned": counts["planned"] == len(ids),
        "nothing waits": counts["waiting"] == 0 and "w" not in marks.values(),
        "moved": counts["moved"] == len(verdicts) == counts["done"] + counts["failed"],
        "done": counts["done"] == len(done) and {id for id in ids if marks[id] == "d"} == done,
        "failed": counts["failed"] == len(failed) and {id for id in ids if marks[id] == "f"} == failed,
        "failures": told <= failed and len(told) == min(len(failed), FAILURES_MAX),
        "returned": seen <= {id for id in ids if marks[id] == "u"} <= returned,
        "as many": state.returned == list(marks.values()).count("u"),
        "each is one": moved - ended == verdicts.keys() | returned and not verdicts.keys() & returned,
        "changed": {id for id in ids if marks[id] == "c"} - ended
        == {id for id in ids if marks[id] != "."} - moved - ended,
        "ended": all(marks[id] in "sc" for id in ended & moved),
        "as many changed": counts["changed"] == list(marks.values()).count("c"),
        "all": counts["moved"] + counts["changed"] + counts["skipped"] == counts["planned"],
        "verdicts are taken": scene.store.cells.read([redrive_outcome.cell_of(run.id, id) for id in ids])
        == [None] * len(ids),
    }
    return [f"run {run.id}: {what}: {counts}, {state.returned} returned" for what, holds in checks.items() if not holds]


def play(seed: int, *, meddle: bool, messages: int = 40, steps: int = 300) -> Interleaved:
    scene = Interleaved(seed, meddle=meddle, messages=messages, plain=messages > CHUNK)
    try:
        scene.play(steps)
        found = problems(scene)
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    assert not found, f"seed {seed}: " + "\n".join(found)
    return scene


@pytest.mark.parametrize("meddle", [False, True], ids=["carried and killed", "and meddled with"])
def test_whoever_carries_is_killed_or_overtaken_each_message_is_moved_once_and_counted(seed: int, meddle: bool) -> None:
    scenes = [play(seed * 1000 + n, meddle=meddle) for n in range(25)]
    assert sum(sum(scene.store.moved.values()) for scene in scenes) > 200


@pytest.mark.soak
@pytest.mark.parametrize("meddle", [False, True], ids=["carried and killed", "and meddled with"])
def test_in_two_thousand_orders_too(seed: int, meddle: bool) -> None:
    for n in range(2000):
        play(seed * 1_000_000 + n, meddle=meddle)


@pytest.mark.soak
@pytest.mark.parametrize("meddle", [False, True], ids=["carried and killed", "and meddled with"])
def test_with_plans_of_several_chunks_too(seed: int, meddle: bool) -> None:
    for n in range(10):
        play(seed * 1_000_000 + n, meddle=meddle, messages=3500, steps=1500)
