"""The command line: one module per command, imported when the command is called.

Begin with `main`, which finds the commands by name, and `place`, which opens the app or the store that a command works
on. `terminal` prints.
"""
