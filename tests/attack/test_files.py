"""What others put in the way of our files: links, pipes and folders of theirs. Nothing of it is followed, cut or
removed, and what is made is private whatever the umask is."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.attack.users import ALICE, acting_as, common_ground, home_of, needs_root

import redrive
from redrive import App, Draft, Retry
from redrive.blobs.files import FileBlobs
from redrive.blobs.place import new_key
from redrive.deliver import spool
from redrive.deliver.run import _alone
from redrive.deliver.spool import InputError, readable
from redrive.errors import BlobsUnavailable, ConfigError, Refused
from redrive.events import Event, Notice
from redrive.files import Folder, NotOurs, create, make_folder, open_file, read_regular, rewrite, written
from redrive.ids import new_id
from redrive.message import ClaimRequest
from redrive.observe.shared_tally import SharedCounting
from redrive.observe.tally import EventCounter
from redrive.program.main import cli
from redrive.stores.sqlite.store import SqliteStore
from redrive.stores.sqlite.wake import wake_dir
from redrive.worker.crash.ledger import hold, left_behind

ASK = ClaimRequest("default", 10, 30_000, worker="w")
PRECIOUS = "precious"


@pytest.fixture
def ground() -> Iterator[Path]:
    with common_ground() as folder:
        yield folder


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file that is not redrive's."""
    path = tmp_path / "precious"
    path.write_text(PRECIOUS)
    return path


@pytest.fixture
def bystanders(tmp_path: Path) -> Path:
    """A folder that is not redrive's, with a file and a socket without a listener."""
    folder = tmp_path / "bystanders"
    folder.mkdir()
    (folder / "1a2b-c3d4e5").write_text(PRECIOUS)
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    dead.bind(str(folder / "dead"))
    dead.close()
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def sockets_of_ours(folder: Path) -> list[str]:
    """Those that waiters of this process made, by the names they give."""
    with contextlib.suppress(OSError):  # another test's folder, which is gone by now
        return [name for name in names(folder) if name.startswith(f"{os.getpid():x}-")]
    return []


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def umask() -> Iterator[Callable[[int], None]]:
    """Sets the umask until the test ends."""
    before = os.umask(0o022)
    yield lambda new: bool(os.umask(new))
    os.umask(before)


# -- the wake folder


def test_put_touches_nothing_where_the_wake_folder_is_a_link(tmp_path: Path, bystanders: Path) -> None:
    path = tmp_path / "work.db"
    wake_dir(path).symlink_to(bystanders)
    with closing(SqliteStore(path)) as store:
        assert store.put([Draft(task="t")])[0].state == "ready"
        store.wait([ASK], timeout_ms=1)
        assert len(store.exchange([], [ASK]).deliveries) == 1
    assert names(bystanders) == ["1a2b-c3d4e5", "dead"] and wake_dir(path).is_symlink()


def test_what_is_no_socket_of_ours_stays_in_the_wake_folder(tmp_path: Path, precious: Path) -> None:
    path = tmp_path / "work.db"
    folder = wake_dir(path)
    folder.mkdir(mode=0o700)
    (folder / "1a2b-c3d4e5").write_text(PRECIOUS)
    (folder / "link").symlink_to(precious)
    (folder / "folder").mkdir()
    with closing(SqliteStore(path)) as store:
        store.put([Draft(task="t")])
        store.wait([ASK], timeout_ms=1)
        store.put([Draft(task="t")])
    assert names(folder) == ["1a2b-c3d4e5", "folder", "link"]
    assert precious.read_text() == PRECIOUS


@needs_root
def test_root_removes_no_files_from_a_folder_of_another_user(ground: Path) -> None:
    home = home_of(ALICE, ground)
    path = ground / "work.db"

    def lay() -> None:
        (home / "diary").write_text(PRECIOUS)

    acting_as(ALICE, lay)
    with closing(SqliteStore(path)) as store:
        for kind in ("link", "folder"):
            if kind == "link":
                wake_dir(path).symlink_to(home)
            else:
                wake_dir(path).unlink()
                home.rename(wake_dir(path))
            store.put([Draft(task="t")])
            store.wait([ASK], timeout_ms=1)
        assert store.counts().ready == 2
    assert names(wake_dir(path)) == ["diary"] and (wake_dir(path) / "diary").read_text() == PRECIOUS


