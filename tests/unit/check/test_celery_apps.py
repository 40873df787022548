"""Three apps of Celery as people write them, good and bad: what the policy check says of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery, _state
from celery.schedules import crontab

from redrive.check import CheckReport
from redrive.testing import policy_report

Make = Callable[..., Any]


@pytest.fixture
def make() -> Iterator[Make]:
    """Make an app of Celery with these settings, which gets no task of another one."""
    before = set(_state._on_app_finalizers)

    def made(broker: str, **conf: Any) -> Any:
        app = Celery("shop", broker=broker, set_as_current=False)
        app.conf.update(conf)
        return app

    yield made
    _state._on_app_finalizers = before


def found(report: CheckReport) -> set[tuple[str, str]]:
    return {(finding.rule, finding.subject) for finding in report.findings}


def test_a_web_shop_by_the_tutorial(make: Make) -> None:
    app = make("redis://localhost")

    @app.task(name="mail.send", autoretry_for=(OSError,), default_retry_delay=60, shared=False)
    def send(to: str) -> None: ...

    @app.task(name="order.export", bind=True, max_retries=None, shared=False)
    def export(self: Any, order: int) -> None:
        raise self.retry(countdown=5)

    @app.task(name="count", shared=False)
    def count() -> None: ...

    report = policy_report(app, outage="2h", rate="20/s")
    assert found(report) == {
        ("celery-acks-early", "task mail.send"),
        ("celery-acks-early", "task order.export"),
        ("celery-no-jitter", "task mail.send"),
        ("celery-no-jitter", "task order.export"),
        ("celery-retries-forever", "task order.export"),
        ("no-spread", "task mail.send"),
        ("no-spread", "task order.export"),
        ("short-horizon", "task mail.send"),
    }
    assert report.fails()


def test_a_video_site_with_long_tasks_acked_late(make: Make) -> None:
    app = make("redis://localhost", task_acks_late=True, task_time_limit=7200, worker_prefetch_multiplier=4)
    app.conf.beat_schedule = {
        "scan": {"task": "scan", "schedule": 60.0},
        "nightly": {"task": "scan", "schedule": crontab(minute=0, hour=3)},
    }

    @app.task(
        name="transcode",
        autoretry_for=(OSError,),
        retry_backoff=30,
        retry_backoff_max=7200,
        max_retries=12,
        shared=False,
    )
    def transcode(video: int) -> None: ...

    @app.task(name="scan", shared=False)
    def scan() -> None: ...

    report = policy_report(app, run="5m")
    errors = [(f.rule, f.subject, f.numbers) for f in report.findings if f.severity == "error"]
    assert ("celery-visibility-timeout", "task transcode", {"wait_s": 7200.0, "visibility_s": 3600.0}) in errors
    assert ("schedule-faster-than-run", "schedule scan") in found(report)
    assert ("schedule-faster-than-run", "schedule nightly") not in found(report)
    assert ("celery-prefetch", "app") in found(report) and ("celery-lost-on-crash", "task scan") in found(report)


def test_a_bank_that_thought_of_it(make: Make) -> None:
    app = make(
        "amqp://localhost",
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_time_limit=300,
        worker_prefetch_multiplier=1,
    )

    @app.task(
        name="book", autoretry_for=(OSError,), retry_backoff=2, retry_backoff_max=600, max_retries=40, shared=False
    )
    def book(entry: int) -> None: ...

    report = policy_report(app, outage="2h", rate="20/s")
    assert found(report) == {("celery-poison-loops", "task book")} and not report.fails()


def test_an_app_without_tasks_is_a_finding(make: Make) -> None:
    assert found(policy_report(make("redis://localhost"))) == {("nothing-declared", "app")}
