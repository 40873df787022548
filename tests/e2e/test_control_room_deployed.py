"""The deployments of docs/operate/control-room.md, as they stand there: behind a real nginx, and with a login by OpenID
Connect at an issuer on loopback."""

from __future__ import annotations

import re
import runpy
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import uvicorn
from tests.support.issuer import Issuer
from tests.support.servers import free_ports

from redrive import App
from redrive.web.serve import PagesServer

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "control-room.md"
PATIENCE_S = 60.0
TOKEN = "correct-horse-battery-staple"
TASKS = 'from redrive import App\napp = App("sqlite:///work.db")\napp.queue("crm")\n'


def block(title: str) -> str:
    """A block of the page."""
    found = re.search(rf'^```\w+ title="{re.escape(title)}"\n(.*?)^```$', PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None, title
    return found[1]


@contextmanager
def served(application: Any) -> Iterator[str]:
    """An application on a free port of loopback, and its address."""
    server = uvicorn.Server(uvicorn.Config(application, port=0, log_level="warning", lifespan="off"))
    with running(server):
        host, port = server.servers[0].sockets[0].getsockname()[:2]
        yield f"http://{host}:{port}"


@contextmanager
def running(server: uvicorn.Server) -> Iterator[None]:
    thread = threading.Thread(target=server.run)
    thread.start()
    end_s = time.monotonic() + PATIENCE_S
    while not server.started:
        assert thread.is_alive() and time.monotonic() < end_s
        time.sleep(0.01)
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)


# -- nginx


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    monkeypatch.chdir(tmp_path)
    app = App(f"sqlite:///{tmp_path}/work.db")
    app.store.configure("crm", paused=True)
    yield app
    app.store.close()


