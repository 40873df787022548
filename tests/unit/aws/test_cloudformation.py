"""The CloudFormation template: what it holds, that it is well-formed, and that YAML and JSON say the same."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import hypothesis
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import redrive
from redrive import App, Backoff, Reject, Retry
from redrive.aws.cloudformation.template import INLINE_MAX, PROFILES, Settings, template, text
from redrive.aws.cloudformation.yaml_text import dump
from redrive.aws.cloudwatch import NAMESPACE, UNITS, Emf, redriver_line
from redrive.aws.redriver.settings import settings_of
from redrive.counters import OTHER
from redrive.errors import ConfigError
from redrive.fault import Kind
from redrive.program.main import cli, run

DAYS_14 = 14 * 86_400


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads CloudFormation's short tags as the long ones."""


def _tag(loader: Any, suffix: str, node: Any) -> Any:
    name = suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}"
    match node:
        case yaml.ScalarNode():
            value = loader.construct_scalar(node)
            return {name: value.split(".", 1) if suffix == "GetAtt" else value}
        case yaml.SequenceNode():
            return {name: loader.construct_sequence(node, deep=True)}
    return {name: loader.construct_mapping(node, deep=True)}


_Loader.add_multi_constructor("!", _tag)


def load(written: str) -> Any:
    return yaml.load(written, Loader=_Loader)


def made(**words: Any) -> dict[str, Any]:
    return template(Settings(**{"prefix": "shop", "queues": ("orders", "bulk")} | words))


def properties(found: dict[str, Any], name: str) -> dict[str, Any]:
    return found["Resources"][name]["Properties"]


def walk(value: Any) -> Iterator[Any]:
    yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from walk(item)


ALL = [(profile, fifo) for profile in PROFILES for fifo in (False, True)]


@pytest.mark.parametrize("profile, fifo", ALL)
def test_yaml_and_json_say_what_the_values_say(profile: str, fifo: bool) -> None:
    found = made(profile=profile, fifo=fifo)
    plain = json.loads(json.dumps(found))
    assert load(text(found)) == plain
    assert json.loads(text(found, "json")) == plain
    assert not any(value is None for value in walk(found))


_texts = st.text(st.characters(exclude_categories=("Cs",))) | st.sampled_from(
    [
        "yes",
        "on",
        "No",
        "null",
        "~",
        "1",
        "1e3",
        "0x1F",
        "1:30",
        "2026-01-01",
        "-",
        "? a",
        "a: b",
        "a #b",
        "!x",
        "é",
        "😀",
        "\x85",
    ]
)
_values = st.recursive(
    _texts | st.integers() | st.booleans(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_texts, inner, max_size=4),
    max_leaves=20,
)
_functions = st.one_of(
    st.builds(lambda name: {"Ref": name}, _texts),
    st.builds(lambda text: {"Fn::Sub": text}, _texts),
    st.builds(lambda items: {"Fn::If": items}, st.lists(_values, min_size=3, max_size=3)),
    st.just({"Fn::GetAtt": ["Queue", "Arn"]}),
    st.builds(lambda inner: {"Fn::Not": [{"Fn::Equals": [inner, "x"]}]}, _values),
)


@hypothesis.settings(max_examples=60)
@given(st.dictionaries(_texts, _values | _functions | st.lists(_functions, max_size=3), min_size=1, max_size=5))
def test_any_values_come_back_from_yaml(value: dict[str, Any]) -> None:
    assert load(dump(value)) == value


@pytest.mark.parametrize("value", [None, b"x", object()])
def test_what_has_no_place_in_a_template_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="no place in a template"):
        dump({"a": [value]})


