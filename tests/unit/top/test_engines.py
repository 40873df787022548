"""Every screen reads every engine; what an engine does not have is said in a line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.top import Scene, Watched, watch
from tests.support.urls import url_of

from redrive import App
from redrive.message import Draft
from redrive.testing.sqs import SqsServer
from redrive.top import Model

SHOWN = {
    "1": "need a person",
    "2": "crm",
    "3": "4 dead messages in 2 failure groups",
    "5": "[dead 4]",
    "6": "vm/worker-0",
    "7": "stripe",
}


@pytest.fixture(params=["postgres", "redis"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path, url_of(request.param, request, tmp_path))
    yield made
    made.store.close()


@pytest.mark.slow
def test_screens_show_what_a_server_has_and_change_it(scene: Scene) -> None:
    scene.works()
    run = scene.planned()

    async def test(w: Watched) -> None:
        for key, text in {**SHOWN, "4": run[:23]}.items():
            await w.press(key)
            await w.sees(text)
            await w.until(lambda: not w.screen.studies or w.screen.studied is not None)
            assert "error" not in w.part("note")
        await w.press("2")
        await w.sees("crm")
        await w.answers("P")
        await w.until(lambda: scene.store.paused() == {"crm"})

    scene.watch(test)


@pytest.mark.slow
def test_on_sqs_what_cannot_be_read_is_a_line_and_the_rest_is_shown() -> None:
    with SqsServer() as server:
        app = App(f"sqs://eu-central-1/shop?create=true&endpoint={server.url}")
        app.store.put([Draft(task="t", queue="crm")] * 3)

        async def test(w: Watched) -> None:
            await w.press("2")
            await w.sees("crm")
            for key, why in (("3", "name a store for the dead letters"), ("6", "not kept: name cells="), ("5", "dead")):
                await w.press(key)
                await w.sees("error: ", why)
            await w.press("1")
            await w.sees("ready 3")

        watch(Model(app.store, app, "sqs://eu-central-1/shop"), test)
        app.store.close()