@contextmanager
def nginx(folder: Path, server_block: str, port: int) -> Iterator[None]:
    """nginx in the foreground with a configuration of ours, all of whose files are in the folder."""
    program = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/bin")
    assert program is not None, "the tests need nginx: apt install nginx-light"
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "\n".join(f"  {kind}_temp_path {folder}/{kind};" for kind in kinds)
    conf = (
        f"daemon off;\nmaster_process off;\npid {folder}/nginx.pid;\nerror_log {folder}/error.log;\n"
        f"events {{}}\nhttp {{\n  access_log off;\n{places}\n{server_block}}}\n"
    )
    (folder / "nginx.conf").write_text(conf)
    process = subprocess.Popen([program, "-p", str(folder), "-e", f"{folder}/error.log", "-c", f"{folder}/nginx.conf"])
    try:
        end_s = time.monotonic() + PATIENCE_S
        while not _listens(port):
            assert process.poll() is None and time.monotonic() < end_s, (folder / "error.log").read_text()
            time.sleep(0.02)
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _listens(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def certificate(folder: Path) -> None:
    subject = ["-subj", "/CN=ops.example.com", "-addext", "subjectAltName=DNS:ops.example.com"]
    keys = ["-newkey", "rsa:2048", "-nodes", "-keyout", str(folder / "ops.key"), "-out", str(folder / "ops.crt")]
    subprocess.run(["openssl", "req", "-x509", "-days", "2", *keys, *subject], check=True, capture_output=True)


@pytest.mark.slow
def test_the_pages_work_behind_nginx_as_the_docs_configure_it(app: App, tmp_path: Path) -> None:
    from redrive.web.serve import listening

    certificate(tmp_path)
    site = app.dashboard(token=TOKEN, base_path="/jobs", hosts=["ops.example.com"])
    port = next(free_ports())
    with listening("127.0.0.1", 0) as ours:
        conf = block("control-room.conf").replace("127.0.0.1:8787", f"127.0.0.1:{ours.getsockname()[1]}")
        conf = conf.replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl").replace("/etc/ssl", str(tmp_path))
        server = _on(PagesServer(site, lambda url: None), ours)
        with running(server), nginx(tmp_path, conf, port), _browser(port) as browser:
            asked = browser.get("/jobs/queues")
            assert asked.headers["location"].startswith("/jobs/login?next=")
            browser.get(asked.headers["location"])
            csrf = browser.cookies["redrive_csrf"]
            form, own = {"token": TOKEN, "csrf": csrf}, {"Origin": "https://ops.example.com"}
            signed_in = browser.post(asked.headers["location"], data=form, headers=own)
            assert signed_in.status_code == 303 and "Secure" in signed_in.headers["set-cookie"]
            assert "<h1>Queues</h1>" in browser.get("/jobs/queues").text
            assert browser.get("/jobs/static/redrive.css").status_code == 200
            resumed = browser.post("/jobs/do/resume-queue", data={"queue": "crm", "csrf": csrf}, headers=own)
            assert (resumed.status_code, urlsplit(resumed.headers["location"]).path) == (303, "/jobs/queues/crm")
            with browser.stream("GET", "/jobs/live") as events:
                assert "event: version" in [line for line, _ in zip(events.iter_lines(), range(3), strict=False)]
            evil = browser.get("/jobs/queues", headers={"Host": "evil.example"})
            assert evil.status_code == 403


def _on(server: PagesServer, ours: socket.socket) -> PagesServer:
    run = server.run
    server.run = lambda sockets=None: run([ours])  # type: ignore[method-assign]
    return server


def _browser(port: int) -> httpx.Client:
    """Speaks to nginx by the name in its certificate."""
    transport = httpx.HTTPTransport(verify=False)
    return httpx.Client(
        transport=_To(transport, port),
        base_url="https://ops.example.com",
        timeout=PATIENCE_S,
        headers={"Accept": "text/html"},
    )


class _To(httpx.BaseTransport):
    """Sends each request to a port of this machine, whatever host it names."""

    def __init__(self, inner: httpx.HTTPTransport, port: int) -> None:
        self._inner, self._port = inner, port

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url.copy_with(host="127.0.0.1", port=self._port)
        named = {**request.extensions, "sni_hostname": "ops.example.com"}
        sent = httpx.Request(request.method, url, headers=request.headers, stream=request.stream, extensions=named)
        return self._inner.handle_request(sent)

    def close(self) -> None:
        self._inner.close()


# -- logins


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the code of the docs and its tasks, which modules are imported from."""
    (tmp_path / "tasks.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    tasks = sys.modules.pop("tasks", None)
    if tasks is not None:
        tasks.app.store.close()


def test_the_header_of_a_proxy_names_who_acts(recipe: Path) -> None:
    (recipe / "header_login.py").write_text(block("header_login.py"))
    web = runpy.run_path("header_login.py")["web"]
    with served(web) as url, httpx.Client(base_url=url, headers={"Host": "ops.example.com"}) as browser:
        json = {"Accept": "application/json"}
        assert browser.get("/queues", headers=json).status_code == 401
        for user, status in (("eve", 403), ("ann", 200)):
            done = browser.post("/do/pause-queue", json={"queue": "crm", "reason": "r"}, headers={"X-User": user})
            assert done.status_code == status
    assert [entry.claimed for entry in sys.modules["tasks"].app.audit] == ["ann"]


@pytest.mark.slow
@pytest.mark.parametrize(("groups", "status"), [(["operators"], 200), (["readers"], 403)])
def test_people_sign_in_by_openid_connect(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, groups: list[str], status: int
) -> None:
    issuer = Issuer("redrive", "its secret", {"sub": "1", "email": "ann@example.com", "groups": groups})
    with served(issuer) as at:
        issuer.address = at
        for name, value in (("OIDC_ISSUER", at), ("OIDC_SECRET", "its secret"), ("INSECURE", "1")):
            monkeypatch.setenv(name, value)
        (recipe / "oidc_login.py").write_text(block("oidc_login.py"))
        web = runpy.run_path("oidc_login.py")["web"]
        with served(web) as url, httpx.Client(base_url=url, timeout=PATIENCE_S) as browser:
            assert browser.get("/jobs/queues").headers["location"] == "/login"
            leads = browser.get("/login").headers["location"]
            assert leads.startswith(f"{at}/authorize") and "code_challenge=" in leads
            back = httpx.get(leads).headers["location"]
            assert {*parse_qs(urlsplit(back).query)} == {"code", "state"}
            assert browser.get(back).headers["location"] == "/jobs/"
            assert ">ann@example.com<" in browser.get("/jobs/queues").text
            paused = browser.post("/jobs/do/pause-queue", json={"queue": "crm", "reason": "r"})
            assert paused.status_code == status
            assert browser.get(f"{back}x").status_code != 303, "a code is taken once"
    actors = [entry.claimed for entry in sys.modules["tasks"].app.audit]
    assert actors == (["ann@example.com"] if status == 200 else [])
