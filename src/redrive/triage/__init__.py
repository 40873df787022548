"""Dead letters: find them, act on them, and redrive them.

`dlq.DeadLetters` is `app.dlq`, and `controls.Controls` is `app.flow`. In the order of a redrive: `selection` selects
messages by a selector (`select`), `redrive.plan` freezes them in a plan, `redrive.runner` runs it, and `service` does
runs it beside a worker, together with the machines that redrive automatically (`auto`).
"""
