"""Redrives that a machine begins by itself."""
