"""A plan that nobody configured is as cautious from the command line, `redrive top`, the pages and Python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.redrive_pages import Pages
from tests.support.sites import JSON, Browser

from redrive import App, Draft
from redrive.program.main import cli, run
from redrive.top.model import Model
from redrive.top.screens import QueuesScreen
from redrive.top.screens.plan import PlanScreen
from redrive.triage.redrive.records import RedriveSettings

CAUTIOUS = RedriveSettings(canary=5, slow_start=True, stop_if="failed>20%")
AT_ONCE = RedriveSettings(stop_if="failed>20%")  # of a plan that is no larger than a canary


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[Pages]:
    with Pages(tmp_path) as made:
        yield made


def planned(pages: Pages, folder: Path) -> dict[str, RedriveSettings]:
    """The settings of a plan of all that is dead, from each surface."""
    app = pages.app
    typed = CliRunner().invoke(cli, ["dlq", "plan", "queue:crm", "-o", "ids", "--url", f"sqlite:///{folder}/work.db"])
    ids = {
        "python": app.dlq.select("queue:crm").plan().id,
        "command": typed.stdout.strip(),
        "top": PlanScreen("queue:crm").study(Model(app.store, app, "")).id,
        "pages": pages.post("plan", q="queue:crm").json()["id"],
        "form": pages.send_form(pages.get("/plans?q=queue:crm"), "plan").url.path.rpartition("/")[2],
    }
    return {surface: app.dlq.plan(id).plan.settings for surface, id in ids.items()}


def test_every_surface_plans_with_a_canary_a_slow_start_and_a_stop_rule(pages: Pages, tmp_path: Path) -> None:
    pages.bury(pushes=6)
    assert planned(pages, tmp_path) == dict.fromkeys(("python", "command", "top", "pages", "form"), CAUTIOUS)


def test_what_is_no_larger_than_a_canary_moves_at_once_from_every_surface(pages: Pages, tmp_path: Path) -> None:
    pages.bury(pushes=5)
    assert set(planned(pages, tmp_path).values()) == {AT_ONCE}


def test_each_part_of_it_can_be_switched_off(pages: Pages, tmp_path: Path) -> None:
    pages.bury(pushes=6)
    brave = ["--no-canary", "--no-slow-start", "--stop-if", "never"]
    where = ["queue:crm", "-o", "ids", "--url", f"sqlite:///{tmp_path}/work.db"]
    typed = CliRunner().invoke(cli, ["dlq", "plan", *where, *brave])
    posted = pages.post("plan", q="queue:crm", canary="0", slow_start="off", stop_if="never").json()["id"]
    for id in (typed.stdout.strip(), posted):
        assert pages.app.dlq.plan(id).plan.settings == RedriveSettings()


# -- what the command line, the pages and the terminal ask


def test_pausing_and_purging_a_queue_need_a_reason_on_every_surface_and_resuming_needs_none(
    tmp_path: Path,
) -> None:
    """Who looks next sees why it stands still."""
    url = f"sqlite:///{tmp_path}/work.db"
    app = App(url)
    app.store.put([Draft(task="push", queue="crm")])
    browser = Browser(app.dashboard())
    acts = {act.word: act for act in QueuesScreen.acts}
    for action, words, form in (
        ("pause", ["queue", "pause", "crm"], {"queue": "crm"}),
        ("purge", ["queue", "purge", "crm", "--yes"], {"queue": "crm"}),
    ):
        assert run([*words, "--url", url]) == 2, action
        assert browser.post(f"/do/{action}-queue", form, headers=JSON).status_code == 422, action
        if action in acts:
            assert not acts[action].ends
        assert run([*words, "--reason", "r", "--url", url]) == 0, action
    assert run(["queue", "resume", "crm", "--url", url]) == 0
    assert run(["queue", "pause", "crm", "--reason", "r", "--url", url]) == 0
    assert browser.post("/do/resume-queue", {"queue": "crm"}, headers=JSON).status_code == 200
    assert acts["resume"].ends
    app.store.close()
