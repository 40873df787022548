"""What a worker does while newer releases of its app run beside it, or older ones."""