def test_queues_are_named_as_the_url_of_the_store_derives_them() -> None:
    found = made(queues=("orders",))
    names = {
        name: r["Properties"]["QueueName"]["Fn::Sub"]
        for name, r in found["Resources"].items()
        if r["Type"] == "AWS::SQS::Queue"
    }
    assert names == {
        "OrdersQueue": "${Prefix}-orders",
        "OrdersDlq": "${Prefix}-orders-dlq",
        "OrdersPoison": "${Prefix}-orders-poison",
        "OrdersUndelivered": "${Prefix}-orders-undelivered",
        "OrdersWork": "${Prefix}-orders-work",
    }
    fifo = made(queues=("orders",), fifo=True)
    for name in ("OrdersQueue", "OrdersDlq", "OrdersPoison", "OrdersUndelivered"):
        assert properties(fifo, name)["QueueName"] == {"Fn::Sub": f"{names[name]}.fifo"}
        assert properties(fifo, name)["FifoQueue"] is True
    assert properties(fifo, "Topic")["FifoTopic"] is True


def test_each_profile_sets_the_defaults_of_its_queues() -> None:
    defaults = {
        profile: tuple(
            made(profile=profile)["Parameters"][name]["Default"]
            for name in ("VisibilityTimeout", "MessageRetention", "MaxReceiveCount")
        )
        for profile in PROFILES
    }
    assert defaults["standard"] == (60, DAYS_14, 100)
    assert defaults["high-volume"] == (30, 7 * 86_400, 3)
    assert defaults["critical"] == (60, DAYS_14, 10)


def test_a_queue_has_long_polls_a_dead_letter_queue_and_two_weeks_for_what_is_dead() -> None:
    found = made()
    queue = properties(found, "OrdersQueue")
    assert queue["ReceiveMessageWaitTimeSeconds"] == 20
    assert queue["VisibilityTimeout"] == {"Ref": "VisibilityTimeout"}
    assert queue["RedrivePolicy"] == {
        "deadLetterTargetArn": {"Fn::GetAtt": ["OrdersDlq", "Arn"]},
        "maxReceiveCount": {"Ref": "MaxReceiveCount"},
    }
    for name in ("OrdersDlq", "OrdersPoison", "OrdersUndelivered"):
        assert properties(found, name)["MessageRetentionPeriod"] == DAYS_14


def test_the_subscription_is_filtered_and_raw_and_shares_its_dead_letter_queue_with_nobody() -> None:
    found = made(filters={"bulk": {"kind": ["bulk"]}}, filter_scope="data")
    orders, bulk = properties(found, "OrdersSubscription"), properties(found, "BulkSubscription")
    assert orders["RawMessageDelivery"] is True and orders["FilterPolicy"] == {"queue": ["orders"]}
    assert bulk["FilterPolicy"] == {"data": {"kind": ["bulk"]}} and bulk["FilterPolicyScope"] == "MessageBody"
    dead = [
        target
        for r in found["Resources"].values()
        if (target := json.dumps(r["Properties"].get("RedrivePolicy", {}).get("deadLetterTargetArn"))) != "null"
    ]
    assert len(dead) == 4 and len(set(dead)) == 4  # two queues, two subscriptions
    for policy, name in (("OrdersQueueAllowed", "OrdersQueue"), ("OrdersUndeliveredAllowed", "OrdersUndelivered")):
        allow, _ = properties(found, policy)["PolicyDocument"]["Statement"]
        assert allow["Resource"] == {"Fn::GetAtt": [name, "Arn"]} and allow["Action"] == "sqs:SendMessage"
        assert allow["Condition"] == {"ArnEquals": {"aws:SourceArn": {"Ref": "Topic"}}}


def test_the_table_is_the_one_that_cells_need() -> None:
    table = properties(made(), "Cells")
    assert table["BillingMode"] == "PAY_PER_REQUEST"
    assert table["KeySchema"] == [{"AttributeName": "k", "KeyType": "HASH"}]
    assert table["TimeToLiveSpecification"] == {"AttributeName": "ttl", "Enabled": True}


def test_critical_queues_and_table_outlive_the_stack_and_others_where_asked() -> None:
    def kept(found: dict[str, Any]) -> set[str]:
        return {name for name, r in found["Resources"].items() if r.get("DeletionPolicy") == "Retain"}

    assert kept(made(queues=("q",))) == set()
    all = {"Cells", "QQueue", "QDlq", "QPoison", "QUndelivered"}
    assert kept(made(queues=("q",), profile="critical")) == all == kept(made(queues=("q",), keep=True))
    assert kept(made(queues=("q",), profile="critical", keep=False)) == set()


