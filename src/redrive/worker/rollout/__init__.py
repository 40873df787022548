"""The part of a worker for rollouts: newer or older releases of its app run beside it."""
