"""The version, alone in a file so that the build can read it without importing the package."""

__version__ = "0.1.0"
PUBLISHED = False
"""Whether a package index has redrive. While it has not, documents say what to type instead: `scripts/index_notes`."""
