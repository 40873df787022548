"""Cells on DynamoDB, for what SQS cannot keep."""
