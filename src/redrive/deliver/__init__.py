"""`redrive deliver`: send the lines of a file as durable HTTP POSTs. Needs the extra `http`.

Begin with `run`. `spool` and `lines` read and check the file, `ingest` enqueues each line once, `sending` has the task
that POSTs one, and `summary` counts the outcomes.
"""