def test_nothing_is_made_in_a_shared_folder_however_long_a_databases_path_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    with closing(SqliteStore(deep / "work.db")) as store:
        store.wait([ASK], timeout_ms=1)
        store.put([Draft(task="t")])
        assert len(names(wake_dir(deep / "work.db"))) == 1
        assert not [name for folder in Path("/tmp").glob("redrive-*") for name in sockets_of_ours(folder)]


# -- identities of workers


def notices(app: App) -> list[str]:
    told: list[str] = []

    def hear(events: list[Event]) -> None:
        told.extend(event.name for event in events if isinstance(event, Notice))

    app.subscribe(hear)  # type: ignore[arg-type]
    return told


def test_worker_whose_state_folder_is_a_link_works_without_and_says_so(tmp_path: Path, bystanders: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'work.db'}")
    (tmp_path / "work.db-workers").symlink_to(bystanders)
    ran: list[int] = []
    app.task(name="t")(lambda: ran.append(1)).enqueue()
    told = notices(app)
    app.run_worker(burst=True)
    app.store.close()
    assert ran == [1] and "no_identity" in told
    assert names(bystanders) == ["1a2b-c3d4e5", "dead"]


@pytest.mark.parametrize("kind", ["symlink", "hard link", "pipe", "folder"])
def test_identity_file_that_is_not_ours_is_passed_over(tmp_path: Path, precious: Path, kind: str) -> None:
    folder = tmp_path / "workers"
    make_folder(folder)
    odd = folder / "worker-0.slots"
    match kind:
        case "symlink":
            odd.symlink_to(precious)
        case "hard link":
            odd.hardlink_to(precious)
        case "pipe":
            os.mkfifo(odd)
        case "folder":
            odd.mkdir()
    if kind == "folder":
        with pytest.raises(IsADirectoryError):
            hold(folder, "worker")
        return
    slots = hold(folder, "worker")
    assert slots.name == "worker-1"
    assert list(left_behind(folder)) == []
    slots.open(4)
    slots.close()
    assert precious.read_text() == PRECIOUS


def test_token_behind_a_link_is_not_written(tmp_path: Path) -> None:
    folder, target = tmp_path / "workers", tmp_path / "target"
    make_folder(folder)
    (folder / "token").symlink_to(target)
    with pytest.raises(NotOurs, match="it is a link"):
        hold(folder, "worker")
    assert not target.exists()


@needs_root
def test_identities_are_not_kept_where_another_user_could_forge_them(ground: Path) -> None:
    folder = ground / "work.db-workers"
    folder.mkdir()
    os.chown(folder, ALICE.uid, ALICE.uid)
    with pytest.raises(NotOurs, match=f"belongs to user {ALICE.uid}"):
        hold(folder, "worker")
    os.chown(folder, 0, 0)
    folder.chmod(0o777)
    with pytest.raises(NotOurs, match="everybody may write"):
        hold(folder, "worker")


# -- deliveries


@pytest.mark.parametrize("kind", ["symlink", "hard link"])
def test_lock_of_a_delivery_cuts_nobodys_file(tmp_path: Path, precious: Path, kind: str) -> None:
    folder = tmp_path / "workers"
    make_folder(folder)
    lock = folder / "deliver-x.lock"
    lock.symlink_to(precious) if kind == "symlink" else lock.hardlink_to(precious)
    with pytest.raises(Refused, match="cannot lock this delivery"), _alone(folder, "deliver-x"):
        pass
    assert precious.read_text() == PRECIOUS


