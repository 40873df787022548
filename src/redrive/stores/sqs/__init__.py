"""The store on AWS SQS: `store.SqsStore`, and `wire`, how messages are written to SQS.

Nothing is imported here, as the Lambda function that redrives dead messages starts with `wire` alone.
"""