def test_alarms_watch_what_matters_at_its_thresholds() -> None:
    found = made(queues=("orders",))
    defaults = {name: p["Default"] for name, p in found["Parameters"].items()}
    alarms = {
        name.removeprefix("Orders").removesuffix("Alarm"): r["Properties"]
        for name, r in found["Resources"].items()
        if r["Type"] == "AWS::CloudWatch::Alarm"
    }

    def told(name: str) -> tuple[Any, Any, Any]:
        p = alarms[name]
        above = p["Threshold"]["Ref"] if isinstance(p["Threshold"], dict) else None
        [dimension] = p["Dimensions"]
        return dimension["Value"]["Fn::Sub"], p["MetricName"], defaults[above] if above else p["Threshold"]

    visible, oldest = "ApproximateNumberOfMessagesVisible", "ApproximateAgeOfOldestMessage"
    assert told("Deep") == ("${Prefix}-orders", visible, 5000)
    assert told("Old") == ("${Prefix}-orders", oldest, 900)
    assert told("ManyDead") == ("${Prefix}-orders-dlq", visible, 100)
    assert told("Poison") == ("${Prefix}-orders-poison", visible, 0)
    assert told("Undelivered") == ("${Prefix}-orders-undelivered", visible, 0)
    assert told("Dead") == ("${Prefix}-orders-dlq", visible, 1)
    assert alarms["Dead"]["ComparisonOperator"] == "GreaterThanOrEqualToThreshold"
    assert alarms["Dead"]["AlarmActions"] == [{"Ref": "OrdersRedrive"}]
    assert told("RedriveFailed") == ("${Prefix}-orders", "RedriveFailures", 0)
    assert alarms["Failing"]["Threshold"] == {"Ref": "ErrorRateThreshold"} and defaults["ErrorRateThreshold"] == 30
    assert all(p["TreatMissingData"] == "notBreaching" and p["AlarmDescription"] for p in alarms.values())
    assert "three times" in json.dumps(alarms["Old"]["AlarmDescription"])  # why age alone is not enough


def test_alarms_and_dashboard_use_only_metrics_that_are_written() -> None:
    found = made()
    body = json.loads(properties(found, "Dashboard")["DashboardBody"]["Fn::Sub"])
    metrics = [v for v in walk(found["Resources"]) if isinstance(v, dict) and v.get("Namespace") == NAMESPACE]
    assert metrics and all(m["MetricName"] in UNITS and m["Dimensions"][0]["Name"] == "Queue" for m in metrics)
    places = [(w["x"], w["y"]) for w in body["widgets"]]
    assert len(places) == len(set(places)) and all(w["x"] + w.get("width", 6) <= 24 for w in body["widgets"])
    heights = {(w["x"], w["y"]): w.get("height", 6) for w in body["widgets"]}
    assert not any((x, y + n) in heights for (x, y), height in heights.items() for n in range(1, height))


SQS = {  # what SQS publishes of each queue: sqs-available-cloudwatch-metrics.html
    "ApproximateAgeOfOldestMessage",
    *(f"ApproximateNumberOfMessages{kind}" for kind in ("Delayed", "NotVisible", "Visible")),
    "NumberOfEmptyReceives",
    *(f"NumberOfMessages{what}" for what in ("Deleted", "Received", "Sent")),
    "SentMessageSize",
}
Metric = tuple[str, str, frozenset[tuple[str, str]]]


