"""Observers of events: logs, metrics, alerts. The core imports none of them.

Begin with `logs`, the simplest observer. `tally` counts events, `prometheus` shows the counts, and `alerts` and
`webhook` notify people.
"""
