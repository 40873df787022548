"""One line of code is one failure, whatever values fill its message; another line, or another reason, is another.

`python -m tests.unit.fault.test_fault_families` prints the scores, and what the tuning part gets wrong.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cache
from hashlib import sha256

import pytest
from tests.support.families import FAMILIES, WORDS, classes, messages

from redrive.fault import classify

PARTS = ("tuning", "held out")
assert classes and messages  # which register themselves


def part_of(family: str) -> str:
    return PARTS[int(sha256(family.encode()).hexdigest(), 16) % 3 == 0]


@cache
def prints() -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for name, fails in FAMILIES.items():
        for word in WORDS:
            try:
                fails(word)
            except Exception as error:
                found[name][classify(error).fingerprint] += 1
            else:
                raise AssertionError(f"{name}: nothing was raised")
    return found


def score(part: str) -> tuple[float, float, list[str]]:
    """Precision and recall of pairs, and the families that are wrong."""

    def pairs(n: int) -> int:
        return n * (n - 1) // 2

    chosen = {name: counts for name, counts in prints().items() if part_of(name) == part}
    joined: Counter[str] = Counter()
    for counts in chosen.values():
        joined.update(counts)
    together = sum(pairs(n) for counts in chosen.values() for n in counts.values())
    wrong = [f"{name}: {len(counts)} fingerprints" for name, counts in chosen.items() if len(counts) > 1]
    wrong += [
        f"{name} and {other}: one fingerprint"
        for name in chosen
        for other in chosen
        if name < other and chosen[name].keys() & chosen[other].keys()
    ]
    return (
        together / sum(map(pairs, joined.values())),
        together / sum(pairs(counts.total()) for counts in chosen.values()),
        wrong,
    )


@pytest.mark.parametrize("part", PARTS)
def test_a_line_of_code_is_one_fingerprint_whatever_fills_its_message(part: str) -> None:
    precision, recall, wrong = score(part)
    print(f"{part}: precision {precision:.4f}, recall {recall:.4f}")
    assert precision >= 0.99 and recall >= 0.99, "\n".join(wrong)


def test_there_are_enough_families() -> None:
    sizes = Counter(map(part_of, FAMILIES))
    assert sizes.total() >= 40 and min(sizes.values()) >= 10


if __name__ == "__main__":
    for part in PARTS:
        precision, recall, wrong = score(part)
        print(f"{part}: precision {precision:.4f}, recall {recall:.4f}")
        print("\n".join(wrong if part == PARTS[0] else []))
