"""The program `redrive`: all commands by name. Only this package imports command line, pages and terminal alike."""
