"""Flow control in a worker: admit messages by their dependencies' limits, and share the state with other workers."""
