"""Causes that libraries for data report: validation, files, tables, images, templates, keys."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import cattrs
import click
import cryptography.fernet
import dateutil.parser
import jinja2
import jsonschema
import jwt
import lxml.etree
import marshmallow
import msgspec
import numpy as np
import openpyxl
import pandas as pd
import PIL.Image
import pydantic
import tenacity
import toml
import yaml
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, hmac, serialization
from scenery import Vary, cause


class Line(pydantic.BaseModel):
    sku: str
    amount: int


class Invoice(pydantic.BaseModel):
    number: int
    total: float
    email: str = pydantic.Field(min_length=3)
    lines: list[Line] = []


def invoice(vary: Vary) -> dict[str, Any]:
    return {"number": vary.number, "total": float(vary.money), "email": vary.email, "lines": []}


@cause("pydantic", "number missing", "total missing", "number is a text", "email too short", "line amount", "not json")
def accept_invoice(vary: Vary, cause: str) -> None:
    body = invoice(vary)
    match cause:
        case "number missing":
            del body["number"]
        case "total missing":
            del body["total"]
        case "number is a text":
            body["number"] = vary.word
        case "email too short":
            body["email"] = vary.short
        case "line amount":
            good = {"sku": vary.sku, "amount": 1}
            body["lines"] = [good] * (vary.small - 2) + [{"sku": vary.sku, "amount": vary.word}]
        case "not json":
            Invoice.model_validate_json(vary.among("{", '{"number": ', '{"number": 12, '))
    Invoice.model_validate(body)


class Parcel(msgspec.Struct):
    id: int
    weight: float
    to: str


@cause("msgspec", "id missing", "weight missing", "id is a text", "weight is null", "cut short", "malformed")
def accept_parcel(vary: Vary, cause: str) -> None:
    body: dict[str, Any] = {"id": vary.number, "weight": 1.5, "to": vary.name}
    match cause:
        case "id missing" | "weight missing":
            del body[cause.split()[0]]
        case "id is a text":
            body["id"] = vary.token
        case "weight is null":
            body["weight"] = None
    text = msgspec.json.encode(body)
    if cause == "cut short":
        text = text[: -vary.small]
    if cause == "malformed":
        text = text[:5] + b"!" + text[6:]
    msgspec.json.decode(text, type=Parcel)


@attrs.define
class Price:
    amount: int = attrs.field(validator=[attrs.validators.instance_of(int), attrs.validators.ge(0)])
    currency: str = attrs.field(default="EUR", validator=attrs.validators.in_(["EUR", "USD"]))


@cause("attrs", "wrong class", "negative", "unknown currency", "missing argument")
def quote(vary: Vary, cause: str) -> None:
    match cause:
        case "wrong class":
            Price(vary.money)  # type: ignore[arg-type]
        case "negative":
            Price(-vary.number)
        case "unknown currency":
            Price(1, vary.token[:3])
    Price()  # type: ignore[call-arg]


@cause("cattrs", "not an int", "missing field")
def restore_price(vary: Vary, cause: str) -> None:
    body: dict[str, Any] = {"currency": "EUR"} if cause == "missing field" else {"amount": vary.word}
    cattrs.structure(body, Price)


class OrderSchema(marshmallow.Schema):
    number = marshmallow.fields.Integer(required=True)
    email = marshmallow.fields.Email(required=True)


@cause("marshmallow", "number missing", "email missing", "bad email", "unknown field")
def accept_order(vary: Vary, cause: str) -> None:
    body: dict[str, Any] = {"number": vary.number, "email": vary.email}
    match cause:
        case "number missing" | "email missing":
            del body[cause.split()[0]]
        case "bad email":
            body["email"] = vary.token
        case "unknown field":
            body["colour"] = vary.name
    OrderSchema().load(body)


@cause("jsonschema", "required", "type", "enum", "too long")
def accept_event(vary: Vary, cause: str) -> None:
    kinds = {"enum": ["paid", "sent"]}
    schema = {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "kind": kinds, "name": {"maxLength": 20}},
        "required": ["id"],
    }
    body: dict[str, Any] = {"id": vary.number, "kind": "paid"}
    match cause:
        case "required":
            del body["id"]
        case "type":
            body["id"] = vary.token
        case "enum":
            body["kind"] = vary.words
        case "too long":
            body["name"] = vary.hex + vary.uuid
    jsonschema.validate(body, schema)


@cause("yaml", "bad indent", "tab", "unclosed", "unknown tag")
def read_settings(vary: Vary, cause: str) -> None:
    head = "".join(f"key_{n}: {vary.token}\n" for n in range(vary.small))
    text = {
        "bad indent": f"{head}a:\n  b: 1\n c: {vary.number}\n",
        "tab": f"{head}a:\n\tb: 1\n",
        "unclosed": f"{head}a: [1, {vary.number}\nb: 2\n",
        "unknown tag": f"{head}a: !money {vary.money}\n",
    }[cause]
    yaml.safe_load(text)


@cause("toml", "bad value", "twice", "unbalanced")
def read_project(vary: Vary, cause: str) -> None:
    head = f'name = "{vary.token}"\n' * 1 + "\n" * vary.small
    tail = {"bad value": "size = 12 px\n", "twice": "name = 'b'\n", "unbalanced": 'a = "x\n'}
    toml.loads(head + tail[cause])


@cause("dateutil", "unknown form", "out of range")
def read_date(vary: Vary, cause: str) -> None:
    text = vary.someday if cause == "unknown form" else "2025-13-45"
    dateutil.parser.parse(text)


@cause("lxml", "mismatched tag", "empty", "undefined entity", "bad xpath")
def read_invoice(vary: Vary, cause: str) -> None:
    pad = "\n" * vary.small + f"<!-- {vary.words} -->"
    if cause == "bad xpath":
        lxml.etree.fromstring("<a/>").xpath("//a[" + " " * vary.small)
    text = {"mismatched tag": f"<a>{pad}<b></a>", "empty": "", "undefined entity": f"<a>{pad}&nbsp;</a>"}[cause]
    lxml.etree.fromstring(text)


@cause("pillow", "no image", "cut short", "cannot write mode", "bad size")
def thumbnail(vary: Vary, cause: str) -> None:
    noise = io.BytesIO(vary.token.encode() * vary.small)
    if cause == "no image":
        PIL.Image.open(noise)
    image = PIL.Image.effect_noise((64 + vary.small, 64), 50)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    if cause == "cut short":
        PIL.Image.open(io.BytesIO(buffer.getvalue()[: 1_500 + vary.small * 10])).load()
    if cause == "cannot write mode":
        image.convert("F").save(buffer, "JPEG")
    image.resize((-vary.small, 5))


@cause("numpy", "shapes differ", "out of bounds", "singular", "cannot reshape", "not a number")
def forecast(vary: Vary, cause: str) -> None:
    values = np.ones(10 + vary.small)
    match cause:
        case "shapes differ":
            values + np.ones(30 + vary.small)
        case "out of bounds":
            values[vary.number + 100]
        case "singular":
            np.linalg.inv(np.zeros((vary.small, vary.small)))
        case "cannot reshape":
            values.reshape(7, vary.small + 40)
    np.array([vary.word], dtype=float)


@cause("pandas", "no column price", "no column weight", "no such sku", "ragged rows", "nothing to parse", "bad date")
def report(vary: Vary, cause: str) -> None:
    table = pd.DataFrame({"sku": [vary.sku], "amount": [vary.number]})
    match cause:
        case "no column price":
            table["price"].sum()
        case "no column weight":
            table["weight"].sum()
        case "no such sku":
            table.set_index("sku").loc[vary.token]
        case "ragged rows":
            pd.read_csv(io.StringIO("a,b\n" + "1,2\n" * vary.small + "1,2,3,4\n"))
        case "nothing to parse":
            pd.read_csv(io.StringIO("\n" * (vary.small % 2)))
    pd.to_datetime(pd.Series([vary.customer]), format="%Y-%m-%d")


@cause("openpyxl", "no zip", "no sheet")
def read_sheet(vary: Vary, cause: str) -> None:
    if cause == "no zip":
        openpyxl.load_workbook(io.BytesIO(vary.token.encode()))
    openpyxl.Workbook()[vary.name]


@cause("jinja2", "undefined customer", "undefined attribute", "syntax", "no template", "no filter")
def mail_text(vary: Vary, cause: str) -> None:
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, loader=jinja2.DictLoader({}))
    pad = f"Dear {vary.name}," + "\n" * vary.small
    if cause == "no template":
        environment.get_template(f"mails/{vary.token}.html")
    text = {
        "undefined customer": "{{ customer.name }}",
        "undefined attribute": "{{ order.street }}",
        "syntax": "{% if order %}",
        "no filter": "{{ order|money }}",
    }[cause]
    environment.from_string(pad + text).render(order={"id": vary.number})


@click.command()
@click.option("--count", type=click.IntRange(1, 5))
@click.option("--format", type=click.Choice(["csv", "xml"]))
def export_command(count: int, format: str) -> None:
    """A command that another program runs."""


@cause("click", "out of range", "no choice", "no such option", "not an int")
def run_export(vary: Vary, cause: str) -> None:
    arguments = {
        "out of range": ["--count", str(vary.number + 100)],
        "no choice": ["--format", vary.token],
        "no such option": ["--colour", vary.name],
        "not an int": ["--count", vary.token],
    }[cause]
    export_command.main(arguments, standalone_mode=False)


@cause("cryptography", "invalid token", "bad key", "signature", "no pem")
def decrypt(vary: Vary, cause: str) -> None:
    match cause:
        case "bad key":
            cryptography.fernet.Fernet(vary.token)
        case "signature":
            signer = hmac.HMAC(b"k" * 32, hashes.SHA256())
            signer.update(vary.words.encode())
            signer.verify(b"x" * 32)
        case "no pem":
            serialization.load_pem_private_key(vary.token.encode(), None)
    cryptography.fernet.Fernet(cryptography.fernet.Fernet.generate_key()).decrypt(vary.token.encode())


@cause("cryptography", "signature, told")
def verify_webhook(vary: Vary) -> None:
    try:
        decrypt(vary, "signature")
    except InvalidSignature as error:
        raise ValueError(f"webhook {vary.uuid} of {vary.time:%H:%M:%S} is not signed by us") from error


@cause("jwt", "expired", "signature", "segments", "audience", "missing claim")
def authenticate(vary: Vary, cause: str) -> None:
    claims: dict[str, Any] = {"sub": vary.customer, "exp": datetime.now(UTC) + timedelta(hours=1), "aud": "shop"}
    options: dict[str, Any] = {}
    key = "k" * 40
    match cause:
        case "expired":
            claims["exp"] = vary.time
        case "audience":
            claims["aud"] = vary.name
        case "missing claim":
            options = {"require": ["iat"]}
        case "segments":
            jwt.decode(vary.token, key, algorithms=["HS256"], audience="shop")
    token = jwt.encode(claims, key if cause != "signature" else "x" * 40, algorithm="HS256")
    jwt.decode(token, key, algorithms=["HS256"], audience="shop", options=options)


@cause("tenacity", "given up after value errors", "given up after key errors")
def try_often(vary: Vary, cause: str) -> None:
    error = ValueError(vary.word) if "value" in cause else KeyError(vary.sku)

    @tenacity.retry(stop=tenacity.stop_after_attempt(vary.small))
    def once() -> None:
        raise error

    once()
