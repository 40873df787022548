"""The selector language: `parser.parse` reads it, `terms` is its tree, `match.matches` applies it to a message."""
