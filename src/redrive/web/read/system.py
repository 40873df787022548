"""The system: the store, its problems, clocks, versions, settings and permissions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from ..._version import __version__
from ...config import sources
from ...errors import Unsupported
from ...presence import WorkerInfo
from ...present.formats import setting_value
from ...present.permissions import Permission
from ...schedule import warning
from ...status.cells import problems
from ...worker.preflight import advice
from ..ask import PageRequest, Record


def system(ask: PageRequest) -> Record:
    """Return the results of `redrive store info`, `doctor` and `config show`, and the versions of the fleet."""
    traits = msgspec.structs.asdict(ask.store.traits)
    infos = _told(ask)
    return {
        "url": ask.site.url,
        "engine": ask.kept("system/info", ask.store.info).value,
        "traits": traits,
        "read_only": traits["read_only"] or None,
        "doctor": _doctor(ask),
        "damage": _damage(ask) if ask.checked("check") else None,
        "clock_ahead_ms": time.time_ns() // 1_000_000 - ask.store.now_ms(),
        "version": __version__,
        "versions": _versions(infos),
        "workers_missing": None if infos is not None else "not kept: name cells= in the store's URL",
        "settings": _settings(ask) if ask.user.may(Permission.ADMIN) else None,
        "user": ask.user.name or None,
        "actor": ask.actor,
        "site_read_only": ask.site.read_only,
        "permissions": [{"permission": str(each), "granted": ask.user.may(each)} for each in Permission],
        "command": ask.command("doctor"),
    }


def _told(ask: PageRequest) -> Sequence[WorkerInfo] | None:
    try:
        return [info for info in ask.app.workers() if not info.gone]
    except Unsupported:
        return None


def _doctor(ask: PageRequest) -> Record:
    """Return the lines of `redrive doctor` for the store and the app, without checks that read every message."""

    def find() -> list[str]:
        lines = [*ask.store.doctor()]
        if ask.registry is not None:
            lines += advice(ask.registry, ask.store)
            if ask.store.traits.cells and (late := warning(ask.registry, ask.store)) is not None:
                lines.append(late)
        return list(dict.fromkeys(lines))

    kept = ask.kept("system/doctor", find)
    return {"ok": not kept.value, "findings": kept.value, "age_s": kept.age_s}


def _damage(ask: PageRequest) -> Record:
    """Return the lines of `redrive store check`, which reads every message, from the cache of sums."""
    kept = ask.kept("system/check", lambda: problems(ask.store))
    return {"ok": not kept.value, "problems": kept.value, "age_s": kept.age_s}


def _versions(told: Sequence[WorkerInfo] | None) -> list[Record]:
    """Return the versions of the fleet, each with its processes, first the version of these pages; `told` has the
    processes."""
    by_version: dict[str, list[WorkerInfo]] = {}
    for info in told or ():
        by_version.setdefault(info.version, []).append(info)
    rows = [
        {
            "version": version,
            "same": version == __version__,
            "count": len(infos),
            "workers": [
                {"name": info.name, "app": info.app, "clock_ahead_ms": info.clock_ahead_ms} for info in infos[:100]
            ],
        }
        for version, infos in by_version.items()
    ]
    return sorted(rows, key=lambda row: (not row["same"], row["version"]))


def _settings(ask: PageRequest) -> list[dict[str, Any]]:
    """Return each setting of this process with its source, without secrets. The settings of store and app are those of
    the pages, which a flag or the mounting program may have set."""
    own = {"url": ask.site.url, "app": getattr(ask.registry, "spec", None)}
    rows: list[dict[str, Any]] = [
        {"name": each.name, "value": setting_value(each.value), "source": each.source} for each in sources()
    ]
    for row in rows:
        if (here := own.get(row["name"])) is not None and here != row["value"]:
            row |= {"value": here, "source": "these pages"}
    return rows
