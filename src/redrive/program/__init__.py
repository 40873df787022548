"""The program `redrive`: all commands by name. The only place above the command line, the pages and the terminal."""
