"""Fill a store of each engine with an earlier version, and save it with what that version reads in it.

Copy this folder into a checkout of that commit, so that tracebacks name no folder of yours, and run it there:

    git worktree add /tmp/earlier COMMIT && cp -r scripts/stored_fixtures /tmp/earlier/scripts && cd /tmp/earlier
    make setup-dev
    env XDG_STATE_HOME=/tmp/state .venv/bin/python /tmp/earlier/scripts/stored_fixtures OUT

This code uses the names of that commit (e314369c), private ones too. It does not run with later versions.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the checkout's tests
from contents import fill
from killed import work_until_killed
from queues import fill_sqs
from saving import save, save_postgres, save_redis, save_sqlite
from tests.support.servers import PostgresServer, RedisServer

SCHEMA = "stored_earlier"  # the loader puts another name in its place


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        manifest = fill(f"sqlite:///{place / 'work.db'}")
        save_sqlite(out, manifest, place / "work.db")
    with PostgresServer() as server:
        manifest = fill(f"{server.url}?schema={SCHEMA}")
        save_postgres(out, manifest, server.url, SCHEMA)
    with RedisServer(appendonly=True) as server:
        manifest = fill(f"{server.url}?namespace={SCHEMA}")
        save_redis(out, manifest, server.url, SCHEMA)
    with tempfile.TemporaryDirectory() as folder:
        save(out, "sqs", *fill_sqs(Path(folder)))


if __name__ == "__main__":
    os.environ |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    if sys.argv[1] == "work-until-killed":
        work_until_killed(*sys.argv[2:])
    else:
        main(Path(sys.argv[1]).absolute())
