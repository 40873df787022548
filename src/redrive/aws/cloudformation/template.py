"""The infrastructure of a deployment as a CloudFormation template: `redrive aws template` writes it.

For each queue: the SQS queue with its dead-letter and poison queue, named so that `sqs://REGION/PREFIX` finds them, a
filtered subscription to the topic, alarms, the re-driver and the state machine. Shared: the topic, the table of cells,
a dashboard, policies for workers and producers. Plain values, made without any library of AWS.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from msgspec import Struct

from ..._version import __version__
from ...errors import ConfigError, near_miss
from . import alarms, lambdas, queues
from . import machine as machines
from .names import (
    Json,
    Named,
    Resources,
    att,
    named,
    prefix_max,
    ref,
    sub,
)
from .parameters import PROFILES, conditions, parameters
from .yaml_text import dump

RESOURCES_MAX = 500  # CloudFormation's limit of a template
INLINE_MAX = 51_200  # bytes of a template that can be passed as text; a larger one goes through a bucket
BYTES_MAX = 1_048_576
PARTITIONS = ("aws", "aws-cn", "aws-us-gov")


class Settings(Struct, frozen=True, kw_only=True):
    """The options of the template.

    - `profile`: standard, high-volume or critical.
    - `filters`: SNS filter policies by queue (default: attribute `queue` is the queue's name). `filter_scope` is the
      part of the message that they match: attributes, data or body, as in `Topic.subscribe`. `topic`: its name after
      the prefix.
    - `keep`: queues and table outlive the stack (default: the profile's).
    - `machine`: include the state machine that redrives dead messages: a third of the template.
    - `approval`: the state machine asks a person, through the topic of alarms, before it moves messages.
    - `partition`: the AWS partition of the services that the machine calls.
    - `consumers`: most concurrent invocations of a queue's consumer Lambda, 2 to 1,000.
    """

    prefix: str = "redrive"
    queues: Sequence[str] = ("default",)
    profile: str = "standard"
    fifo: bool = False
    filters: Mapping[str, Mapping[str, Any]] = {}
    filter_scope: str = "attributes"
    topic: str = "events"
    keep: bool | None = None
    machine: bool = False
    approval: bool = False
    partition: str = "aws"
    consumers: int = 50

    @property
    def with_machine(self) -> bool:
        """True if the template has a state machine; an approval implies one."""
        return self.machine or self.approval


def template(settings: Settings) -> dict[str, Any]:
    """Return the template as plain values: dicts, lists, texts and numbers; no None. Raises ConfigError."""
    _check(settings)
    profile = PROFILES[settings.profile]
    queues = named(settings.queues, settings.fifo, settings.filters, settings.filter_scope)
    made = {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"redrive {__version__}: queues {', '.join(one.queue for one in queues)}"[:1024],
        "Parameters": parameters(settings.prefix, _prefix_max(settings.prefix, queues), profile, settings.with_machine),
        "Conditions": conditions(settings.with_machine),
        "Resources": _resources(queues, settings, profile.keep if settings.keep is None else settings.keep),
        "Outputs": _outputs(queues, settings.with_machine),
    }
    return deepcopy(made)  # parts that it shares with other templates are not the caller's to change


def text(template: Mapping[str, Any], form: str = "yaml") -> str:
    """Return the template as text: `yaml` or `json`. Raises ConfigError if it exceeds CloudFormation's limit."""
    content = dump(template) if form == "yaml" else json.dumps(template, indent=2, ensure_ascii=False) + "\n"
    if len(content.encode()) > BYTES_MAX:
        raise ConfigError(f"the template has {len(content.encode()):,} bytes, and CloudFormation takes {BYTES_MAX:,}")
    return content


def _check(settings: Settings) -> None:
    if settings.profile not in PROFILES:
        near = near_miss(settings.profile, PROFILES)
        meant = f"; did you mean {near!r}?" if near else ""
        raise ConfigError(f"profile {settings.profile!r}: expected one of {', '.join(PROFILES)}{meant}")
    if not re.fullmatch("[A-Za-z0-9_-]{1,100}", settings.topic):
        raise ConfigError(f"topic {settings.topic!r}: expected 1 to 100 of the characters A-Z a-z 0-9 _ -")
    if settings.partition not in PARTITIONS:
        raise ConfigError(f"partition {settings.partition!r}: expected one of {', '.join(PARTITIONS)}")
    if not 2 <= settings.consumers <= 1000:
        raise ConfigError(f"consumers={settings.consumers}: expected 2 to 1,000 invocations at once, as Lambda takes")
    for queue in settings.filters:
        if queue not in settings.queues:
            raise ConfigError(f"a filter is for queue {queue!r}, which is none of {', '.join(settings.queues)}")


def _prefix_max(prefix: str, queues: Sequence[Named]) -> int:
    most = prefix_max(queues)
    if not re.fullmatch(f"[A-Za-z0-9-]{{1,{most}}}", prefix):
        raise ConfigError(
            f"prefix {prefix!r}: expected 1 to {most} letters, digits and hyphens, as the name of an SQS queue has at "
            "most 80 characters"
        )
    return most


def _resources(names: Sequence[Named], settings: Settings, keep: bool) -> Resources:
    resources = queues.shared(settings.topic, settings.fifo, keep) | alarms.shared()
    for of in names:
        own = queues.queues(of, keep) | queues.subscription(of, keep)
        own |= lambdas.redriver(of) | lambdas.consumer(of, settings.consumers) | alarms.alarms(of)
        if settings.with_machine:
            own |= machines.machine(of, settings.approval, settings.partition)
        if taken := own.keys() & resources.keys():
            raise ConfigError(f"queue {of.queue!r}: {min(taken)} is the logical name of another resource; rename it")
        resources |= own
    resources |= {f"{name}Access": _policy(name.lower(), names) for name in ("Worker", "Producer", "Triage")}
    if (count := len(resources) + 1) > RESOURCES_MAX:  # plus one for the dashboard
        raise ConfigError(
            f"{len(names)} queues make {count} resources, and CloudFormation takes {RESOURCES_MAX}; make "
            "several stacks, each with a prefix of its own"
        )
    return resources | alarms.dashboard(names)


def _policy(role: str, queues: Sequence[Named]) -> Json:
    """Return a managed policy for programs of this role; AWS allows 6,144 characters."""
    statements = lambdas.gathered(lambdas.merged([one for of in queues for one in lambdas.statements_of(role, of)]))
    properties = {
        "Description": f"What a redrive {role} calls, and no more",
        "PolicyDocument": {"Version": "2012-10-17", "Statement": [*statements, lambdas.USES_KEY]},
    }
    return {"Type": "AWS::IAM::ManagedPolicy", "Properties": properties}


def _outputs(queues: Sequence[Named], machine: bool) -> Json:
    outputs = {
        "Url": _output("url", "The store's URL, for redrive worker and others", lambdas.url()),
        "TopicArn": _output("topic", "Publish here", ref("Topic")),
        "AlarmsArn": _output("alarms", "Alarms for people come from here", ref("Alarms")),
        "CellsTable": _output("cells", "The table of cells", ref("Cells")),
        "WorkerAccess": _output("worker-access", "Attach to the role of workers", ref("WorkerAccess")),
        "ProducerAccess": _output("producer-access", "Attach to roles that enqueue", ref("ProducerAccess")),
        "TriageAccess": _output("triage-access", "Attach to the role of dlq ingest and redrives", ref("TriageAccess")),
    }
    for of in queues:
        outputs |= _outputs_of(of, machine)
    return outputs


def _outputs_of(of: Named, machine: bool) -> Json:
    id = of.id
    kinds = {"Queue": "The queue", "Dlq": "Its dead-letter queue", "Poison": "Its poison queue"}
    outputs: Json = {}
    for kind, text in kinds.items():
        key = f"{_dashed(of.queue)}-{kind.lower()}"
        outputs[f"{id}{kind}Url"] = _output(f"{key}-url", f"{text}: URL", ref(f"{id}{kind}"))
        outputs[f"{id}{kind}Arn"] = _output(f"{key}-arn", f"{text}: ARN", att(f"{id}{kind}"))
    outputs[f"{id}RedriverArn"] = _output(
        f"{_dashed(of.queue)}-redriver", "The re-driver Lambda", att(f"{id}Redriver"), "HasCode"
    )
    if machine:
        key = f"{_dashed(of.queue)}-machine"
        outputs[f"{id}MachineArn"] = _output(key, "Its state machine", ref(f"{id}Machine"), "HasCode")
    return outputs


def _output(key: str, text: str, value: Json, condition: str | None = None) -> Json:
    output = {"Description": text, "Value": value, "Export": {"Name": sub(f"${{AWS::StackName}}-{key}")}}
    return output if condition is None else {"Condition": condition, **output}


def _dashed(queue: str) -> str:
    return queue.replace("_", "-")  # export names may not have underscores


__all__ = ["PROFILES", "Settings", "template", "text"]
