"""Exceptions as records of a few lines of JSON, and exceptions made again out of records, for the fingerprint.

A record keeps what `classify` looks at: the classes and their bases, the text, the attributes that tell something, the
frames, causes and members. What is made of it takes the same way through `classify` as the exception did.
"""

from __future__ import annotations

import ast
import builtins
import functools
import gzip
import json
import linecache
import re
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

CORPUS = Path(__file__).parents[1] / "data" / "fingerprints"
SHOP = Path(__file__).parents[2] / "scripts" / "fingerprint_corpus"
Record = dict[str, Any]

_HEAD, _TAIL = 8, 24  # frames kept of a deep stack
_TELLING = ("sqlstate", "pgcode", "sqlite_errorname", "connection_invalidated", "errno", "code")
_STATUSES = ("status_code", "status", "http_status")


def records() -> list[Record]:
    """The whole corpus; each has its library and cause, which are its true group."""
    files = [gzip.decompress(path.read_bytes()).decode() for path in sorted(CORPUS.glob("*.jsonl.gz"))]
    return [json.loads(line) for each in files for line in each.splitlines()]


# From exceptions to records


def record_of(exception: BaseException, scrub: Any = str, depth: int = 0) -> Record:
    """What the fingerprint needs; `scrub` takes this machine's paths out of a text."""
    cls = type(exception)
    record: Record = {"lineage": _lineage(cls), "text": scrub(str(exception))[:1_500]}
    if not exception.__traceback__ and depth == 0:
        raise ValueError("never raised")
    if cls.__module__ == "builtins":
        record["args"] = scrub(repr(exception.args))[:1_600]
    attributes = _attributes(exception)
    if attributes:
        record["attributes"] = attributes
    record["frames"] = _frames(exception.__traceback__, scrub)
    if exception.__cause__ is not None and depth < 8:
        record["cause"] = record_of(exception.__cause__, scrub, depth + 1)
    for name in ("reason", "orig"):
        inner = _got(exception, name)
        if isinstance(inner, BaseException) and depth < 8:
            record[name] = record_of(inner, scrub, depth + 1)
    if isinstance(exception, BaseExceptionGroup):
        record["members"] = [record_of(each, scrub, depth + 1) for each in exception.exceptions]
        record["message"] = scrub(exception.message)
    return record


def _got(thing: object, name: str) -> Any:
    try:
        return getattr(thing, name, None)
    except Exception:
        return None


def _lineage(cls: type) -> list[str]:
    def name(each: type) -> str:
        return each.__qualname__ if each.__module__ == "builtins" else f"{each.__module__}.{each.__qualname__}"

    if cls.__module__ == "builtins":
        return [name(cls)]
    own = [each for each in cls.__mro__ if each.__module__ != "builtins" and each.__name__ != "Generic"]
    shown = [(each, [name(base) for base in each.__bases__ if base.__name__ != "Generic"]) for each in own]
    return [f"{name(each)}({', '.join(bases)})" for each, bases in shown]


def _attributes(exception: BaseException) -> Record:
    found = {name: _got(exception, name) for name in (*_TELLING, *_STATUSES)}
    kept: Record = {name: value for name, value in found.items() if isinstance(value, str | int) and value != ""}
    response = _got(exception, "response")
    if isinstance(response, dict):
        code, meta = response.get("Error", {}).get("Code"), response.get("ResponseMetadata", {})
        kept["response"] = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": meta.get("HTTPStatusCode")}}
    elif response is not None:
        statuses = {name: _got(response, name) for name in _STATUSES}
        kept["answer"] = {name: value for name, value in statuses.items() if isinstance(value, int)}
    return {name: value for name, value in kept.items() if not isinstance(value, type)}


def _frames(step: types.TracebackType | None, scrub: Any) -> list[list[Any]]:
    frames = []
    while step is not None:
        code, line = step.tb_frame.f_code, step.tb_lineno or 0
        source = linecache.getline(code.co_filename, line).strip()[:120]
        literals = sorted({each for each in code.co_consts if isinstance(each, str) and each.isidentifier()})
        frames.append([scrub(code.co_filename), line, code.co_qualname, source, " ".join(literals)])
        step = step.tb_next
    if len(frames) > _HEAD + _TAIL:
        del frames[_HEAD:-_TAIL]
    for frame in frames[:-1]:  # the lines of a library's inner calls say nothing and take half the room
        if "/lib/python" in frame[0]:
            del frame[3:]
    return frames


