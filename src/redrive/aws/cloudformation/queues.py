"""The topic, the SQS queues of one redrive queue, its filtered subscription, and the table of cells."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ..sns import SCOPES, filter_policy
from .names import (
    NOTHING,
    Json,
    Named,
    Resources,
    att,
    either,
    ref,
    sub,
    tls_only,
    with_key,
)
from .parameters import DAY_S

KEPT_S = 14 * DAY_S  # retention of dead, poison and undeliverable messages: SQS's maximum
UNDELIVERED = "-undelivered"
WORK = "-work"


def shared(name: str, fifo: bool, keep: bool) -> Resources:
    """Return the resources that all queues share: the topic that sends them messages, and the table of cells."""
    topic: Json = {
        "TopicName": sub(f"${{Prefix}}-{name}{'.fifo' if fifo else ''}"),
        "KmsMasterKeyId": with_key(ref("KmsKey")),
    }
    if fifo:
        topic |= {"FifoTopic": True, "ContentBasedDeduplication": True, "FifoThroughputScope": "MessageGroup"}
    table = {
        "TableName": sub("${Prefix}-cells"),
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [{"AttributeName": "k", "AttributeType": "S"}],
        "KeySchema": [{"AttributeName": "k", "KeyType": "HASH"}],
        "TimeToLiveSpecification": {"AttributeName": "ttl", "Enabled": True},
        "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True},
        "SSESpecification": with_key({"SSEEnabled": True, "SSEType": "KMS", "KMSMasterKeyId": ref("KmsKey")}),
        "DeletionProtectionEnabled": keep,
    }
    return {
        "Topic": {"Type": "AWS::SNS::Topic", "Properties": topic},
        "TlsOnlyTopic": topic_policy("Topic", [tls_only("sns:Publish", ref("Topic"))]),
        "Cells": _kept({"Type": "AWS::DynamoDB::Table", "Properties": table}, keep),
    }


def queues(of: Named, keep: bool) -> Resources:
    """Return the SQS queues of one redrive queue: its own, dead-letter, poison and the re-driver's work queue."""
    id = of.id
    dead = {"deadLetterTargetArn": att(f"{id}Dlq"), "maxReceiveCount": ref("MaxReceiveCount")}
    main = _queue(of, "", ref("MessageRetention"), VisibilityTimeout=ref("VisibilityTimeout"), RedrivePolicy=dead)
    only_this = {"redrivePermission": "byQueue", "sourceQueueArns": [of.arn()]}
    resources = {
        f"{id}Queue": main,
        f"{id}Dlq": _queue(of, "-dlq", KEPT_S, RedriveAllowPolicy=only_this),
        f"{id}Poison": _queue(of, "-poison", KEPT_S, RedriveAllowPolicy={"redrivePermission": "denyAll"}),
    }
    work = {
        "QueueName": sub(of.sqs(WORK, fifo=False)),
        "VisibilityTimeout": 720,  # six times the re-driver's timeout, as AWS recommends for event sources
        "MessageRetentionPeriod": 3600,  # by then a message is outdated, and the rule calls again
        **_encrypted(),
    }
    resources[f"{id}TlsOnly"] = _queue_policy(
        [ref(f"{id}Dlq"), ref(f"{id}Poison"), either("HasCode", ref(f"{id}Work"), NOTHING)], [tls_only("sqs:*", "*")]
    )
    resources[f"{id}Work"] = {"Type": "AWS::SQS::Queue", "Condition": "HasCode", "Properties": work}
    return {name: _kept(one, keep and name not in (f"{id}Work", f"{id}TlsOnly")) for name, one in resources.items()}


def subscription(of: Named, keep: bool) -> Resources:
    """Return the raw, filtered subscription of the queue to the topic, with its own dead-letter queue for messages that
    SNS cannot deliver: StartMessageMoveTask could not move them from one that subscriptions share."""
    id = of.id
    policy = json.loads(filter_policy(of.filter, of.filter_scope))  # raises for a filter that SNS would refuse
    properties = {
        "TopicArn": ref("Topic"),
        "Protocol": "sqs",
        "Endpoint": att(f"{id}Queue"),
        "RawMessageDelivery": True,
        "FilterPolicyScope": SCOPES[of.filter_scope],
        "FilterPolicy": policy,
        "RedrivePolicy": {"deadLetterTargetArn": att(f"{id}Undelivered")},
    }
    return {
        f"{id}Undelivered": _kept(_queue(of, UNDELIVERED, KEPT_S), keep),
        f"{id}Subscription": {
            "Type": "AWS::SNS::Subscription",
            "DependsOn": f"{id}QueueAllowed",
            "Properties": properties,
        },
        f"{id}QueueAllowed": _from_topic(f"{id}Queue"),
        f"{id}UndeliveredAllowed": _from_topic(f"{id}Undelivered"),
    }


def _queue(of: Named, suffix: str, retention: Json | int, **properties: object) -> Json:
    fields: Json = {
        "QueueName": sub(of.sqs(suffix)),
        "MessageRetentionPeriod": retention,
        "ReceiveMessageWaitTimeSeconds": 20,
        **_encrypted(),
        **properties,
    }
    if of.fifo:
        fields |= {
            "FifoQueue": True,
            "ContentBasedDeduplication": True,
            "DeduplicationScope": "messageGroup",
            "FifoThroughputLimit": "perMessageGroupId",
        }
    return {"Type": "AWS::SQS::Queue", "Properties": fields}


def _from_topic(queue: str) -> Json:
    """Return the policy that lets only the topic send to the SQS queue with this logical name."""
    allow = {
        "Sid": "FromTopic",
        "Effect": "Allow",
        "Principal": {"Service": "sns.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": att(queue),
        "Condition": {"ArnEquals": {"aws:SourceArn": ref("Topic")}},
    }
    return _queue_policy([ref(queue)], [allow, tls_only("sqs:*", att(queue))])


def _encrypted() -> Json:
    """Return the SQS properties for encryption at rest, with the stack's key, or SQS's own without one."""
    return {
        "KmsMasterKeyId": with_key(ref("KmsKey")),
        "SqsManagedSseEnabled": with_key(NOTHING, True),
    }


def _queue_policy(queues: Sequence[Json], statements: Sequence[Json]) -> Json:
    document = {"Version": "2012-10-17", "Statement": list(statements)}
    return {"Type": "AWS::SQS::QueuePolicy", "Properties": {"Queues": list(queues), "PolicyDocument": document}}


def topic_policy(topic: str, statements: Sequence[Json]) -> Json:
    """Return a policy with these statements for the topic with this logical name."""
    document = {"Version": "2012-10-17", "Statement": list(statements)}
    return {"Type": "AWS::SNS::TopicPolicy", "Properties": {"Topics": [ref(topic)], "PolicyDocument": document}}


def _kept(resource: Json, keep: bool) -> Json:
    return resource | ({"DeletionPolicy": "Retain", "UpdateReplacePolicy": "Retain"} if keep else {})
