"""What redrive draws by chance: pauses between two tries, and moments at which processes do not all act at once.

Not from Python's own generator: a program that seeds it to repeat its choices must get the same ones whether redrive
waited or not, and must not make processes wait for each other in step. The system's needs no seed, also after a fork.
"""

from __future__ import annotations

from random import SystemRandom

_SYSTEM = SystemRandom()
uniform = _SYSTEM.uniform
randrange = _SYSTEM.randrange