# And back


def with_source(record: Record) -> Record:
    """The record as of a machine that has the source of the shop's code, which is in scripts/fingerprint_corpus."""
    found = {**record, "frames": [[_sourced(frame[0]), *frame[1:]] for frame in record["frames"]]}
    for name in ("cause", "reason", "orig"):
        if name in record:
            found[name] = with_source(record[name])
    if "members" in record:
        found["members"] = [with_source(each) for each in record["members"]]
    return found


@functools.cache
def _sourced(file: str) -> str:
    match = re.fullmatch(r"(?:/srv/shop|/app/releases/2/shop)/(\w+)\.py", file)
    source = SHOP / f"{match[1]}.py" if match else None
    if source is None or not source.exists():
        return file
    path, text = f"/sources{file}", source.read_text()
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    return path


@functools.cache
def _first_lines(file: str) -> dict[str, int]:
    """Where each function of a file begins, by its qualified name."""
    found: dict[str, int] = {}
    codes = [compile("".join(linecache.getlines(file)), file, "exec")] if file.startswith("/sources") else []
    while codes:
        code = codes.pop()
        found[code.co_qualname] = code.co_firstlineno
        codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return found


def exception_of(record: Record) -> BaseException:
    """The exception of a record: raised nowhere, but with a traceback of such frames."""
    exception = _made(record)
    exception.__traceback__ = _traceback(record["frames"])
    for name in ("cause", "reason", "orig"):
        if name in record:
            setattr(exception, f"__{name}__" if name == "cause" else name, exception_of(record[name]))
    for name, value in record.get("attributes", {}).items():
        setattr(exception, *(("response", SimpleNamespace(**value)) if name == "answer" else (name, value)))
    return exception


def _made(record: Record) -> BaseException:
    cls, text = _class(tuple(record["lineage"])), record["text"]
    if "members" in record:
        return cls(record["message"], [exception_of(each) for each in record["members"]])  # type: ignore[call-arg]
    if "args" in record:
        try:
            exception = cls(*ast.literal_eval(record["args"]))
            if str(exception) == text:
                return exception
        except (ValueError, SyntaxError, TypeError):
            pass
        return cls(text)
    exception = cls.__new__(cls)
    exception.args = (text,)
    exception.__dict__["told"] = text
    return exception


@functools.cache
def _class(lineage: tuple[str, ...]) -> type[BaseException]:
    made: dict[str, type[BaseException]] = {}
    for shown in reversed(lineage):
        match = re.fullmatch(r"([^(]+)(?:\((.*)\))?", shown)
        assert match is not None
        name, bases = match[1], match[2]
        if bases is None:
            return getattr(builtins, name)  # type: ignore[no-any-return]
        parents = [made.get(each) or getattr(builtins, each) for each in bases.split(", ")]
        module, _, qualname = name.rpartition(".")
        scope = {"__module__": module, "__str__": lambda self: self.told, "__init__": lambda self, *_: None}
        made[name] = type(qualname, tuple(parents), scope)
    return made[name]


def _traceback(frames: list[list[Any]]) -> types.TracebackType | None:
    step = None
    for file, line, qualname, *more in reversed(frames):
        frame = _frame(file, qualname, more[1] if len(more) > 1 else "")
        step = types.TracebackType(step, frame, 0, line)
    return step


@functools.cache
def _frame(file: str, qualname: str, literals: str) -> types.FrameType:
    code = _here.__code__
    consts = (*code.co_consts, *literals.split())
    name = qualname.rpartition(".")[2]
    first = _first_lines(file).get(qualname, code.co_firstlineno)
    made = code.replace(co_filename=file, co_name=name, co_qualname=qualname, co_consts=consts, co_firstlineno=first)
    frame = types.FunctionType(made, globals())()
    assert isinstance(frame, types.FrameType)
    return frame


def _here() -> types.FrameType:
    return sys._getframe()
