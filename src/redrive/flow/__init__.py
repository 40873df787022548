"""Flow control as values and pure transitions, without clock, randomness or I/O; the states are stored in cells.

Begin with `dependency`, the state of one dependency that all workers share: its `breaker`, `budget`, `limits` and
`ramp`. `idempotency` has the states of a key.
"""
