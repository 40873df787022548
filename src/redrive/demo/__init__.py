"""`redrive demo`: real webhooks, an endpoint that misbehaves, the proof that none is lost. Needs the extra `http`."""
