"""`--plot` draws what was simulated, and how near forecasts came, into a file: the same data, the same bytes."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from PIL import Image
from tests.support.simulation.endpoints import Fragile
from tests.support.simulation.redrives import Redriving
from tests.unit.simulate.test_forecasts import foreseen, play_on

from redrive.cli import simulate as command
from redrive.cli.forecast import score
from redrive.errors import ConfigError
from redrive.present.forecasts import score_words
from redrive.present.plots import _openings, _standing, check, write_score
from redrive.simulate import read_score
from redrive.simulate.scenario import Simulated

ARGV = ("outage", "--for", "180", "--rate", "5", "--compare", "breaker=on", "--compare", "attempts=2", "-o", "tsv")


def _plot(path: Path, *more: str) -> Any:
    return CliRunner().invoke(command.simulate, [*ARGV, *more, "--plot", str(path)])


def test_a_simulation_has_a_panel_for_each_variant_and_the_same_bytes(tmp_path: Path) -> None:
    first, second, other = (tmp_path / f"{name}.svg" for name in ("first", "second", "other"))
    runs = [_plot(first), _plot(second), _plot(other, "--seed", "1")]
    assert [came.exit_code for came in runs] == [0, 0, 0]
    assert first.read_bytes() == second.read_bytes() != other.read_bytes()
    words = re.findall(r"<text [^>]*>([^<]+)</text>", first.read_text())
    assert {"default: per second", "breaker=on: per second", "attempts=2: per second", "breaker open"} <= {*words}
    assert any("dead: exhausted" in each for each in words)


def test_a_plot_may_be_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "plot.png"
    assert _plot(path).exit_code == 0
    with Image.open(path) as picture:
        assert picture.format == "PNG" and picture.width > 500


@pytest.mark.parametrize(
    ("name", "said"), [("plot.pdf", r"plot\.pdf is refused; expected"), ("no/plot.svg", "there is no directory")]
)
def test_a_file_that_cannot_be_drawn_is_refused_before_anything_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.setattr(command, "play", lambda *_: pytest.fail("it played"))
    with pytest.raises(ConfigError, match=said):
        CliRunner().invoke(command.simulate, [*ARGV, "--plot", str(tmp_path / name)], catch_exceptions=False)


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "matplotlib", raising=False)
    with pytest.raises(ConfigError, match=r"--plot needs matplotlib; pip install 'redrive\[plot\]'"):
        check(tmp_path / "plot.svg")


def test_the_score_has_a_bar_for_each_run(tmp_path: Path) -> None:
    scene = Redriving(Fragile(100_000))
    scene.bury(100)
    run = scene.start(rate="40/s")
    foreseen(scene, run)
    play_on(scene)
    made = read_score(scene.store)
    write_score(path := tmp_path / "score.svg", made, score_words(made))
    assert run.id[-8:] in path.read_text() and score_words(made) in path.read_text()


def test_what_waits_and_what_has_died_adds_up() -> None:
    came = Simulated(
        seed=0, arrived=[5, 0, 2], calls=[], retries=[], done=[1, 2], deaths=[0, 1, 1], dead={"exhausted": 2}, left=2,
        drained_s=None, breaker=[(1.0, "open"), (2.0, "half_open"), (3.0, "closed"), (5.0, "open")], p50_s=None,
        p99_s=None,
    )  # fmt: skip
    assert _standing(came, 4) == ([4, 1, 2, 2], [0, 1, 2, 2])
    assert _openings(came, 9) == [(1.0, 3.0), (5.0, 9.0)]


def test_a_score_without_runs_is_not_drawn_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "work.db").touch()
    url, path = f"sqlite:///{tmp_path}/work.db", tmp_path / "score.svg"
    came = CliRunner().invoke(score, ["--url", url, "--plot", str(path)])
    assert came.exit_code == 0 and not path.exists()
    assert "score.svg was not written: no run with a forecast is over" in came.stderr
