"""Where a score stands among published ones: only where it was scored as they were, and in its place."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from socialx.files.published import DATASETS, PublishedScore
from socialx.scoring.ladder import published
from socialx.scoring.metrics import HorizonScores, Scores
from socialx.views.score_tables import print_ladder
from tests.commands import refused, small_file, small_run, works
from tests.protocols import protocol


def scores(*mae: float) -> HorizonScores:
    """Twelve steps and all of them; mae at 15, 30 and 60 minutes."""
    at = {2: mae[0], 5: mae[1], 11: mae[2]}
    *by_step, overall = (Scores(at.get(step, 9.0), 9.0, 9.0, 0.5, 10) for step in range(13))
    return HorizonScores(tuple(by_step), overall)


def test_the_whole_data_set_scored_by_their_protocol_may_be_compared() -> None:
    assert len(DATASETS["metr-la"].scores) > 10
    assert published(protocol(), "test") == DATASETS["metr-la"].scores


@pytest.mark.parametrize(
    "change",
    [
        {"dataset": "my_city"},
        {"sensors": 206},
        {"windows": {"test": 1_500}},
        {"split": "strict"},
        {"targets": {"latitude": "degrees"}},
        {"targets": {"avg_speed": "km/h"}},
        {"history": 24},
        {"horizon": 6},
        {"step_minutes": 15},
        {"imputed": True},
        {"missing": {"avg_speed": None}},
    ],
)
def test_anything_else_may_not(change: dict[str, Any]) -> None:
    assert published(protocol(**change), "test") == ()


def test_training_windows_may_not() -> None:
    assert published(protocol(), "train") == ()


@pytest.mark.parametrize("score", [score for dataset in DATASETS.values() for score in dataset.scores])
def test_a_published_error_grows_with_the_horizon(score: PublishedScore) -> None:
    assert list(score.mae) == sorted(score.mae)


def test_a_score_stands_between_the_next_worse_and_the_next_better() -> None:
    text = io.StringIO()
    rows = {"runs/ours": scores(2.70, 3.08, 3.52), "copy-last": scores(4.0, 5.1, 6.8)}
    print_ladder(rows, DATASETS["metr-la"].scores, 5, Console(file=text, width=120))
    names = [line.split("│")[0].strip() for line in text.getvalue().splitlines() if "│" in line]
    assert names[0] == "copy-last"
    place = names.index("runs/ours")
    assert (names[place - 1], names[place + 1]) == ("GMAN", "Graph WaveNet")
    assert "2.7000" in text.getvalue()


def test_several_runs_are_scored_side_by_side(tmp_path: Path) -> None:
    data = small_file(tmp_path)
    names = [str(small_run(data, kind, "--model", kind)) for kind in ("linear", "stid")]
    result = works("evaluate", *names, "--baselines")
    lines = result.stdout.splitlines()
    for name in names:
        assert any(line.startswith(f"{name}: weights of epoch 1") for line in lines)
    assert "historical average" in result.stdout
    assert "among published results" not in result.stdout  # a small file is not METR-LA


@pytest.mark.parametrize(
    ("flag", "values", "says"),
    [
        ("--split", ["canonical", "strict"], "split strict, not canonical"),
        ("--inputs", ["", "avg_speed,latitude"], "inputs ['avg_speed', 'latitude'], not ['avg_speed']"),
    ],
)
def test_runs_of_other_windows_are_not_compared(flag: str, values: list[str], says: str, tmp_path: Path) -> None:
    data = small_file(tmp_path)
    runs = [small_run(data, f"run-{value}", "--model", "linear", flag, value) for value in values]
    assert says in refused("evaluate", *runs, code=2)
