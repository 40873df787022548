"""Prove that a bridge wrote the header with the next tasks of a chain, since any program may set headers.

The proof is an HMAC-SHA256 over the header, the task and Celery's id, with one key per store, which is stored in a
cell. Who can read the store can forge a proof; who can write to it needs none, as it may enqueue any task.
"""

from __future__ import annotations

import hmac
import secrets

from ...app import App
from ...errors import StoreUnavailable
from ...message import Swap

KEY = "celery/next-key"  # the key of the cell that has the store's secret key
KEY_BYTES = 32
TRIES = 3  # tries to create that key, as several bridges may start at once on a new store


class Proofs:
    """Makes and checks the proofs in headers of one app's messages."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._key: bytes | None = None

    def prove(self, text: str, *, task: str, id: str) -> str:
        """Return `text` with its proof before it. Creates the store's key if there is none. Raises StoreError."""
        return f"{self._digest(self._made_key(), text, task, id)}:{text}"

    def open(self, proven: str, *, task: str, id: str) -> str | None:
        """Return the text without its proof; None if no bridge of this store made the proof. Raises StoreError."""
        proof, _, text = proven.partition(":")
        key = self._read_key()
        if key is None or not hmac.compare_digest(proof.encode(), self._digest(key, text, task, id).encode()):
            return None
        return text

    def _digest(self, key: bytes, text: str, task: str, id: str) -> str:
        about = "".join(f"{len(part)}:{part}" for part in (task, id, text))
        return hmac.new(key, about.encode(errors="surrogatepass"), "sha256").hexdigest()

    def _read_key(self) -> bytes | None:
        if self._key is None:
            (cell,) = self._app.store.cells.read([KEY])
            self._key = None if cell is None else cell.value
        return self._key

    def _made_key(self) -> bytes:
        for _ in range(TRIES):
            key = self._read_key()
            if key is not None:
                return key
            self._app.store.cells.swap([Swap(KEY, 0, secrets.token_bytes(KEY_BYTES))])  # of several processes, one wins
        raise StoreUnavailable(
            f"the cell {KEY!r} cannot be written; nothing was moved, and the next try takes it again"
        )
