"""Settings, and code, that somebody else owns or may write: refused, with the fix, wherever they are found."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.attack.users import ALICE, ANNE, BOB, TEAM, User, acting_as, common_ground, home_of, needs_root

from redrive import App
from redrive.cli.code import _guard
from redrive.config import settings, trust, unknown_variables
from redrive.errors import ConfigError, Refused
from redrive.program.main import run

SETTINGS = 'app = "tasks:app"\nurl = "sqlite:///work.db"\n'
MARK = "it ran"
TASKS = f"""
import sys
from redrive import App
app = App()
print({MARK!r}, file=sys.stderr)
"""


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("REDRIVE_") or name == "SUDO_UID"]:
        monkeypatch.delenv(name)
    path = list(sys.path)
    yield
    sys.path[:] = path
    sys.modules.pop("tasks", None)
    sys.modules.pop("helpers", None)
    if _guard in sys.meta_path:
        sys.meta_path.remove(_guard)


@pytest.fixture
def ground() -> Iterator[Path]:
    with common_ground() as folder:
        yield folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of this user's, with settings and an app, and the working directory."""
    folder = tmp_path / "place"
    folder.mkdir()
    folder.chmod(0o755)
    lay(folder)
    monkeypatch.chdir(folder)
    return folder


def lay(folder: Path) -> None:
    for name, text in (("redrive.toml", SETTINGS), ("tasks.py", TASKS)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o644)


class Said(NamedTuple):
    code: int
    err: str


def redrive(*args: str) -> Said:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(args)
    return Said(code, err.getvalue())


def may_write(path: Path, mode: int) -> None:
    path.chmod(mode)


# -- settings


def test_settings_of_ones_own_are_taken(place: Path) -> None:
    assert settings().app == "tasks:app"
    (place / "below").mkdir()
    os.chdir(place / "below")
    assert settings().app == "tasks:app"


@pytest.mark.parametrize(
    ("odd", "mode", "why"),
    [
        ("redrive.toml", 0o666, "everybody may write it"),
        ("redrive.toml", 0o646, "everybody may write it"),
        (".", 0o777, "everybody may write in its folder"),
        (".", 0o757, "everybody may write in its folder"),
    ],
)
def test_settings_that_others_may_write_are_refused_with_the_fix(place: Path, odd: str, mode: int, why: str) -> None:
    (place / odd).chmod(mode)
    with pytest.raises(Refused, match=why) as refused:
        settings()
    assert f"REDRIVE_TRUST={place}" in str(refused.value)
    with pytest.raises(Refused):
        App()
    shown = redrive("config", "show")
    assert shown.code == 4 and f"REDRIVE_TRUST={place}" in shown.err


def test_settings_in_a_sticky_folder_are_their_owners(place: Path) -> None:
    place.chmod(0o1777)  # as /tmp
    assert settings().app == "tasks:app"


def test_pyproject_with_our_table_is_refused_and_one_without_is_passed_by(place: Path) -> None:
    (place / "redrive.toml").unlink()
    (place / "pyproject.toml").write_text('[project]\nname = "x"\n')
    (place / "pyproject.toml").chmod(0o666)
    assert settings().app is None
    (place / "pyproject.toml").write_text('[tool.redrive]\napp = "tasks:app"\n')
    with pytest.raises(Refused, match=r"pyproject\.toml, .* are not taken: everybody may write it"):
        settings()


def test_bad_settings_of_others_are_not_even_read(place: Path) -> None:
    (place / "redrive.toml").write_text("this is no toml, but a text of somebody else's")
    (place / "redrive.toml").chmod(0o666)
    with pytest.raises(Refused) as refused:
        settings()
    assert "somebody else's" not in str(refused.value)


def test_pipe_in_the_place_of_settings_holds_nobody_up(place: Path) -> None:
    for name in ("redrive.toml", "pyproject.toml"):
        (place / name).unlink(missing_ok=True)
        os.mkfifo(place / name, 0o600)
    with pytest.raises(ConfigError, match="not a regular file"):
        settings()
    (place / "redrive.toml").unlink()
    assert settings().app is None


