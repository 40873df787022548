"""Causes that databases, queues and cloud services report. PostgreSQL and Redis are real servers, named by
POSTGRES_URL and REDIS_URL."""

from __future__ import annotations

import io
import pathlib
import sqlite3
import tempfile
import threading
from typing import Any

import bson
import django.conf
import django.core.exceptions
import django.core.validators
import kafka
import paramiko
import pika
import psycopg
import pymongo
import redis
import sqlalchemy as sa
import stripe
from botocore.session import Session
from botocore.stub import Stubber
from scenery import Vary, cause, closed_port, server_of, site
from sqlalchemy import orm

TABLES = """
create temp table customers (
    id bigint primary key, email text not null unique, name varchar(10), age int check (age > 0)
);
create temp table orders (
    id bigint primary key, customer bigint references customers, at timestamptz, total numeric(6,2)
);
insert into customers values (1, 'a@example.com', 'a', 5);
"""
POSTGRES = {
    "customer exists": "insert into customers values (1, %(email)s, 'x', 1)",
    "email exists": "insert into customers values (%(id)s, 'a@example.com', 'x', 1)",
    "no such customer": "insert into orders values (%(id)s, %(id)s)",
    "email is null": "insert into customers values (%(id)s, null, 'x', 1)",
    "name too long": "insert into customers values (%(id)s, %(email)s, %(words)s || ' and more of it', 1)",
    "age is negative": "insert into customers values (%(id)s, %(email)s, 'x', -%(small)s)",
    "total too large": "insert into orders values (%(id)s, 1, now(), 123456 + %(small)s)",
    "not a date": "insert into orders values (%(id)s, 1, %(words)s, 1)",
    "no table shipments": "select * from shipments where id = %(id)s",
    "no table returns": "select * from returns where id = %(id)s",
    "no column colour": "select colour from orders where id = %(id)s",
    "syntax": "selec * from orders where id = %(id)s",
    "division by zero": "select %(id)s / 0",
    "statement timeout": "set statement_timeout = 50; select pg_sleep(%(small)s)",
    "locked": "set lock_timeout = 50; select * from held",
    "wrong type": "select id + email from customers",
    "parameter missing": "select %(nothing)s",
}


def values(vary: Vary) -> dict[str, Any]:
    return {"id": vary.number + 10, "email": vary.email, "words": vary.words + vary.token, "small": vary.small}


def _holding_a_lock() -> Any:
    holder = psycopg.connect(server_of("POSTGRES_URL"))
    holder.execute("create table held (id int)")
    holder.commit()
    holder.execute("lock held in access exclusive mode")
    return holder


@cause("psycopg", *POSTGRES, "connection refused", "no such database", "no such user", "closed", "name not resolved")
def save_customer(vary: Vary, cause: str) -> None:
    url = server_of("POSTGRES_URL")
    match cause:
        case "connection refused":
            url = f"postgresql://app@127.0.0.1:{closed_port()}/shop"
        case "no such database":
            url = url.rpartition("/")[0] + f"/shop_{vary.number}"
        case "no such user":
            url = f"postgresql://u{vary.token.lower()}@{url.rpartition('@')[2]}"
        case "name not resolved":
            url = f"postgresql://app@{vary.host}/shop"
    holder = _holding_a_lock() if cause == "locked" else None
    try:
        with psycopg.connect(url, autocommit=True) as connection, psycopg.ClientCursor(connection) as cursor:
            if holder is None:
                cursor.execute(TABLES)
            if cause == "closed":
                connection.close()
            cursor.execute(POSTGRES.get(cause, "select 1"), values(vary))
    finally:
        if holder is not None:
            holder.execute("drop table held")
            holder.commit()
            holder.close()


LITE = {
    "order exists": "insert into orders values (1, :email, 1)",
    "email exists": "insert into orders values (:id, 'a@example.com', 1)",
    "email is null": "insert into orders values (:id, null, 1)",
    "no table shipments": "select * from shipments where id = :id",
    "no table returns": "select * from returns where id = :id",
    "no column colour": "select colour from orders where id = :id",
    "syntax": "selec * from orders where id = :id",
    "parameter missing": "select :nothing",
    "unsupported type": "select :object",
    "two statements": "select 1; select 2",
}


