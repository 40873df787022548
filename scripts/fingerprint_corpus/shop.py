"""Mistakes in a shop's own code, and what the standard library says of its data."""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import configparser
import contextlib
import csv
import decimal
import email.message
import enum
import gzip
import importlib
import io
import ipaddress
import json
import pathlib
import queue
import smtplib
import ssl
import string
import struct
import subprocess
import sys
import tarfile
import tempfile
import uuid
import xml.etree.ElementTree as ElementTree
import zipfile
import zlib
import zoneinfo
from datetime import datetime
from typing import Any

from scenery import Vary, cause, closed_port, site
from web import notify

PRICES = {"A-1": 12, "A-2": 15}


@cause("shop", "row without price", "row without currency", "sku without price")
def price_of(vary: Vary, cause: str) -> None:
    row: dict[str, Any] = {"id": vary.number, "sku": vary.sku, "price": 1, "currency": "EUR"}
    if cause != "sku without price":
        del row[cause.rpartition(" ")[2]]
    total = row["price"] * 2
    print(total, row["currency"], PRICES[row["sku"]])


class Order:
    def __init__(self, number: int, customer: Any) -> None:
        self.number = number
        self.customer = customer

    def __repr__(self) -> str:
        return f"<Order {self.number} at 0x{id(self):x}>"


@cause("shop", "customer is None", "address is None", "attribute renamed", "customer is a text")
def label(vary: Vary, cause: str) -> None:
    order = Order(vary.number, None)
    if cause == "address is None":
        order.customer = type("Customer", (), {"address": None, "name": vary.name})()
    if cause == "customer is a text":
        order.customer = vary.name
    if cause == "attribute renamed":
        print(order.total_amount)  # type: ignore[attr-defined]
    print(order.customer.address.street)


@cause("shop", "amount is a text", "amount is None", "too many arguments", "unknown argument", "not callable")
def total(vary: Vary, cause: str) -> None:
    amounts: list[Any] = [1, 2, *{"amount is a text": [vary.money], "amount is None": [None]}.get(cause, [])]
    if cause == "too many arguments":
        Order(*range(vary.small + 3))  # type: ignore[call-arg]
    if cause == "unknown argument":
        Order(number=vary.number, shop=vary.name)  # type: ignore[call-arg]
    if cause == "not callable":
        PRICES("A-1")  # type: ignore[operator]
    print(sum(amounts))


@cause("shop", "empty list", "division by zero", "cannot unpack")
def average(vary: Vary, cause: str) -> None:
    values: list[int] = []
    if cause == "empty list":
        print(values[vary.small])
    if cause == "cannot unpack":
        first, second = ([vary.number] * vary.small)[: vary.among(1, 1)]
        print(first, second)
    print(sum(values) / len(values))


class Stock(Exception):
    """A shop's own error whose text tells what is meant."""


@cause("shop", "out of stock", "reserved", "blocked customer", "limit exceeded")
def reserve(vary: Vary, cause: str) -> None:
    match cause:
        case "out of stock":
            raise Stock(f"{vary.sku} is out of stock in warehouse {vary.small} since {vary.time:%d.%m.%Y}")
        case "reserved":
            raise Stock(f"{vary.sku} is reserved by {vary.email} until {vary.time.isoformat()}")
        case "blocked customer":
            raise Stock(f"customer {vary.customer} ({vary.email}) is blocked")
    raise Stock(f"limit of {vary.money} EUR exceeded by {vary.small * 11} EUR for customer {vary.customer}")


class Colour(enum.Enum):
    red = "red"
    blue = "bleu"


@cause("enum", "unknown value", "unknown name")
def paint(vary: Vary, cause: str) -> None:
    print(Colour(vary.word) if cause == "unknown value" else Colour[vary.word])


def number_of(text: str) -> int:
    return int(text)


@cause("builtins", "not an int")
def import_quantity(vary: Vary) -> None:
    number_of(vary.word)


@cause("builtins", "not a float")
def import_weight(vary: Vary) -> None:
    print(float(vary.weight))


@cause("decimal", "not a number", "division by zero")
def import_price(vary: Vary, cause: str) -> None:
    print(decimal.Decimal(vary.word) if cause == "not a number" else decimal.Decimal(vary.money) / 0)


@cause("datetime", "wrong form", "day out of range", "bad iso", "naive and aware")
def import_date(vary: Vary, cause: str) -> None:
    match cause:
        case "wrong form":
            datetime.strptime(f"{vary.time:%d/%m/%y}", "%Y-%m-%d")  # noqa: DTZ007
        case "day out of range":
            datetime(2025, 2, 29 + vary.small % 3)  # noqa: DTZ001
        case "bad iso":
            datetime.fromisoformat(vary.word)
    print(vary.time < datetime(2026, 1, 1))  # noqa: DTZ001


