"""Settings of a process: flag > `REDRIVE_…` variable > file > default, field by field.

Begin with `resolve`. `values` says what each setting may be, `file` finds and reads the settings file, and `trust`
decides whose files may choose the store and the code that runs here. `runbooks` names the page
of the docs for each alert, and `links` makes links to these and to the web pages.
"""

from __future__ import annotations

from . import trust
from .file import OURS, PYPROJECT
from .links import page_address, runbook_of, web_link
from .resolve import VARIABLES, Settings, Sourced, is_shared, settings, sources, unknown_variables
from .runbooks import RUNBOOKS, runbook_url
from .trust import NotTrusted
from .values import LOGS, LOOPBACK, OUTPUTS, SETTINGS, address, hidden_url, queue_sizes, some_size

__all__ = [
    "LOGS",
    "LOOPBACK",
    "OURS",
    "OUTPUTS",
    "PYPROJECT",
    "RUNBOOKS",
    "SETTINGS",
    "VARIABLES",
    "NotTrusted",
    "Settings",
    "Sourced",
    "address",
    "hidden_url",
    "is_shared",
    "page_address",
    "queue_sizes",
    "runbook_of",
    "runbook_url",
    "settings",
    "some_size",
    "sources",
    "trust",
    "unknown_variables",
    "web_link",
]