def graphed(body: str) -> list[tuple[str, list[Metric]]]:
    """The title of each graph and its metrics, with what `.` and `...` stand for; the prefix is the default."""
    found = []
    for widget in json.loads(body.replace("${Prefix}", "shop"))["widgets"]:
        before: list[str] = []
        metrics: list[Metric] = []
        for parts in widget["properties"].get("metrics", ()):
            names = [part for part in parts if isinstance(part, str)]
            if names[:1] == ["..."]:
                names = before[: len(before) + 1 - len(names)] + names[1:]
            names = [before[i] if part == "." else part for i, part in enumerate(names)]
            if names:
                namespace, name, *dimensions = before = names
                metrics.append((namespace, name, frozenset(zip(dimensions[::2], dimensions[1::2], strict=True))))
        if "metrics" in widget["properties"]:
            found.append((widget["properties"]["title"], metrics))
    return found


@pytest.fixture(scope="module")
def told() -> list[dict[str, Any]]:
    """The lines of a worker whose messages come to all that is graphed, and of a re-driver."""
    app, stream = App("memory://"), io.StringIO()

    @app.task(name="t", queue="orders", retry=Retry(max_attempts=12, backoff=Backoff.fixed(0)))
    def run(failures: int, final: bool = False) -> None:
        if redrive.context().attempt <= failures:
            raise ConnectionError("not now")
        if final:
            raise Reject("never")

    emf = Emf(app, stream, prefix="shop")
    for n in range(12):
        run.enqueue(n)
        run.enqueue(n, final=True)
    app.run_worker(drain=True)
    emf.close()
    return [json.loads(line) for line in (*stream.getvalue().splitlines(), redriver_line("shop-orders", 1, 1, 1))]


def published(told: list[dict[str, Any]]) -> set[Metric]:
    return {
        (directive["Namespace"], metric["Name"], frozenset((name, line[name]) for name in names))
        for line in told
        for directive in line["_aws"]["CloudWatchMetrics"]
        for names in directive["Dimensions"]
        for metric in directive["Metrics"]
    }


@pytest.mark.parametrize("fifo", [False, True])
def test_each_metric_of_each_graph_is_one_that_a_worker_or_sqs_publishes(
    told: list[dict[str, Any]], fifo: bool
) -> None:
    found = made(queues=("orders",), fifo=fifo)
    own, end = published(told), ".fifo" if fifo else ""
    queues = {f"shop-orders{kind}{end}" for kind in ("", "-dlq", "-poison", "-undelivered")}
    graphs = graphed(properties(found, "Dashboard")["DashboardBody"]["Fn::Sub"])
    for title, metrics in graphs:
        assert metrics, title
        for namespace, name, dimensions in metrics:
            if namespace == "AWS/SQS":
                [(dimension, queue)] = dimensions
                assert name in SQS and dimension == "QueueName" and queue in queues, title
            elif (kind := dict(dimensions).get("Fault")) is not None:  # not all kinds happened here
                assert kind in {*Kind, OTHER} and name == "Faults", title
                assert (namespace, name, dimensions - {("Fault", kind)} | {("Fault", "transient")}) in own
            else:
                assert (namespace, name, dimensions) in own, title
    titles = {title for title, _ in graphs}
    assert {"sent, received, deleted", "failures by kind", "retries by attempt", "retry delay, s"} <= titles


def test_the_alarm_on_run_time_watches_what_workers_write(told: list[dict[str, Any]]) -> None:
    found = made(queues=("orders",))
    alarm = properties(found, "OrdersSlowAlarm")
    dimensions = frozenset((d["Name"], d["Value"]["Fn::Sub"].replace("${Prefix}", "shop")) for d in alarm["Dimensions"])
    assert (alarm["Namespace"], alarm["MetricName"], dimensions) in published(told)
    [line] = [one for one in told if "RunTime" in one]
    units = {m["Name"]: m["Unit"] for m in line["_aws"]["CloudWatchMetrics"][0]["Metrics"]}
    assert units["RunTime"] == "Milliseconds" and line["Runs"] > len(line["RunTime"]) > 50  # values, for percentiles
    assert (alarm["ExtendedStatistic"], alarm["Threshold"]) == ("p95", {"Ref": "RunTimeThreshold"})
    assert found["Parameters"]["RunTimeThreshold"]["Default"] == 30_000


