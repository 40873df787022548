"""Find the templates of the messages that a program raises, and replace the values in such a message by a placeholder.

`f"tenant {tenant} is over its limit"` is one line of code and one bug, whichever tenant it names. The source of the
functions that a failure came through is read once for each; a message that one of their templates fills is grouped by
the template. A value that identifies the failure, such as `{error}` or `{status}`, stays.
"""

from __future__ import annotations

import ast
import linecache
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from types import CodeType, FunctionType

from msgspec import Struct

from .inspection import bases_of, call, get, namespace_of, string
from .libraries import is_library

LINES_MAX = 1_500  # most lines read of a function
TEMPLATES_MAX = 64  # most templates kept of a function or a class
HOLES_MAX = 12
VALUE_MAX = 100  # most characters of a value; a text with a longer value matches no template
_WORD_MIN = 4  # fewest letters around the values of a template: `'s' if n > 1 else ''` identifies nothing
_CODES_MAX = 1_024
_CLASSES_MAX = 512
_VALUE = "00000"  # placeholder; normalized like any number, so failures that differ by a number keep their fingerprint

# Names of values that distinguish one failure from another.
_TELLING = frozenset(
    re.findall(
        r"\w+",
        """e ex exc err error errors exception exceptions reason reasons why cause message messages msg detail details
        problem problems errno status kind type types class __name__ __class__ state phase step stage action operation
        op method verb body response stderr stdout output what description""",
    )
)
_TELLING_ENDS = ("_error", "_errors", "_reason", "_message", "_msg", "_status", "_exception", "_detail", "_details")
# A code of this form (`card_declined`, `AccessDenied`) identifies a failure; a voucher code is data.
_CODE = re.compile(r"\d{3}|[A-Za-z]+(?:_[A-Za-z]+)+|(?:[A-Z][a-z]+){2,}")
_NOTHING = frozenset({"None", "True", "False"})
# Matches values that the patterns of fingerprints.py replace as a whole.
_KNOWN = re.compile(
    r"""[A-Za-z][\w+.-]*://\S+|[\w.+-]+@[\w-]+(?:\.[\w-]+)*|(?:~|\.{1,2})?(?:/[\w.@+~%-]+)+/?"""
    r"""|(?:[\w-]+\.)+(?:com|net|org|io|dev|local|internal|corp|invalid|test|example)(?::\d+)?|localhost(?::\d+)?"""
    r"""|[a-z]{2,5}_[A-Za-z0-9]{14,}"""
)
_PERCENT = re.compile(r"%(?:\((\w+)\))?[-#0 +]*(?:\*|\d+)?(?:\.(?:\*|\d+))?([a-zA-Z%])")
_BRACES = re.compile(r"\{\{|\}\}|\{([^{}:!]*)(?:![rsa])?(?::(?:[^{}]|\{[^{}]*\})*)?\}")


TELLS, CODE = "tells", "code"


class Template(Struct, frozen=True):
    """A text with holes: `texts[n]` precedes the hole `holes[n]`, and the last text is at the end."""

    texts: tuple[str, ...]
    holes: tuple[str, ...]  # how each value is treated: TELLS, CODE, or "" for data


def generalize(text: str, templates: tuple[Template, ...], cls: type) -> str:
    """Return the text with a placeholder for each value of the template that it fills; unchanged without one.

    The templates tried are those of the functions in the traceback, then those of the exception's class `cls`.
    """
    filled = _fill(text, templates) if templates else None
    if filled is None and (templates := call(_of_class, cls)):
        filled = _fill(text, templates)
    return text if filled is None else filled


def _fill(text: str, templates: tuple[Template, ...]) -> str | None:
    for template in templates:
        texts = template.texts
        if text.startswith(texts[0]) and text.endswith(texts[-1]):
            if not template.holes:
                if len(text) == len(texts[0]):
                    return text  # a message without values, equal to the template's text
                continue
            values = _values(text, texts)
            if values is not None:
                parts = [texts[0]]
                for hole, value, after in zip(template.holes, values, texts[1:], strict=True):
                    parts += (_value(hole, value), after)
                return "".join(parts)
    return None


def _values(text: str, texts: tuple[str, ...]) -> list[str] | None:
    at, end = len(texts[0]), len(text) - len(texts[-1])
    values = []
    for between in texts[1:-1]:
        index = text.find(between, at, end)
        if index < 0:
            return None
        values.append(text[at:index])
        at = index + len(between)
    if at > end:
        return None
    values.append(text[at:end])
    return values


def _value(hole: str, value: str) -> str:
    if hole is TELLS or value in _NOTHING or (hole is CODE and _CODE.fullmatch(value)) or len(value) > VALUE_MAX:
        return value
    if value.isalnum():
        return _VALUE
    if value[:1] in ("'", '"') and value[-1:] == value[0] and len(value) > 1:
        return f"{value[0]}{_VALUE}{value[0]}"
    if value[:1] == "{" or ": " in value or "\n" in value or _is_sentence(value) or _KNOWN.fullmatch(value):
        return value
    return _VALUE


def _is_sentence(value: str) -> bool:
    return value.count(" ") >= 4 and sum(word.isalpha() and word.islower() for word in value.split()) >= 4


def templates_of(codes: Iterable[tuple[CodeType, Mapping[str, object]]]) -> tuple[Template, ...]:
    """Return the templates in the source of these functions, if readable, and in the constants that they name."""
    templates: list[Template] = []
    for code, scope in codes:
        templates += _of_code(code, code.co_filename)
        for name in code.co_names:
            templates += _of_text(call(scope.get, name))
    return _in_order(templates)


