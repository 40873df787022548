"""Write values as YAML for CloudFormation: block style, small values on one line, functions as short tags (`!Ref`,
`!Sub`, …). No null."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_TAGS = {"Ref": "!Ref", "Condition": "!Condition"}  # others are tagged without the prefix: Fn::Sub is !Sub
# Matches texts that YAML 1.1 and 1.2 read as text without quotes, if they are not in _WORDS.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*(?::{1,2}[A-Za-z0-9_./-]+)*")
_WORDS = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n"))
_STEP = " "  # indentation; small, so that the template of one queue is short enough to be passed as text
_LINE_MAX = 120  # most characters of a line that holds a list or mapping
_SMALL = 4  # most entries of a mapping that is written on one line


def dump(value: Mapping[str, Any]) -> str:
    """Return the YAML text, with a line break. Raises TypeError for a value that no template can have, such as None.

    >>> print(dump({"Name": {"Fn::Sub": "${Prefix}-orders"}, "Sizes": [1, "2"]}), end="")
    Name: !Sub "${Prefix}-orders"
    Sizes: [1, "2"]
    """
    return "\n".join(_mapping(value, "")) + "\n"


def _mapping(value: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, item in value.items():
        yield from _under(f"{indent}{_text(key)}:", item, indent)


def _under(head: str, item: Any, indent: str) -> Iterator[str]:
    """Yield `head` with the item: on one line if the item is small, otherwise indented below `head`."""
    line = f"{head} {_row(item)}"
    tag, inner = _tagged(item)
    if not isinstance(inner, Mapping | list | tuple) or not inner or (_row(item) and len(line) <= _LINE_MAX):
        yield line
        return
    yield f"{head} {tag}".rstrip()
    if isinstance(inner, Mapping):
        yield from _mapping(inner, indent + _STEP)
    else:  # YAML allows a list at the indentation of its key
        yield from _list(inner, indent if head.endswith(":") and not tag else indent + _STEP)


def _list(items: Sequence[Any], indent: str) -> Iterator[str]:
    for item in items:
        tag, inner = _tagged(item)
        row = f"{indent}- {_row(item)}"
        if tag or not (isinstance(inner, Mapping) and inner) or (_row(item) and len(row) <= _LINE_MAX):
            yield from _under(f"{indent}-", item, indent)
            continue
        lines = _mapping(inner, indent + "  ")  # indented after the list item's dash
        yield f"{indent}- {next(lines).lstrip()}"
        yield from lines


def _row(item: Any) -> str:
    """Return the item on one line; an empty text if a mapping in it has more than _SMALL entries."""
    tag, inner = _tagged(item)
    if isinstance(inner, Mapping) and inner:
        entries = [f"{_text(key)}: {row}" for key, each in inner.items() if (row := _row(each))]
        text = f"{{{', '.join(entries)}}}" if len(entries) == len(inner) <= _SMALL else ""
    elif isinstance(inner, list | tuple) and inner:
        entries = [row for each in inner if (row := _row(each))]
        text = f"[{', '.join(entries)}]" if len(entries) == len(inner) else ""
    else:
        text = _scalar(inner)
    return f"{tag} {text}".lstrip() if text else ""


def _tagged(item: Any) -> tuple[str, Any]:
    """Split a call of a CloudFormation function into its short tag and argument; the tag of any other item is empty."""
    if not isinstance(item, Mapping) or len(item) != 1:
        return "", item
    [(name, given)] = item.items()
    if name == "Fn::GetAtt":
        return "!GetAtt", ".".join(given)
    if name.startswith("Fn::"):
        return f"!{name.removeprefix('Fn::')}", given
    return (_TAGS[name], given) if name in _TAGS and isinstance(given, str) else ("", item)


def _scalar(item: Any) -> str:
    match item:
        case bool():
            return "true" if item else "false"
        case int() | float():
            return repr(item)
        case str():
            return _text(item)
        case Mapping():
            return "{}"
        case list() | tuple():
            return "[]"
        case _:
            raise TypeError(f"{item!r} has no place in a template")


def _text(text: str) -> str:
    """Return the text without quotes if it is unambiguous, otherwise quoted as in JSON, which YAML reads alike. A text
    with double quotes inside, such as JSON itself, gets single quotes."""
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    if '"' in text and text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08X}" for c in quoted)