def test_each_alarm_names_its_runbook_page() -> None:
    pages = {}
    for name, resource in made(queues=("orders",), machine=True)["Resources"].items():
        if resource["Type"] == "AWS::CloudWatch::Alarm":
            says, ending = resource["Properties"]["AlarmDescription"]["Fn::Sub"]
            [pages[name.removeprefix("Orders").removesuffix("Alarm")]] = re.findall(
                r"\$\{RunbookUrl}/([a-z-]+)\$\{E}$", says
            )
            assert ending == {"E": {"Fn::If": ["HasRunbookUrl", ".html", ".md"]}} and len(says) < 900
    assert pages == {
        "Deep": "backlog",
        "Old": "oldest-too-old",
        "Poison": "quarantined",
        "Failing": "error-rate",
        "Slow": "slow",
        "Dead": "dead-letters-growing",
        **dict.fromkeys(
            ("ManyDead", "Undelivered", "RedriveFailed", "RedriverErrors", "MachineFailed"), "dead-letters"
        ),
    }


def test_the_commands_that_alarms_name_are_there() -> None:
    told = json.dumps([r for r in made()["Resources"].values() if r["Type"] == "AWS::CloudWatch::Alarm"])
    named = set(re.findall(r"redrive ([a-z]+) ([a-z]+)((?: --[a-z]+)*)", told))
    assert {command for _, command, _ in named} == {"ingest", "groups", "list"}
    for group, command, options in named:
        found = cli.get_command(click.Context(cli), group)
        assert isinstance(found, click.Group)
        known = found.commands[command].params
        assert set(options.split()) <= {word for option in known for word in option.opts}


def test_every_policy_names_its_actions_and_what_they_act_on() -> None:
    found = made(fifo=True)
    statements = [s for v in walk(found["Resources"]) if isinstance(v, dict) for s in v.get("Statement", ())]
    assert len(statements) > 20
    statements += [one["Fn::If"][1] for one in statements if "Fn::If" in one]
    denied = [one for one in statements if one.get("Effect") == "Deny"]
    assert "*" not in json.dumps([one for one in statements if one not in denied])
    assert {one["Sid"] for one in denied} == {"TlsOnly"}
    roles = [r["Properties"] for r in found["Resources"].values() if r["Type"] == "AWS::IAM::Role"]
    functions = [r["Properties"] for r in found["Resources"].values() if r["Type"] == "AWS::Lambda::Function"]
    assert len({json.dumps(f["Role"]) for f in functions}) == len(functions)  # a role each
    assert all("ManagedPolicyArns" not in role for role in roles)


def test_parameters_say_what_they_are_and_refuse_what_cannot_be_meant() -> None:
    for name, parameter in made()["Parameters"].items():
        assert parameter["Description"].endswith((".", ")")), name
        rules = {"AllowedValues", "AllowedPattern", "MinValue", "MaxValue", "MinLength"} & set(parameter)
        assert rules or name in ("Dependency", "ConsumerHandler"), name
        if "AllowedPattern" in parameter:
            assert (
                re.fullmatch(parameter["AllowedPattern"], parameter["Default"]) and parameter["ConstraintDescription"]
            )


def test_each_function_that_redrives_goes_by_the_parameters_of_its_part() -> None:
    resources = made(machine=True)["Resources"]

    def variables(name: str) -> dict[str, Any]:
        found: dict[str, Any] = resources[f"Orders{name}"]["Properties"]["Environment"]["Variables"]
        return found

    waits, pace = {"REDRIVE_MAX_REDRIVES", "REDRIVE_BASE_S", "REDRIVE_CAP_S"}, {"REDRIVE_RATE", "REDRIVE_JITTER"}
    gate = {"REDRIVE_DEPENDENCY", "REDRIVE_HEALTH_URL"}
    all_of_them = {
        "Redriver": waits | pace | gate,
        "MachineCheckBreaker": gate,
        "MachineFetch": waits | pace,
        "MachineRedrive": waits | gate,
        "MachineIsolate": waits,
    }
    for name, wanted in all_of_them.items():
        found = variables(name)
        assert (waits | pace | gate) & found.keys() == wanted, name
        assert {"REDRIVE_QUEUE_URL", "REDRIVE_DLQ_URL", "REDRIVE_POISON_URL", "REDRIVE_TABLE"} <= found.keys()
    assert variables("Redriver")["REDRIVE_RATE"] == {"Ref": "RedriveRate"}
    assert variables("Redriver")["REDRIVE_HEALTH_URL"]["Fn::If"][:2] == ["HasHealthUrl", {"Ref": "RedriveHealthUrl"}]