def _in_order(templates: list[Template]) -> tuple[Template, ...]:
    """Return the distinct templates, those with the most text first, at most TEMPLATES_MAX."""
    return tuple(sorted(dict.fromkeys(templates), key=lambda each: -sum(map(len, each.texts)))[:TEMPLATES_MAX])


@lru_cache(maxsize=_CLASSES_MAX)
def _of_class(cls: type) -> tuple[Template, ...]:
    templates: list[Template] = []
    for each in bases_of(cls):
        names = namespace_of(each)
        if is_library(string(get(sys.modules.get(string(names.get("__module__"))), "__file__")) or "<unknown>"):
            continue
        for function in (names.get("__init__"), names.get("__new__"), names.get("__str__")):
            if type(function) is FunctionType:
                templates += _of_code(function.__code__, function.__code__.co_filename)
        for value in names.values():
            templates += _of_text(value)
    return _in_order(templates)


@lru_cache(maxsize=_CODES_MAX)
def _of_code(code: CodeType, filename: str) -> tuple[Template, ...]:
    templates: tuple[Template, ...] | None = call(_read, code, filename)
    return templates or ()  # the key includes the file, since functions of two files may be equal


def _read(code: CodeType, filename: str) -> tuple[Template, ...]:
    """Return the templates in the source of a function, and its texts that are whole messages."""
    import inspect
    import textwrap

    lines = linecache.getlines(filename)[code.co_firstlineno - 1 :][:LINES_MAX]
    if code.co_name != "<module>":
        lines = inspect.getblock(lines)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    templates = [made for node in ast.walk(tree) if (made := _template(_pieces(node)))]
    templates += [made for node in ast.walk(tree) if isinstance(node, ast.Constant) for made in _of_text(node.value)]
    texts = sorted(
        {each for each in code.co_consts if type(each) is str and " " in each and not re.search("[%{]", each)}
    )
    return (*templates[:TEMPLATES_MAX], *[Template((each,), ()) for each in texts[:TEMPLATES_MAX]])


_Pieces = list[str | tuple[str]]  # a text, or the name of a value


def _pieces(node: ast.AST) -> _Pieces:
    """Return the parts that an expression joins; empty if the expression is not a template."""
    match node:
        case ast.JoinedStr(values=values):
            return [piece for value in values for piece in _part(value)]
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod(), right=right):
            names = [_name(each) for each in right.elts] if isinstance(right, ast.Tuple) else [_name(right)]
            return list(_by_percent(text, iter(names)))
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format"), args=args):
            return list(_by_braces(text, [_name(each) for each in args]))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [*_part(left), *_part(right)]
        case _:
            return []


def _part(node: ast.AST) -> _Pieces:
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    return _pieces(node) or [(_name(node),)]


def _name(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.FormattedValue(value=value) | ast.Await(value=value) | ast.Starred(value=value):
            return _name(value)
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
        case ast.Call(func=ast.Name(id="str" | "repr"), args=[inner, *_]):
            return _name(inner)
        case ast.IfExp(body=ast.Constant(value=str(one)), orelse=ast.Constant(value=str(other))):
            return "reason" if min(len(one), len(other)) >= _WORD_MIN else ""
        case ast.Call(func=function):
            return _name(function)
        case _:
            return ""


def _of_text(value: object) -> list[Template]:
    """Return the templates that a constant may be, for the operator `%` and for `format`."""
    if type(value) is not str or len(value) > 10 * VALUE_MAX:
        return []
    templates = []
    if "%" in value:
        templates.append(_template(list(_by_percent(value, iter(())))))
    if "{" in value:
        templates.append(_template(list(_by_braces(value, []))))
    return [each for each in templates if each is not None]


def _by_percent(text: str, names: Iterator[str]) -> Iterator[str | tuple[str]]:
    at = 0
    for match in _PERCENT.finditer(text):
        yield text[at : match.start()]
        yield "%" if match[2] == "%" else (match[1] or next(names, ""),)
        at = match.end()
    yield text[at:]


def _by_braces(text: str, names: list[str]) -> Iterator[str | tuple[str]]:
    at, count = 0, 0
    for match in _BRACES.finditer(text):
        yield text[at : match.start()]
        at = match.end()
        if match[1] is None:
            yield match[0][0]
            continue
        name = re.split(r"[.\[]", match[1].rstrip("]"))[-1]
        place, count = (count, count + 1) if not match[1] else (int(name) if name.isdecimal() else -1, count)
        yield (names[place] if 0 <= place < len(names) else "" if name.isdecimal() else name,)
    yield text[at:]


def _template(pieces: _Pieces) -> Template | None:
    """Merge the pieces into a template, neighbouring values into one; None if there is no value, or no word."""
    texts, holes = [""], list[str]()
    for piece in pieces:
        if isinstance(piece, str):
            texts[-1] += piece
        elif texts[-1] or not holes:
            holes.append(piece[0])
            texts.append("")
        else:  # neighbouring values become one: it identifies a failure if either name does
            holes[-1] = next((each for each in (holes[-1], piece[0]) if each in _TELLING), "")
    if not 0 < len(holes) <= HOLES_MAX or not any(re.search(r"[^\W\d_]{2}", text) for text in texts):
        return None
    return Template(tuple(texts), tuple([_kind(hole) for hole in holes]))


def _kind(name: str) -> str:
    if name in _TELLING or name.endswith(_TELLING_ENDS):
        return TELLS
    return CODE if name.endswith("code") else ""
