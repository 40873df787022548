"""The Lambdas of one redrive queue, each with its role and log, and their triggers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .access import EVENT_SOURCE, grants
from .alarms import any_above, from_alarms
from .names import (
    NOTHING,
    Json,
    Named,
    Resources,
    att,
    either,
    ref,
    sub,
    with_key,
)

TIMEOUT_S = 120
MEMORY_MIB = 256
AT_ONCE = 5  # most concurrent re-drivers of one queue
_OF = {"queue": "Queue", "dlq": "Dlq", "poison": "Poison", "work": "Work"}  # parts of logical names


def redriver(of: Named) -> Resources:
    """Return the re-driver of a queue: the alarm calls it, a rule calls it again, and its work queue continues it."""
    id = of.id
    name = f"{id}Redriver"
    statements = merged([*statements_of("redriver", of), allow(EVENT_SOURCE, att(f"{id}Work"))])
    handler = "redrive.aws.lambda_handlers.redriver"
    variables = {**environment(of, WAITS, PACE, GATE), "REDRIVE_WORK_QUEUE_URL": ref(f"{id}Work")}
    resources = function(of, "Redriver", "HasCode", handler, "drives dead messages back", statements, variables)
    named = {"TopicName": sub(f"${{Prefix}}-{of.queue}-redrive"), "KmsMasterKeyId": with_key(ref("KmsKey"))}
    topic = {"Type": "AWS::SNS::Topic", "Properties": named}
    woken = {"TopicArn": ref(f"{id}Redrive"), "Protocol": "lambda", "Endpoint": att(name)}
    again = {
        "Description": f"Calls the re-driver of {of.queue} again while the alarm stays, as that acts only on a change",
        "ScheduleExpression": "rate(5 minutes)",
        "State": either("RedriveByLambda", "ENABLED", "DISABLED"),
        "Targets": [{"Id": "redriver", "Arn": att(name)}],
    }
    work = {
        "FunctionName": ref(name),
        "EventSourceArn": att(f"{id}Work"),
        "BatchSize": 1,
        "ScalingConfig": {"MaximumConcurrency": AT_ONCE},
        "FunctionResponseTypes": ["ReportBatchItemFailures"],
    }
    return {
        f"{id}Redrive": topic,
        f"{id}RedriveAllowed": from_alarms(f"{id}Redrive"),
        **resources,
        f"{id}RedriverWoken": when("RedriveByLambda", "AWS::SNS::Subscription", woken),
        f"{id}RedriverMayBeWoken": _may_call(name, "sns.amazonaws.com", ref(f"{id}Redrive"), "RedriveByLambda"),
        f"{id}RedriverAgain": when("HasCode", "AWS::Events::Rule", again),
        f"{id}RedriverMayBeCalled": _may_call(name, "events.amazonaws.com", att(f"{id}RedriverAgain"), "HasCode"),
        f"{id}RedriverGoesOn": when("HasCode", "AWS::Lambda::EventSourceMapping", work),
        **any_above(
            of,
            "RedriverErrors",
            ("AWS/Lambda", "Errors", "FunctionName", name),
            f"The re-driver of {of.queue} failed: see its log.",
        ),
    }


def consumer(of: Named, at_once: int) -> Resources:
    """Return a Lambda that works the queue, if its handler parameter is set. `at_once`: most invocations at once."""
    id = of.id
    statements = merged([*statements_of("worker", of), allow(EVENT_SOURCE, att(f"{id}Queue"))])
    variables = {"REDRIVE_URL": url()}
    handler = ref("ConsumerHandler")
    resources = function(of, "Consumer", "HasConsumer", handler, "works its messages", statements, variables)
    properties = resources[f"{id}Consumer"]["Properties"]
    properties["Code"]["S3Key"] = ref("ConsumerKey")
    properties["Timeout"] = ref("ConsumerTimeout")
    source = {
        "FunctionName": ref(f"{id}Consumer"),
        "EventSourceArn": att(f"{id}Queue"),
        "BatchSize": 10,
        "ScalingConfig": {"MaximumConcurrency": at_once},
        "FunctionResponseTypes": ["ReportBatchItemFailures"],
    }
    return resources | {f"{id}ConsumerSource": when("HasConsumer", "AWS::Lambda::EventSourceMapping", source)}


def url() -> Any:
    """Return the URL of the store that the stack deploys."""
    return sub("sqs://${AWS::Region}/${Prefix}?cells=dynamodb://${Cells}")


def function(
    of: Named,
    name: str,
    condition: str,
    handler: str | Json,
    does: str,
    statements: Sequence[Json],
    variables: Mapping[str, Any],
) -> Resources:
    """Return a Lambda with its log and its role, which may write the log and do what `statements` allow."""
    id = f"{of.id}{name}"
    log = {
        "LogGroupName": sub(f"/redrive/${{Prefix}}/{of.queue}/{name.lower()}"),
        "RetentionInDays": ref("LogRetention"),
        "KmsKeyId": with_key(ref("KmsKey")),
    }
    properties = {
        "Description": f"redrive, queue {of.queue}: {does}",
        "Handler": handler,
        "Runtime": ref("Runtime"),
        "Architectures": [ref("Architecture")],
        "Code": {"S3Bucket": ref("CodeBucket"), "S3Key": ref("CodeKey")},
        "Timeout": TIMEOUT_S,
        "MemorySize": MEMORY_MIB,
        "Role": att(f"{id}Role"),
        "ReservedConcurrentExecutions": either("HasReserved", ref("ReservedConcurrency"), NOTHING),
        "LoggingConfig": {"LogGroup": ref(f"{id}Log"), "LogFormat": "Text"},  # JSON would wrap the lines of the metrics
        **({"Environment": {"Variables": variables}} if variables else {}),
    }
    writes = allow(("logs:CreateLogStream", "logs:PutLogEvents"), att(f"{id}Log"))
    return {
        f"{id}Log": when(condition, "AWS::Logs::LogGroup", log),
        f"{id}Role": role(condition, "lambda.amazonaws.com", [writes, *statements, USES_KEY]),
        id: when(condition, "AWS::Lambda::Function", properties),
    }


def role(condition: str, service: str, statements: Sequence[Json]) -> Json:
    """Return a role that a service of AWS takes on, with one policy of these statements."""
    assume = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
    document = {"Version": "2012-10-17", "Statement": list(statements)}
    properties = {
        "AssumeRolePolicyDocument": {"Version": "2012-10-17", "Statement": [assume]},
        "Policies": [{"PolicyName": "only-what-it-calls", "PolicyDocument": document}],
    }
    return when(condition, "AWS::IAM::Role", properties)


def statements_of(role: str, of: Named, *, approval: bool = False) -> list[Json]:
    """Return statements that allow a role's actions, by the table in access.py, on the resources of this queue."""
    return [allow(actions, _arn(of, on)) for on, actions in grants(role, fifo=of.fifo, approval=approval).items()]


