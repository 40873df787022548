"""The selector language: `parser.parse` parses it, `terms` defines its tree, `match.matches` applies it to a
message."""
