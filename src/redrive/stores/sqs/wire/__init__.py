"""Encode messages for SQS and decode them: redrive's envelope, foreign messages, and the mutable state beside them."""

from __future__ import annotations

from .envelope import ANY_BODY_MAX, ATTEMPT, BYTES_MAX, SOURCE, STATE, VERBATIM, attribute, body_of, size_of
from .foreign import FIRST_RECEIVED, MESSAGE_ID, RECEIVES, as_it_came, is_foreign
from .message import read, write
from .message_state import (
    PROGRESS_BYTES_MAX,
    RECORD_TTL_MS,
    MessageState,
    claimed,
    decode,
    encode,
    record_of,
    revived,
    state_of,
    unclaimed,
    with_state,
)

__all__ = [
    "ANY_BODY_MAX", "ATTEMPT", "BYTES_MAX", "FIRST_RECEIVED", "MESSAGE_ID", "PROGRESS_BYTES_MAX", "RECEIVES",
    "RECORD_TTL_MS", "SOURCE", "STATE", "VERBATIM", "MessageState", "as_it_came", "attribute", "body_of", "claimed",
    "decode", "encode", "is_foreign", "read", "record_of", "revived", "size_of", "state_of", "unclaimed",
    "with_state", "write",
]  # fmt: skip
