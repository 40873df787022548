"""The examples that end each command's help. A test runs them. ID, PLAN, RUN and FINGERPRINT stand for real ones."""

from __future__ import annotations

import click

EXAMPLES: dict[str, tuple[str, ...]] = {
    "": ("init shop", "enqueue crm.push '{\"record_id\": 42}'", "dlq groups"),
    "init": ("init shop --url postgresql://localhost/app",),
    "demo": ("demo", "demo --url postgresql://localhost/app", "demo --picture outage.svg"),
    "deliver": ("deliver events.jsonl --to https://example.com/hook --rate 50/s",),
    "worker": ("worker shop:app -q crm:20,mail --lease 30s",),
    "scheduler": ("scheduler shop:app",),
    "celery": ("celery shop:app", "celery shop:app --held 0s --burst"),
    "enqueue": ("enqueue crm.push '{\"record_id\": 42}' --delay 5m",),
    "status": ("status", "status -o json"),
    "workers": ("workers -v", "workers -o json"),
    "job": ("job list --state dead --since 6h",),
    "job show": ("job show ID", 'job show ID --body --reveal --reason "whose account?"'),
    "job list": ("job list --queue crm --state scheduled", "job list --since 6h -o jsonl"),
    "job cancel": ('job cancel ID --reason "ordered twice"',),
    "queue": ("queue list",),
    "queue list": ("queue list", "queue list -o json"),
    "queue pause": ('queue pause crm --reason "their maintenance"',),
    "queue resume": ('queue resume crm --reason "they are back"',),
    "queue purge": ("queue purge crm --dry-run", 'queue purge crm --yes --reason "a wrong import"'),
    "group": ("group list crm --blocked",),
    "group list": ("group list crm --blocked",),
    "group width": ("group width crm 3", 'group width crm 1 --group acme --reason "their limit"'),
    "group resume": ('group resume line acme --reason "the order was cancelled"',),
    "flow": ("flow list",),
    "flow list": ("flow list",),
    "flow show": ("flow show stripe",),
    "flow set": (
        'flow set stripe --breaker open --reason "their maintenance"',
        'flow set stripe --cooldown off --reason "they meant seconds"',
    ),
    "dlq": ("dlq groups", "dlq list 'queue:crm failed:<6h'"),
    "dlq list": ("dlq list --queue crm --died-of exhausted", "dlq list 'queue:crm failed:<6h -error:*Timeout'"),
    "dlq show": ("dlq show ID",),
    "dlq groups": ("dlq groups", "dlq groups 'queue:crm failed:<6h'"),
    "dlq group": ("dlq group FINGERPRINT",),
    "dlq retry": (
        'dlq retry ID --reason "their data is fixed"',
        'dlq retry --all --queue crm --died-of exhausted --reason "CRM-77"',
    ),
    "dlq plan": ("dlq plan 'queue:crm failed:<6h' --rate 20/s --canary 5 --slow-start",),
    "dlq apply": ('dlq apply PLAN --reason "the CRM is up again"',),
    "dlq edit": ('dlq edit ID --set record_id=42 --reason "a typo in the import"',),
    "dlq discard": (
        'dlq discard ID --yes --reason "ordered twice"',
        'dlq discard queue:mail --yes --reason "spam"',
    ),
    "dlq quarantine": ('dlq quarantine ID --reason "it kills their parser"',),
    "dlq readmit": ('dlq readmit --all --reason "their parser is fixed"',),
    "dlq export": ('dlq export queue:crm -f dead.jsonl --reveal --reason "a replay"',),
    "dlq import": ('dlq import dead.jsonl --url sqlite:///here.db --reason "a replay"',),
    "dlq note": ('dlq note FINGERPRINT "CRM-77: their cluster moves, back at 14:00"',),
    "dlq own": ("dlq own FINGERPRINT crm-team",),
    "dlq mute": ('dlq mute FINGERPRINT 4h --reason "known, CRM-77"',),
    "dlq rule": ("dlq rule", 'dlq rule FINGERPRINT hold --reason "not before CRM-77 is closed"'),
    "dlq audit": ("dlq audit --since 6h",),
    "dlq auto": ("dlq auto", 'dlq auto crm --pause --reason "their schema changed"'),
    "dlq ingest": ("dlq ingest --queue crm --follow",),
    "dlq move": ("dlq move crm --rate 50 --watch",),
    "run": ("run list --open",),
    "run list": ("run list --open",),
    "run show": ("run show RUN",),
    "run watch": ("run watch RUN --timeout 10m",),
    "run failures": ("run failures RUN",),
    "run pause": ('run pause RUN --reason "the CRM is slow"',),
    "run resume": ('run resume RUN --reason "it is fast again"',),
    "run cancel": ('run cancel RUN --reason "a wrong selection"',),
    "run undo": ('run undo RUN --reason "a wrong selection"',),
    "run approve": ('run approve RUN --reason "checked with the CRM team"',),
    "schedule": ("schedule list",),
    "schedule list": ("schedule list",),
    "schedule next": ("schedule next nightly -n 3",),
    "schedule run": ('schedule run nightly --reason "it was missed"',),
    "schedule pause": ('schedule pause nightly --reason "their maintenance"',),
    "schedule resume": ('schedule resume nightly --reason "they are back"',),
    "audit": ("audit list --since 6h",),
    "audit list": ("audit list --since 6h", "audit list --actor ann -o jsonl"),
    "audit verify": ("audit verify",),
    "audit export": ("audit export -f audit.jsonl",),
    "metrics": ("metrics print",),
    "metrics serve": ("metrics serve --url sqlite:///work.db --port 9464",),
    "metrics print": ("metrics print --url sqlite:///work.db",),
    "policy": ("policy preview webhooks",),
    "policy list": ("policy list",),
    "policy preview": ("policy preview webhooks", "policy preview --app shop:app --task crm.push --kind throttled"),
    "cost": ("cost --messages 10M --retries 20% --pollers 3 --body 2KB",),
    "schema": ("schema export --app shop:app",),
    "schema export": ("schema export --app shop:app --task crm.push", "schema export --app shop:app -d schemas"),
    "aws": ("aws template --prefix shop -q orders --out redrive.yaml",),
    "aws template": ("aws template --prefix shop -q orders -q mails --out redrive.yaml",),
    "aws package": ("aws package redriver.zip", "aws package shop.zip --add shop"),
    "keys": ("keys new 2026-11",),
    "keys new": ("keys new 2026-11",),
    "keys status": ("keys status",),
    "doctor": ("doctor",),
    "history": ("history --since 24h", "history --task crm.push --since 1h --step 5m -o json"),
    "slo": ("slo --app shop:app",),
    "store": ("store doctor",),
    "store check": ("store check",),
    "store doctor": ("store doctor",),
    "store info": ("store info -o json",),
    "store sql": ("store sql 'postgresql://db.example.com/app?schema=redrive'",),
    "store upgrade": ("store upgrade --url sqlite:///work.db",),
    "store sweep": ("store sweep --older-than 2h",),
    "config": ("config show",),
    "config show": ("config show", "config show -o json"),
    "completion": ("completion bash", "completion fish"),
    "version": ("version",),
}


def epilog(context: click.Context, name: str = "") -> str | None:
    """The end of the help of a command of this group, or of the group itself."""
    path = [name] if name else []
    while context.parent is not None:
        path.insert(0, context.info_name or "")
        context = context.parent
    lines = EXAMPLES.get(" ".join(path), ())
    return (
        "\n".join(["\b", "Examples:" if len(lines) > 1 else "Example:", *(f"  redrive {line}" for line in lines)])
        if lines
        else None
    )
