"""What went wrong, as a value: `classify(exception) -> Fault` with a kind, a bounded traceback and a fingerprint.

Order: what the handler raised to steer; the task's own rules; well-known exceptions, by the names of their classes and
by their attributes, so that no library is imported; the HTTP status; patterns in the text. Unknown is `default`.

The way of an exception: `classifier` takes `looks` at it and at what it was raised from (`classes`, `attributes`; both
read through `foreign`), has the `verdict` given (`rules`, `words`), its `stack` walked, its `story` told and its
fingerprint taken (`fingerprints`). A process that died raised nothing: `crashes` makes a fault of what is known of it.
"""

from .classifier import classify
from .crash import STARTED_MAX, crash_fault
from .fingerprints import fingerprint
from .model import TEXT_MAX, TRACEBACK_MAX, Crash, Fault, Kind
from .retry_after import RETRY_AFTER_MAX_S, parse_retry_after
from .rules import Matcher, Rule, check_rules

__all__ = [
    "RETRY_AFTER_MAX_S",
    "STARTED_MAX",
    "TEXT_MAX",
    "TRACEBACK_MAX",
    "Crash",
    "Fault",
    "Kind",
    "Matcher",
    "Rule",
    "check_rules",
    "classify",
    "crash_fault",
    "fingerprint",
    "parse_retry_after",
]
