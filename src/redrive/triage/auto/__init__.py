"""Automatic redrives: `rules` are standing rules, `machine` is the stored state of a machine, `runner` runs it, and
`scan` finds the messages that are due."""
