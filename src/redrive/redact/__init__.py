"""Takes secrets out of what people and log collectors will read: texts, JSON, and values by the names of their fields.

What is stored stays as it is. Secrets are known by their form (`ghp_…`, a private key), by what is said beside them
(`password=…`, `Authorization: …`, a URL's userinfo), or by the name of the field that holds them. Ids, hashes, ordinary
URLs, tracebacks and prose are left alone. The time it takes grows with the length of the text, whatever the text is.
"""

from .formats import HIDDEN
from .names import telling
from .text import clip, redact
from .values import Redactor, redact_bytes, redact_json, redact_value

__all__ = ["HIDDEN", "Redactor", "clip", "redact", "redact_bytes", "redact_json", "redact_value", "telling"]
