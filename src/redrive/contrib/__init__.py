"""Mounts for web frameworks. Each module imports its framework; nothing else of redrive does."""
