"""Random values: pauses between two tries, and times that spread the actions of processes.

They come from the system's generator, which needs no seed, also after a fork. A program that seeds Python's generator
must get the same values from it whether redrive waited or not, and must not make all processes wait equally long.
"""

from __future__ import annotations

from collections.abc import Callable
from random import SystemRandom

_SYSTEM = SystemRandom()
uniform: Callable[[float, float], float] = _SYSTEM.uniform
randrange: Callable[[int], int] = _SYSTEM.randrange
