"""The four SQS calls that a worker makes all the time, signed and sent by other libraries than ours."""

from __future__ import annotations

from functools import partial

from .aws_libraries import VARIANTS
from .harness import CONCURRENCY, Child, Options, Place, Reading, interleaved, ratio
from .sqs import OURS, Consumer, run
from .sqs_roles import ours_at


def aws_calls(options: Options) -> list[Reading]:
    """A worker whose SQS calls other libraries sign and carry, each in pairs with ours: speed, processor time."""
    found: list[Reading] = []
    for name in list(VARIANTS)[1:]:
        pair = interleaved(options.rounds, {n: partial(_measured, options, n) for n in ("ours", name)})
        rates, cpus = ({n: [measured[at] for measured in runs] for n, runs in pair.items()} for at in (0, 1))
        found += [
            Reading(f"{name}, CPU", "µs", cpus[name]),
            ratio(f"CPU, {name} / ours", cpus[name], cpus["ours"]),
            ratio(f"speed, {name} / ours", rates[name], rates["ours"]),
        ]
    return found


def _measured(options: Options, name: str) -> tuple[float, float]:
    def start(place: Place, endpoint: str, failing: bool) -> Child:
        url = ours_at(endpoint, place.folder.name, "visibility")
        return Child(place.folder, "library", url, CONCURRENCY, place.folder / "library.records", name)

    return run(options, Consumer(name, OURS.fill, start), options.messages)[1]
