"""The proxy that fails as networks do: each fault as a client sees it, and that all passes once it is healed."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer

PATIENCE_S = 60.0
SHORT_S = 0.1  # in which nothing comes


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        with contextlib.suppress(OSError):
            while data := self.request.recv(65_536):
                self.request.sendall(data)


class Threads(socketserver.ThreadingTCPServer):
    daemon_threads = True


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    """A proxy before a server that sends back what it gets."""
    with Threads(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        with FaultProxy(server.server_address[1]) as proxy:
            yield proxy
        server.shutdown()
        thread.join()


@contextlib.contextmanager
def client(proxy: FaultProxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_S) as sock:
        yield sock


def echo(sock: socket.socket, data: bytes = b"hello") -> bytes:
    sock.sendall(data)
    return received(sock, len(data))


def received(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := sock.recv(size - len(data))):
        data += more
    return data


def is_silent(sock: socket.socket) -> bool:
    sock.settimeout(SHORT_S)
    try:
        sock.recv(1)
    except TimeoutError:
        return True
    finally:
        sock.settimeout(PATIENCE_S)
    return False


def test_bytes_pass_both_ways_and_the_end_too(proxy: FaultProxy) -> None:
    with client(proxy) as one, client(proxy) as two:
        assert echo(one) == b"hello" and echo(two, b"x" * 300_000) == b"x" * 300_000
        one.shutdown(socket.SHUT_WR)
        assert one.recv(1) == b""
        assert echo(two) == b"hello"
    assert (proxy.accepted, proxy.response_bytes) == (2, 300_010)


def test_cut_resets_every_connection_and_new_ones_pass(proxy: FaultProxy) -> None:
    with client(proxy) as one, client(proxy) as two, client(proxy) as later:
        assert echo(one) == echo(two) == echo(later)
        proxy.cut()
        for sock in (one, two):
            with pytest.raises(ConnectionResetError):
                sock.recv(1)
    with client(proxy) as new:
        assert echo(new) == b"hello"


@pytest.mark.parametrize("first", [0, 3, 5])
def test_cut_after_resets_in_the_middle_of_a_response_once(proxy: FaultProxy, first: int) -> None:
    with client(proxy) as one:
        assert echo(one) == b"hello"
        proxy.cut_after(first)
        one.sendall(b"hello")
        with pytest.raises(ConnectionResetError):
            assert received(one, 6) == b"hello"[:first]
    with client(proxy) as new:
        assert echo(new) == b"hello"


def test_black_hole_swallows_and_what_lost_bytes_is_reset_when_it_heals(proxy: FaultProxy) -> None:
    with client(proxy) as lossy, client(proxy) as idle:
        assert echo(lossy) == echo(idle) == b"hello"
        proxy.black_hole()
        with client(proxy) as new:
            lossy.sendall(b"hello")
            new.sendall(b"hello")
            assert is_silent(lossy) and is_silent(new)
            proxy.heal()
            for sock in (lossy, new):
                with pytest.raises(ConnectionResetError):
                    sock.recv(1)
        assert echo(idle) == b"hello"


def test_slow_passes_no_faster_than_told(proxy: FaultProxy) -> None:
    with client(proxy) as sock:
        proxy.slow(bytes_per_s=10_000)
        begun_s = time.monotonic()
        assert echo(sock, bytes(5_000)) == bytes(5_000)
        assert time.monotonic() - begun_s >= 0.5
        proxy.slow(delay_s=0.2)
        begun_s = time.monotonic()
        assert echo(sock) == b"hello"
        assert time.monotonic() - begun_s >= 0.4
        proxy.heal()
        assert echo(sock, bytes(300_000)) == bytes(300_000)


def test_refused_connections_pass_again_on_the_same_port(proxy: FaultProxy) -> None:
    with client(proxy) as before:
        assert echo(before) == b"hello"
        proxy.refuse()
        assert echo(before) == b"hello"
        with pytest.raises(ConnectionRefusedError), client(proxy):
            pass
        proxy.heal()
        with client(proxy) as new:
            assert echo(new) == echo(before) == b"hello"


def test_connections_end_with_their_server() -> None:
    with RedisServer() as server, FaultProxy(server) as proxy:
        assert proxy.url == f"redis://127.0.0.1:{proxy.port}/0"
        with client(proxy) as sock:
            assert echo(sock, b"PING\r\n") == b"+PONG\r"
            received(sock, 1)
            server.kill()
            assert sock.recv(1) == b""
            with pytest.raises(ConnectionResetError), client(proxy) as new:
                received(new, 1)
            server.restart()
            with client(proxy) as new:
                assert echo(new, b"PING\r\n") == b"+PONG\r"
