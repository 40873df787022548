"""The forecasts of redrives, and how near they were."""

from __future__ import annotations

from ...present.forecasts import score_record
from ...simulate import read_score
from ..ask import PageRequest, Record
from .plans import missing

LAST, LAST_MAX = 50, 200  # forecasts on the page, and the most that may be asked for


def forecasts(ask: PageRequest) -> Record:
    """Return what was foretold of the last redrives beside what came, as `redrive forecast score` does."""
    last = ask.number("last", LAST, least=1, most=LAST_MAX)
    gone = missing(ask, "Forecasts")
    record = {} if gone else score_record(read_score(ask.store, last))
    return {"missing": gone, **record, "command": ask.command("forecast", "score", "--last", str(last))}
