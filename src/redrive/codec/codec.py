"""Encode arguments to bytes and back, by the handler's annotations. JSON only; nothing in a body names code.

A body is a JSON object of arguments by name, so that it can be read, searched, edited and lifted to a later version.
Where JSON repeats a key, the last one wins. A handler's result is written in the same way, by its return annotation.

Besides plain JSON an annotation may name dataclasses, msgspec Structs, pydantic models, TypedDicts, NamedTuples, enums
of texts or whole numbers, `datetime`, `date`, `time`, `timedelta`, `Decimal` (kept digit by digit), `UUID`, `bytes`
and `bytearray` (as base64), `Path`, `set`, `frozenset`, `tuple`, `Literal`, and any of them inside another. The types
of a union must differ in JSON. UTC offsets are kept to the minute, whole numbers to 4,300 digits.

A body that another program wrote names the arguments in the same way, or is read as `foreign` says.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from inspect import Signature
from typing import Any

import msgspec
from msgspec import Struct

from ..chain import Awaited
from ..errors import ConfigError, EncodeError, UnknownArguments, Unreadable
from ..habits import USING
from .annotations import argument_types, resolve_type, why_unresolved
from .foreign import is_s3_test, s3_arguments, whole, whole_name
from .pydantic import dump, load, pydantic_dataclass, unwrap

NAMED_MAX = 5  # most unknown arguments that an error lists

Upcast = Callable[[dict[str, Any]], dict[str, Any]]

_to_json = msgspec.json.Encoder(decimal_format="string", enc_hook=dump).encode
_to_sorted_json = msgspec.json.Encoder(decimal_format="string", enc_hook=dump, order="sorted").encode
_to_object = msgspec.json.Decoder(dict[str, Any]).decode
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Codec:
    """Encodes and decodes the arguments and the result of one handler.

    `skip_first` leaves out a leading Context parameter. `version` is what `encode` writes: a body of an older version
    is lifted to it by the functions given to `upcast`, one step after another, each time it is decoded; the stored
    bytes stay as they are. `upcasts` maps a version to the function that converts it to the next.
    """

    signature: Signature
    struct: type[Struct]
    name: str
    version: int

    def __init__(self, handler: Callable[..., Any], name: str, *, skip_first: bool = False, version: int = 1) -> None:
        given: object = version
        if not isinstance(given, int) or given < 1:
            raise ConfigError(f"task {name!r}: version={version!r}; expected a whole number from 1 up")
        self.name, self.version = name, version
        self.upcasts: dict[int, Upcast] = {}
        self._handler = handler
        parameters = list(inspect.signature(handler).parameters.values())
        if skip_first and not (parameters and parameters.pop(0).kind in _POSITIONAL):
            raise ConfigError(f"task {name!r}: with ctx=True its first parameter takes the Context; it has none")
        for p in parameters:
            if p.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
                raise ConfigError(
                    f"task {name!r}: parameter *{p.name} has no name in the stored body; declare each argument by name"
                )
        self.signature = inspect.Signature(parameters)
        self._positional = tuple(p.name for p in parameters if p.kind in _POSITIONAL)
        self._only_positional = tuple(p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_ONLY)
        self._names = frozenset(p.name for p in parameters)
        self._required = frozenset(p.name for p in parameters if p.default is inspect.Parameter.empty)
        self.kinds: dict[str, Any] = argument_types(name, handler, parameters)
        self.struct = _struct(name, parameters, self.kinds)
        self._decode = msgspec.json.Decoder(self.struct, dec_hook=load).decode
        self._fields = self.struct.__struct_fields__
        self._all_required = len(self._required) == len(parameters)
        self._is_tuple = self._all_required and len(self._positional) == len(self._fields)

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        """Return the body for a call with these arguments.

        Raises TypeError for arguments that do not fit the handler, by name or by annotation, and EncodeError for values
        that JSON cannot hold.
        """
        if not kwargs and len(args) == len(self._positional) == len(self._fields):
            named = dict(zip(self._positional, args, strict=False))
        else:
            named = self._arguments(args, kwargs)
        try:
            body = _to_json(named)
            if b"null" in body:
                _refuse_nan(named)
        except Exception as error:  # a model's own code may raise anything
            raise self._unwritable("an argument", error) from error
        try:
            self._decode(body)
        except Exception as error:  # report it to the caller now, not in the dead lane hours later
            if type(error) is msgspec.DecodeError:  # not JSON: some model writes this part in its own format
                raise self._unwritable("an argument", error) from error
            raise TypeError(f"task {self.name!r}: {_printable(error)}; it takes {self.signature}") from None
        return body

    def encode_step(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[bytes, dict[str, Awaited]]:
        """Return the body of a later step, and by name the arguments that an earlier step returns; the body does not
        have these. Raises TypeError for arguments that do not fit by name, EncodeError. The run checks types."""
        named = self._arguments(args, kwargs)
        awaits = {name: value for name, value in named.items() if isinstance(value, Awaited)}
        given = {name: value for name, value in named.items() if name not in awaits}
        return to_json(given, f"task {self.name!r}: an argument"), awaits

    def _unwritable(self, what: str, error: Exception) -> EncodeError:
        return EncodeError(f"task {self.name!r}: {what} cannot be written as JSON: {_printable(error)}")

    def _arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if len(args) <= len(self._positional) and not self._only_positional:
            named = dict(zip(self._positional, args, strict=False))
            named.update(kwargs)
            if len(named) == len(args) + len(kwargs) and self._required <= named.keys() <= self._names:
                return named
        return self._bind(args, kwargs)

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return dict(self.signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            option = next((USING[name] for name in kwargs if name in USING and name not in self._names), None)
            hint = f"; write using({option}).enqueue(…)" if option else ""
            raise TypeError(f"task {self.name!r}: {error}; it takes {self.signature}{hint}") from None

    def canonical(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        """Return the same bytes for calls with the same meaning: sorted JSON of the arguments unlike the defaults.

        Raises TypeError and EncodeError as `encode` does, but does not check annotations.
        """
        named = self._arguments(args, kwargs)
        if not self._all_required:
            named = {name: value for name, value in named.items() if not self._is_default(name, value)}
        try:
            return _to_sorted_json(named)
        except Exception as error:
            raise self._unwritable("an argument", error) from error

    def _is_default(self, name: str, value: Any) -> bool:
        default = self.signature.parameters[name].default
        try:
            return value is default or (type(value) is type(default) and bool(value == default))
        except Exception:  # values that cannot be compared
            return False

    def decode(
        self, body: bytes, version: int | None = None, *, raw: bool = False
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments to call the handler with, from a body of `version` (None: the codec's own).

        `raw`: another program wrote the body, so it need not name the arguments. An older body goes through `upcasts`
        first, step by step. Raises only Unreadable, also for a newer version, which callers park before they decode;
        UnknownArguments if the body has all required arguments and some that the handler does not take.
        """
        if self._is_tuple and (version is None or version == self.version):  # most bodies take this short way
            try:
                return msgspec.structs.astuple(self._decode(body)), {}
            except Exception:
                pass
        given, lifted = body, b""
        try:
            if version is not None and version != self.version:
                body = self._lift(body, version)
            lifted = body
            fields = self._decode(body)
        except Exception as error:  # the bytes can make a dataclass's own code raise anything
            taken = self._take(given) if raw and (version or 1) <= self.version else None
            if taken is not None:
                return taken
            if isinstance(error, Unreadable):
                raise
            old = "" if version in (None, self.version) else f" of version {version}, lifted to {self.version},"
            text = f"body{old} does not fit {self.name}{self.signature}"
            if unknown := self._unknown(given, lifted):
                text = f"{text}: no argument {_join(unknown)} is known here"
                raise UnknownArguments(text, tuple(unknown)) from None
            raise Unreadable(f"{text}: {_printable(error)}") from None
        if self._is_tuple:
            return msgspec.structs.astuple(fields), {}
        return self._called_with(fields)

    def _unknown(self, given: bytes, lifted: bytes) -> list[str]:
        """Return the names of arguments in `lifted` that the handler does not take, without those that `upcasts` added
        to `given`. Empty if required arguments are missing: then the body is not a call of this handler."""
        try:
            sent = _to_object(lifted).keys()
            names = _to_object(given).keys() & sent - self._names
        except Exception:  # not an object: no names
            return []
        return sorted(names) if self._required <= sent else []

    def _called_with(self, fields: msgspec.Struct) -> tuple[tuple[Any, ...], dict[str, Any]]:
        named = {name: value for name in self._fields if (value := getattr(fields, name)) is not msgspec.UNSET}
        return self._leading(named), named

    def has_nothing(self, body: bytes) -> bool:
        """True if a foreign body is S3's test event, which names no object, and the handler takes S3 objects."""
        return "key" in self._names and is_s3_test(body)

    def _take(self, body: bytes) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Return the arguments from a body that does not name them; None if the body has none for this handler."""
        name = whole_name(self._fields)
        try:
            if name is not None:
                return self._called_with(self.struct(**{name: whole(body, name, self.kinds[name], load)}))
            if "key" not in self._names:
                return None
            arguments = {name: value for name, value in s3_arguments(body).items() if name in self._names}
            return self._called_with(self._decode(_to_json(arguments)))
        except Exception:  # None: the caller raises an error about the names
            return None

    # -- versions

    def upcast(self, version: int, step: Upcast) -> None:
        """Register `step`, which converts bodies of `version` to `version + 1`.

        `step` gets the arguments by name as plain JSON values, may change them, and returns those of the next version.
        Raises ConfigError for a step that could never run.
        """
        where = f"task {self.name!r}: @task.upcast({version!r})"
        if version not in range(1, self.version):
            known = f"from 1 to {self.version - 1}" if self.version > 1 else "none, as the task has version=1"
            raise ConfigError(f"{where}: no body has that version and needs lifting; expected {known}")
        if version in self.upcasts:
            raise ConfigError(f"{where} is given twice; one step leads from {version} to {version + 1}")
        given: object = step
        if not callable(given) or inspect.iscoroutinefunction(step):
            raise ConfigError(f"{where}: expected a plain function from dict to dict, got {step!r}")
        self.upcasts[version] = step

    def lifted(self, body: bytes, version: int) -> bytes:
        """Return the body of an older version lifted to the codec's own. Raises only Unreadable."""
        try:
            return self._lift(body, version)
        except Unreadable:
            raise
        except Exception as error:
            raise Unreadable(f"body of version {version} cannot be lifted: {_printable(error)}") from None

    def _lift(self, body: bytes, version: int) -> bytes:
        if version > self.version:
            raise Unreadable(f"body of version {version} is newer than {self.name}, which takes {self.version} here")
        named = _to_object(body)
        for at in range(version, self.version):
            try:
                named = self._step(at, named)
            except Exception as error:
                step = f"{self.name} from version {at} to {at + 1}"
                raise Unreadable(f"body cannot be lifted for {step}: {_printable(error)}") from error
        lifted = _to_json(named)
        if b"null" in lifted:
            _refuse_nan(named)
        return lifted

    def _step(self, at: int, named: dict[str, Any]) -> dict[str, Any]:
        step = self.upcasts.get(at)
        if step is None:
            raise LookupError(f"no function is declared for that step; add one with @task.upcast({at})")
        try:
            lifted = step(named)
        except Exception as error:
            raise ValueError(f"@task.upcast({at}) raised {type(error).__name__}: {_printable(error)}") from error
        if not isinstance(lifted, dict):
            raise TypeError(f"@task.upcast({at}) returned {type(lifted).__name__}, expected a dict of arguments")
        return lifted

    # -- results

    def encode_result(self, value: Any) -> bytes:
        """Encode the handler's result as JSON. Raises EncodeError for values that JSON cannot hold."""
        return b"null" if value is None else to_json(value, f"task {self.name!r}: its result")

    def decode_result(self, written: bytes) -> Any:
        """Decode a result by the handler's return annotation; to plain JSON values if the annotation is missing or
        names a type that cannot be decoded.

        Raises Unreadable if the result does not fit the annotation.
        """
        try:
            return self._result(written)
        except Exception as error:
            raise Unreadable(f"result does not fit what {self.name} returns: {_printable(error)}") from None

    @property
    def returns(self) -> bool:
        """True if the handler's return annotation is something other than None."""
        return inspect.signature(self._handler).return_annotation not in (inspect.Signature.empty, None, "None")

    @functools.cached_property
    def _result(self) -> Callable[[bytes], Any]:
        annotation = inspect.signature(self._handler).return_annotation
        try:
            kind = Any if annotation is inspect.Signature.empty else resolve_type(self._handler, "return", annotation)
            return msgspec.json.Decoder(kind, dec_hook=load).decode
        except (
            TypeError,
            ValueError,
            NameError,
            AttributeError,
        ):  # the annotation cannot be resolved: most results are never read
            return msgspec.json.Decoder().decode

    def _leading(self, named: dict[str, Any]) -> tuple[Any, ...]:
        """Take the positional-only arguments out of `named`. A missing one before a given one gets its default."""
        count = max((at for at, name in enumerate(self._only_positional, 1) if name in named), default=0)
        return tuple(named.pop(name, self.signature.parameters[name].default) for name in self._only_positional[:count])