@pytest.mark.parametrize("named", ["{place}", "{place}/redrive.toml", "{place}/..", "/nowhere:{place}", "*"])
def test_whom_a_person_trusts_is_taken(place: Path, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "redrive.toml").chmod(0o666)
    monkeypatch.setenv("REDRIVE_TRUST", named.format(place=place))
    assert settings().app == "tasks:app"
    monkeypatch.setenv("REDRIVE_TRUST", f"{place}-not")
    with pytest.raises(Refused):
        settings()


def test_file_that_a_person_names_is_taken_and_nothing_else_is_looked_for(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "redrive.toml").chmod(0o666)
    monkeypatch.setenv("REDRIVE_CONFIG", str(place / "redrive.toml"))
    assert settings().app == "tasks:app"
    other = tmp_path / "prod.toml"
    other.write_text('url = "sqlite:///prod.db"\n')
    monkeypatch.setenv("REDRIVE_CONFIG", str(other))
    assert (settings().app, settings().url) == (None, f"sqlite:///{tmp_path}/prod.db")
    monkeypatch.setenv("REDRIVE_CONFIG", str(tmp_path / "missing.toml"))
    with pytest.raises(ConfigError, match="there is no such file"):
        settings()
    monkeypatch.setenv("REDRIVE_CONFG", "x")
    assert ("REDRIVE_CONFG", "REDRIVE_CONFIG") in unknown_variables()
    assert not [name for name, _ in unknown_variables() if name == "REDRIVE_CONFIG"]


def test_settings_behind_links_of_ones_own_are_taken(place: Path, tmp_path: Path) -> None:
    (place / "redrive.toml").rename(tmp_path / "real.toml")
    (place / "redrive.toml").symlink_to(tmp_path / "real.toml")
    assert settings().app == "tasks:app"
    (tmp_path / "real.toml").chmod(0o666)
    with pytest.raises(Refused):
        settings()


# -- of other users


def owned(folder: Path, user: User) -> None:
    for path in (*folder.iterdir(), folder):
        os.lchown(path, user.uid, user.uid)


@needs_root
@pytest.mark.parametrize("what", ["file", "folder", "all"])
def test_settings_of_another_user_are_refused_to_root(place: Path, what: str) -> None:
    for path in {"file": [place / "redrive.toml"], "folder": [place], "all": [place / "redrive.toml", place]}[what]:
        os.chown(path, BOB.uid, BOB.uid)
    with pytest.raises(Refused, match=f"belongs to user {BOB.uid}, and you are root"):
        settings()


