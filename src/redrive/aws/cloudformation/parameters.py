"""The template's parameters and conditions. A profile is a set of defaults, which a deployment can override."""

from __future__ import annotations

from msgspec import Struct

from .names import Json, ref

DAY_S = 86_400
RUNTIMES = ("python3.11", "python3.12", "python3.13")
RUNBOOKS = "docs/runbooks"  # path of the runbooks in the source
LOG_DAYS = (1, 3, 5, 7, 14, 30, 60, 90, 120, 180, 365)


class Profile(Struct, frozen=True, kw_only=True):
    """Default parameters for a kind of work. With `keep`, the queues, the table and their contents outlive the stack,
    and the table has backups."""

    visibility_s: int = 60
    retention_s: int = 14 * DAY_S
    max_receives: int = 100
    log_days: int = 30
    keep: bool = False


PROFILES = {
    # A worker counts the attempts of a message itself, and 100 receives suffice for any preset: SQS's own redrive
    # policy only catches messages that no worker ever settles.
    "standard": Profile(),
    # Messages become visible and are deleted sooner, and SQS's own redrive policy applies early. Three receives are
    # fewer than the attempts of most policies, so workers of this profile retry by sending copies: `?mode=requeue`.
    "high-volume": Profile(visibility_s=30, retention_s=7 * DAY_S, max_receives=3, log_days=7),
    # Five attempts (preset `critical`), three crashes, and two spare receives. Nothing is deleted with the stack.
    "critical": Profile(max_receives=10, log_days=365, keep=True),
}


def parameters(prefix: str, prefix_max: int, profile: Profile, machine: bool) -> Json:
    """Return all parameters, in the order in which the console shows them."""
    return {
        "Prefix": _text(
            "What the names of all queues begin with. Programs reach them as sqs://REGION/PREFIX.",
            prefix,
            AllowedPattern=f"[A-Za-z0-9-]{{1,{prefix_max}}}",
            ConstraintDescription=f"1 to {prefix_max} letters, digits and hyphens",
        ),
        "VisibilityTimeout": _number(
            "Seconds that a received message is hidden. Workers extend it while a handler runs.",
            profile.visibility_s,
            1,
            43_200,
        ),
        "MessageRetention": _number(
            "Seconds that messages are kept in the queues. Dead-letter and poison queues keep theirs 14 days.",
            profile.retention_s,
            60,
            14 * DAY_S,
        ),
        "MaxReceiveCount": _number(
            "Receives after which SQS itself moves a message to the dead-letter queue: in visibility mode more than "
            "attempts and crashes, in requeue mode more than the crashes that quarantine.",
            profile.max_receives,
            1,
            1000,
        ),
        "DepthThreshold": _number("Messages waiting in a queue that raise its alarm, when more.", 5000, 1),
        "DeadLetterThreshold": _number("Dead messages that raise the alarm for people, when more.", 100, 1),
        "OldestThreshold": _number("Seconds that the oldest message may wait until its alarm is raised.", 900, 1),
        "ErrorRateAlarm": _choice(
            "Whether the share of failing runs raises an alarm. It needs metric math, and workers with --emf.",
            ("on", "off"),
        ),
        "ErrorRateThreshold": _number("Percent of runs that may fail until the alarm is raised.", 30, 1, 100),
        "RunTimeThreshold": _number(
            "Milliseconds of run time that one run in twenty may exceed (p95 of five minutes) until the alarm is "
            "raised. It needs workers with --emf.",
            30_000,
            1,
        ),
        "RunbookUrl": _text(
            "Where the runbook pages that alarms link to are published, without the last slash.",
            RUNBOOKS,
            AllowedPattern=f"{RUNBOOKS}|https?://[^\\s]*[^\\s/]",
            ConstraintDescription="a URL without a slash at its end",
        ),
        "AlarmEmail": _text(
            "The address that gets the alarms by mail; empty for none. It must confirm.",
            "",
            AllowedPattern="|[^@\\s]+@[^@\\s]+",
            ConstraintDescription="an address, or empty",
        ),
        "AutoRedrive": _choice(
            f"What drives dead messages back: the re-driver Lambda{', the state machine' if machine else ''} (with "
            "CodeBucket), or nothing.",
            ("lambda", "state-machine", "off") if machine else ("lambda", "off"),
        ),
        "MaxRedrives": _number("Redrives of a message before it goes to the poison queue.", 5, 0, 1000),
        "RedriveBase": _number(
            "Seconds of wait before a message's first redrive; each further one doubles.", 60, 0, 900
        ),
        "RedriveCap": _number("Seconds that the wait before a redrive grows to at most.", 900, 0, 900),
        "RedriveRate": _text(
            "How many go back to a queue at most, over all that drive them back.",
            "10/s",
            AllowedPattern="[0-9]{1,6}(\\.[0-9]{1,6})?/[smhd]",
            ConstraintDescription="a number per s, m, h or d",
        ),
        "RedriveJitter": _number("The share by which each wait is shorter or longer.", 0.2, 0, 1),
        "RedriveHealthUrl": _text(
            "What must answer a GET with 2xx, or nothing is driven back. Empty: not asked.",
            "",
            AllowedPattern="|https?://.+",
            ConstraintDescription="a URL, or empty",
        ),
        "Dependency": _text(
            "What the queues' tasks call: no redrives while its breaker is open. Empty: not looked at.", ""
        ),
        "CodeBucket": _text(
            "The bucket of the Lambdas' code. Empty: no Lambdas and no state machine, only what workers need.",
            "",
            AllowedPattern="|[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]",
            ConstraintDescription="a bucket's name, or empty",
        ),
        "CodeKey": _text("The zip of redrive in that bucket.", "redrive.zip", MinLength=1),
        "ConsumerHandler": _text("The handler of a Lambda that works the queues, as app.handler; empty for none.", ""),
        "ConsumerKey": _text(
            "The zip of that Lambda in the bucket: your app, and redrive.", "consumer.zip", MinLength=1
        ),
        "ConsumerTimeout": _number(
            "Seconds that the consumer may run. Not more than VisibilityTimeout.", profile.visibility_s // 2, 1, 900
        ),
        "Runtime": _choice("The Python that the Lambdas run on.", RUNTIMES, RUNTIMES[-1]),
        "Architecture": _choice(
            "The processor of the Lambdas; compiled packages in the zip must fit.", ("arm64", "x86_64")
        ),
        "ReservedConcurrency": _text(
            "Invocations at once that the account reserves for each Lambda, which are its most. Empty: none.",
            "",
            AllowedPattern="|[1-9][0-9]{0,3}",
            ConstraintDescription="a number from 1 to 9999, or empty",
        ),
        "KmsKey": _text(
            "The ARN of the KMS key for queues, topics, table and logs. Empty: keys of AWS.",
            "",
            AllowedPattern="|arn:[a-z-]+:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]+",
            ConstraintDescription="the ARN of a key, or empty",
        ),
        "LogRetention": {
            "Type": "Number",
            "Description": "Days that the Lambdas' logs are kept.",
            "Default": profile.log_days,
            "AllowedValues": list(LOG_DAYS),
        },
    }