def test_the_pace_of_a_stack_is_one_that_its_functions_understand() -> None:
    parameters = made()["Parameters"]
    urls = {"REDRIVE_DLQ_URL": "d", "REDRIVE_QUEUE_URL": "q", "REDRIVE_POISON_URL": "p"}
    pattern = re.compile(parameters["RedriveRate"]["AllowedPattern"])
    for rate in (parameters["RedriveRate"]["Default"], "0.5/s", "600/m", "5000/h", "1/d"):
        assert pattern.fullmatch(rate)
        settings_of(urls | {"REDRIVE_RATE": rate, "REDRIVE_JITTER": str(parameters["RedriveJitter"]["Default"])})
    assert not any(map(pattern.fullmatch, ("10", "fast", "10/w", "-1/s")))
    assert (parameters["RedriveJitter"]["MinValue"], parameters["RedriveJitter"]["MaxValue"]) == (0, 1)


def test_outputs_are_exported_under_names_of_the_stack() -> None:
    outputs = made()["Outputs"]
    names = [o["Export"]["Name"]["Fn::Sub"] for o in outputs.values()]
    assert len(set(names)) == len(names) and all(re.fullmatch(r"\$\{AWS::StackName}-[a-z0-9-]+", n) for n in names)
    assert outputs["Url"]["Value"]["Fn::Sub"] == "sqs://${AWS::Region}/${Prefix}?cells=dynamodb://${Cells}"


def test_a_template_of_one_queue_can_be_given_inline_with_room() -> None:
    for profile, fifo in ALL:
        assert len(text(made(queues=("reports-and-invoices",), profile=profile, fifo=fifo)).encode()) <= 40_000
    assert len(text(made(queues=("orders",))).encode()) <= 36_000 < INLINE_MAX


def test_a_state_machine_is_made_for_those_who_ask_for_one() -> None:
    """It is a third of the template; a parameter could only leave it out of the stack, not out of the text."""
    plain, asked = made(), made(machine=True)
    assert plain["Parameters"]["AutoRedrive"]["AllowedValues"] == ["lambda", "off"]
    assert asked["Parameters"]["AutoRedrive"]["AllowedValues"] == ["lambda", "state-machine", "off"]
    more = asked["Resources"].keys() - plain["Resources"].keys()
    assert len(more) == 34 and all(name.startswith(("OrdersMachine", "BulkMachine")) for name in more)
    assert asked["Outputs"].keys() - plain["Outputs"].keys() == {"OrdersMachineArn", "BulkMachineArn"}
    assert {name: asked["Resources"][name] for name in plain["Resources"]} == plain["Resources"]
    assert "RedriveByMachine" not in plain["Conditions"] and "Machine" not in json.dumps(plain["Outputs"])
    assert "OrdersMachine" in made(approval=True)["Resources"]  # who is to be asked by it wants it


@pytest.mark.parametrize(
    "words, what",
    [
        ({"profile": "critcal"}, "did you mean 'critical'"),
        ({"queues": ()}, "no queue"),
        ({"queues": ("a b",)}, "'a b'"),
        ({"queues": ("x" * 62,)}, "expected 1 to 61"),
        ({"queues": ("x" * 60,)}, "prefix 'shop': expected 1 to 2 letters"),
        ({"queues": ("orders.fifo",)}, "--fifo"),
        ({"queues": ("a-b", "a_b")}, "same logical name 'AB'"),
        ({"queues": tuple(f"q{n}" for n in range(40))}, "CloudFormation takes 500"),
        ({"queues": ("a", "a-dlq")}, "'a-dlq'"),
        ({"filters": {"nope": {}}}, "'nope'"),
        ({"filter_scope": "Body", "filters": {"orders": {"a": ["b"]}}}, "'data'"),
        ({"filters": {"orders": {"a": "b"}}}, "expected a list of values"),
        ({"prefix": "my_shop"}, "'my_shop'"),
    ],
)
def test_what_cannot_be_deployed_is_refused_with_what_was_expected(words: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(what)):
        made(**words)


