"""The records, metrics and reports of a worker about itself."""
