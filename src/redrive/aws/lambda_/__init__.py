"""Messages of SQS in a Lambda function: claimed, run and settled as a worker does it, one event at a time."""
