"""Draw counts as a line of blocks."""

from __future__ import annotations

from collections.abc import Sequence

BLOCKS = " ▁▂▃▄▅▆▇█"


def spark(counts: Sequence[int]) -> str:
    """Return a block for each count, as high as its share of the largest; a space for 0.

    >>> spark([0, 1, 4, 8])
    ' ▁▄█'
    """
    most = max(counts, default=0) or 1
    return "".join(BLOCKS[-(-count * (len(BLOCKS) - 1) // most)] for count in counts)
