"""How well fingerprints group real failures: pairs of one cause fall together, pairs of two causes stay apart.

The corpus in tests/data/fingerprints was made by scripts/fingerprint_corpus, its groups named by cause before any
fingerprint was looked at. A third of the groups, by a hash of their names, is held out: it is for the score alone, and
what it shows is not to be tuned for. `python -m tests.unit.fault.test_fault_corpus` says both scores and what the
tuning part gets wrong.
"""

from __future__ import annotations

import gzip
from collections import Counter, defaultdict
from functools import cache
from hashlib import sha256
from itertools import combinations
from typing import NamedTuple

import pytest
from tests.support.corpus import CORPUS, Record, exception_of, records, with_source

from redrive.fault import classify

PARTS = ("tuning", "held out")
PINNED = CORPUS / "prints-d117619.txt.gz"  # a line for each record: fingerprint and kind, as that commit classified it


class Score(NamedTuple):
    """Of all pairs in a part: those that fingerprints join rightly, by those joined and by those of one cause."""

    groups: int
    records: int
    precision: float
    recall: float
    worst: list[str]

    def __str__(self) -> str:
        return (
            f"{self.records} tracebacks of {self.groups} causes: "
            f"precision {self.precision:.4f}, recall {self.recall:.4f}"
        )


def part_of(group: str) -> str:
    return PARTS[int(sha256(group.encode()).hexdigest(), 16) % 3 == 0]


@cache
def prints(sources: bool) -> list[tuple[Record, str]]:
    """`sources`: on a machine that has the source of the program, so that templates of its messages are known."""
    return [(each, classify(exception_of(with_source(each) if sources else each)).fingerprint) for each in records()]


def score(part: str, sources: bool = False) -> Score:
    chosen = [(record, each) for record, each in prints(sources) if part_of(record["group"]) == part]
    cells = Counter((record["group"], each) for record, each in chosen)
    together = _pairs(cells)
    joined = _pairs(Counter(each for _, each in chosen))
    meant = _pairs(Counter(record["group"] for record, _ in chosen))
    groups = len({record["group"] for record, _ in chosen})
    return Score(groups, len(chosen), together / joined, together / meant, _worst(chosen))


def _pairs(counts: Counter[str] | Counter[tuple[str, str]]) -> int:
    return sum(n * (n - 1) // 2 for n in counts.values())


def _worst(chosen: list[tuple[Record, str]]) -> list[str]:
    """The pairs of groups that are one print, and the groups of several prints, by how many pairs that costs."""
    by_print: dict[str, Counter[str]] = defaultdict(Counter)
    by_group: dict[str, Counter[str]] = defaultdict(Counter)
    texts: dict[tuple[str, str], str] = {}
    for record, each in chosen:
        by_print[each][record["group"]] += 1
        by_group[record["group"]][each] += 1
        texts[record["group"], each] = f"{record['lineage'][0].partition('(')[0]}: {record['text'][:160]!r}"
    found = [
        (one[1] * other[1], f"one fingerprint for {one[0]} and {other[0]}: {texts[one[0], each]}")
        for each, groups in by_print.items()
        for one, other in combinations(groups.most_common(), 2)
    ]
    for group, several in by_group.items():
        for one, other in combinations(several.most_common(), 2):
            pair = f"{texts[group, one[0]]}\n    {texts[group, other[0]]}"
            found.append((one[1] * other[1], f"two fingerprints for {group}:\n    {pair}"))
    return [f"{cost} pairs: {what}" for cost, what in sorted(found, reverse=True)]


@pytest.mark.parametrize("sources", [False, True], ids=["without source", "with source"])
@pytest.mark.parametrize("part", PARTS)
def test_one_cause_is_one_fingerprint(part: str, sources: bool) -> None:
    result = score(part, sources)
    print(f"{part}: {result}")
    worst = "\n".join(result.worst[:20])
    assert result.precision >= 0.99 and result.recall >= 0.95, f"{part}: {result}\n{worst}"


@pytest.mark.parametrize("sources", [False, True], ids=["without source", "with source"])
def test_fingerprints_and_kinds_stay_what_they_were(sources: bool) -> None:
    """Stored messages are grouped by their fingerprints: a changed one splits every group that it was in."""
    faults = [classify(exception_of(with_source(record) if sources else record)) for record in records()]
    found = [f"{fault.fingerprint} {fault.kind}" for fault in faults]
    pinned = gzip.decompress(PINNED.read_bytes()).decode().splitlines()
    assert len(found) == len(pinned)
    pairs = zip(records(), pinned, found, strict=True)
    assert [(record["group"], then, now) for record, then, now in pairs if then != now] == []


def test_the_corpus_is_large_and_of_many_libraries() -> None:
    found = records()
    assert len(found) >= 200
    assert len({record["group"].partition(":")[0] for record in found}) >= 20
    assert {record["release"] for record in found} == {1, 2}


if __name__ == "__main__":
    for part in PARTS:
        for sources in (False, True):
            print(f"{part}, {'with' if sources else 'without'} source: {score(part, sources)}")
    print("\n".join(score(PARTS[0], sources=True).worst))
