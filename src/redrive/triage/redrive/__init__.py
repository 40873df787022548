"""Redrives: `plan` makes one, `run` starts and steers it, `runner` moves its messages, tick by tick.

`records` is what the store keeps of it, `progress` tracks its messages, `pacing` and `gates` decide when it moves.
"""
