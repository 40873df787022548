"""Input that is copied before it is read: gzip within bounds."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from redrive.deliver import spool

MB = 1024 * 1024


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "UNPACKED_MIN", 4 * MB)


def test_a_bomb_is_refused_with_the_way_to_unpack_it_and_leaves_no_file(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.gz"
    bomb.write_bytes(gzip.compress(bytes(64 * MB)))
    with pytest.raises(spool.InputError) as raised:
        spool.readable(str(bomb), tmp_path / "spool")
    assert "bomb.gz is refused: it unpacks to more than 100 times its size" in str(raised.value)
    assert "gunzip -c FILE | redrive deliver -" in str(raised.value) and "nothing was enqueued" in str(raised.value)
    assert list((tmp_path / "spool").iterdir()) == []


@pytest.mark.parametrize(
    "plain",
    [b'{"n": 1}\n' * 300_000, b"".join(b'{"id": "%032x"}\n' % n for n in range(500_000))],
    ids=["alike, and small", "unlike, and large"],
)
def test_what_people_pack_is_unpacked_whole(tmp_path: Path, plain: bytes) -> None:
    packed = tmp_path / "lines.gz"
    packed.write_bytes(gzip.compress(plain, 1))
    assert spool.readable(str(packed), tmp_path / "spool").read_bytes() == plain


@pytest.mark.linux
def test_a_bomb_ends_in_bounded_memory_and_disk(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.gz"
    member = gzip.compress(bytes(16 * MB))
    bomb.write_bytes(member * 1000)  # 16 GB in 16 MB
    program = (
        "import resource, sys; from redrive.deliver import spool; from pathlib import Path\n"
        f"resource.setrlimit(resource.RLIMIT_DATA, ({400 * MB}, {400 * MB}))\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({300 * MB}, {300 * MB}))\n"
        "try: spool.readable(sys.argv[1], Path(sys.argv[2]))\n"
        "except spool.InputError as error:\n"
        "    print(Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])\n"
        "    sys.exit(str(error))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(bomb), str(tmp_path / "spool")], capture_output=True, text=True
    )
    assert done.returncode == 1 and "is refused" in done.stderr
    assert int(done.stdout) < 400 * 1024
