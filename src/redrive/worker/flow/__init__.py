"""Flow control in a worker: the controller, and what it keeps in its process."""
