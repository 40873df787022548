"""Redact secrets in texts, JSON and named fields before people or log collectors read them.

Stored data is not changed. Secrets are recognized by their form (`ghp_…`, a private key), by the words beside them
(`password=…`, `Authorization: …`, a URL's userinfo), or by the name of their field. Ids, hashes, ordinary URLs,
tracebacks and prose are left alone. The time is linear in the length of the text.

Begin with `text`: it tries `formats`, `urls`, `named` (and `beside`) and `schemes`, each only if the text contains one
of its signs. `values` does the same for JSON, `records` for output of commands and pages; `visible` escapes invisible
characters.
"""

from .formats import HIDDEN
from .names import telling
from .records import redact_record
from .text import Joined, clip, joined, redact, shown_traceback
from .values import Redactor, redact_bytes, redact_json, redact_value
from .visible import in_json, many_lines, one_line

__all__ = [
    "HIDDEN",
    "Joined",
    "Redactor",
    "clip",
    "in_json",
    "joined",
    "many_lines",
    "one_line",
    "redact",
    "redact_bytes",
    "redact_json",
    "redact_record",
    "redact_value",
    "shown_traceback",
    "telling",
]
