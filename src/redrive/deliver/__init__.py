"""`redrive deliver`: send the lines of a file as durable HTTP POSTs. Needs the extra `http`.

Begin with `run`. `spool` and `lines` read and check the file, `ingest` enqueues each line once, `sending` has the task
that POSTs one, and `summary` counts the outcomes. `run` and `sending` need `httpx` and are not imported here:
`redrive enqueue FILE` reads files without it.
"""

from .ingest import FileRecord, Ledger, LineIngest, first_record, record_key
from .lines import LINE_MAX, Checked, check, write_bad
from .pace import Pacer
from .progress import ProgressBar
from .retry import read_retry
from .signing import read_secret, sign
from .spool import readable, spool_path
from .summary import DeadGroup, Summary, close, remove, spool_folder, summarize

__all__ = [
    "LINE_MAX",
    "Checked",
    "DeadGroup",
    "FileRecord",
    "Ledger",
    "LineIngest",
    "Pacer",
    "ProgressBar",
    "Summary",
    "check",
    "close",
    "first_record",
    "read_retry",
    "read_secret",
    "readable",
    "record_key",
    "remove",
    "sign",
    "spool_folder",
    "spool_path",
    "summarize",
    "write_bad",
]