@cause("uuid", "badly formed")
def import_id(vary: Vary) -> None:
    uuid.UUID(vary.token)


@cause("ipaddress", "no address")
def import_address(vary: Vary) -> None:
    ipaddress.ip_address(vary.among(f"10.0.{vary.number + 256}.1", vary.host, vary.word))


@cause("json", "empty", "cut short", "extra data", "single quotes", "not serializable")
def decode(vary: Vary, cause: str) -> None:
    body = json.dumps({"id": vary.number, "name": vary.words, "token": vary.token})
    match cause:
        case "empty":
            json.loads("")
        case "cut short":
            json.loads(body[: -(vary.small + 1)])
        case "extra data":
            json.loads(body + body)
        case "single quotes":
            json.loads("{" + " " * vary.small + "'id': 12}")
    json.dumps({"id": vary.number, "at": vary.time})


@cause("builtins", "not utf-8", "not ascii")
def read_name(vary: Vary, cause: str) -> None:
    if cause == "not utf-8":
        print((b"x" * vary.small + vary.among(b"\xfc", b"\xe9") + b" abc").decode("utf-8"))
    print((vary.token + vary.among("ü", "€")).encode("ascii"))


@cause("files", "missing", "a folder", "no folder there", "exists", "not empty")
def export(vary: Vary, cause: str) -> None:
    with tempfile.TemporaryDirectory(prefix="export-") as folder:
        base = pathlib.Path(folder)
        match cause:
            case "missing":
                pathlib.Path(vary.path).read_text()
            case "a folder":
                base.read_text()
            case "exists":
                base.mkdir()
            case "not empty":
                (base / vary.token).write_text(vary.words)
                base.rmdir()
        (base / vary.token / "a.csv").write_text(vary.words)


@cause("subprocess", "exit code 1", "exit code 2", "killed", "timeout", "no such program")
def convert(vary: Vary, cause: str) -> None:
    script = {
        "exit code 1": "sys.exit(1)",
        "exit code 2": "sys.exit(2)",
        "killed": "os.kill(os.getpid(), 9)",
        "timeout": "time.sleep(9)",
    }.get(cause, "")
    program = f"/opt/{vary.token}/bin/convert" if cause == "no such program" else sys.executable
    command = [program, "-c", f"import os, sys, time; {script}", vary.path]
    subprocess.run(command, check=True, timeout=vary.among(0.2, 0.3))


async def fails(vary: Vary, what: str) -> None:
    await asyncio.sleep(0)
    raise {"late": TimeoutError, "bad": ValueError}[what](f"item {vary.number} is {what}")


@cause("asyncio", "timeout", "invalid state", "one late", "one bad", "late and bad", "cut stream")
async def fan_out(vary: Vary, cause: str) -> None:
    if cause == "timeout":
        async with asyncio.timeout(0.01):
            await asyncio.sleep(1)
    if cause == "invalid state":
        print(asyncio.get_running_loop().create_future().result())
    if cause == "cut stream":
        reader = asyncio.StreamReader()
        reader.feed_data(b"x" * vary.small)
        reader.feed_eof()
        await reader.readexactly(vary.small + 10)
    async with asyncio.TaskGroup() as group:
        for what in ("late", "bad"):
            for _ in range(vary.small % 3 + 1):
                if what in cause:
                    group.create_task(fails(vary, what))


@cause("asyncio", "notified one, refused", "notified one, not found")
async def notify_all(vary: Vary, cause: str) -> None:
    await asyncio.gather(notify(vary, "connection refused" if "refused" in cause else "status 404"), asyncio.sleep(0))


@cause("futures", "timeout", "cancelled", "worker raised")
def in_threads(vary: Vary, cause: str) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        if cause == "worker raised":
            future = pool.submit(number_of, vary.word)
        if cause == "cancelled":
            future.cancel()
        future.result(0.05)


@cause("ssl", "plain text server", "self-signed")
def call_bank(vary: Vary, cause: str) -> None:
    host, _, port = site().rpartition("/")[2].partition(":")
    if cause == "self-signed":
        port = str(tls_port(vary))
    import socket

    with socket.create_connection((host, int(port)), timeout=1) as sock:
        ssl.create_default_context().wrap_socket(sock, server_hostname=vary.among("localhost", vary.host))


def tls_port(vary: Vary) -> int:
    """A server with a certificate of its own making."""
    import socket
    import threading

    with tempfile.TemporaryDirectory() as folder:
        pem = str(pathlib.Path(folder) / "a.pem")
        command = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            f"/CN={vary.host}",
        ]
        subprocess.run([*command, "-keyout", pem, "-out", pem + ".crt"], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem + ".crt", pem)
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            context.wrap_socket(server.accept()[0], server_side=True)

    threading.Thread(target=serve, daemon=True).start()
    return int(server.getsockname()[1])