def conditions(machine: bool) -> Json:
    by_machine = {"RedriveByMachine": _is("AutoRedrive", "state-machine")} if machine else {}
    return {
        "HasCode": {"Fn::Not": [_is("CodeBucket", "")]},
        "HasConsumer": {"Fn::And": [{"Condition": "HasCode"}, {"Fn::Not": [_is("ConsumerHandler", "")]}]},
        "HasDependency": {"Fn::Not": [_is("Dependency", "")]},
        "HasKmsKey": {"Fn::Not": [_is("KmsKey", "")]},
        "HasReserved": {"Fn::Not": [_is("ReservedConcurrency", "")]},
        "HasHealthUrl": {"Fn::Not": [_is("RedriveHealthUrl", "")]},
        "HasEmail": {"Fn::Not": [_is("AlarmEmail", "")]},
        "HasRunbookUrl": {"Fn::Not": [_is("RunbookUrl", RUNBOOKS)]},
        "HasErrorRate": _is("ErrorRateAlarm", "on"),
        "RedriveByLambda": {"Fn::And": [{"Condition": "HasCode"}, _is("AutoRedrive", "lambda")]},
        **by_machine,
    }


def _is(name: str, value: str) -> Json:
    return {"Fn::Equals": [ref(name), value]}


def _text(description: str, default: str, **rules: object) -> Json:
    return {"Type": "String", "Description": description, "Default": default, **rules}


def _choice(description: str, values: tuple[str, ...], default: str | None = None) -> Json:
    return _text(description, values[0] if default is None else default, AllowedValues=list(values))


def _number(description: str, default: float, least: int, most: int | None = None) -> Json:
    bounds = {"MinValue": least} | ({} if most is None else {"MaxValue": most})
    return {"Type": "Number", "Description": description, "Default": default, **bounds}
