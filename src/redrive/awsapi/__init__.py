"""Clients of AWS services. boto3 is imported in this package only.

Begin with `client`. `http` and `sigv4` make the four SQS calls that carry messages, faster than boto3.
"""