def test_input_is_not_copied_through_links(
    tmp_path: Path, precious: Path, bystanders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, folder = tmp_path / "pipe", tmp_path / "work.db-spool"
    os.mkfifo(pipe)

    def feed() -> None:
        with contextlib.suppress(BrokenPipeError):  # the reader is gone, as its folder is refused
            pipe.write_bytes(b'{"a":1}\n')

    folder.symlink_to(bystanders)
    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    with pytest.raises(InputError, match="it is a link"):
        readable(str(pipe), folder)
    thread.join()
    folder.unlink()
    make_folder(folder)
    (folder / f"{os.getpid()}.partial").symlink_to(precious)  # what it would once have written to
    monkeypatch.setattr(spool, "_sweep", lambda folder: None)
    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    copy = readable(str(pipe), folder)
    thread.join()
    assert copy.read_bytes() == b'{"a":1}\n' and mode(copy) == 0o600
    assert precious.read_text() == PRECIOUS


# -- metrics


@pytest.mark.parametrize("name", ["0.lock", "0.new", "0.json"])
@pytest.mark.parametrize("kind", ["symlink", "hard link"])
def test_counters_are_not_written_through_links(tmp_path: Path, precious: Path, name: str, kind: str) -> None:
    folder = tmp_path / "metrics"
    make_folder(folder)
    odd = folder / name
    odd.symlink_to(precious) if kind == "symlink" else odd.hardlink_to(precious)
    shared = SharedCounting(EventCounter({}), folder)
    shared.write()
    shared.close()
    assert precious.read_text() == PRECIOUS


# -- blobs


def test_blob_is_neither_written_nor_read_through_links(tmp_path: Path, precious: Path) -> None:
    blobs, key = FileBlobs(tmp_path / "blobs"), new_key(new_id(1), 1)
    blobs.make()
    blobs.put({key: b"body"})
    assert blobs.get(key, 100) == b"body"
    (blobs.folder / key).unlink()
    (blobs.folder / key).symlink_to(precious)
    with pytest.raises(BlobsUnavailable):
        blobs.get(key, 100)
    (blobs.folder / f"{key}.part").symlink_to(precious)
    with pytest.raises(BlobsUnavailable):
        blobs.put({key: b"body"})
    assert precious.read_text() == PRECIOUS


# -- modes


def app_of(place: Path) -> App:
    app = App(f"sqlite:///{place / 'work.db'}", blobs=f"file://{place / 'blobs'}")
    app.task(name="fail", retry=Retry(max_attempts=1))(lambda body: 1 / 0)
    return app


def work_in(place: Path) -> dict[str, int]:
    """All that redrive writes for one user, and its mode by its path."""
    app = app_of(place)
    app.tasks["fail"].enqueue("x" * 300_000)
    app.tasks["fail"].enqueue("small")
    app.store.wait([ASK], timeout_ms=1)
    modes = {
        str(path.relative_to(place)): mode(path) for path in place.rglob("*") if path.name != "work.db-wake"
    }  # what is there while it works
    app.run_worker(burst=True)
    app.dlq.export("queue:default", place / "dead.jsonl")
    app.store.close()
    args = ["--url", f"sqlite:///{place / 'work.db'}"]
    plan = CliRunner().invoke(cli, ["dlq", "plan", *args, "--out", str(place / "plan.json")])
    assert plan.exit_code == 0, plan.output
    made = CliRunner().invoke(cli, ["init", str(place / "shop")])
    assert made.exit_code == 0, made.output
    spooled(place / "work.db-spool")
    counting = SharedCounting(EventCounter({}), place / "metrics")
    counting.write()
    counting.close()
    return modes | {str(path.relative_to(place)): mode(path) for path in place.rglob("*")}


def spooled(folder: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b'{"a":1}\n')
    os.close(writing)
    readable(f"/dev/fd/{reading}", folder)
    os.close(reading)


def test_what_is_made_is_private_whatever_the_umask_is(tmp_path: Path, umask: Callable[[int], None]) -> None:
    umask(0)
    place = tmp_path / "place"
    place.mkdir(mode=0o700)
    modes = work_in(place)
    seen = {name for name in modes if name.startswith(("work.db", "blobs", "dead", "plan", "metrics"))}
    assert {"work.db", "work.db-wal", "work.db-shm", "work.db-workers", "work.db-workers/token", "dead.jsonl"} <= seen
    assert {"plan.json", "work.db-spool", "metrics", "metrics/0.lock", "metrics/0.json"} <= seen
    assert any(name.startswith("blobs/") for name in seen)
    assert {name: oct(modes[name]) for name in seen if modes[name] & 0o077} == {}
    assert modes["shop/redrive.toml"] == 0o600 and modes["shop/tasks.py"] == 0o644 and modes["shop"] == 0o755


def test_what_a_group_shares_is_the_groups_too_and_nobody_elses(
    tmp_path: Path, umask: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDRIVE_SHARE", "group")
    umask(0o077)
    place = tmp_path / "place"
    place.mkdir(mode=0o700)
    modes = work_in(place)
    seen = [name for name in modes if name.startswith(("work.db", "blobs", "dead", "plan", "metrics"))]
    folders = [name for name in seen if (place / name).is_dir()]
    assert {name: oct(modes[name]) for name in folders} == {name: oct(0o3770) for name in folders}
    files = [name for name in seen if name not in folders]
    assert {name: oct(modes[name]) for name in files} == {name: oct(0o660) for name in files}
    assert modes["shop/redrive.toml"] == 0o660


def test_database_that_is_there_keeps_its_mode_and_doctor_says_so(tmp_path: Path) -> None:
    path = tmp_path / "work.db"
    SqliteStore(path).close()
    path.chmod(0o644)
    with closing(SqliteStore(path)) as store:
        store.put([Draft(task="t")])
        assert mode(path) == 0o644
        assert [line for line in store.doctor() if f"every user of this machine may read {path} (mode 644)" in line]
    path.chmod(0o600)
    with closing(SqliteStore(path)) as store:
        assert not [line for line in store.doctor() if "every user" in line]


def test_folders_beside_a_database_follow_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "work.db"
    SqliteStore(path).close()
    path.chmod(0o660)
    with closing(SqliteStore(path)) as store:
        store.wait([ASK], timeout_ms=1)
        assert mode(wake_dir(path)) == 0o3770
        assert {mode(one) for one in wake_dir(path).iterdir()} == {0o660}
        assert store.state_dir is not None
        hold(store.state_dir, "w").close()
        assert mode(store.state_dir) == 0o3770 and mode(store.state_dir / "w-0.slots") == 0o660


@needs_root
def test_database_behind_another_users_link_is_not_made(ground: Path) -> None:
    ground.chmod(0o1777)
    target, path = ground / "cron.d", ground / "work.db"
    acting_as(ALICE, lambda: path.symlink_to(target))
    with pytest.raises(ConfigError, match="is a link that user"):
        SqliteStore(path)
    assert not target.exists()


def test_database_behind_a_link_of_ones_own_is_made_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "work.db").symlink_to(tmp_path / "disk" / "real.db")
    with closing(SqliteStore(tmp_path / "work.db")) as store:
        store.put([Draft(task="t")])
    assert mode(tmp_path / "disk" / "real.db") == 0o600


# -- the primitives


def test_output_that_is_a_pipe_or_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    thread.start()
    with written(pipe) as file:
        os.write(file, b"line\n")
    thread.join()
    assert got == [b"line\n"] and stat.S_ISFIFO(pipe.lstat().st_mode)


def test_output_that_fails_half_way_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"
    path.write_text("before")

    def fail() -> None:
        with written(path) as file:
            os.write(file, b"half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert path.read_text() == "before" and names(tmp_path) == ["dead.jsonl"]


@pytest.fixture
def commanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run a command on an app with one task, whose audit log has an entry."""
    (tmp_path / "tasks.py").write_text(
        "from redrive import App\napp = App('sqlite:///work.db')\n"
        "@app.task(name='push')\ndef push(n: int) -> None: ...\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(*words: str) -> None:
        environment = {**os.environ, "REDRIVE_APP": "tasks:app", "REDRIVE_TRUST": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-m", "redrive", *words], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr

    run("enqueue", "push", '{"n": 1}')
    run("queue", "pause", "default", "--reason", "test")
    return run


WRITING = [
    ("audit export -f", "out", 0o600),
    ("schema export -d", "push.json", 0o644),
    ("aws template -q orders --out", "out", 0o644),
]


@pytest.mark.parametrize(("words", "name", "mode_of_it"), WRITING)
def test_what_a_command_writes_replaces_a_link_and_is_its_users_alone(
    commanded: Callable[..., None], tmp_path: Path, precious: Path, umask: Callable[[int], None], words: str, name: str,
    mode_of_it: int,
) -> None:  # fmt: skip
    umask(0o022)
    folder = tmp_path / "outputs"
    folder.mkdir()
    (folder / name).symlink_to(precious)
    commanded(*words.split(), str(folder if name.endswith(".json") else folder / name))
    assert precious.read_text() == PRECIOUS and not (folder / name).is_symlink()
    assert mode(folder / name) == mode_of_it
    (folder / name).write_text("before")
    (folder / name).chmod(0o666)
    commanded(*words.split(), str(folder if name.endswith(".json") else folder / name))
    assert mode(folder / name) == mode_of_it and (folder / name).read_text() != "before"
    assert names(folder) == [name]


# Calls that open a file to write it elsewhere than in files.py, and why each is safe.
OTHERS = {
    ("deliver/lines.py", "NamedTemporaryFile"): "0600 and beside its target, which it replaces",
    ("triage/export.py", "open"): "only what is no file: a device or a pipe",
    ("demo/outage.py", "open"): "in the folder that the demo has made for itself",
    ("demo/run.py", "open"): "the same",
    ("demo/run.py", "write_bytes"): "the same",
    ("demo/endpoint.py", "open"): "the same",
}


def writers(source: str) -> Iterator[str]:
    """The names of calls that may open a file to write to it."""
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        texts = [
            node.value for node in ast.walk(call) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        flags = {node.attr for node in ast.walk(call) if isinstance(node, ast.Attribute)}
        opens = name in ("open", "File", "copyfile", "copy") and any(
            text in ("w", "wb", "a", "ab", "x", "xb", "r+", "r+b", "w+", "w+b") for text in texts
        )
        if (
            name in ("write_text", "write_bytes", "NamedTemporaryFile", "mkstemp")
            or opens
            or (name == "open" and "O_CREAT" in flags)
        ):
            yield name


def test_all_that_is_written_goes_through_the_one_function_for_it() -> None:
    source = Path(redrive.__file__).parent
    seen = {
        (str(path.relative_to(source)), name)
        for path in source.rglob("*.py")
        if path.name != "files.py" or path.parent != source
        for name in writers(path.read_text())
    }
    assert seen - OTHERS.keys() == set() == OTHERS.keys() - seen


def test_new_file_is_not_made_through_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(FileExistsError):
        create(tmp_path / "link")
    assert not (tmp_path / "target").exists()


def test_folder_that_was_replaced_meanwhile_is_not_worked_in(tmp_path: Path, bystanders: Path) -> None:
    folder = Folder(tmp_path / "ours", make=True)
    (tmp_path / "ours").rename(tmp_path / "moved")
    (tmp_path / "ours").symlink_to(bystanders)
    os.close(folder.open("file", os.O_RDWR | os.O_CREAT))
    assert names(tmp_path / "moved") == ["file"] and not folder.is_there()
    folder.remove_socket("dead")
    assert "dead" in names(bystanders)
    folder.close()


def test_file_is_rewritten_only_once_it_is_known_to_be_ours(tmp_path: Path, precious: Path) -> None:
    make_folder(tmp_path / "ours")
    rewrite(tmp_path / "ours" / "file", b"long content")
    rewrite(tmp_path / "ours" / "file", b"short")
    assert (tmp_path / "ours" / "file").read_bytes() == b"short"
    (tmp_path / "ours" / "link").hardlink_to(precious)
    with pytest.raises(NotOurs, match="another name elsewhere"):
        rewrite(tmp_path / "ours" / "link", b"x")
    with pytest.raises(NotOurs):
        open_file(tmp_path / "ours" / "link", os.O_RDONLY)
    assert precious.read_text() == PRECIOUS


def test_settings_that_init_writes_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = CliRunner().invoke(cli, ["init", str(tmp_path / "shop")])
    assert made.exit_code == 0
    monkeypatch.chdir(tmp_path / "shop")
    shown = CliRunner().invoke(cli, ["config", "show", "-o", "jsonl"])
    assert {"name": "app", "value": "tasks:app"}.items() <= json.loads(shown.stdout.splitlines()[1]).items()


def test_a_folder_or_a_pipe_is_refused_where_a_file_is_read_and_nothing_stays_open(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = len([*Path("/dev/fd").iterdir()])
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(NotOurs):
            read_regular(path)
    assert len([*Path("/dev/fd").iterdir()]) == before
