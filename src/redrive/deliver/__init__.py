"""`redrive deliver`: the lines of a file as durable HTTP POSTs. Needs the extra `http`."""
