"""Flow control as values and pure transitions, without clock, randomness or I/O; the states lie in cells."""
