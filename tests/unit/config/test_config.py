"""Settings come from flag, variable, file and default, field by field, and say what is wrong with them."""

import os
from pathlib import Path

import pytest

from redrive import App
from redrive.config.resolve import Settings, queue_sizes, settings, sources, unknown_variables
from redrive.errors import ConfigError
from redrive.redact import redact
from redrive.stores import shown


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("REDRIVE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_any_source_the_defaults_hold() -> None:
    assert settings() == Settings()
    assert {s.source for s in sources()} == {"default"}
    assert [s.value for s in sources() if s.name == "lease"] == ["30s"]


def test_flag_goes_before_variable_before_file_before_default(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "redrive.toml").write_text('lease = "3s"\ngrace = "4s"\nprocesses = 5\n')
    monkeypatch.setenv("REDRIVE_LEASE", "2s")
    monkeypatch.setenv("REDRIVE_PROCESSES", "6")
    found = settings({"lease": "1s", "grace": None})
    assert (found.lease_s, found.grace_s, found.processes, found.log) == (1.0, 4.0, 6, "auto")
    told = {s.name: s.source for s in sources({"lease": "1s"})}
    assert (told["lease"], told["processes"], told["log"]) == ("--lease", "REDRIVE_PROCESSES", "default")
    assert told["grace"] == str(place / "redrive.toml")


def test_pyproject_gives_settings_in_tool_redrive(place: Path) -> None:
    (place / "pyproject.toml").write_text('[tool.redrive]\nurl = "sqlite:////x.db"\n')
    assert settings().url == "sqlite:////x.db"


def test_redrive_toml_wins_over_pyproject_beside_it(place: Path) -> None:
    (place / "pyproject.toml").write_text("[tool.redrive]\nprocesses = 2\n")
    (place / "redrive.toml").write_text("processes = 3\n")
    assert settings().processes == 3


def test_nearest_file_upwards_holds_and_a_pyproject_without_our_table_is_passed_by(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = place / "a" / "b"
    below.mkdir(parents=True)
    (place / "redrive.toml").write_text("processes = 3\n")
    (place / "a" / "pyproject.toml").write_text('[project]\nname = "x"\n')
    (below / "pyproject.toml").write_text("this is no toml")
    monkeypatch.chdir(below)
    assert (settings().processes, settings().folder) == (3, str(place))


def test_relative_store_in_a_file_is_meant_from_where_the_file_lies(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "redrive.toml").write_text('url = "sqlite:///work.db?synchronous=normal"\n')
    assert settings().url == "sqlite:///work.db?synchronous=normal"
    (place / "sub").mkdir()
    monkeypatch.chdir(place / "sub")
    assert settings().url == f"sqlite:///{place}/work.db?synchronous=normal"


def test_relative_stores_within_a_url_of_sqs_are_meant_from_there_too(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "sqs://eu-central-1/shop?triage=sqlite:///dead.db&cells=sqlite:////var/cells.db"
    (place / "redrive.toml").write_text(f'url = "{url}"\n')
    assert settings().url == url
    (place / "sub").mkdir()
    monkeypatch.chdir(place / "sub")
    assert settings().url == url.replace("sqlite:///dead", f"sqlite:///{place}/dead")


def test_changed_file_is_read_again(place: Path) -> None:
    file = place / "redrive.toml"
    file.write_text("processes = 3\n")
    assert settings().processes == 3
    file.write_text("processes = 44\n")
    assert settings().processes == 44
    file.unlink()
    assert settings().processes == 1


def test_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_LEASE", "")
    assert settings().lease_s == 30.0


def test_unknown_key_names_the_file_the_key_and_the_near_miss(place: Path) -> None:
    (place / "redrive.toml").write_text('leese = "2s"\n')
    with pytest.raises(ConfigError) as caught:
        settings()
    assert str(caught.value).startswith(f"{place}/redrive.toml: unknown key 'leese'; did you mean 'lease'? known: url,")


@pytest.mark.parametrize(
    "name, text, expected",
    [
        ("LEASE", "2", "text needs a unit; expected a duration above 0"),
        ("LEASE", "0s", "it must be more than 0"),
        ("PROCESSES", "0", "it is not a whole number from 1 up"),
        ("PROCESSES", "two", "it is not a whole number from 1 up"),
        ("PREFETCH", "-1", "it is not a whole number from 0 up"),
        ("URL", "redrive.db", "it has no scheme; expected a store URL"),
        ("APP", "tasks", "it is not MODULE:APP; expected MODULE:APP"),
        ("LOG", "jsn", "did you mean 'json'?; expected one of auto, json, text, off"),
        ("OUTPUT", "xml", "expected one of auto, table, tsv, json, jsonl, ids"),
        ("BURST", "perhaps", "it is neither true nor false"),
        ("NAME", "../x", "it becomes part of a file's name"),
        ("QUEUES", "crm:many", "concurrency 'many' of queue 'crm' is not a whole number from 1 up"),
        ("QUEUES", "crm,,bulk", "'' names no queue"),
    ],
)
def test_bad_variable_is_refused_with_its_name_and_what_was_expected(
    name: str, text: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"REDRIVE_{name}", text)
    with pytest.raises(ConfigError) as caught:
        settings()
    assert str(caught.value).startswith(f"REDRIVE_{name} = {text!r} is refused: ")
    assert expected in str(caught.value)


def test_bad_value_in_a_file_names_the_file_and_the_key(place: Path) -> None:
    (place / "redrive.toml").write_text("grace = true\n")
    with pytest.raises(ConfigError, match=rf"^{place}/redrive\.toml: grace = True is refused: "):
        settings()


def test_broken_redrive_toml_is_an_error_that_names_the_line(place: Path) -> None:
    (place / "redrive.toml").write_text("lease = 2s\n")
    with pytest.raises(ConfigError, match=r"redrive\.toml cannot be read: .*line 1"):
        settings()


@pytest.mark.parametrize("value", ["crm:20, bulk", ["crm:20", "bulk"], ("crm:20,bulk",)])
def test_queues_are_text_or_a_list_with_concurrency_where_given(value: object) -> None:
    assert queue_sizes(value) == {"crm": 20, "bulk": None}


def test_misspelt_variable_is_told_with_the_one_that_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_LEESE", "2s")
    monkeypatch.setenv("REDRIVE_PARENT_FD", "3")
    assert unknown_variables() == [("REDRIVE_LEESE", "REDRIVE_LEASE")]


def test_app_without_a_url_works_on_the_store_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_URL", "memory://")
    assert App().url == "memory://"
    assert App.from_env().url == "memory://"
    assert App("sqlite:///work.db").url == "sqlite:///work.db"


@pytest.mark.parametrize("name", ["triage", "cells"])
@pytest.mark.parametrize(
    "inner",
    [
        "postgresql://ann:hunter2@db/x",
        "redis://:hunter2@cache/0",
        "postgresql%3A%2F%2Fann%3Ahunter2%40db%2Fx",
        "postgresql%3a//ann%3ahun%2Fter2%40db/x%3Fschema=a",
        "redis%3A%2F%2F%3Ahunter2%40cache%2F0",
        "postgresql://ann@db/x%3Fpassword=hunter2%26schema=a",
        "postgresql%3A%2F%2Fann%40db%2Fx%3Fpassword%3Dhunter2%26schema%3Da",
    ],
)
def test_the_password_of_a_url_within_a_url_is_never_shown(name: str, inner: str) -> None:
    url = f"sqs://eu-central-1/shop?{name}={inner}&endpoint=http://127.0.0.1:8000"
    for seen in (shown(url), redact(f"cannot open {url!r}: refused")):
        assert "hunter2" not in seen and "ter2" not in seen and "***" in seen
        assert "endpoint=http://127.0.0.1:8000" in seen or "password=" in inner
    assert shown("sqs://r/s?endpoint=http://127.0.0.1:8000&triage=sqlite:///a@b.db").endswith("a@b.db")
