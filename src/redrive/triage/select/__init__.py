"""Selectors: which dead letters are meant."""
