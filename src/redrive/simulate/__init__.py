"""Simulate load, outages and redrives on a virtual clock, and forecast with that what a store will do.

What decides is the product itself: `decide.admit`, `decide.decide`, the transitions of `flow`, the pace and the gates
of redrives. What is modelled is what they decide about: arrivals, workers with places, and a dependency.
"""

from __future__ import annotations

from .forecast import (
    BreakerForecast,
    BreakerReturn,
    PlanForecast,
    QueueForecast,
    forecast_breaker,
    forecast_plan,
    forecast_queue,
)
from .scenario import FleetChange, LoadPhase, PlannedRedrive, Scenario, Simulated, simulate
from .scenario_file import read_scenario
from .score import PendingForecast, Score, ScoredForecast, foretell, foretold, read_score
from .service import ModelService, ServicePhase
from .world import FleetSize

__all__ = [
    "BreakerForecast",
    "BreakerReturn",
    "FleetChange",
    "FleetSize",
    "LoadPhase",
    "ModelService",
    "PendingForecast",
    "PlanForecast",
    "PlannedRedrive",
    "QueueForecast",
    "Scenario",
    "Score",
    "ScoredForecast",
    "ServicePhase",
    "Simulated",
    "forecast_breaker",
    "forecast_plan",
    "forecast_queue",
    "foretell",
    "foretold",
    "read_scenario",
    "read_score",
    "simulate",
]
