"""What SQS would take away, delete or never allow is refused before a worker starts; what is doubtful is told."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from redrive import App, Backoff, Budget, Idempotency, Retry
from redrive.errors import Refused
from redrive.policy import Poison, presets
from redrive.program.main import run
from redrive.store import Work
from redrive.stores.memory.store import MemoryStore
from redrive.stores.sqs.preflight import (
    QueueFacts,
    receives,
    redrive_policy,
    refusals,
    sent_by_sns,
    warnings,
)
from redrive.worker.preflight import work_of, works

FACTS = QueueFacts(
    queue="crm", name="acme-crm", receives_max=100, retention_s=1_209_600, visibility_s=300, dead="acme-crm-dlq",
    dead_retention_s=1_209_600,
)  # fmt: skip
FIVE = Work(queue="crm", task="crm.push", attempts=5, crash_cap=3, longest_s=60, horizon_s=600, timeout_s=300)


def facts(**changed: Any) -> QueueFacts:
    return replace(FACTS, **changed)


def work(**changed: Any) -> Work:
    return replace(FIVE, **changed)


def refused(facts: QueueFacts, *works: Work) -> str:
    [line] = refusals(facts, works)
    assert line.startswith("queue 'crm' (acme-crm): ") and "; " in line  # what; the fix
    return line


def told(facts: QueueFacts, *works: Work) -> str:
    [line] = warnings(facts, works)
    assert line.startswith("queue 'crm' (acme-crm): ") and "; " in line
    return line


def test_a_sound_queue_is_neither_refused_nor_told_of() -> None:
    assert refusals(FACTS, [FIVE]) == warnings(FACTS, [FIVE]) == []
    assert refusals(FACTS, []) == warnings(FACTS) == []


def test_what_is_on_another_queue_is_no_matter() -> None:
    assert refusals(facts(receives_max=3), [work(queue="bulk")]) == []


def test_five_attempts_in_visibility_mode_against_three_receives_are_refused_by_both_numbers() -> None:
    line = refused(facts(receives_max=3), FIVE)
    assert "maxReceiveCount is 3" in line and "5 attempts + 3 crashes" in line
    assert "set maxReceiveCount to 8 or more, or take mode=requeue" in line
    assert refusals(facts(receives_max=8), [FIVE]) == []
    assert "8 times" in refused(facts(receives_max=7), FIVE)


def test_fifty_attempts_in_requeue_mode_against_three_receives_are_fine() -> None:
    assert refusals(facts(receives_max=3, mode="requeue"), [work(attempts=50)]) == []


def test_fewer_receives_than_crashes_convict_are_refused_in_requeue_mode() -> None:
    line = refused(facts(receives_max=2, mode="requeue"), FIVE)
    assert "maxReceiveCount is 2" in line and "convicted by 3 crashes" in line and "to 4 or more" in line


def test_as_many_receives_as_crashes_convict_are_enough_in_requeue_mode() -> None:
    """Before the last of them the store sends a copy, which knows of the crashes."""
    assert refusals(facts(receives_max=3, mode="requeue"), [FIVE]) == []
    assert warnings(facts(receives_max=3, mode="requeue"), [FIVE]) == []


@pytest.mark.parametrize(
    "longest_s, horizon_s, cells, hops",
    [
        (43_200, 864_000, True, 0),
        (43_201, 864_000, True, 4),  # each of four waits is received once more on its way
        (3 * 86_400, 864_000, True, 20),  # five hops each, and no more than the horizon has half days
        (3 * 86_400, 3 * 86_400, True, 6),
        (3 * 86_400, 864_000, False, 0),  # there a copy is sent, whose count begins anew
    ],
)
def test_hops_of_twelve_hours_are_receives_where_the_message_itself_waits(
    longest_s: float, horizon_s: float, cells: bool, hops: int
) -> None:
    waiting = work(longest_s=longest_s, horizon_s=horizon_s)
    assert receives(waiting, facts(cells=cells)) == (8 + hops, hops)
    if hops:
        assert f"+ {hops} hops" in refused(facts(receives_max=7 + hops), waiting)


def test_more_than_sqs_can_count_is_mended_by_fewer_attempts() -> None:
    assert "1000 at most, so lower max_attempts, or take mode=requeue" in refused(FACTS, work(attempts=5000))


def test_a_queue_without_a_redrive_policy_takes_nothing_away() -> None:
    assert refusals(facts(receives_max=None), [work(attempts=5000)]) == []


def test_a_delay_beyond_the_retention_is_refused() -> None:
    line = refused(facts(retention_s=3600), work(longest_s=7200))
    assert "keeps messages for 1h" in line and "may wait 2h" in line and "more than 7200 s" in line


def test_a_horizon_beyond_the_retention_is_refused_in_visibility_mode() -> None:
    line = refused(facts(retention_s=3600), work(horizon_s=7200))
    assert "keeps messages for 1h" in line and "retried for 2h" in line and "more than 7200 s" in line


def test_copies_renew_their_retention() -> None:
    requeue = facts(retention_s=3600, mode="requeue")
    assert refusals(requeue, [work(longest_s=7200, horizon_s=864_000)]) == []
    assert "may wait 15m" in refused(facts(retention_s=60, mode="requeue"), work(longest_s=7200))


def test_a_fifo_queue_refuses_requeue() -> None:
    assert "mode=visibility; set mode=visibility in the URL" in refused(facts(fifo=True, mode="requeue"), FIVE)


def test_a_fifo_queue_tells_that_waits_hold_the_group() -> None:
    assert "holds its whole group" in told(facts(fifo=True), FIVE)
    assert warnings(facts(fifo=True), [work(attempts=1)]) == []


def test_a_wait_that_a_fifo_queue_cannot_say_needs_cells() -> None:
    line = refused(facts(fifo=True, cells=False), work(longest_s=50_000))
    assert "may wait 13h53m" in line and "cells=dynamodb" in line


def test_what_is_shared_by_cells_is_refused_without_them() -> None:
    sharing = work(needs=("idempotency", "a rate"))
    assert "idempotency and a rate" in (line := refused(facts(cells=False), sharing)) and "; add &cells=" in line
    assert "(and 1 more)" in refused(facts(cells=False), sharing, replace(sharing, task="other"))
    assert refusals(FACTS, [sharing]) == []


def test_dead_letters_must_have_somewhere_to_go() -> None:
    assert "acme-crm-dlq does not exist" in refused(facts(dead_exists=False), FIVE)
    assert refusals(facts(dead_exists=False, triage=True), [FIVE]) == []


def test_a_function_that_outlasts_the_visibility_is_refused_and_six_times_is_advised() -> None:
    assert "300 s and the function's timeout 301 s" in refused(facts(function_s=301), FIVE)
    assert "set it to 360" in told(facts(function_s=60))
    assert warnings(facts(function_s=50), [FIVE]) == []


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"receives_max": None}, "no redrive policy"),
        ({"dead_retention_s": 345_600}, "for 4d, less than the 14d"),
        ({"dead_sources": ("acme-bulk",)}, "takes those of acme-bulk"),
        ({"dead_from_sns": True}, "AWS refuses to move from a queue that SNS fills"),
        ({"poison_exists": False}, "-poison queue does not exist"),
        ({"visibility_s": 30}, "30 s, below the 5m"),
        ({"denied": ("DeleteMessage", "SendMessage")}, "sqs:DeleteMessage, sqs:SendMessage"),
        ({"in_flight": 110_000}, "110,000 messages are in flight"),
        ({"poll_s": 0}, "50 paid requests a second"),
    ],
)
def test_the_doctor_says_what_is_doubtful(changed: dict[str, Any], words: str) -> None:
    assert words in told(facts(**changed), FIVE)


def test_a_redrive_policy_is_read_as_sqs_writes_it() -> None:
    policy = {"deadLetterTargetArn": "arn:aws:sqs:eu-central-1:000000000000:acme-crm-dlq", "maxReceiveCount": "3"}
    assert redrive_policy({"RedrivePolicy": json.dumps(policy)}) == ("acme-crm-dlq", 3)
    assert redrive_policy({}) == (None, None)


def test_a_queue_that_sns_may_fill_is_known_by_its_policy() -> None:
    service: dict[str, Any] = {"Effect": "Allow", "Principal": {"Service": "sns.amazonaws.com"}, "Action": "sqs:*"}
    arn = {"Effect": "Allow", "Condition": {"ArnEquals": {"aws:SourceArn": "arn:aws:sns:eu-central-1:0:orders"}}}
    for statement in (service, arn):
        assert sent_by_sns({"Policy": json.dumps({"Statement": [statement]})})
    assert not sent_by_sns({"Policy": json.dumps({"Statement": [{"Principal": {"AWS": "*"}}]})}) and not sent_by_sns({})


# -- the app's tasks in figures


def make_app() -> App:
    app = App(store=MemoryStore())
    app.dependency("stripe", budget=Budget())

    @app.task(name="pay", queue="pay", dependency="stripe", rate="5/s", idempotency=Idempotency(key=str), timeout="30s")
    def pay(n: int) -> None: ...

    @app.task(name="plain", queue="plain", poison=Poison(crashes=2), retry=presets["standard_api"])
    def plain() -> None: ...

    return app


def test_a_task_in_figures() -> None:
    app = make_app()
    pay, plain = (work_of(app, app.tasks[name]) for name in ("pay", "plain"))
    assert (pay.attempts, pay.crash_cap, pay.timeout_s) == (25, 3, 30.0)
    assert pay.longest_s == pytest.approx(6 * 3600 * 1.2)  # what may be asked for
    assert pay.horizon_s == 50_894  # as `redrive policy preview` tells it
    assert pay.needs == ("idempotency", "a rate", "dependency 'stripe' (its budget, breaker and limits)")
    assert (plain.attempts, plain.crash_cap, plain.needs) == (50, 2, ())
    assert plain.longest_s == plain.horizon_s == 500  # max_elapsed bounds what is asked for too


def test_the_longest_of_whatever_fault_may_come_counts() -> None:
    app = App(store=MemoryStore())
    long = Retry(max_attempts=9, max_elapsed=None, backoff=Backoff.fixed("3d"))

    @app.task(name="t", retry=Retry(max_attempts=2, on={"quota": long, ConnectionError: Backoff.fixed("1d")}))
    def t() -> None: ...

    found = work_of(app, t)
    assert (found.attempts, found.longest_s, found.horizon_s) == (9, 3 * 86_400, 8 * 3 * 86_400)


def test_a_queue_that_no_task_names_is_looked_at_too() -> None:
    assert [w.task for w in works(make_app(), ["pay", "other"])] == ["pay", ""]


class Picky(MemoryStore):
    """A store that looks at what it is to carry."""

    def preflight(self, works: Iterable[Work], *, advise: bool = False, function_s: float | None = None) -> list[str]:
        found = [f"{w.task} is not for me; take another" for w in works if w.attempts > 30]
        return [*found, "slow; buy a faster one"] if advise else found


def test_a_worker_does_not_start_on_a_store_that_refuses_its_tasks() -> None:
    app = make_app()
    app._store = Picky()
    with pytest.raises(Refused, match=r"^plain is not for me; take another$"):
        app.worker()
    app.worker(queues=["pay"])


def test_the_doctor_of_a_store_is_told_of_the_apps_tasks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import redrive.cli.opening as place

    app = make_app()
    app._store = Picky()
    app._store.traits = replace(app._store.traits, shared=True)
    monkeypatch.setattr(place, "load_app", lambda spec, folder=None: app)
    assert run(["store", "doctor", "--app", "tasks:app", "-o", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"] == [
        "plain is not for me; take another",
        "slow; buy a faster one",
    ]
