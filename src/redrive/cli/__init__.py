"""The command line. `main` names all commands; each is in a module of its own, which is imported when it is called.

`opening` opens the store and the app of a command, `selecting` has the options that select dead messages, and
`terminal` writes data and failures.
"""