def test_a_queue_may_be_called_as_anything_of_ours() -> None:
    words = ("poison", "dead", "alarms", "worker", "topic", "cells", "redriver", "a", "a-redrive", "work-er")
    one, two = (made(queues=queues)["Resources"] for queues in (("a",), ("a", "b")))
    for some in (words[:9], words[1:]):  # nine queues are the most of a stack
        assert len(made(queues=some)["Resources"]) - len(one) == (len(some) - 1) * (len(two) - len(one))


def test_every_queue_and_topic_refuses_calls_without_tls() -> None:
    found = made(fifo=True)["Resources"]
    guarded = set[str]()
    for one in found.values():
        document = one["Properties"].get("PolicyDocument", {})
        if {"Sid": "TlsOnly", "Effect": "Deny", "Principal": "*"}.items() <= document.get("Statement", [{}])[
            -1
        ].items():
            condition = document["Statement"][-1]["Condition"]
            assert condition == {"Bool": {"aws:SecureTransport": "false"}}
            of = one["Properties"].get("Queues") or one["Properties"]["Topics"]
            guarded |= {each["Ref"] if "Ref" in each else each["Fn::If"][1]["Ref"] for each in of}
    queues = {name for name, one in found.items() if one["Type"] in ("AWS::SQS::Queue", "AWS::SNS::Topic")}
    assert guarded == queues


def test_a_key_of_the_stack_encrypts_all_that_holds_messages_and_whoever_works_them_may_use_it() -> None:
    found = made(machine=True)["Resources"]
    key = {"Fn::If": ["HasKmsKey", {"Ref": "KmsKey"}, {"Ref": "AWS::NoValue"}]}
    names = {
        "AWS::SQS::Queue": "KmsMasterKeyId",
        "AWS::SNS::Topic": "KmsMasterKeyId",
        "AWS::Logs::LogGroup": "KmsKeyId",
    }
    for name, one in found.items():
        if (setting := names.get(one["Type"])) is not None:
            assert one["Properties"][setting] == key, name
    assert found["Cells"]["Properties"]["SSESpecification"]["Fn::If"][1]["KMSMasterKeyId"] == {"Ref": "KmsKey"}
    users = [one for name, one in found.items() if one["Type"] == "AWS::IAM::ManagedPolicy" or name.endswith("Role")]
    rights = [json.dumps(one).count("kms:Decrypt") for one in users if "sqs:" in json.dumps(one)]
    assert len(rights) > 8 and set(rights) == {1}


