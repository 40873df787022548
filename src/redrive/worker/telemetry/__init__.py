"""What a worker tells about itself while it works."""
