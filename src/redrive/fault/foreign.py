"""Reading what is not ours: every attribute of a foreign exception may lie, raise or be endless.

So classes are read past their metaclass, attributes through `get`, texts through `text_of`. Only a KeyboardInterrupt
passes, since it is the user's and not the exception's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from .model import TEXT_MAX

NAME_MAX = 200  # characters of a class's qualified name, of a service's code
WORD_MAX = 500  # characters of a word that is left out rather than cut
SHOWN_MAX = 80  # characters of a value in an error

# The real slots: a subclass may define properties of the same names, a metaclass may answer for its classes.
_class_dict: Mapping[str, Any] = type.__dict__
mro_of: Callable[[type], tuple[type, ...]] = _class_dict["__mro__"].__get__
namespace_of: Callable[[type], Mapping[str, object]] = _class_dict["__dict__"].__get__
flags_of: Callable[[type], int] = _class_dict["__flags__"].__get__
_qualname: Callable[[type], str] = _class_dict["__qualname__"].__get__
_module: Callable[[type], object] = _class_dict["__module__"].__get__
traceback_of: Callable[[BaseException], TracebackType | None] = BaseException.__dict__["__traceback__"].__get__
cause_of: Callable[[BaseException], BaseException | None] = BaseException.__dict__["__cause__"].__get__
context_of: Callable[[BaseException], BaseException | None] = BaseException.__dict__["__context__"].__get__
suppressed: Callable[[BaseException], bool] = BaseException.__dict__["__suppress_context__"].__get__
attributes_of: Callable[[BaseException], Mapping[str, Any]] = BaseException.__dict__["__dict__"].__get__
members_of: Callable[[BaseException], tuple[BaseException, ...]] = BaseExceptionGroup.__dict__["exceptions"].__get__
message_of: Callable[[BaseException], str] = BaseExceptionGroup.__dict__["message"].__get__


def storable(text: str, limit: int) -> str:
    """Cut to `limit` characters, between words where there are any: half of a secret would not be known for one. Lone
    surrogates and NULs, which stores refuse, become escapes."""
    text = str.__str__(text)  # a subclass's own methods would be called below
    if len(text) > limit:
        mark = f"… ({len(text):,} characters)"
        head = text[: limit - len(mark)]
        if not text[len(head)].isspace():
            cut = max(head.rfind(space, -WORD_MAX) for space in " \n\t")
            head = head if cut < 0 else head[: cut + 1]
        text = head + mark
    if "\0" in text:
        text = text.replace("\0", "\\x00")[:limit]
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()[:limit]


def text_of(exception: BaseException, name: str) -> str:
    """What `str` says of it, or that this cannot be had of a class of that name."""
    try:
        return storable(str(exception), TEXT_MAX)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return f"<unprintable {name} object>"


def get(thing: object, name: str) -> Any:
    """The attribute, or None if there is none or reading it raises."""
    try:
        return getattr(thing, name, None)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None


def call(function: Any, *arguments: object) -> Any:
    """What the function returns, or None if it raises."""
    try:
        return function(*arguments)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None


def string(value: object) -> str:
    """The text, or an empty one for what is none."""
    return str.__str__(value) if isinstance(value, str) else ""


def integer(value: object) -> int | None:
    """The whole number, or None for what is none; True is none."""
    return int.__index__(value) if isinstance(value, int) and not isinstance(value, bool) else None


def item(mapping: object, key: str) -> object:
    """The entry of a dict, or None."""
    return mapping.get(key) if isinstance(mapping, dict) else None


def is_exception(value: object) -> bool:
    return issubclass(type(value), BaseException)  # not isinstance, which asks the value's own __class__


def is_builtin(cls: type) -> bool:
    """Whether it says that it is Python's own."""
    return bool(call(_module, cls) == "builtins")


def name_of(cls: type) -> str:
    """The qualified name, bounded; builtins without a module."""
    module, name = call(_module, cls), storable(_qualname(cls), NAME_MAX)
    if not isinstance(module, str) or module == "builtins":
        return name
    return storable(f"{str.__str__(module)}.{name}", NAME_MAX)


def shown(value: object) -> str:
    """A `repr` for an error, bounded."""
    text = call(repr, value)
    return storable(text, SHOWN_MAX) if isinstance(text, str) else f"<unprintable {name_of(type(value))} object>"
