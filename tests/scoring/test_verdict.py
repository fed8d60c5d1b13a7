"""What evaluate says last: how a run compares with the best reference."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from socialx.scoring.metrics import HorizonScores, Scores
from socialx.scoring.references import AVERAGE, LAST_VALID, ZEROS_COPIED
from socialx.scoring.results import Evaluation, ModelScores
from socialx.scoring.tables import verdicts
from tests.commands import edited, works


def found(**maes: float | tuple[float, ...]) -> Any:
    """An evaluation of runs, whose names begin with run, and references, by their MAE: of all steps, or of each."""
    names = {"naive": LAST_VALID, "average": AVERAGE, "perfect": ZEROS_COPIED}
    models = {}
    for name, mae in maes.items():
        by_step = mae if isinstance(mae, tuple) else (mae,) * 12
        scores = [Scores(each, each, each, 0.5, 9) for each in (*by_step, sum(by_step) / len(by_step))]
        models[names.get(name, name)] = ModelScores({"avg_speed": HorizonScores(tuple(scores[:-1]), scores[-1])}, 5)
    trained = {name: object() for name in maes if name.startswith("run")}
    protocol: Any = SimpleNamespace(targets={"avg_speed": "mph"}, trained=trained, horizon=12, step_minutes=5)
    return Evaluation("test", protocol, models, ())


BEST = ("run: MAE 2.4 mph", "20.0 % better", "(historical average, 3)")
LATE = ("run: MAE 2 mph", "23.1 % better", "(historical average, 2.6)", "at 15 min (2, naive 1.5)")
STEPS = (1.5,) * 3 + (5.0,) * 9


@pytest.mark.parametrize(
    ("maes", "lines"),
    [
        ({"naive": 4.0, "average": 3.0, "run": 2.4}, [BEST]),
        ({"naive": 2.0, "run_a": 1.0, "run_b": 2.5}, [("run_a: MAE ",), ("run_b: MAE ",)]),
        ({"run": 1.0}, []),
        ({"naive": 2.0}, []),
        ({"run": 1.0, "perfect": 0.0}, []),
        ({"naive": 2.0, "run": float("nan")}, []),
        ({"naive": STEPS, "average": 2.6, "run": (2.0,) * 12}, [LATE]),
        ({"naive": STEPS, "run": (6.0,) * 12}, [("run: MAE 6 mph", "45.5 % worse", "(naive, 4.125)")]),
    ],
)
def test_each_run_is_compared_with_the_best_reference(maes: dict[str, Any], lines: list[tuple[str, ...]]) -> None:
    """A horizon at which a reference is better is named where the line does not say so of all steps."""
    told = verdicts(found(**maes))
    assert [tuple(fact for fact in facts if fact in line) for line, facts in zip(told, lines, strict=True)] == lines
    assert [" at 15 min" in line for line in told] == [facts == LATE for facts in lines]


def test_two_references_that_are_the_same_are_shown_once(run: Path, data: Path, tmp_path: Path) -> None:
    done, page = works("evaluate", run, "--baselines", "--by", "weekday"), tmp_path / "page.html"
    assert ZEROS_COPIED not in done.stdout  # no reading of the test windows is missing
    assert LAST_VALID in done.stdout
    works("report", run, "-o", page)
    assert LAST_VALID in page.read_text()
    assert ZEROS_COPIED not in page.read_text()
    scores = json.loads(works("evaluate", run, "--baselines", "--json").stdout)["scores"]
    assert scores[ZEROS_COPIED] == scores[LAST_VALID]
    gaps = tmp_path / "gaps.h5"
    with edited(data, gaps) as file:
        file["data/features"][-60:-40] = 0
    assert ZEROS_COPIED in works("evaluate", run, "--data", gaps, "--baselines").stdout
