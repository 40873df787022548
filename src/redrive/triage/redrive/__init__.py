"""Redrives: plan, run, pacing, gates."""
