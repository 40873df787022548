"""`redrive demo`: real webhooks, an endpoint that misbehaves, and the proof that none is lost. Needs the extra `http`.

Begin with `run`. `endpoint` and `ledger` are processes of their own: the server, and the proof from its log. `plan`
draws what the endpoint does, `redrive` runs the redrives, `view` prints.
"""