def merged(statements: Sequence[Json]) -> list[Json]:
    """Merge the statements about the same resource into one, without duplicate actions."""
    by_scope: dict[str, Json] = {}
    for one in statements:
        key = repr(one.get("Resource", one))
        if key in by_scope and "Action" in one:
            actions = by_scope[key]["Action"]
            by_scope[key] = by_scope[key] | {"Action": [*actions, *(a for a in one["Action"] if a not in actions)]}
        else:
            by_scope[key] = one
    return list(by_scope.values())


def gathered(statements: Sequence[Json]) -> list[Json]:
    """Merge the statements with the same actions into one about all their resources."""
    by_actions: dict[tuple[str, ...], list[Any]] = {}
    for one in statements:
        by_actions.setdefault(tuple(one["Action"]), []).append(one["Resource"])
    return [allow(actions, on[0] if len(on) == 1 else on) for actions, on in by_actions.items()]


# The rights on the stack's key that are needed to read and write data encrypted with it.
USES_KEY = with_key({"Effect": "Allow", "Action": ["kms:Decrypt", "kms:GenerateDataKey"], "Resource": ref("KmsKey")})
WAITS, PACE, GATE = "waits", "pace", "gate"  # parts of a redriving handler's environment


def environment(of: Named, *parts: str) -> dict[str, Any]:
    """Return the environment variables of a handler that redrives: the common ones, and those of these parts."""
    id = of.id
    values: dict[str, Any] = {
        "REDRIVE_QUEUE_URL": ref(f"{id}Queue"),
        "REDRIVE_DLQ_URL": ref(f"{id}Dlq"),
        "REDRIVE_POISON_URL": ref(f"{id}Poison"),
        "REDRIVE_TABLE": ref("Cells"),
    }
    if WAITS in parts:
        values |= {
            "REDRIVE_MAX_REDRIVES": ref("MaxRedrives"),
            "REDRIVE_BASE_S": ref("RedriveBase"),
            "REDRIVE_CAP_S": ref("RedriveCap"),
        }
    if PACE in parts:
        values |= {"REDRIVE_RATE": ref("RedriveRate"), "REDRIVE_JITTER": ref("RedriveJitter")}
    if GATE in parts:
        values |= {
            "REDRIVE_DEPENDENCY": either("HasDependency", ref("Dependency"), NOTHING),
            "REDRIVE_HEALTH_URL": either("HasHealthUrl", ref("RedriveHealthUrl"), NOTHING),
        }
    return values


def _arn(of: Named, on: str) -> Any:
    if on == "plain":
        return of.arn(fifo=False)
    if on == "topic":
        return ref("Topic")
    return att("Cells") if on == "cells" else att(f"{of.id}{_OF[on]}")


def allow(actions: Sequence[str], resource: Any) -> Json:
    return {"Effect": "Allow", "Action": list(actions), "Resource": resource}


def _may_call(function: str, service: str, source: Json, condition: str) -> Json:
    properties = {
        "FunctionName": ref(function),
        "Action": "lambda:InvokeFunction",
        "Principal": service,
        "SourceArn": source,
    }
    return when(condition, "AWS::Lambda::Permission", properties)


def when(condition: str, kind: str, properties: Any) -> Json:
    return {"Type": kind, "Condition": condition, "Properties": properties}
