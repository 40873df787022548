"""Redrive runs where what they move goes to a queue that nobody can look into: nothing is lost, their books hold."""

from __future__ import annotations

import pytest
from tests.support.run_letters import letters, planned
from tests.support.simulation.apart import InterleavedApart

from redrive.message import Lane
from redrive.stores.run_marks import sent_cell
from redrive.stores.sqs import outbox
from redrive.triage.redrive.run import Run
from redrive.worker import redrive_outcome


@pytest.fixture(autouse=True)
def nobody_waits_in_true_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "SETTLE_S", 0.0)


def problems(scene: InterleavedApart) -> list[str]:
    said = [f"{id} was moved {n} times by {run}" for (run, id), n in scene.store.moved.items() if run and n > 1]
    said += [problem for run in scene.runs for problem in wrong(scene, run)]
    for id, message in zip(scene.ids, scene.store.find(scene.ids), strict=True):
        if message is None and id not in scene.store.acked:
            said.append(f"{id} is lost")
        if message is not None and message.lane is not Lane.DEAD:
            said.append(f"{id} is {message.lane}")
    return said + scene.store.check()


def wrong(scene: InterleavedApart, run: Run) -> list[str]:
    ids, counts, state = planned(scene, run), run.counts, run.view()
    marks = letters(scene, run, ids)
    moved = {id for id in ids if scene.store.moved[run.id, id]}
    returned = {id for id in ids if scene.store.returned[run.id, id]}
    verdicts = {id: scene.verdicts[run.id, id] for id in ids if (run.id, id) in scene.verdicts}
    unsure = {id for id in ids if (run.id, id) in scene.doubtful}
    letter_of = {redrive_outcome.DONE: "d", redrive_outcome.FAILED: "f"}
    twice = {id for id, _ in (key for key, n in scene.store.sent.items() if n > 1)}
    kept = [
        id
        for id, mark, verdict in zip(
            ids,
            scene.store.cells.read([sent_cell(run.id, id) for id in ids]),
            scene.store.cells.read([redrive_outcome.cell_of(run.id, id) for id in ids]),
            strict=True,
        )
        if mark is not None or verdict is not None
    ]
    told = list(marks.values())
    checks = {
        "nothing waits": counts["waiting"] == 0 and "w" not in told,
        "as it was judged": all(marks[id] == letter_of[word] for id, word in verdicts.items() if id not in unsure),
        "each has a verdict": all(marks[id] in "df" for id in moved - returned - unsure),
        "or may be another's": all(
            marks[id] in ("dfs" if scene.meddle else "df") for id in (moved - returned) & unsure
        ),
        "none has two fates": not (verdicts.keys() & returned),
        "returned": {id for id in ids if marks[id] == "u"} <= returned and state.returned == told.count("u"),
        "changed": {id for id in ids if marks[id] == "c"} == {id for id in ids if marks[id] != "."} - moved,
        "counts": (counts["done"], counts["failed"], counts["changed"]) == tuple(map(told.count, "dfc")),
        "all": counts["moved"] + counts["changed"] + counts["skipped"] == counts["planned"] == len(ids),
        "its cells are taken": not {*kept} - twice - unsure - scene.again,
    }
    return [f"run {run.id}: {what}: {counts}, {marks}" for what, holds in checks.items() if not holds]


def play(seed: int, *, meddle: bool, messages: int = 40, steps: int = 300) -> InterleavedApart:
    scene = InterleavedApart(seed, meddle=meddle, messages=messages)
    try:
        scene.play(steps)
        found = problems(scene)
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    assert not found, f"seed {seed}: " + "\n".join(found)
    return scene


@pytest.mark.parametrize("meddle", [False, True], ids=["carried and killed", "and meddled with"])
def test_runs_of_what_cannot_be_looked_up_lose_nothing_and_count_each(seed: int, meddle: bool) -> None:
    scenes = [play(seed * 1000 + n, meddle=meddle) for n in range(4)]
    assert sum(sum(scene.store.moved.values()) for scene in scenes) > 20  # by the seed 32 to 117


@pytest.mark.soak
@pytest.mark.parametrize("meddle", [False, True], ids=["carried and killed", "and meddled with"])
def test_in_two_thousand_orders_too(seed: int, meddle: bool) -> None:
    twice = native = 0
    for n in range(2000):
        scene = play(seed * 1_000_000 + n, meddle=meddle)
        twice += any(count > 1 for count in scene.store.sent.values())  # pumps were killed
        native += bool(scene.native)
    assert twice > 20 and native > 20  # four orders alone need have neither
