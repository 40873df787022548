"""What a class alone says, read once for each: its name, its kind and which telling attributes its instances have."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from msgspec import Struct

from ..errors import Steer
from .foreign import call, flags_of, is_builtin, mro_of, name_of, namespace_of
from .known_errors import BY_CLASS, PROGRAM_ERRORS
from .model import Kind

CLASSES_MAX = 64  # names in Fault.errors
_CACHED_MAX = 4_096

# The attributes that are ever read of an exception, by what they tell.
SQL = frozenset({"connection_invalidated", "orig", "sqlstate", "pgcode", "sqlite_errorname"})
HTTP = frozenset({"response", "status_code", "status", "http_status", "code", "headers", "retry_after"})
TELLING = SQL | HTTP | {"errno", "reason"}
NONE: frozenset[str] = frozenset()
_ANSWERING = frozenset({"__getattr__", "__getattribute__"})  # with these a class may have any attribute
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made at run time; others, in C, cannot be changed


class Known(Struct, frozen=True):
    """What a class alone says."""

    name: str
    errors: tuple[str, ...]
    kind: Kind | None
    plain: bool  # builtin: has no attributes to look at but those of OSError
    os_error: bool
    program_error: bool
    group: bool
    steer: bool
    telling: frozenset[str]  # names that reading an instance finds in its classes
    namespaces: tuple[Mapping[str, object], ...]  # of the classes that can be changed
    sizes: tuple[int, ...]  # theirs when they were read


def known_of(exception: BaseException) -> Known:
    """What the exception's class says."""
    try:
        return _know_cached(type(exception))  # type: ignore[arg-type] # mypy takes a class for an instance of itself
    except KeyboardInterrupt:
        raise
    except BaseException:  # a metaclass whose __hash__ raises
        return _know(type(exception))


def telling(known: Known, attributes: Mapping[str, object]) -> frozenset[str]:
    """The telling names under which an instance with these attributes may hold something.

    Most exceptions hold none, and to ask each for all of them takes longer than the rest of a classification.
    """
    if type(attributes) is not dict or tuple(map(len, known.namespaces)) != known.sizes:
        return TELLING  # a dict's subclass may lie; a class has got attributes since
    try:
        return known.telling if TELLING.isdisjoint(attributes) else TELLING
    except KeyboardInterrupt:
        raise
    except BaseException:  # a key that cannot be compared
        return TELLING


def _know(cls: type) -> Known:
    mro = mro_of(cls)
    names = tuple(name_of(each) for each in mro[:CLASSES_MAX] if each is not object)
    plain = all(is_builtin(each) for each in mro)
    namespaces = tuple(namespace_of(each) for each in mro if flags_of(each) & _HEAP_TYPE)
    return Known(
        name=names[0],
        errors=names,
        kind=next((BY_CLASS[name] for name in names if name in BY_CLASS), None),
        plain=plain,
        os_error=OSError in mro,
        program_error=plain and any(each in mro for each in PROGRAM_ERRORS),
        group=BaseExceptionGroup in mro,
        steer=Steer in mro,
        telling=_telling_of(mro),
        namespaces=namespaces,
        sizes=tuple(map(len, namespaces)),
    )


_know_cached = lru_cache(maxsize=_CACHED_MAX)(_know)


def _telling_of(mro: tuple[type, ...]) -> frozenset[str]:
    names: set[str] = set()
    for each in mro:
        if each is not BaseException and each is not object:  # whose __getattribute__ is the ordinary one
            found = call((TELLING | _ANSWERING).intersection, namespace_of(each))
            names |= _ANSWERING if found is None else found
    return TELLING if names & _ANSWERING else frozenset(names)
