"""What a rule says of a policy: a finding, or that it cannot decide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from msgspec import Struct

Severity = Literal["error", "warning"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning")
Figure = float | str  # a number that a finding follows from; text for one with its unit, such as "50/s"


class Hit(NamedTuple):
    """A rule's answer about one subject: what will go wrong, the change that mends it, and the numbers it follows
    from. `at` names what in the subject is meant, if the rule may hit it more than once."""

    severity: Severity
    text: str
    fix: str
    numbers: Mapping[str, Figure] = {}
    at: str = ""


class Unclear(NamedTuple):
    """A rule's answer that it cannot decide, and what it would need for that."""

    needs: str


class SourceLine(Struct, frozen=True):
    """A line of the app's source. The path is relative to the working directory if the file is below it."""

    file: str
    line: int


class Finding(Struct, frozen=True, kw_only=True):
    """A fault of a declaration. `subject` is what it is about, such as "task crm.push"; `accepted` is the reason if
    somebody accepts it, or "baseline"."""

    rule: str
    severity: Severity
    subject: str
    text: str
    fix: str
    numbers: Mapping[str, Figure] = {}
    place: SourceLine | None = None
    accepted: str | None = None
    at: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What identifies the finding in a baseline: its rule, its subject and what in that, no number that changes."""
        return self.rule, self.subject, self.at


class Undecided(Struct, frozen=True, kw_only=True):
    """A rule that could not decide about a subject, for want of `needs`."""

    rule: str
    subject: str
    needs: str
