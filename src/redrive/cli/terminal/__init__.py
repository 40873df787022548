"""The output of commands: tables, JSON and errors. Begin with `output`; `failure` has errors and exit codes."""
