"""What a worker records of the runs it starts, and what happens to them after it was killed."""
