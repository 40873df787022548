"""`redrive demo`: real webhooks, an endpoint that misbehaves, and the proof that none is lost. Needs the extra `http`.

Begin with `run`. `endpoint` and `ledger` are processes of their own, started by `processes`: the server, and the proof
from its log. `plan` draws what the endpoint does, `redrive` runs the redrives, `outage` runs one outage with a circuit
breaker and without, and `view` prints.
"""
