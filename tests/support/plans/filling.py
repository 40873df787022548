"""What the stores are filled with: as many messages as a queue has that went wrong for a while, of every kind.

Kinds are dealt out by number, so that they lie mixed, as they do where messages come and go. Each engine's module
writes them by a statement of its own.
"""

from __future__ import annotations

import os
from typing import NamedTuple

MAIN, LATER, LINES, SMALL, WORN = "main", "later", "lines", "small", "worn"
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 24 * 3_600_000
TASKS, REASONS, FINGERPRINTS = 5, 3, 40
GATE, SOAK = 200_000, 1_000_000


class Mix(NamedTuple):
    """`rows` messages as seen at `now_ms`. Of each thousand, by number:

    - 0–549: delayed by an hour and more, half of them in `main` and half in `later`, where nothing is due
    - 550–599: due in `main`, of all priorities
    - 600–619: leased in `main` for an hour more: no lease ends while tests run
    - 620–719: dead in `main` in the last thirty days, of five tasks, three reasons and forty fingerprints
    - 720–724: in quarantine in `main`
    - 725–799: done in `main` in the last thirty days, and kept for twenty-five
    - 800–897: parked in `lines`, in the group of this thousand
    - 898: due in `lines`, with the one place of that group
    - 899–978: of that group, waiting for their time; 979–988: their time has come
    - 990–999: in `small`, of which 990 is dead, 991 done, 992 due, 993 leased, the others delayed
    """

    rows: int
    now_ms: int

    @property
    def groups(self) -> int:
        return self.rows // 1000

    def many(self, of_a_thousand: int) -> int:
        """How many there are of what is so many of each thousand."""
        return self.rows * of_a_thousand // 1000


def rows() -> int:
    """How many the tests run on."""
    return SOAK if os.environ.get("TEST_SOAK") == "1" else GATE


# SQL that both engines read: of `n`, the number, and `k`, the number in its thousand
LANE = """case when k between 600 and 619 or k = 993 then 'leased' when k between 620 and 719 or k = 990 then 'dead'
  when k between 720 and 724 then 'quarantine' when k between 725 and 799 or k = 991 then 'done' else 'ready' end"""
QUEUE = f"""case when k between 275 and 549 then '{LATER}' when k < 800 then '{MAIN}' when k < 990 then '{LINES}'
  else '{SMALL}' end"""
PRIORITY = "case when k between 550 and 599 then n % 4 else 2 end"
# (each parameter is spelt out by `str.format`: now, minute, hour)
DUE = """case when k < 550 or k > 993 then {now} + {hour} + n % 997 * {minute}
  when k < 600 then {now} - 1 - n % 1009 * 1000 when k < 620 or k = 993 then {now} + {hour}
  when k = 898 or k = 992 then {now} - 1000 end"""
ENQUEUED = f"{{now}} - {40 * DAY_MS} + n"
AGO = f"{{now}} - (n % 10007 + 1) * {30 * DAY_MS} / 10008"
RESTED = f"case when ({LANE}) in ('dead', 'done', 'quarantine') then {AGO} end"
EXPIRES = f"case when ({LANE}) = 'done' then {AGO} + {25 * DAY_MS} end"
WAKE = """case when k between 899 and 978 then {now} + {hour} + n % 997 * {minute} when k between 979 and 988
  then {now} - 1 - n % 1009 end"""
PARKED = "case when k between 800 and 897 then {now} - {hour} end"
TASK = f"'task' || (n % {TASKS})"
GROUP = "case when k between 800 and 988 then 'group' || (n / 1000) end"
FENCE = f"case when ({LANE}) = 'ready' then 0 else 1 end"
WORKER = f"case when ({LANE}) = 'leased' then 'somebody' end"
REASON = f"case when ({LANE}) = 'dead' then 'reason' || (n % {REASONS}) when ({LANE}) = 'quarantine' then 'suspect' end"
FINGERPRINT = f"case when ({LANE}) = 'dead' then 'print' || (n % {FINGERPRINTS}) end"
ERROR = f"case when ({LANE}) = 'dead' then 'Error' || (n % 7) end"
FAULT = '{{"kind":"permanent","error":"Error","text":"it cannot be done"}}'


def spelt(sql: str, now_ms: int, **names: object) -> str:
    """`sql` with its times."""
    return sql.format(now=f"({now_ms})", minute=MINUTE_MS, hour=HOUR_MS, **names)
