"""A report as SARIF 2.1.0 (OASIS), which editors and code hosts show beside the source."""

from __future__ import annotations

import json
from typing import Any

from .._version import __version__
from .finding import Finding
from .report import STALE, CheckReport
from .rules import RULES

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_STALE_TEXT = "An exception silences nothing: its finding is mended, or its rule has another name."


def sarif_of(report: CheckReport) -> str:
    """Return the report as one SARIF run. Accepted findings are suppressed, with their reason; what could not be
    decided is a count in the run's properties."""
    names = sorted({finding.rule for finding in report.findings})
    run = {
        "tool": {"driver": {"name": "redrive", "version": __version__, "rules": [_rule(name) for name in names]}},
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, names.index(finding.rule)) for finding in report.findings],
        "properties": {"unknown": len(report.unknown)},
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1, ensure_ascii=False) + "\n"


def _rule(name: str) -> dict[str, Any]:
    text = " ".join((_STALE_TEXT if name == STALE else RULES[name].text).split())
    return {"id": name, "shortDescription": {"text": text.partition(". ")[0]}, "fullDescription": {"text": text}}


def _result(finding: Finding, index: int) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": finding.severity,
        "message": {"text": f"{finding.subject}: {finding.text}. To mend it: {finding.fix}."},
        "partialFingerprints": {"redriveSubject/v1": " ".join(finding.key)},
        "properties": dict(finding.numbers),
    }
    logical = {"logicalLocations": [{"fullyQualifiedName": finding.subject}]}
    if (place := finding.place) is not None:
        artifact = {"uri": place.file.replace("\\", "/")}
        logical["physicalLocation"] = {"artifactLocation": artifact, "region": {"startLine": max(1, place.line)}}  # type: ignore[assignment]
    result["locations"] = [logical]
    if finding.accepted is not None:
        result["suppressions"] = [{"kind": "external", "justification": finding.accepted}]
    return result
