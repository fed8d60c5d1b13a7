"""Where a score stands among published ones: only where it was scored as they were, and in its place."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from socialx.files.store.published import DATASETS, PublishedScore
from socialx.scoring.metrics import HorizonScores, Scores
from socialx.scoring.results import Evaluation, ModelScores, published_scores
from socialx.scoring.tables import OURS, ladder, ladder_rows
from socialx.tasks.evaluate import evaluate
from socialx.tasks.report.report import report
from tests.commands import refused, small_file, small_run, works
from tests.protocols import protocol


def of(*mae: float) -> ModelScores:
    """Twelve steps and all of them; mae at 15, 30 and 60 minutes."""
    at = {2: mae[0], 5: mae[1], 11: mae[2]}
    *by_step, overall = (Scores(at.get(step, 9.0), 9.0, 9.0, 0.5, 10) for step in range(13))
    return ModelScores({"avg_speed": HorizonScores(tuple(by_step), overall)}, 5)


@pytest.mark.parametrize(
    "change",
    [
        {"dataset": "my_city"},
        {"sensors": 206},
        {"windows": {"test": 1_500}},
        {"split_method": "strict"},
        {"targets": {"latitude": "degrees"}},
        {"targets": {"avg_speed": "km/h"}},
        {"lookback": 24},
        {"horizon": 6},
        {"step_minutes": 15},
        {"imputed": True},
        {"missing": {"avg_speed": None}},
    ],
)
def test_only_the_whole_data_set_scored_by_their_protocol_may_be_compared(change: dict[str, Any]) -> None:
    assert published_scores(protocol(), "test") == DATASETS["metr-la"].scores
    assert published_scores(protocol(), "train") == published_scores(protocol(**change), "test") == ()


@pytest.mark.parametrize("score", [score for dataset in DATASETS.values() for score in dataset.scores])
def test_a_published_error_grows_with_the_horizon(score: PublishedScore) -> None:
    assert list(score.mae) == sorted(score.mae)
    assert score.source.startswith(("published: ", "re-run: "))


def test_a_score_stands_between_the_next_worse_and_the_next_better() -> None:
    text = io.StringIO()
    models = {"runs/ours": of(2.70, 3.08, 3.52), "naive": of(4.0, 5.1, 6.8)}
    found = Evaluation("test", protocol(), models, DATASETS["metr-la"].scores)
    ladder(ladder_rows(found)).print(Console(file=text, width=120))
    names = [line.split("│")[0].strip() for line in text.getvalue().splitlines() if "│" in line]
    assert names[0] == "naive"
    place = names.index("runs/ours")
    assert (names[place - 1], names[place + 1]) == ("GMAN", "Graph WaveNet")
    assert "2.7000" in text.getvalue()


def test_a_run_that_reads_past_days_has_a_row_with_the_days_of_its_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = small_file(tmp_path)
    past = str(small_run(data, "past", "--batch-size", "32", "--learning-rate", "0.01"))
    plain = str(small_run(data, "plain", "--no-climatology"))
    assert not evaluate([past, plain], baselines=True).climatology_days  # the file is no published one
    for task in ("evaluate", "report.report"):
        monkeypatch.setattr(f"socialx.tasks.{task}.published_scores", lambda *_: DATASETS["metr-la"].scores)
    found = evaluate([past, plain], baselines=True)
    frozen = evaluate(past, climatology_days="train").climatology_days
    assert found.climatology_days == frozen
    rows = {name: mae for name, mae, source in ladder_rows(found) if source == OURS}
    shown = {f"{past}, which reads past days", f"{past}, with the days of the training", plain}
    assert rows.keys() - found.models.keys() | {plain} == shown
    (only,) = frozen.values()
    assert rows[f"{past}, with the days of the training"] == [f"{only.at(at).mae:.4f}" for at in (15, 30, 60)]
    assert rows[f"{past}, which reads past days"] == [f"{found[past].at(at).mae:.4f}" for at in (15, 30, 60)]
    assert report([past, plain]).evaluation.climatology_days == frozen


def test_several_runs_are_scored_side_by_side(tmp_path: Path) -> None:
    data = small_file(tmp_path)
    names = [str(small_run(data, kind, "--model", kind)) for kind in ("linear", "stid")]
    said = works("evaluate", *names, "--baselines").stdout
    for words in (*(f"\n{name}: weights of epoch 1" for name in names), "historical average"):
        assert words in said
    assert "among published and re-run results" not in said  # a small file is not METR-LA


@pytest.mark.parametrize(
    ("flag", "values", "says"),
    [
        ("--split-method", ["canonical", "strict"], "split_method strict"),
        ("--inputs", ["", "avg_speed,latitude"], "['avg_speed', 'latitude']"),
    ],
)
def test_runs_of_other_windows_are_not_compared(flag: str, values: list[str], says: str, tmp_path: Path) -> None:
    data = small_file(tmp_path)
    runs = [small_run(data, f"run-{value}", "--model", "linear", flag, value) for value in values]
    assert (error := refused("evaluate", *runs, code=2)).code == "run.other-windows"
    assert says in error