def _join(names: Sequence[str]) -> str:
    named = " or ".join(f"{name[:100]!a}" for name in names[:NAMED_MAX])
    return named + (f" or {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else "")


def is_json(text: bytes | str) -> bool:
    """Return True if a text is JSON."""
    try:
        msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return False
    return True


def to_json(value: Any, what: str) -> bytes:
    """Encode any value that an annotation could name as JSON. Raises EncodeError, whose text begins with `what`."""
    try:
        written = _to_json(value)
        if b"null" in written:
            _refuse_nan(value)
    except Exception as error:  # a model's own code may raise anything
        raise EncodeError(f"{what} cannot be written as JSON: {_printable(error)}") from error
    return written


def _refuse_nan(value: Any) -> None:
    """Raise ValueError for NaN and infinity: the encoder would write null, so the handler would get another value."""
    todo: list[Any] = [msgspec.to_builtins(value, enc_hook=unwrap)]  # also inside models and enums
    while todo:
        value = todo.pop()
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"it holds {value}, which JSON has no word for; send None or text instead")
        if isinstance(value, Mapping):
            todo.extend(value.values())  # values only: a NaN as key is written as text and read back
        elif isinstance(value, list | tuple):
            todo.extend(value)


def _printable(error: Exception) -> str:
    try:
        text = str(error)
    except Exception:  # the model's own code fails here too
        text = type(error).__name__
    return " ".join(text[:300].encode(errors="replace").decode().split())


def _struct(name: str, parameters: Sequence[inspect.Parameter], kinds: Mapping[str, Any]) -> type[msgspec.Struct]:
    fields: list[Any] = []
    for p in parameters:
        kind = kinds[p.name]
        if odd := pydantic_dataclass(kind):
            raise ConfigError(
                f"task {name!r}: {odd.__name__} is a pydantic dataclass, whose validation would not run here; "
                "make it a BaseModel or a plain dataclass"
            )
        if p.default is inspect.Parameter.empty:
            fields.append((p.name, kind))
        else:  # the call uses the handler's own default, which need not be a JSON value
            fields.append((p.name, Any if kind is Any else kind | msgspec.UnsetType, msgspec.UNSET))
    try:
        struct = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True, gc=False)
        msgspec.json.Decoder(struct)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"task {name!r}: its annotations cannot be read from JSON: {error}") from error
    except NameError as error:  # an annotation inside a dataclass, a Struct or a model
        raise ConfigError(f"task {name!r}: an annotation in {why_unresolved(fields, error)}") from None
    return struct
