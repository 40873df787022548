"""The prices of AWS that `redrive cost` uses, in US East (N. Virginia). They are AWS's to change. Of
the free tiers, only that of SQS is here.

As read in November 2026, from the sources beside them; AWS's own lists rule: aws.amazon.com/SERVICE/pricing.
"""

from __future__ import annotations

# SQS, dollars per million requests of 64 KiB, for the first 100 thousand million a month. FAIR is added to STANDARD for
# messages with a group. cloudburn.io/blog/amazon-sqs-pricing
STANDARD, FIFO, FAIR = 0.40, 0.50, 0.10
FREE = 1_000_000  # requests per month that are free for an account

# DynamoDB on demand, dollars per million units: a write of 1 KiB; a consistent read of 4 KiB.
# airbyte.com/data-engineering-resources/dynamodb-pricing (July 2025: halved in November 2024)
WRITE_UNIT, READ_UNIT = 0.625, 0.125

# Lambda on x86, dollars per million requests, and per GB-second.
# docs.aws.amazon.com/whitepapers/latest/how-aws-pricing-works/lambda.html
INVOCATIONS, GB_SECOND = 0.20, 0.0000166667

# S3 Standard, dollars per million PUTs and GETs (deletes are free), and per GB and month.
# devnotes.tech/understanding-aws-s3-pricing-a-complete-cost-breakdown-with-examples
PUTS, GETS, STORED_GB = 5.00, 0.40, 0.023

# CloudWatch, dollars per custom metric and month (signoz.io/guides/cloudwatch-pricing), per standard alarm and month,
# and per GB of logs taken in (aws.amazon.com/cloudwatch/pricing).
METRIC, ALARM, LOGS_GB = 0.30, 0.10, 0.50
