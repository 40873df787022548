"""The way to the Redis server: what breaks is repeated or told, and nothing hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer

from redrive.errors import ConfigError, StoreError, StoreFull, StoreUnavailable
from redrive.stores.redis.session import Session
from redrive.stores.redis.url import RedisUrl

Open = Callable[..., Session]
ADD = "return redis.call('INCRBY', KEYS[1] .. 'n', ARGV[1])"
SLOW = "local n = redis.call('INCR', KEYS[1] .. 'n'); for i = 1, tonumber(ARGV[1]) do local x = i * i end; return n"


@pytest.fixture(scope="module")
def fragile() -> Iterator[RedisServer]:
    """A server that tests of this module break; each leaves it running and without a password or a limit."""
    with RedisServer(appendonly=True, appendfsync="always") as server:
        yield server


@pytest.fixture
def open_link(tmp_path: Path) -> Iterator[Open]:
    links: list[Session] = []

    def open_link(server: RedisServer | FaultProxy | str, options: str = "", **more: Any) -> Session:
        url = server if isinstance(server, str) else server.url
        link = Session(RedisUrl.parse(f"{url}?namespace={tmp_path.name}&{options}"), **more)
        link.add("add", ADD)
        link.add("slow", SLOW)
        links.append(link)
        return link

    yield open_link
    for link in links:
        link.close()


@pytest.fixture
def link(redis_server: RedisServer, open_link: Open) -> Session:
    return open_link(redis_server)


def count(link: Session) -> int:
    return int(link.call("add", [0]))


def connections(server: RedisServer) -> int:
    """How many the server has ever taken, this look's among them."""
    return int(server.command("INFO", "stats").split("total_connections_received:")[1].split()[0])


