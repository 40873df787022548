"""What the pages do to queues."""

from __future__ import annotations

from tests.support.pages import Reader
from tests.support.sites import JSON

from redrive import App, Draft


def test_a_queue_that_nothing_knows_is_not_paused_and_so_not_made(app: App, pages: Reader) -> None:
    """It stood in every list from then on, and the queue that was meant went on."""
    app.task(name="push", queue="crm")(lambda: None)
    app.store.put([Draft(task="send", queue="mail")])
    for name in ("crn", "mial", "other"):
        refused = pages.request("POST", "/do/pause-queue", json={"queue": name, "reason": "x"}, headers=JSON)
        assert refused.status_code == 404, name
        assert f"there is no queue '{name}'" in refused.text
    assert "did you mean 'crm'?" in pages.request(
        "POST", "/do/pause-queue", json={"queue": "crn", "reason": "x"}, headers=JSON
    ).json()["why"]  # fmt: skip
    assert app.store.queues() == ["mail"] and app.store.paused() == frozenset()
    for name in ("crm", "mail"):  # declared, or seen
        done = pages.request("POST", "/do/pause-queue", json={"queue": name, "reason": "x"}, headers=JSON)
        assert done.status_code == 200, done.text
    assert app.store.paused() == {"crm", "mail"}
