"""The keys of the pages, and links to the docs."""

from __future__ import annotations

from ..ask import PageRequest, Record


def keys(ask: PageRequest) -> Record:
    """Return the keys, and the permissions of the user."""
    return {
        "shortcuts": [
            {"press": "/", "does": "find messages"},
            {"press": "?", "does": "these keys"},
            {"press": "j", "does": "the next row of a table; k the one before"},
            {"press": "x", "does": "tick the row"},
            {"press": "Enter", "does": "open the row"},
            *({"press": f"g {page.key}", "does": page.title} for page in ask.site.menu),
            {"press": "Esc", "does": "leave a field"},
        ],
        "permissions": sorted(ask.user.permissions),
    }
