"""Failure groups and their annotations as records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..crypto import shown_text
from ..duration import show
from ..message import FailureGroup
from ..triage.annotations import NOTHING, Annotation
from ..triage.auto.rules import Rule
from .formats import timestamp

if TYPE_CHECKING:
    from ..flow.auto_redrive import AutoRedrive


def auto_redrive_record(auto: AutoRedrive) -> dict[str, Any]:
    """Return the parameters of automatic redrives as a record, except their rate and jitter."""
    return {
        "base": show(auto.base),
        "factor": auto.factor,
        "cap": show(auto.cap),
        "max_redrives": auto.max_redrives,
        "attempts": auto.attempts,
    }


def pace_record(auto: AutoRedrive) -> dict[str, Any]:
    """Return the rate and the jitter of automatic redrives as a record."""
    return {"rate": f"{auto.rate:.6g}/s", "jitter": auto.jitter}


def group_records(
    groups: Sequence[FailureGroup],
    annotations: Mapping[str, Annotation],
    held: Mapping[tuple[str, str], int],
    now_ms: int,
) -> list[dict[str, Any]]:
    """Return failure groups as records, with their annotations, which are given by fingerprint, and how many of
    their messages are held for a person."""
    return [
        task_group_record(group)
        | annotation_record(annotations.get(group.fingerprint, NOTHING), now_ms)
        | {"held": held.get((group.fingerprint, group.task), 0)}
        for group in groups
    ]


def task_group_record(group: FailureGroup) -> dict[str, Any]:
    """Return a failure group's messages of one task as a record, without annotations."""
    return {
        "fingerprint": group.fingerprint,
        "task": group.task,
        "error": group.error,
        "text": shown_text(group.text),
        "count": group.count,
        "trend": group.trend,
        "recent": group.recent,
        "earlier": group.earlier,
        "first_at": timestamp(group.first_ms),
        "last_at": timestamp(group.last_ms),
        "sample_id": group.sample_id,
    }


def batches_record(found: tuple[int, bool] | None) -> dict[str, Any]:
    """Return how many batches wait for a failure group, and if there may be more, as a record; without fields if that
    was not counted."""
    return {} if found is None else {"batches": found[0], "batches_at_least": found[1]}


def annotation_record(about: Annotation, now_ms: int) -> dict[str, Any]:
    """Return the annotations of a failure group as a record."""
    standing = about.rule
    return {
        "note": about.note or None,
        "owner": about.owner or None,
        "muted_until": timestamp(about.muted_until_ms) if about.muted(now_ms) else None,
        "or_until": (growth_text(about) or None) if about.muted(now_ms) else None,
        "rule": None if standing is None else standing.kind,
        "rule_by": None if standing is None else f"{standing.by}: {standing.reason}",
        "rule_auto": None if standing is None else rule_record(standing),
        "state": about.state.word or None,
        "resolved_at": timestamp(about.state.resolved_ms or None),
        "resolved_in": about.state.release or None,
        "resolved_by": about.state.by or None,
        "regressed_at": timestamp(about.state.regressed_ms or None),
        "merged_into": about.into or None,
    }


def growth_text(about: Annotation) -> str:
    """Return at which growth of the group its mute ends early, as text; empty if at none."""
    state = about.state
    total = f"{state.until_total:,} dead" if state.until_total else ""
    return " or ".join(filter(None, (state.until_rate, total)))


def rule_record(rule: Rule) -> dict[str, Any] | None:
    return None if rule.auto is None else auto_redrive_record(rule.auto) | pace_record(rule.auto)
