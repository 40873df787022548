"""Clients of AWS services, and the quick way of the four calls that carry messages. boto3 is imported here only."""
