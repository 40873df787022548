"""`redrive schema export`: what is exported holds every body that is enqueued, and refuses what the worker would."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from tests.support.bodies import EVERY

from redrive import App
from redrive.present.schemas import schema_of

TASKS = '''
import enum
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import msgspec
from pydantic import BaseModel, Field

from redrive import App, Context

app = App("sqlite:///work.db")
empty = App("memory://")


class Size(enum.Enum):
    SMALL = "s"


class Item(BaseModel):
    sku: str = Field(alias="SKU", min_length=1)


class Node(BaseModel):
    item: Item
    next: "Node | None" = None


@dataclass
class Line:
    "One line of it."
    node: Node
    price: Decimal = Decimal("1.10")


@app.task(name="shop.pay", ctx=True)
def pay(
    ctx: Context,
    line: Line,
    count: Annotated[int, msgspec.Meta(ge=1)] = 3,
    *,
    items: list[Item] = [Item(SKU="x")],
    by_day: dict[date, Item | None] | None = None,
    size: Size = Size.SMALL,
    file: Path = Path("a"),
    other: object = object(),
    odd: complex | None = None,
) -> None:
    """Pay for
    a thing.

    In the end.
    """


@app.task(name="a/b: ü")
async def odd_name(x, y=None): ...
'''
BODY = b'{"line":{"node":{"item":{"sku":"a"},"next":{"item":{"sku":"b"}}},"price":"9.90"},"by_day":{"2026-01-01":null}}'


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS)
    return tmp_path


def export(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "redrive", "schema", "export", *words]
    return subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=60)


def exported(home: Path, *words: str) -> Any:
    done = export(home, *words)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return json.loads(done.stdout)


def test_every_task_is_exported_as_a_valid_schema_with_its_name_and_version(home: Path) -> None:
    schemas = exported(home, "--app", "tasks:app")
    assert list(schemas) == ["a/b: ü", "shop.pay"]
    for name, schema in schemas.items():
        Draft202012Validator.check_schema(schema)
        assert (schema["title"], schema["version"]) == (name, 1)
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schemas["shop.pay"]["description"] == "Pay for a thing."
    assert not (home / "work.db").exists()


def test_the_context_is_no_argument_and_defaults_are_told_where_json_can_hold_them(home: Path) -> None:
    schema = exported(home, "--app", "tasks:app", "--task", "shop.pay")["shop.pay"]
    assert schema["required"] == ["line"]
    shown = {name: one.get("default", "none") for name, one in schema["properties"].items()}
    assert shown == {
        "line": "none",
        "count": 3,
        "items": [{"sku": "x"}],
        "by_day": None,
        "size": "s",
        "file": "a",
        "other": "none",
        "odd": None,
    }
    assert "complex" in schema["properties"]["odd"]["description"]


def test_the_schema_takes_what_the_task_takes_and_nothing_else(home: Path) -> None:
    check = Draft202012Validator(exported(home, "--app", "tasks:app")["shop.pay"])
    body = json.loads(BODY)
    assert check.is_valid(body) and check.is_valid(body | {"count": 1, "items": [], "file": "/x", "size": "s"})
    for wrong in (
        {},
        body | {"more": 1},
        body | {"count": 0},
        body | {"size": "l"},
        body | {"items": [{"sku": ""}]},
        body | {"items": [{"sku": 5}]},
        body | {"line": {"node": {"item": {"sku": "a"}, "next": {"item": {}}}}},
        body | {"by_day": {"2026-01-01": 5}},
        [body],
    ):
        assert not check.is_valid(wrong), wrong


def test_a_directory_gets_a_file_for_each_task(home: Path) -> None:
    done = export(home, "--app", "tasks:app", "-d", "out/schemas")
    assert done.stdout.splitlines() == ["out/schemas/a%2Fb%3A ü.json", "out/schemas/shop.pay.json"]
    schemas = exported(home, "--app", "tasks:app")
    for path, schema in zip(done.stdout.splitlines(), schemas.values(), strict=True):
        text = (home / path).read_text(encoding="utf-8")
        assert json.loads(text) == schema and text.endswith("}\n")
    assert export(home, "--app", "tasks:app", "-d", "out/schemas").returncode == 0


def test_an_app_without_tasks_exports_an_empty_object(home: Path) -> None:
    assert exported(home, "--app", "tasks:empty") == {}


@pytest.mark.parametrize(
    "words, code, said",
    [
        ((), 2, "which app is meant"),
        (("--app", "tasks:app", "--task", "shop.pey"), 2, "did you mean 'shop.pay'?"),
        (("--app", "tasks:app", "-d", "tasks.py"), 2, "is a file"),
        (("--app", "tasks:app", "-d", "tasks.py/x"), 1, "cannot be written"),
    ],
)
def test_what_cannot_be_exported_is_said_in_three_lines(home: Path, words: Any, code: int, said: str) -> None:
    done = export(home, *words)
    assert done.returncode == code and not done.stdout
    assert [line.partition(": ")[0] for line in done.stderr.splitlines()] == ["error", "why", "next"]
    assert said in done.stderr


# An IntFlag's members can be combined, its schema lists the members.
@pytest.mark.parametrize("name", sorted(set(EVERY) - {"IntFlag"}))
def test_every_body_that_is_enqueued_fits_the_schema(name: str) -> None:
    annotation, values = EVERY[name]

    def handler(value: Any) -> None: ...

    handler.__annotations__["value"] = annotation
    task = App("memory://").task(name="t")(handler)
    check = Draft202012Validator(schema_of(task))
    Draft202012Validator.check_schema(check.schema)

    @settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
    @given(values)
    def fits(value: Any) -> None:
        check.validate(msgspec.json.decode(task.draft(value).body))

    fits()


def test_what_cannot_be_described_costs_its_own_argument_only() -> None:
    def local(doc: str) -> Any:
        class Item(msgspec.Struct): ...

        Item.__doc__ = doc
        return Item

    class Arguments(msgspec.Struct):
        n: int

    def handler(a: Any, b: Any, c: Any) -> None: ...

    app = App("memory://")
    handler.__annotations__ |= {"a": Arguments, "b": EVERY["Struct"][0], "c": st.SearchStrategy}
    schema = schema_of(app.task(name="t")(handler))
    assert schema["$defs"].keys() == {"Arguments", "Event", "Money"}
    assert schema["properties"]["c"]["description"].startswith("No schema is known")
    handler.__annotations__ |= {"a": local("one"), "b": local("two")}
    twins = schema_of(app.task(name="u")(handler))["properties"]
    assert twins["a"] == {"$ref": "#/$defs/Item"} and twins["b"]["description"].startswith("No schema is known")
