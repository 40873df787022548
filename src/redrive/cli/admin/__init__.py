"""Commands about the store and its settings."""
