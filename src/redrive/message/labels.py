"""Labels of messages: names and values by which selectors find them, such as `label:customer=7`. Each is a header."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError

LABEL_PREFIX = "redrive-label-"  # begins the name of the header of a label
LABELS_MAX, VALUE_MAX = 16, 255  # labels of a message, and characters of a value
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def is_label_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def labelled(headers: Mapping[str, str] | None, labels: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return the headers of a message with these headers and labels. Raises ConfigError for labels that none has."""
    if not labels:
        return None if headers is None else dict(headers)
    said: Any = labels
    if not isinstance(said, Mapping) or len(said) > LABELS_MAX:
        raise ConfigError(f"labels={labels!r}: expected at most {LABELS_MAX} names with values")
    for name, value in said.items():
        if not isinstance(name, str) or not is_label_name(name):
            raise ConfigError(
                f"label {name!a}: expected a name of at most 63 letters, digits, '_', '-' and '.', such as 'customer'"
            )
        if not isinstance(value, str) or not value or len(value) > VALUE_MAX or not value.isprintable():
            raise ConfigError(
                f"label {name}={value!a}: expected a value of 1 to {VALUE_MAX} printable characters, such as '7'"
            )
    return {**(headers or {}), **{f"{LABEL_PREFIX}{name}": value for name, value in labels.items()}}


def labels_in(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the labels among these headers."""
    return {name[len(LABEL_PREFIX) :]: text for name, text in headers.items() if name.startswith(LABEL_PREFIX)}
