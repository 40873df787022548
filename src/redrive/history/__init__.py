"""Keep what happened: counts and histograms by queue and task, in cells of the store itself.

A process counts in memory (`recorder.py`) and adds that to cells every ten seconds (`flusher.py`, `writer.py`). A cell
is a chunk (`chunk.py`) of keys (`tally.py`) and buckets (`histogram.py`). `read.py` sums them up again. `done.py` has
which messages were done, one by one.
"""

from __future__ import annotations

from .done import KNOWN_MAX_MS, DoneRecord, done_by_queue, read_done
from .flusher import Flusher
from .histogram import Histogram
from .objectives import Burn, SloStatus, read_objectives
from .read import History, Point, counts_of, read_history
from .recorder import MinuteSeries, Recorder
from .tally import Tally

__all__ = [
    "KNOWN_MAX_MS",
    "Burn",
    "DoneRecord",
    "Flusher",
    "Histogram",
    "History",
    "MinuteSeries",
    "Point",
    "Recorder",
    "SloStatus",
    "Tally",
    "counts_of",
    "done_by_queue",
    "read_done",
    "read_history",
    "read_objectives",
]