@needs_root
def test_user_who_called_sudo_counts_as_root(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owned(place, ALICE)
    monkeypatch.setenv("SUDO_UID", str(BOB.uid))
    with pytest.raises(Refused):
        settings()
    monkeypatch.setenv("SUDO_UID", str(ALICE.uid))
    assert settings().app == "tasks:app"


@needs_root
def test_sudos_word_counts_for_nobody_but_root(ground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(home_of(BOB, ground))
    owned(home_of_bob := ground / f"home-{BOB.uid}", BOB)
    monkeypatch.setenv("SUDO_UID", str(BOB.uid))
    with pytest.raises(Refused):
        acting_as(ALICE, lambda: (os.chdir(home_of_bob), settings())[1])


@needs_root
def test_user_takes_roots_settings_and_not_another_users(ground: Path) -> None:
    settings()  # what it imports
    mine, roots, others = home_of(ALICE, ground), ground / "srv", home_of(BOB, ground)
    roots.mkdir(mode=0o755)
    for folder in (mine, roots, others):
        lay(folder)
    owned(mine, ALICE)
    owned(others, BOB)

    def app_in(folder: Path) -> str | None:
        os.chdir(folder)
        return settings().app

    assert acting_as(ALICE, lambda: app_in(mine)) == acting_as(ALICE, lambda: app_in(roots)) == "tasks:app"
    with pytest.raises(Refused, match=f"belongs to user {BOB.uid}"):
        acting_as(ALICE, lambda: app_in(others))


@needs_root
def test_settings_that_lie_in_tmp_are_refused_to_whoever_works_below(ground: Path) -> None:
    settings()
    ground.chmod(0o1777)
    acting_as(BOB, lambda: (ground / "redrive.toml").write_text(SETTINGS))
    mine = home_of(ALICE, ground)

    def look() -> str | None:
        os.chdir(mine)
        return settings().app

    with pytest.raises(Refused):
        acting_as(ALICE, look)
    (mine / "redrive.toml").write_text('app = "mine:app"\n')  # a nearer one of one's own goes before it
    owned(mine, ALICE)
    assert acting_as(ALICE, look) == "mine:app"


@needs_root
def test_link_of_another_user_to_ones_own_file_is_refused(ground: Path) -> None:
    settings()
    ground.chmod(0o1777)
    mine = home_of(ALICE, ground)
    lay(mine)
    owned(mine, ALICE)
    acting_as(BOB, lambda: (ground / "redrive.toml").symlink_to(mine / "redrive.toml"))
    (mine / "below").mkdir()

    def look() -> str | None:
        os.chdir(ground)
        return settings().app

    with pytest.raises(Refused, match=f"it is a link that belongs to user {BOB.uid}"):
        acting_as(ALICE, look)


@needs_root
def test_group_that_has_other_members_is_somebody_else(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(place / "redrive.toml", 0, TEAM)
    (place / "redrive.toml").chmod(0o664)
    with pytest.raises(Refused, match=f"group {TEAM} may write it"):
        settings()
    os.chown(place / "redrive.toml", 0, 0)  # root's own
    assert trust._is_alone(0, frozenset({0})) == (not others_in_group(0))


def others_in_group(gid: int) -> bool:
    import grp
    import pwd

    names = set(grp.getgrgid(gid).gr_mem)
    return any(one.pw_uid != 0 and (one.pw_gid == gid or one.pw_name in names) for one in pwd.getpwall())


# -- code


def test_app_of_ones_own_is_imported(place: Path) -> None:
    done = redrive("policy", "preview", "--app", "tasks:app", "--task", "none")
    assert MARK in done.err


@pytest.mark.parametrize(
    "open_it",
    [
        pytest.param(lambda place: may_write(place, 0o777), id="folder"),
        pytest.param(lambda place: may_write(place, 0o1777), id="sticky folder"),
        pytest.param(lambda place: may_write(place / "tasks.py", 0o666), id="file"),
    ],
)
@pytest.mark.parametrize("by", ["flag", "variable"])
def test_app_that_others_may_write_is_not_imported(
    place: Path, open_it: Callable[[Path], None], by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "redrive.toml").unlink()
    open_it(place)
    if by == "variable":
        monkeypatch.setenv("REDRIVE_APP", "tasks:app")
    args = ["--app", "tasks:app"] if by == "flag" else []
    for command in (["queue", "list"], ["dlq", "list"], ["schema", "export"], ["worker", "--burst"]):
        done = redrive(*command, *args)
        assert done.code == 4 and MARK not in done.err, done.err
        assert "module 'tasks' is not imported from" in done.err and "REDRIVE_TRUST=" in done.err
    monkeypatch.setenv("REDRIVE_TRUST", str(place))
    assert MARK in redrive("schema", "export", "--app", "tasks:app").err


def test_helpers_and_bytecode_that_others_may_write_are_not_imported(place: Path) -> None:
    (place / "helpers.py").write_text(f"import sys\nprint({MARK!r}, file=sys.stderr)\n")
    (place / "helpers.py").chmod(0o666)
    (place / "tasks.py").write_text("import helpers\nfrom redrive import App\napp = App()\n")
    done = redrive("schema", "export", "--app", "tasks:app")
    assert done.code == 4 and MARK not in done.err and "helpers.py" in done.err
    (place / "helpers.py").chmod(0o644)
    cache = place / "__pycache__" / f"helpers.{sys.implementation.cache_tag}.pyc"
    cache.parent.mkdir(exist_ok=True)
    cache.write_bytes(b"")
    cache.chmod(0o666)
    done = redrive("schema", "export", "--app", "tasks:app")
    assert done.code == 4 and "helpers" in done.err and ".pyc" in done.err


@needs_root
def test_root_imports_no_app_of_another_user(ground: Path) -> None:
    theirs = home_of(BOB, ground)
    lay(theirs)
    owned(theirs, BOB)
    os.chdir(theirs)
    try:
        (theirs / "redrive.toml").unlink()
        done = redrive("queue", "list", "--app", "tasks:app")
        assert done.code == 4 and MARK not in done.err
        assert f"belongs to user {BOB.uid}, and you are root" in done.err
    finally:
        os.chdir("/")


def test_module_that_is_installed_is_imported_from_a_folder_that_is_not_trusted(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "installed"
    installed.mkdir()
    (installed / "tasks.py").write_text(TASKS)
    for name in ("redrive.toml", "tasks.py"):
        (place / name).unlink()
    place.chmod(0o777)
    monkeypatch.syspath_prepend(str(installed))
    assert MARK in redrive("schema", "export", "--app", "tasks:app").err
    assert str(place) not in sys.path


@pytest.mark.slow
def test_processes_of_a_worker_do_not_look_in_the_working_directory(place: Path, tmp_path: Path) -> None:
    """`python -m` would: for redrive itself, and all that it imports."""
    installed = tmp_path / "installed"
    installed.mkdir()
    (installed / "tasks.py").write_text(TASKS)
    for name in ("redrive.toml", "tasks.py"):
        (place / name).unlink()
    place.chmod(0o777)
    for name in ("redrive", "msgspec", "tasks"):
        (place / f"{name}.py").write_text("import os\nopen('hijacked', 'w')\nos._exit(7)\n")
    done = subprocess.run(
        [
            Path(sys.executable).with_name("redrive"),
            *("worker", "tasks:app", "--burst", "--url", f"sqlite:///{tmp_path}/work.db"),
        ],
        cwd=place,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0 and MARK in done.stderr, done.stderr
    assert not (place / "hijacked").exists()


def test_app_that_init_writes_runs_whatever_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0)
    try:
        assert redrive("init", str(tmp_path / "shop")).code == 0
    finally:
        os.umask(before)
    monkeypatch.chdir(tmp_path / "shop")
    assert redrive("schema", "export").code == 0


@needs_root
def test_team_is_nobody_where_a_group_is_not_listed() -> None:
    assert not trust._is_alone(TEAM, frozenset({0, ANNE.uid}))


# Calls that import a module by a name that is no constant. None has the name from a message.
IMPORTERS = {
    "__init__.py": "redrive's own, from a table",
    "testing/__init__.py": "the same",
    "program/main.py": "the same",
    "web/table.py": "the same",
    "cli/opening.py": "the app that a person names",
    "testing/plugin.py": "the same, in a test's settings",
    "worker/executors/app_import.py": "the same, and the modules of its tasks, once more in a child",
}
EVALUATORS = {"eval", "exec", "__import__"}
UNPICKLERS = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle", "yaml"}


def evaluates(node: ast.AST) -> bool:
    """Whether a node runs text as code, or imports what makes objects of bytes."""
    match node:
        case ast.Call(func=ast.Name(id=name)):
            return name in EVALUATORS
        case ast.Import(names=names):
            return any(alias.name.partition(".")[0] in UNPICKLERS for alias in names)
        case ast.ImportFrom(module=str(module), level=0):
            return module.partition(".")[0] in UNPICKLERS
        case _:
            return False


def imports_by_name(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"), args=[first, *_]):
            return not isinstance(first, ast.Constant)
        case _:
            return False


def test_only_code_that_a_person_names_is_imported_and_nothing_is_evaluated() -> None:
    source = Path(__file__).parents[2] / "src/redrive"
    importers: set[str] = set()
    odd: list[tuple[str, int]] = []
    for path in source.rglob("*.py"):
        name = str(path.relative_to(source))
        for node in ast.walk(ast.parse(path.read_text())):
            if evaluates(node):
                odd.append((name, getattr(node, "lineno", 0)))
            if imports_by_name(node):
                importers.add(name)
    assert odd == [] and importers == IMPORTERS.keys()
