"""The plot of each lesson is the one that its page's own scenario and command make now."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest
from tests.docs.pages import ROOT


def _script() -> Any:
    loader = SourceFileLoader("lesson_plots", str(ROOT / "scripts/lesson_plots"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


PLOTS = _script()


@pytest.mark.slow
@pytest.mark.parametrize("page", PLOTS.lessons(), ids=lambda page: page.stem)
def test_the_plot_of_a_lesson_is_current(page: Path) -> None:
    plot = PLOTS.PLOTS / f"{page.stem}.svg"
    assert PLOTS.plot_of(page) == plot.read_text(), "run scripts/lesson_plots"
    assert f"../assets/lessons/{plot.name})" in page.read_text()


def test_each_plot_belongs_to_a_lesson() -> None:
    assert {plot.stem for plot in PLOTS.PLOTS.glob("*.svg")} == {page.stem for page in PLOTS.lessons()}
