"""Rules of direct calls of idempotent tasks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.idempotent_tasks import kept

from redrive import App, Idempotency, context
from redrive.errors import KeyReused
from redrive.fault import classify


def ordered(order: int, *rest: Any, **more: Any) -> str:
    return f"order-{order}"


ONCE = Idempotency(key=ordered)


def both(app: App, ran: list[Any], fail: list[Exception]) -> dict[str, Any]:
    @app.task(name="sync", idempotency=ONCE)
    def charge(order: int, cents: int = 100) -> dict[str, int]:
        ran.append(context().idempotency_key)
        if fail:
            raise fail.pop()
        return {"paid": cents}

    @app.task(name="async", idempotency=ONCE)
    async def acharge(order: int, cents: int = 100) -> dict[str, int]:
        ran.append(context().idempotency_key)
        if fail:
            raise fail.pop()
        return {"paid": cents}

    return {"sync": charge, "async": lambda *args, **kwargs: asyncio.run(acharge(*args, **kwargs))}


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_direct_call_runs_once_for_its_key(app: App, kind: str) -> None:
    ran: list[Any] = []
    fail: list[Exception] = [ValueError("no answer")]
    charge = both(app, ran, fail)[kind]
    with pytest.raises(ValueError, match="no answer"):
        charge(7)
    assert kept(app, kind, "order-7") is None, "a failure frees the key"
    assert charge(7) == charge(7, 100) == {"paid": 100} and ran == ["order-7"] * 2
    with pytest.raises(KeyReused, match="order-7") as refused:
        charge(7, 999)
    assert classify(refused.value).kind == "permanent"
    record = kept(app, kind, "order-7")
    assert record is not None and record.done and app.counts() == type(app.counts())()
