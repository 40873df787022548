"""The re-driver: a Lambda function that moves dead messages back to their queue, or to the poison queue."""