def time_of(server: RedisServer) -> int:
    seconds, micros = server.command("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


# -- scripts


def test_a_script_is_given_its_root_and_arguments_as_they_are(link: Session, tmp_path: Path) -> None:
    link.add("echo", "return {KEYS[1], unpack(ARGV)}")
    sent = [b"\x00\xff\r\n", 7, "ü", b""]
    assert link.call("echo", sent) == [b"{%s}:" % tmp_path.name.encode(), b"\x00\xff\r\n", b"7", "ü".encode(), b""]


def test_a_script_that_the_server_forgot_is_loaded_again(fragile: RedisServer, open_link: Open) -> None:
    link = open_link(fragile)
    link.call("add", [1])
    fragile.command("SCRIPT", "FLUSH")
    link.call("add", [1], again=False)
    fragile.restart()
    link.call("add", [1])
    fragile.kill()
    fragile.start()
    assert link.call("add", [1]) == 4


def test_an_error_of_the_script_is_told_and_the_connection_kept(link: Session, redis_server: RedisServer) -> None:
    link.add("bad", "return redis.error_reply('ODD number')")
    before = connections(redis_server)
    for _ in range(3):
        with pytest.raises(StoreError, match="ODD number") as told:
            link.call("bad", [])
        assert type(told.value) is StoreError
    assert connections(redis_server) - before <= 2  # ours, and that of this look


# -- lost connections


def test_killed_connections_are_replaced_unseen(link: Session, redis_server: RedisServer) -> None:
    for n in range(1, 5):
        assert link.call("add", [1]) == n
        redis_server.command("CLIENT", "KILL", "TYPE", "normal")


def test_a_reply_that_is_cut_off_is_asked_for_again(redis_server: RedisServer, open_link: Open) -> None:
    with FaultProxy(redis_server) as proxy:
        link = open_link(proxy)
        link.call("add", [1])
        proxy.cut_after(0)
        assert link.call("add", [1]) == 3  # it took place twice: what is repeated must bear that


def test_what_may_not_be_repeated_is_told_to_be_unknown_once_it_was_sent(
    redis_server: RedisServer, open_link: Open
) -> None:
    with FaultProxy(redis_server) as proxy:
        link = open_link(proxy)
        link.call("add", [1])
        proxy.cut_after(0)
        with pytest.raises(StoreUnavailable, match="may have taken place"):
            link.call("add", [1], again=False)
        assert count(link) == 2
        proxy.cut()  # seen before the next call is sent, so this is no case of doubt
        assert link.call("add", [1], again=False) == 3


def test_only_a_call_whose_answer_was_lost_is_repeated_as_such(redis_server: RedisServer, open_link: Open) -> None:
    with FaultProxy(redis_server) as proxy:
        link = open_link(proxy)
        link.call("add", [1])
        proxy.cut()
        assert link.call("add", [1], repeated=lambda: [100]) == 2
        redis_server.command("SCRIPT", "FLUSH")
        assert link.call("add", [1], repeated=lambda: [100]) == 3
        proxy.cut_after(0)
        assert link.call("add", [1], repeated=lambda: [100]) == 104


def test_a_server_that_is_killed_under_load_is_found_again(fragile: RedisServer, open_link: Open) -> None:
    link = open_link(fragile)
    done, stop, errors = [0] * 4, threading.Event(), list[Exception]()

    def work(me: int) -> None:
        while not stop.is_set():
            try:
                link.call("add", [1])
                done[me] += 1
            except StoreUnavailable:
                time.sleep(0.05)
            except Exception as error:
                errors.append(error)
                return

    threads = [threading.Thread(target=work, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        time.sleep(0.2)
        fragile.kill()
        time.sleep(0.1)
        fragile.start()
        before = sum(done)
        end_s = time.monotonic() + 10
        while sum(done) < before + 40 and time.monotonic() < end_s:
            time.sleep(0.01)
        assert sum(done) >= before + 40
    stop.set()
    for thread in threads:
        thread.join(10)
    assert not errors
    assert count(link) >= sum(done)  # appendfsync always: what was answered is there


def test_a_server_that_is_not_there_is_unavailable_within_seconds(open_link: Open, redis_server: RedisServer) -> None:
    with FaultProxy(redis_server) as proxy:
        link = open_link(proxy)
        proxy.refuse()
        start_s = time.monotonic()
        with pytest.raises(StoreUnavailable):
            link.call("add", [1])
        assert 1 < time.monotonic() - start_s < 10


def test_a_silent_server_is_unavailable_after_the_timeout(fragile: RedisServer, open_link: Open) -> None:
    used, fresh = open_link(fragile, "timeout=300ms"), open_link(fragile, "timeout=300ms")
    used.call("add", [1])
    fragile.pause()
    try:
        for link in (used, used, fresh):
            start_s = time.monotonic()
            with pytest.raises(StoreUnavailable, match=r"no answer within 0.3 s"):
                link.call("add", [1])
            assert 0.25 < time.monotonic() - start_s < 5
    finally:
        fragile.resume()
    used.call("add", [1])
    fresh.call("add", [1])


def test_a_network_that_swallows_everything_is_unavailable_after_the_timeout(
    redis_server: RedisServer, open_link: Open
) -> None:
    with FaultProxy(redis_server) as proxy:
        link = open_link(proxy, "timeout=300ms")
        link.call("add", [1])
        proxy.black_hole()
        with pytest.raises(StoreUnavailable, match="no answer within"):
            link.call("add", [1])
        proxy.heal()
        link.call("add", [1])


# -- what the server says


def test_a_server_that_loads_its_data_is_waited_for(open_link: Open) -> None:
    options = {"key-load-delay": 400, "loading-process-events-interval-bytes": 1024}  # µs per key: 1,000 take 0.4 s
    with RedisServer(appendonly=False, options={"enable-debug-command": "yes", "save": "3600 1"}) as server:
        link = open_link(server)
        link.add("fill", "for i = 1, 1000 do redis.call('SET', KEYS[1] .. i, string.rep('x', 100)) end")
        link.call("fill", [])
        for name, value in options.items():
            server.command("CONFIG", "SET", name, value)
        reloading = threading.Thread(target=lambda: server.command("DEBUG", "RELOAD"))
        reloading.start()
        time.sleep(0.1)
        assert link.call("add", [1], again=False) == 1  # a server that loads has answered, and done nothing
        reloading.join()


def test_a_busy_server_is_waited_for(fragile: RedisServer, open_link: Open) -> None:
    link, other = open_link(fragile), open_link(fragile)
    other.call("add", [0])
    fragile.command("CONFIG", "SET", "lua-time-limit", 20)
    busy = threading.Thread(target=lambda: link.call("slow", [10_000_000]))
    busy.start()

    def ping() -> None:
        while busy.is_alive():
            fragile.command("PING")
            time.sleep(0.002)

    with pytest.raises(RuntimeError, match="BUSY"):
        ping()
    assert other.call("add", [1]) == 2
    busy.join()
    fragile.command("CONFIG", "SET", "lua-time-limit", 5000)


def test_a_replica_is_unavailable_until_it_is_promoted(
    redis_server: RedisServer, fragile: RedisServer, open_link: Open
) -> None:
    link = open_link(fragile)
    fragile.command("REPLICAOF", "127.0.0.1", redis_server.port)
    with pytest.raises(StoreUnavailable, match=r"give the URL of the master|master is down|MASTERDOWN"):
        link.call("add", [1])
    promoting = threading.Timer(0.3, lambda: fragile.command("REPLICAOF", "NO", "ONE"))
    promoting.start()
    assert link.call("add", [1]) == 1
    promoting.join()


def test_a_full_server_takes_what_frees_and_refuses_what_fills(open_link: Open) -> None:
    with RedisServer() as server:
        link = open_link(server)
        link.add("fill", "return redis.call('SET', KEYS[1] .. 'x', ARGV[1])")
        link.add("free", "redis.call('DEL', KEYS[1] .. 'x'); return redis.call('INCRBY', KEYS[1] .. 'n', 1)")
        link.call("fill", [b"x" * 1000])
        server.command("CONFIG", "SET", "maxmemory", 1)
        for _ in range(2):
            with pytest.raises(StoreFull, match=r"nothing was written.*CONFIG SET maxmemory"):
                link.call("fill", [b"x"])
        assert link.call("free", []) == 1
        server.command("CONFIG", "SET", "maxmemory", 0)
        link.call("fill", [b"x"])


def test_a_disk_that_cannot_be_written_is_told(open_link: Open) -> None:
    with RedisServer(options={"save": "3600 1"}) as server:
        link = open_link(server)
        link.call("add", [1])
        (Path(server.command("CONFIG", "GET", "dir")[1]) / "dump.rdb").mkdir()  # cannot be replaced by a file
        server.command("BGSAVE")
        end_s = time.monotonic() + 10
        while "rdb_last_bgsave_status:err" not in server.command("INFO", "persistence"):
            assert time.monotonic() < end_s
            time.sleep(0.01)
        with pytest.raises(StoreUnavailable, match=r"MISCONF.*cannot write its data to disk"):
            link.call("add", [1])


# -- who may


def test_a_wrong_password_is_a_wrong_setting_at_first_and_trouble_later(fragile: RedisServer, open_link: Open) -> None:
    fragile.command("CONFIG", "SET", "requirepass", "s3cret")
    link = open_link(fragile.url.replace("//", "//:s3cret@"))
    try:
        with pytest.raises(ConfigError, match="check user, password"):
            open_link(fragile).call("add", [1])
        for user in (":wrong", "nobody:s3cret"):
            with pytest.raises(ConfigError, match="check user, password") as told:
                open_link(fragile.url.replace("//", f"//{user}@")).call("add", [1])
            assert "wrong" not in str(told.value)
            assert "s3cret" not in str(told.value)
        link.call("add", [1])
    finally:
        link.command("CONFIG", "SET", "requirepass", "")
    fragile.command("ACL", "SETUSER", "ann", "on", ">one", "~*", "+@all")
    late = open_link(fragile.url.replace("//", "//ann:one@"))
    late.call("add", [1])
    fragile.command("ACL", "SETUSER", "ann", "resetpass", ">two")
    fragile.command("CLIENT", "KILL", "TYPE", "normal")
    with pytest.raises(StoreUnavailable, match="check user, password"):
        late.call("add", [1])
    fragile.command("ACL", "SETUSER", "ann", ">one")
    late.call("add", [1])
    fragile.command("ACL", "DELUSER", "ann")


def test_a_missing_right_is_a_wrong_setting(fragile: RedisServer, open_link: Open) -> None:
    for rules in (["~*", "+@all", "-evalsha"], ["~other:*", "+@all"], ["~*", "+@all", "-incrby"]):
        fragile.command("ACL", "SETUSER", "bob", "on", "nopass", *rules)
        with pytest.raises(ConfigError, match="lacks a right"):
            open_link(fragile.url.replace("//", "//bob:x@")).call("add", [1])
        fragile.command("ACL", "DELUSER", "bob")


# -- other ways in


def test_a_unix_socket_will_do(tmp_path: Path, open_link: Open) -> None:
    path = tmp_path / "r.sock"
    with RedisServer(options={"unixsocket": path}):
        assert open_link(f"redis+unix://{path}").call("add", [1]) == 1


def test_tls_is_checked_against_the_authority_of_the_url(tmp_path: Path, open_link: Open) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    made = ["-nodes", "-days", "1", "-newkey", "rsa:2048", "-keyout", key, "-out", cert]
    subprocess.run(["openssl", "req", "-x509", *made, *subject], check=True, capture_output=True)
    options = {"tls-cert-file": cert, "tls-key-file": key, "tls-ca-cert-file": cert, "tls-auth-clients": "no"}
    with RedisServer() as server:
        port = server.port + 1 if server.port + 1 < 65536 else server.port - 1
        for name, value in options.items():
            server.command("CONFIG", "SET", name, str(value))
        server.command("CONFIG", "SET", "tls-port", port)
        for scheme in ("rediss", "valkeys"):
            assert open_link(f"{scheme}://127.0.0.1:{port}", f"ssl_ca_certs={cert}").call("add", [0]) == 0
        assert open_link(f"rediss://127.0.0.1:{port}", "ssl_cert_reqs=none").call("add", [1]) == 1
        link = open_link(f"rediss://127.0.0.1:{port}", f"ssl_ca_certs={cert}")
        before = connections(server)
        for _ in range(5):
            link.call("add", [1])
        assert connections(server) == before + 2  # one, and that of the look before
        with pytest.raises(ConfigError, match="CERTIFICATE_VERIFY_FAILED"):
            open_link(f"rediss://127.0.0.1:{port}").call("add", [1])
        with pytest.raises(StoreUnavailable, match=r"\(if the port is one for TLS, write rediss://\)"):
            open_link(f"redis://127.0.0.1:{port}").call("add", [1])


def test_a_url_for_tls_and_a_port_without_it_are_named(redis_server: RedisServer, open_link: Open) -> None:
    with pytest.raises(
        StoreUnavailable, match=r"no answer to a TLS handshake \(if the port is one without TLS, write redis://\)"
    ):
        open_link(f"rediss://127.0.0.1:{redis_server.port}", "timeout=200ms").call("add", [1])


# -- threads, forks, the clock


def test_threads_share_a_bounded_number_of_connections(redis_server: RedisServer, open_link: Open) -> None:
    with FaultProxy(redis_server) as proxy:
        link = open_link(proxy, "pool=3")
        errors: list[BaseException] = []

        def work() -> None:
            try:
                for _ in range(50):
                    link.call("add", [1])
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not errors
        assert count(link) == 400
        assert proxy.accepted <= 3


def test_who_waits_for_a_connection_waits_no_longer_than_the_timeout(fragile: RedisServer, open_link: Open) -> None:
    link = open_link(fragile, "pool=1&timeout=400ms")
    link.call("add", [1])
    fragile.pause()
    told: list[str] = []

    def work() -> None:
        with pytest.raises(StoreUnavailable) as error:
            link.call("add", [1])
        told.append(str(error.value))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    fragile.resume()
    assert len(told) == 2


def test_a_forked_child_opens_connections_of_its_own(link: Session) -> None:
    link.call("add", [1])
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if all(link.call("add", [1]) for _ in range(50)) else 2
        finally:
            os._exit(code)
    for _ in range(50):
        link.call("add", [1])
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert count(link) == 101


def test_an_interrupted_call_leaves_no_reply_to_the_next(redis_server: RedisServer, open_link: Open) -> None:
    link = open_link(redis_server)
    link.add("long", SLOW)
    link.call("add", [0])  # so that it is the call that is interrupted, and not the making of a connection

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            link.call("long", [20_000_000])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert link.call("add", [5]) == 6


def test_the_clock_is_the_servers_and_costs_no_call(redis_server: RedisServer, open_link: Open) -> None:
    with FaultProxy(redis_server) as proxy:
        link = open_link(proxy)
        link.now_ms()
        before = proxy.response_bytes
        for _ in range(3):
            at_least, estimate, at_most = time_of(redis_server), link.now_ms(), time_of(redis_server)
            assert at_least - 5_000 <= estimate <= at_most + 1  # late by what an answer took to come, never early
        assert proxy.response_bytes == before
        link.saw_clock(at_most + 3_600_000, time.monotonic())  # somebody set the server's clock
        assert link.now_ms() >= at_most + 3_600_000


def test_a_closed_link_says_so(link: Session) -> None:
    link.close()
    with pytest.raises(StoreError, match="closed"):
        link.call("add", [1])


# -- URLs


def test_a_url_is_read() -> None:
    url = RedisUrl.parse("rediss://ann:p%40ss@db.example.com:6380/3?namespace=app&timeout=2s&pool=4&ssl_cert_reqs=none")
    assert (url.addresses[0].host, url.addresses[0].port, url.db, url.tls) == ("db.example.com", 6380, 3, True)
    assert (url.username, url.password, url.namespace, url.timeout_s, url.pool) == ("ann", "p@ss", "app", 2.0, 4)
    assert url.tls_options == {"ssl_cert_reqs": "none"}
    assert url.shown == "rediss://ann:***@db.example.com:6380/3"
    assert str(RedisUrl.parse("valkey://").addresses[0]) == "localhost:6379"
    assert str(RedisUrl.parse("redis://[::1]:7/0").addresses[0]) == "[::1]:7"
    several = RedisUrl.parse("redis+cluster://:pw@a:1,b,c:3?namespace=x")
    assert several.cluster
    assert [str(address) for address in several.addresses] == ["a:1", "b:6379", "c:3"]
    assert RedisUrl.parse("redis+unix:///run/redis.sock?db=2").path == "/run/redis.sock"


@pytest.mark.parametrize(
    "url, word",
    [
        ("http://x", "unknown scheme 'http'"),
        ("redis:x", "unknown scheme"),
        ("redis://x?namespce=a", "unknown option 'namespce'; known: namespace, timeout, pool, db"),
        ("redis://x?ssl_cert_reqs=none", "is for rediss://"),
        ("rediss://x?ssl_cert_reqs=no", "expected required, optional or none"),
        ("rediss://x?ssl_check_hostname=x", "expected true or false"),
        ("redis://x:99999", "expected HOST:PORT"),
        ("redis://x:y", "expected HOST:PORT"),
        ("redis://a,b", "redis\\+cluster://"),
        ("redis+cluster://a/1", "database 0 only"),
        ("redis://a/x", "database 'x'"),
        ("redis://a?namespace={x}", "namespace="),
        ("redis://a?namespace=", "namespace="),
        ("redis://a?timeout=0", "0.1 s or more"),
        ("redis://a?timeout=soon", "timeout"),
        ("redis://a?pool=0", "1 to 100"),
        ("redis+unix://host/x", "expected redis\\+unix:///path"),
        ("redis://a/0#x", "%23"),
    ],
)
def test_a_url_that_cannot_be_is_refused(url: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        RedisUrl.parse(url)


def test_no_error_shows_a_password() -> None:
    with pytest.raises(ConfigError) as told:
        RedisUrl.parse("redis://ann:hunter2@x?nope=1")
    assert "hunter2" not in str(told.value)
