"""Causes that clients of HTTP meet. Each function is a handler of a shop; what it calls is the library named."""

from __future__ import annotations

import http.client
import json
import socket
import urllib.error
import urllib.request
from typing import Any

import aiohttp
import httpx
import requests
import urllib3
import websockets
from scenery import Vary, cause, closed_port, site


def address(vary: Vary, cause: str) -> str:
    """Where a request for this cause goes."""
    order = f"{vary.among('orders', 'users', 'v1/charges')}/{vary.among(vary.number, vary.uuid, vary.customer)}"
    query = vary.among("", f"?page={vary.small}", f"?since={vary.time:%Y-%m-%d}")
    match cause:
        case "connection refused":
            return f"http://{vary.among('127.0.0.1', 'localhost')}:{closed_port()}/{order}{query}"
        case "name not resolved":
            return f"http://{vary.host}/{order}{query}"
        case "no scheme":
            return f"{vary.host}/{order}"
        case "read timeout":
            return f"{site()}/slow/{order}{query}"
        case "redirects without end":
            return f"{site()}/loop"
        case "html instead of json":
            return f"{site()}/html/{order}"
        case "json cut short":
            return f"{site()}/cut/{order}"
        case "server hung up":
            return f"{site()}/drop/{order}{query}"
        case "body cut short":
            return f"{site()}/short/{order}"
        case "not http":
            return f"{site()}/garbage/{order}"
        case "broken gzip":
            return f"{site()}/gzip/{order}"
    return f"{site()}/status/{cause.split()[1]}/{order}{query}"


COMMON = (
    "connection refused",
    "name not resolved",
    "read timeout",
    "redirects without end",
    "html instead of json",
    "server hung up",
    "body cut short",
    "not http",
    "broken gzip",
    "status 401",
    "status 404",
    "status 500",
    "status 503",
)


def post_charge(url: str, body: dict[str, Any]) -> Any:
    with httpx.Client(timeout=0.3, follow_redirects=True) as client:
        response = client.post(url, json=body)
        response.raise_for_status()
        return response.json()


@cause("httpx", *COMMON, "no scheme")
def charge(vary: Vary, cause: str) -> None:
    post_charge(address(vary, cause), {"amount": vary.money})


@cause("requests", *COMMON, "no scheme")
def sync_orders(vary: Vary, cause: str) -> None:
    session = requests.Session()
    response = session.get(address(vary, cause), timeout=0.3)
    response.raise_for_status()
    print(response.json()["orders"])


@cause("urllib3", "connection refused", "name not resolved", "read timeout", "server hung up", "body cut short")
def fetch_feed(vary: Vary, cause: str) -> None:
    pool = urllib3.PoolManager(retries=urllib3.Retry(vary.among(0, 1, 2), backoff_factor=0.0), timeout=0.2)
    pool.request("GET", address(vary, cause)).json()


@cause("aiohttp", *COMMON, "no scheme")
async def push_stock(vary: Vary, cause: str) -> None:
    url = address(vary, cause)
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=0.4), raise_for_status=True) as session,
        session.get(url) as response,
    ):
        print(await response.json())


@cause("urllib", "connection refused", "name not resolved", "read timeout", "status 404", "status 500", "not http")
def ping_partner(vary: Vary, cause: str) -> None:
    with urllib.request.urlopen(address(vary, cause), timeout=0.3) as response:
        print(json.load(response))


@cause("http.client", "server hung up", "body cut short", "not http")
def read_catalogue(vary: Vary, cause: str) -> None:
    _, _, host, path = address(vary, cause).split("/", 3)
    connection = http.client.HTTPConnection(host, timeout=1)
    connection.request("GET", f"/{path}")
    connection.getresponse().read()


@cause("websockets", "connection refused", "status 404", "name not resolved", "not http")
async def listen_prices(vary: Vary, cause: str) -> None:
    async with websockets.connect(address(vary, cause).replace("http://", "ws://"), open_timeout=1) as stream:
        print(await stream.recv())


class ChargeFailed(Exception):
    """What a shop's own code makes of it."""


@cause("wrapped", "connection refused", "read timeout", "status 404", "status 500")
def charge_wrapped(vary: Vary, cause: str) -> None:
    try:
        post_charge(address(vary, cause), {"amount": vary.money})
    except httpx.HTTPError as error:
        raise ChargeFailed(f"charge of order {vary.number} failed for {vary.email}") from error


@cause("socket", "connection refused", "name not resolved", "read timeout", "name too long")
def send_label(vary: Vary, cause: str) -> None:
    if cause == "name too long":
        socket.getaddrinfo("a" * (64 + vary.small) + ".example.com", 80)
    url = address(vary, cause).split("/")[2]
    host, _, port = url.partition(":")
    with socket.create_connection((host, int(port or 9100)), timeout=0.2) as sock:
        sock.recv(100)


async def notify(vary: Vary, what: str) -> None:
    async with httpx.AsyncClient(timeout=0.3) as client:
        (await client.post(address(vary, what), json={"id": vary.uuid})).raise_for_status()
