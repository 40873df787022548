"""Generate the JSON Schema of a task's bodies, for other programs and for forms."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import msgspec

from ..codec import Codec, by_name, is_model
from ..enqueue import Task
from ..errors import EncodeError
from ..redact import in_json, redact, telling

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REF = "#/$defs/{name}"
_EXAMPLES = frozenset(("default", "examples", "example", "const", "enum"))


def schema_of(task: Task[Any, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a task's bodies. An argument whose type has no schema accepts anything, and its
    description says so."""
    codec = task.codec
    properties, shared = _properties(codec.kinds)
    parameters = codec.signature.parameters.values()
    for p in parameters:
        if p.default is not inspect.Parameter.empty:
            properties[p.name] |= _default(codec, p.default)
    schema: dict[str, Any] = {"$schema": DIALECT, "title": task.name}
    if summary := (inspect.getdoc(task.handler) or "").partition("\n\n")[0]:
        schema["description"] = " ".join(summary.split())
    schema |= {"version": codec.version, "type": "object", "properties": properties}
    schema["required"] = [p.name for p in parameters if p.default is inspect.Parameter.empty]
    schema["additionalProperties"] = False
    return schema | ({"$defs": shared} if shared else {})


def _properties(kinds: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return the schema of each argument, and the types to which several refer."""
    try:
        return _described(kinds)
    except Exception:  # a default is not JSON, or two types share a name: describe each argument by itself
        kept: dict[str, Any] = {}
        wrong: dict[str, str] = {}
        for name, kind in kinds.items():
            try:
                _described(kept | {name: kind})
                kept[name] = kind
            except Exception as error:
                kept[name] = Any
                wrong[name] = " ".join(f"No schema is known for its type: {error}".split())[:200]
        properties, shared = _described(kept)
        for name, why in wrong.items():
            properties[name] = {"description": why}
        return properties, shared


def _described(kinds: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    models = _Models()
    schemas, shared = msgspec.json.schema_components(kinds.values(), schema_hook=models.ref, ref_template=_REF)
    return dict(zip(kinds, schemas, strict=True)), dict(sorted({**shared, **models.shared}.items()))


class _Models:
    """Collects the schemas of pydantic models under unique names, as each schema refers to parts of itself."""

    def __init__(self) -> None:
        self.shared: dict[str, Any] = {}
        self._names: dict[Any, str] = {}

    def ref(self, kind: Any) -> dict[str, Any]:
        """Return the schema for a type that msgspec does not know. Raises TypeError if it cannot be read from JSON."""
        if kind is object:
            return {"description": "Anything."}
        if isinstance(kind, type) and issubclass(kind, PurePath):
            return {"type": "string", "format": "path"}
        if not is_model(kind):
            raise TypeError(f"{getattr(kind, '__qualname__', kind)} is none that is read from JSON")
        if kind not in self._names:
            self._add(kind)
        return {"$ref": _REF.format(name=self._names[kind])}

    def _add(self, kind: Any) -> None:
        name = "".join(c if c.isalnum() or c in ".-_" else "_" for c in f"{kind.__module__}.{kind.__qualname__}")
        while name in self.shared:
            name += "_"
        self._names[kind] = name
        made = kind.model_json_schema(by_alias=not by_name(kind), ref_template=f"#/$defs/{name}.{{model}}")
        self.shared |= {f"{name}.{inner}": part for inner, part in made.pop("$defs", {}).items()}
        self.shared[name] = made


def _default(codec: Codec, value: Any) -> dict[str, Any]:
    try:
        return {"default": msgspec.json.decode(codec.encode_result(value))}
    except EncodeError:  # a default is applied by the call, and need not be JSON
        return {}


def schema_text(value: Any) -> str:
    """Return a schema as text, without secrets."""
    return in_json(msgspec.json.format(msgspec.json.encode(_without_secrets(value)), indent=2).decode())


def _without_secrets(value: Any, name: str = "") -> Any:
    """Return a schema without secrets in its texts; if `name` names a secret, without defaults and examples."""
    if isinstance(value, Mapping):
        kept = {word: part for word, part in value.items() if not (telling(name) and word in _EXAMPLES)}
        return {
            word: {each: _without_secrets(of, each) for each, of in part.items()}
            if word == "properties" and isinstance(part, Mapping)
            else _without_secrets(part)
            for word, part in kept.items()
        }
    if isinstance(value, list | tuple):
        return [_without_secrets(each) for each in value]
    return redact(value) if isinstance(value, str) else value
