"""`import redrive` is cheap, and yet everything public is there."""

from __future__ import annotations

import subprocess
import sys

import pytest

import redrive


@pytest.mark.parametrize("name", redrive.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(redrive, name) is getattr(redrive, name)
    assert name in dir(redrive)


def test_the_pinned_modules_are_there_after_a_plain_import() -> None:
    program = """
import redrive
assert callable(redrive.context) and callable(redrive.fault.classify) and redrive.presets["standard_api"]
import redrive.app
import redrive.enqueue
import redrive.task
from redrive import App, context
assert callable(redrive.context) and callable(context)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_importing_the_package_loads_none_of_its_parts() -> None:
    program = """
import sys, redrive
assert not [m for m in sys.modules if m.startswith("redrive.") and m != "redrive._version"]
assert "msgspec" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_an_unknown_name_names_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'Ap'; it has SLO, Aimd, App, AutoRedrive"):
        _ = redrive.Ap  # type: ignore[attr-defined]
