"""The audit log: who changed what, when and why. Each entry holds the hash of the one before.

Begin with `log`, which writes an entry in the commit of the change itself. `chain` computes and checks the hashes,
`actor` says who acts.
"""

from .actor import REASON_MAX, signed, user
from .log import IDS_MAX, Audit, Entry, again

__all__ = ["IDS_MAX", "REASON_MAX", "Audit", "Entry", "again", "signed", "user"]
