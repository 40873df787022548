"""The control room: pages on an app's store, and the same as JSON.

`table.py` lists every page and action with its permission. A page is a function of `read/` that returns a record, which
a template shows and which is the JSON at the same address. An action is a function of `actions/` that calls triage.
`site.py` answers requests, `access.py` decides who may do what, `guard.py` refuses forged ones, `live.py` tells
browsers that something changed.
"""

from __future__ import annotations

from ..present.permissions import ALL, Permission, User
from .site import Site

__all__ = ["ALL", "Permission", "Site", "User"]