@cause("sqlite3", *LITE, "locked", "closed", "no folder", "no database", "read-only")
def save_order(vary: Vary, cause: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / (vary.token if cause != "no folder" else f"{vary.token}/a")
        if cause == "no database":
            path.write_bytes(vary.token.encode() * 99)
        connection = sqlite3.connect(path, timeout=0.05)
        connection.execute("create table orders (id integer primary key, email text not null unique, total int)")
        connection.execute("insert into orders values (1, 'a@example.com', 1)")
        connection.commit()
        if cause == "locked":
            sqlite3.connect(path, isolation_level=None).execute("begin exclusive")
        if cause == "closed":
            connection.close()
        if cause == "read-only":
            connection.execute("pragma query_only = on")
        connection.execute(
            LITE.get(cause, "insert into orders values (:id, :email, 2)"), {**values(vary), "object": {}}
        )


class Base(orm.DeclarativeBase):
    """The shop's tables."""


class Customer(Base):
    __tablename__ = "customers"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    email: orm.Mapped[str] = orm.mapped_column(unique=True)
    orders: orm.Mapped[list[Purchase]] = orm.relationship(back_populates="customer")


class Purchase(Base):
    __tablename__ = "purchases"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    customer_id: orm.Mapped[int] = orm.mapped_column(sa.ForeignKey("customers.id"))
    customer: orm.Mapped[Customer] = orm.relationship(back_populates="orders")


@cause(
    "sqlalchemy",
    *("email exists", "email is null", "no row", "many rows", "no table", "detached", "stale"),
    *("no column", "bad parameter", "connection refused", "bad url", "rolled back"),
)
def save_purchase(vary: Vary, cause: str) -> None:
    url = {"connection refused": f"postgresql+psycopg://app@127.0.0.1:{closed_port()}/a", "bad url": vary.token}
    engine = sa.create_engine(url.get(cause, "sqlite://"))
    Base.metadata.create_all(engine)
    with orm.Session(engine) as session:
        session.add_all([Customer(id=1, email="a@example.com"), Customer(id=2, email="b@example.com")])
        session.commit()
        match cause:
            case "email exists":
                session.add(Customer(id=vary.number + 10, email="a@example.com"))
            case "email is null":
                session.add(Customer(id=vary.number + 10))
            case "no row":
                session.execute(sa.select(Customer).where(Customer.email == vary.email)).scalar_one()
            case "many rows":
                session.execute(sa.select(Customer).limit(vary.small)).scalar_one()
            case "no table":
                session.execute(sa.text("select * from returns where id = :id"), {"id": vary.number})
            case "detached":
                customer = session.get(Customer, 1)
                session.expunge_all()
                print(customer and customer.orders)
            case "stale":
                customer = session.get(Customer, 1)
                session.connection().execute(sa.text("delete from customers"))
                assert customer is not None
                customer.email = vary.email
            case "no column":
                session.execute(sa.select(Customer).filter_by(colour=vary.word))
            case "bad parameter":
                session.execute(sa.text("select :id, :other"), {"id": vary.number})
            case "rolled back":
                session.add(Customer(id=1, email=vary.email))
                try:
                    session.flush()
                except sa.exc.IntegrityError:
                    session.get(Customer, vary.number)
        session.commit()


REDIS = {
    "wrong type": ("lpush", "text", "{id}"),
    "not an integer": ("incr", "text"),
    "unknown command": ("frobnicate", "{token}"),
    "arguments": ("set", "{token}"),
    "no script": ("evalsha", "{hex}0123456789abcdef", "0"),
    "script error": ("eval", "return redis.call('incr', KEYS[1]) + nothing.x", "1", "n:{id}"),
    "script type": ("eval", "return redis.call('lpush', KEYS[1], ARGV[1])", "1", "text", "{id}"),
    "syntax": ("set", "{token}", "1", "EXX", "{id}"),
    "no group": ("xreadgroup", "group", "g", "c", "streams", "s:{token}", ">"),
    "not a float": ("incrbyfloat", "text", "1.5"),
    "no such key": ("rename", "k:{token}", "x"),
    "expiry": ("set", "{token}", "1", "EX", "-{id}"),
}


@cause("redis", *REDIS, "connection refused", "name not resolved", "timeout", "wrong password", "not redis")
def count_visit(vary: Vary, cause: str) -> None:
    url, options = server_of("REDIS_URL"), {}
    match cause:
        case "connection refused":
            url = f"redis://127.0.0.1:{closed_port()}/0"
        case "name not resolved":
            url = f"redis://{vary.host}:6379/0"
        case "wrong password":
            url = url.replace("://", f"://user{vary.small}:{vary.token}@")
        case "not redis":
            url = site().replace("http:", "redis:")
        case "timeout":
            options = {"socket_timeout": 0.1}
    client = redis.Redis.from_url(url, **options)
    if cause == "timeout":
        client.blpop([f"queue:{vary.token}"], vary.small)
    client.set("text", "abc")
    words = {"id": vary.number, "token": vary.token, "hex": vary.hex}
    client.execute_command(*[each.format(**words) for each in REDIS.get(cause, ("ping",))])


AWS = {
    "no such key": ("s3", "get_object", "NoSuchKey", "The specified key does not exist.", 404),
    "access denied": ("s3", "get_object", "AccessDenied", "Access Denied", 403),
    "slow down": ("s3", "put_object", "SlowDown", "Please reduce your request rate.", 503),
    "token expired": ("s3", "get_object", "ExpiredToken", "The provided token has expired.", 400),
    "no such queue": ("sqs", "send_message", "QueueDoesNotExist", "The specified queue does not exist.", 400),
    "condition failed": (
        "dynamodb",
        "put_item",
        "ConditionalCheckFailedException",
        "The conditional request failed",
        400,
    ),
    "throttled": ("dynamodb", "put_item", "ProvisionedThroughputExceededException", "Rate exceeded for {name}", 400),
}
CALLS: dict[str, dict[str, Any]] = {
    "get_object": {"Bucket": "b", "Key": "k"},
    "put_object": {"Bucket": "b", "Key": "k", "Body": b""},
    "send_message": {"QueueUrl": "https://sqs.eu-west-1.amazonaws.com/1/q", "MessageBody": "x"},
    "put_item": {"TableName": "t", "Item": {"id": {"S": "1"}}},
}


@cause("botocore", *AWS, "parameter missing", "wrong parameter type", "endpoint refused", "no credentials", "no region")
def archive(vary: Vary, cause: str) -> None:
    service, call, code, message, status = AWS.get(cause, ("s3", "get_object", "", "", 0))
    session = Session()
    keys: dict[str, Any] = {"aws_access_key_id": "AKIDEXAMPLE", "aws_secret_access_key": "none"}
    if cause == "no credentials":
        session.get_component("credential_provider").providers.clear()
        keys = {}
    from botocore.config import Config

    region = vary.among("eu-west-1", "us-east-1") if cause != "no region" else None
    endpoint = f"http://127.0.0.1:{closed_port()}" if cause == "endpoint refused" else None
    config = Config(retries={"max_attempts": 0}, connect_timeout=1)
    client = session.create_client(
        "sqs" if cause == "no region" else service, region, endpoint_url=endpoint, config=config, **keys
    )
    arguments = dict(CALLS[call])
    if "Key" in arguments:
        arguments |= {"Bucket": f"bucket-{vary.small}", "Key": vary.path}
    if cause == "parameter missing":
        del arguments["Key"]
    if cause == "wrong parameter type":
        arguments["Key"] = vary.number
    if code:
        stubber = Stubber(client)
        stubber.add_client_error(call, code, message.format(name=vary.token), status)
        stubber.activate()
    getattr(client, call)(**arguments)


@cause("stripe", "missing", "declined", "funds", "key", "rate", "connection refused")
def charge_card(vary: Vary, cause: str) -> None:
    address = f"http://127.0.0.1:{closed_port()}" if cause == "connection refused" else f"{site()}/stripe/{cause}"
    client = stripe.StripeClient("sk_test_none", base_addresses={"api": address}, max_network_retries=0)
    client.customers.retrieve(vary.customer)


@cause("pymongo", "no server", "bad uri", "name not resolved", "cannot encode", "closed")
def save_profile(vary: Vary, cause: str) -> None:
    if cause == "bad uri":
        pymongo.MongoClient(f"mongo://{vary.host}/{vary.token}")
    if cause == "cannot encode":
        bson.encode({"id": vary.number, "tags": {vary.name}})
    host = f"{vary.host}:27017" if cause == "name not resolved" else f"127.0.0.1:{closed_port()}"
    client: Any = pymongo.MongoClient(f"mongodb://{host}", serverSelectionTimeoutMS=vary.among(150, 200))
    if cause == "closed":
        client.close()
    client.shop.profiles.find_one({"_id": vary.uuid})


@cause("kafka", "bad setting", "wrong topic")
def emit(vary: Vary, cause: str) -> None:
    servers = f"127.0.0.1:{closed_port()}"
    if cause == "bad setting":
        kafka.KafkaProducer(bootstrap_servers=servers, linger_seconds=vary.small)
    else:
        kafka.TopicPartition(f"orders {vary.name}")  # type: ignore[call-arg]


@cause("paramiko", "connection refused", "not ssh", "no private key", "unknown host key")
def upload(vary: Vary, cause: str) -> None:
    if cause == "no private key":
        paramiko.RSAKey.from_private_key(io.StringIO(vary.token))
    client = paramiko.SSHClient()
    port = closed_port()
    if cause == "not ssh":
        port = int(site().rpartition(":")[2])
    if cause == "unknown host key":
        port = _ssh_server()
    client.connect("127.0.0.1", port, vary.token, banner_timeout=1, timeout=1, allow_agent=False, look_for_keys=False)


def _ssh_server() -> int:
    import socket

    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        transport = paramiko.Transport(server.accept()[0])
        transport.add_server_key(paramiko.RSAKey.generate(2048))
        transport.start_server(server=paramiko.ServerInterface())

    threading.Thread(target=serve, daemon=True).start()
    return int(server.getsockname()[1])


@cause("pika", "connection refused", "bad url")
def publish(vary: Vary, cause: str) -> None:
    if cause == "bad url":
        pika.URLParameters(f"amqp://{vary.token}:pw@host:{vary.word}/x").port  # noqa: B018
    pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", closed_port(), connection_attempts=1))


def _django() -> Any:
    settings = django.conf.settings
    if not settings.configured:
        database = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
        templates = [{"BACKEND": "django.template.backends.django.DjangoTemplates"}]
        settings.configure(DATABASES={"default": database}, TEMPLATES=templates, USE_TZ=True)
        django.setup()
    from django.db import connection, models

    if not hasattr(_django, "model"):
        meta = type("Meta", (), {"app_label": "shop"})
        fields = {"email": models.EmailField(unique=True), "age": models.IntegerField(default=1), "Meta": meta}
        _django.model = type("Buyer", (models.Model,), {"__module__": "shop.models", **fields})  # type: ignore[attr-defined]
        with connection.schema_editor() as editor:
            editor.create_model(_django.model)  # type: ignore[attr-defined]
        _django.model.objects.create(email="a@example.com")  # type: ignore[attr-defined]
        _django.model.objects.create(email="b@example.com")  # type: ignore[attr-defined]
    return _django.model  # type: ignore[attr-defined]


@cause(
    "django",
    *("no buyer", "two buyers", "email exists", "bad email", "no field", "no template", "template syntax"),
    *("not a number", "no url", "bad setting", "no app"),
)
def save_buyer(vary: Vary, cause: str) -> None:
    buyers = _django().objects
    match cause:
        case "no buyer":
            buyers.get(email=vary.email)
        case "two buyers":
            buyers.get(age=1)
        case "email exists":
            buyers.create(email="a@example.com")
        case "bad email":
            django.core.validators.validate_email(vary.token)
        case "no field":
            buyers.filter(colour=vary.name)
        case "not a number":
            buyers.filter(age=vary.word).count()
        case "bad setting":
            print(django.conf.settings.SHOP_TOKEN)
        case "no app":
            from django.apps import apps

            apps.get_model("billing", "Invoice")
        case "no url":
            from django.urls import reverse

            django.conf.settings.ROOT_URLCONF = __name__
            reverse("invoice", args=[vary.number])
    from django.template import engines, loader

    if cause == "no template":
        loader.get_template(f"mail/{vary.token}.txt")
    engines["django"].from_string("\n" * vary.small + "{% frobnicate %}")


urlpatterns: list[Any] = []
