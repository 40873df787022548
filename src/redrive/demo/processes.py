"""The demo's other processes: the endpoint, and the proof."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import IO

import msgspec

from ..config import trust
from ..errors import RedriveError
from .ledger import ProofVerdict

TIMEOUT_S = 0.8
LIMIT_S = 50.0  # seconds that one delivery may take
SECRET = "whsec_cmVkcml2ZSBkZW1vIHNlY3JldCwgbm90IHJlYWxseSBzZWNyZXQ="


class DemoFailed(RedriveError):
    """Raised if part of the demo failed: a process, a delivery or a run. The text says which."""


class EndpointProcess:
    """The endpoint, in a process that ends with this one, as its standard input is then closed."""

    port: int

    def __init__(self, log: Path, *plan: str) -> None:
        arguments = [*plan, "--log", str(log), "--secret", SECRET, "--timeout", str(TIMEOUT_S)]
        command = [*trust.python(), "-m", "redrive.demo.endpoint", *arguments]
        # In a session of its own, so that Ctrl-C interrupts only this process, which then closes the endpoint's input.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self.port = 0

    def wait(self) -> None:
        """Wait until the endpoint listens."""
        self.port = int(self._read())

    def fix(self) -> None:
        """Let the endpoint end all failures that can be repaired."""
        stdin = self._stdin()
        stdin.write(b"fix\n")
        stdin.flush()
        self._read()

    def end(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._stdin().close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _read(self) -> bytes:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise DemoFailed("the endpoint could not be started; its own words are above")
        return line


def proved(url: str, log: Path, sent: Path, fates: Path, queue: str) -> ProofVerdict:
    """Run the proof in another process, on these files and this queue; return the verdict. Raises DemoFailed."""
    command = [*trust.python(), "-m", "redrive.demo.ledger", str(log), "-", str(sent), str(fates), queue]
    env = {**os.environ, "REDRIVE_URL": url}  # not an argument, as the URL may contain a password
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    try:
        return msgspec.json.decode(done.stdout, type=ProofVerdict)
    except msgspec.DecodeError:
        raise DemoFailed(f"the ledger could not be read; {done.stderr.strip()[-300:]}") from None
