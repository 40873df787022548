"""Faults: what went wrong, as a value with a kind, a bounded traceback and a fingerprint.

Begin with `classifier`: `classify` inspects an exception and its causes (`inspection`), chooses a kind, and adds the
text of the traceback (`traceback`) and the fingerprint (`fingerprints`). Classes, codes and phrases that are known are
tables in `known_errors` and `text_patterns`. A process that died raised nothing: `crash` builds its fault.
"""

from .classifier import classify
from .crash import STARTED_MAX, crash_fault
from .fingerprints import fingerprint
from .model import TEXT_MAX, TRACEBACK_MAX, Crash, Fault, Kind, kind_word, member_of
from .retry_after import RETRY_AFTER_MAX_S, parse_retry_after
from .rules import Matcher, Rule, check_rules
from .stand_in import stand_in

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
    "kind_word",
    "member_of",
    "parse_retry_after",
    "stand_in",
]
