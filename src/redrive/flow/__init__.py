"""Flow control as values and pure transitions, without clock, randomness or I/O; the states are stored in cells.

Begin with `dependency`, the state that all workers share when they call one dependency: its `breaker`, `budget`,
`limits` and `ramp`. `idempotency` has the states of a key.
"""
