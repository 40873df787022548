"""Run a task once for each idempotency key: acquire the key, complete it with the result, or release it."""