@cause("smtplib", "connection refused", "not a mail server")
def send_mail(vary: Vary, cause: str) -> None:
    port = closed_port() if cause == "connection refused" else int(site().rpartition(":")[2])
    message = email.message.EmailMessage()
    message["To"] = vary.email
    with smtplib.SMTP("127.0.0.1", port, timeout=0.3) as smtp:
        smtp.send_message(message)


@cause("archives", "not a zip", "member missing", "not gzip", "not a tar", "bad zlib", "bad base64")
def unpack(vary: Vary, cause: str) -> None:
    noise = vary.token.encode() * 9
    match cause:
        case "not a zip":
            zipfile.ZipFile(io.BytesIO(noise))
        case "member missing":
            zipfile.ZipFile(io.BytesIO(), "w").read(vary.token + ".csv")
        case "not gzip":
            gzip.decompress(noise)
        case "not a tar":
            tarfile.open(fileobj=io.BytesIO(noise * 40)).close()
        case "bad zlib":
            zlib.decompress(noise)
    base64.b64decode("abcde"[: vary.among(1, 5)])


@cause("struct", "too short", "out of range")
def frame(vary: Vary, cause: str) -> None:
    if cause == "too short":
        struct.unpack("!IQ", b"x" * vary.small)
    struct.pack("!H", 70_000 + vary.number)


@cause("xml", "mismatched tag", "no element", "undefined entity", "bad token")
def read_feed(vary: Vary, cause: str) -> None:
    pad = "\n" * vary.small + f"<!-- {vary.words} -->"
    text = {
        "mismatched tag": f"<a>{pad}<b></a>",
        "no element": pad,
        "undefined entity": f"<a>{pad}&nbsp;</a>",
        "bad token": f"<a>{pad}a < b</a>",
    }[cause]
    ElementTree.fromstring(text)


@cause("configparser", "no section", "no option", "no header")
def configure(vary: Vary, cause: str) -> None:
    parser = configparser.ConfigParser()
    parser.read_string(f"[shop]\nname = {vary.name}\n" if cause != "no header" else f"name = {vary.words}\n")
    print(parser.get("mail" if cause == "no section" else "shop", "host"))


@cause("csv", "field too large", "nul or newline")
def read_rows(vary: Vary, cause: str) -> None:
    text = "x" * (140_000 + vary.number % 999) if cause == "field too large" else f"a\rb{vary.words}"
    print(list(csv.reader(io.StringIO(text, newline="") if cause == "field too large" else [text])))


@cause("importlib", "no module", "no attribute")
def load_plugin(vary: Vary, cause: str) -> None:
    module = importlib.import_module("shop_plugins" if cause == "no module" else "string")
    print(module.load(vary.name))


@cause("zoneinfo", "no such zone")
def local_time(vary: Vary) -> None:
    zoneinfo.ZoneInfo(f"Europe/{vary.token}")


@cause("queue", "empty")
def next_task(vary: Vary) -> None:
    queue.Queue().get(timeout=0.01)


@cause("string", "field missing in a template", "bad placeholder")
def render(vary: Vary, cause: str) -> None:
    if cause == "bad placeholder":
        string.Template(" " * vary.small + "$$ ${").substitute(name=vary.name)
    string.Template("Dear $customer_name").substitute(name=vary.name)


@cause("builtins", "recursion")
def walk(vary: Vary) -> None:
    def down(node: dict[str, Any], depth: int) -> int:
        return down(node, depth + 1) + 1

    if vary.small > 5:
        (lambda: down({}, vary.number))()
    down({}, vary.number)


@cause("builtins", "assertion", "assertion with a text")
def check_total(vary: Vary, cause: str) -> None:
    if cause == "assertion":
        assert vary.number < 0
    assert vary.number < 0, f"total of order {vary.number} is {vary.money}, expected 0"


@cause("builtins", "stop iteration", "lookup in a set", "unhashable", "not iterable", "unbound", "changed size")
def dedupe(vary: Vary, cause: str) -> None:
    match cause:
        case "stop iteration":
            next(iter([]))
        case "lookup in a set":
            {vary.sku}.remove(vary.token)
        case "unhashable":
            print({[vary.number]})
        case "not iterable":
            print(list(vary.number))  # type: ignore[call-overload]
        case "unbound":
            if vary.number < 0:
                seen = 1
            print(seen)
    rows = dict.fromkeys(range(vary.small))
    for each in rows:
        rows[each + 1_000] = None
