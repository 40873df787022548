"""Observers of an app's events: `logs`, `alerts` and `webhook`, and metrics (`tally` counts, `prometheus` exports)."""
