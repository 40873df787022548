"""Clients of AWS services. boto3 is imported in this package only.

Begin with `client`. `http` and `sigv4` are the quick way of the four SQS calls that carry messages.
"""
