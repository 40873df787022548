"""Dead-letter queues of SQS: read, drained into a triage store, moved back by SQS itself."""