def test_lambdas_are_bounded_and_the_table_can_be_taken_back_to_any_second() -> None:
    found = made()["Resources"]
    functions = [one["Properties"] for one in found.values() if one["Type"] == "AWS::Lambda::Function"]
    assert {json.dumps(one["ReservedConcurrentExecutions"]) for one in functions} == {
        json.dumps({"Fn::If": ["HasReserved", {"Ref": "ReservedConcurrency"}, {"Ref": "AWS::NoValue"}]})
    }
    sources = [one["Properties"] for one in found.values() if one["Type"] == "AWS::Lambda::EventSourceMapping"]
    assert len(sources) == 4 and all(one["ScalingConfig"]["MaximumConcurrency"] for one in sources)
    assert made(consumers=7)["Resources"]["OrdersConsumerSource"]["Properties"]["ScalingConfig"] == {
        "MaximumConcurrency": 7
    }
    with pytest.raises(ConfigError, match="consumers=1: expected 2 to 1,000"):
        made(consumers=1)
    assert found["Cells"]["Properties"]["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_cfn_lint_finds_nothing() -> None:
    from cfnlint.api import lint_all

    for profile, fifo in ALL if os.environ.get("TEST_SOAK") else (("critical", True),):
        for approval in (False, True):
            written = text(made(queues=("orders",), profile=profile, fifo=fifo, approval=approval))
            found = [match for match in lint_all(written) if match.rule.severity != "informational"]
            assert [str(match) for match in found] == []


def test_the_command_writes_what_was_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["aws", "template", "--prefix", "shop", "-q", "orders", "-q", "bulk", "--profile", "high-volume"]
    assert run([*asked, "--filter", 'bulk={"kind": ["x"]}']) == 0
    wanted = made(profile="high-volume", filters={"bulk": {"kind": ["x"]}})
    assert load(capsys.readouterr().out) == json.loads(json.dumps(wanted))
    path = tmp_path / "stack.json"
    assert run([*asked, "--format", "json", "--out", str(path)]) == 0
    told = capsys.readouterr()
    assert json.loads(path.read_text()) == json.loads(json.dumps(made(profile="high-volume")))
    assert told.out == "" and "--s3-bucket" in told.err
    assert run(["aws", "template", "--prefix", "shop", "-q", "orders", "-q", "bulk", "--state-machine"]) == 0
    assert load(capsys.readouterr().out) == json.loads(json.dumps(made(machine=True)))
    assert run(["aws", "template", "--filter", "orders=[1]"]) == 2
    assert "QUEUE=JSON" in capsys.readouterr().err
    assert run(["aws", "template", "-q", "a b"]) == 2
    assert "'a b'" in capsys.readouterr().err


def test_making_it_needs_no_library_of_aws() -> None:
    asked = "import redrive.aws.cloudformation as i, sys; i.text(i.template(i.Settings())); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", asked], check=True, capture_output=True, text=True).stdout.split()
    assert "redrive.aws.cloudformation.template" in loaded and not {"boto3", "botocore", "yaml"} & set(loaded)


def test_the_longest_names_fit() -> None:
    found = made(prefix="p" * 40, queues=("q" * 22,), fifo=True)
    names = [
        v["Fn::Sub"].replace("${Prefix}", "p" * 40)
        for r in found["Resources"].values()
        if (v := r["Properties"].get("QueueName"))
    ]
    assert max(map(len, names)) == 80


def test_policies_of_ten_queues_with_long_names_are_none_that_aws_refuses() -> None:
    found = made(prefix="p" * 40, queues=tuple(f"{'q' * 20}-{n}" for n in range(10)), fifo=True)["Resources"]
    arn = "arn:aws-us-gov:sqs:us-gov-west-1:123456789012:" + "n" * 80
    for name in ("WorkerAccess", "ProducerAccess", "TriageAccess"):
        document = found[name]["Properties"]["PolicyDocument"]
        *own, key = document["Statement"]
        document["Statement"] = [*own, key["Fn::If"][1]]
        for statement in document["Statement"]:
            on = statement["Resource"]
            statement["Resource"] = [arn] * len(on) if isinstance(on, list) else arn
        assert len(json.dumps(document, separators=(",", ":"))) <= 6144, name


def test_a_template_that_is_changed_changes_no_other() -> None:
    before = text(made())
    for value in walk(made()):
        if isinstance(value, dict) and "Effect" in value:
            value["Effect"] = "Deny"
    assert text(made()) == before


def test_functions_are_deployed_under_the_documented_names() -> None:
    """A stack that is deployed has them, and the next zip must still know them."""
    found = {one["Properties"]["Handler"] for one in made(approval=True)["Resources"].values()
             if one["Type"] == "AWS::Lambda::Function" and isinstance(one["Properties"]["Handler"], str)}  # fmt: skip
    tasks = ("check_breaker", "fetch", "redrive", "isolate", "approve")
    assert found == {"redrive.aws.lambda_handlers.redriver", *(f"redrive.aws.stepfunctions.{task}" for task in tasks)}
    for name in found:
        module, _, function = name.rpartition(".")
        assert callable(getattr(import_module(module), function))
