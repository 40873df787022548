"""The rules of the store contract, by subject; `redrive.testing.contract` puts them together."""
