"""What a worker tells of itself while it works."""
