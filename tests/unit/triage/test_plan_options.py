"""The options of a plan are one table: each is in Python, in the command line, on the page and in JSON."""

from __future__ import annotations

import html
import re
from inspect import getdoc

import click
import msgspec
import pytest
from tests.support.pages import Reader

from redrive import App
from redrive.present.plans import plan_record
from redrive.program.main import cli
from redrive.read_model import ReadModel
from redrive.stores.memory.store import MemoryStore
from redrive.triage.redrive.options import OPTIONS, PlanOptions, read_settings
from redrive.triage.redrive.records import Plan, RedriveSettings
from redrive.triage.selection import Selection
from redrive.web import Site


def test_each_option_is_a_field_of_the_settings_and_its_default_is_the_same_everywhere() -> None:
    fields = {field.name for field in msgspec.structs.fields(RedriveSettings)}
    assert {option.field for option in OPTIONS} == fields - {"gates", "note", "at_once", "hurry", "edit", "unwatched"}
    assert PlanOptions.__annotations__.keys() == {option.name for option in OPTIONS} | {"gates", "note"}
    assert read_settings() == read_settings(**{o.name: o.default for o in OPTIONS})  # type: ignore[typeddict-item]


def test_each_option_is_one_of_the_command_and_described_in_the_method() -> None:
    context = click.Context(cli)
    for name in ("dlq", "plan"):
        group = context.command
        assert isinstance(group, click.Group)
        context = click.Context(group.get_command(context, name) or cli, parent=context)
    flags = {flag for parameter in context.command.params for flag in parameter.opts}
    assert {f"--{option.name.replace('_', '-')}" for option in OPTIONS} <= flags
    described = set(re.findall(r"`(\w+)`", getdoc(Selection.plan) or ""))
    assert {option.name for option in OPTIONS} <= described


def test_each_option_is_in_the_form_of_the_page_and_what_was_filled_in_stays() -> None:
    app = App(store=MemoryStore())
    pages = Reader(Site(ReadModel(store=app.store), url="memory:///"))
    form = pages.html("/plans?q=lane:dead&rate=7/s&canary=9&halve_on_failures=on")
    assert {option.name for option in OPTIONS} <= set(re.findall(r'name="(\w+)"', form))
    assert 'name="rate" value="7/s"' in form and 'name="canary" value="9"' in form
    assert 'name="halve_on_failures" checked' in form and 'name="slow_start" checked' in form
    app.store.close()


def test_the_form_bounds_its_numbers_and_the_length_of_its_fields() -> None:
    app = App(store=MemoryStore())
    pages = Reader(Site(ReadModel(store=app.store), url="memory:///"))
    for name in ("canary", "attempts"):
        answer = pages.post("/do/plan", {"q": "lane:dead", name: "1000001"})
        assert (answer.status_code, f"{name}=1000001 is out of bounds" in html.unescape(answer.text)) == (422, True)
    assert pages.get(f"/plans?q=lane:dead&rate={'9' * 4001}").status_code == 413
    app.store.close()


def test_each_option_is_in_the_json_of_a_plan() -> None:
    record = plan_record(Plan(id="p", selector="", made_ms=0, settings=read_settings(rate=20, delay="90s")))["settings"]
    assert record.keys() == {option.record(RedriveSettings())[0] for option in OPTIONS} | {
        "gates",
        "note",
        "hurry",
        "edit",
    }
    assert (record["rate_per_s"], record["delay_s"], record["canary"], record["attempts"]) == (20.0, 90.0, 5, None)


def test_an_option_that_no_plan_has_is_refused_with_those_that_it_has() -> None:
    with pytest.raises(TypeError, match="a plan has no option 'canari'; it has rate, canary"):
        read_settings(canari=5)  # type: ignore[call-arg]
