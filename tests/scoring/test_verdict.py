"""What evaluate says last: how a run compares with the best reference."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from socialx.report.score_tables import verdicts


def found(**maes: float) -> Any:
    """An evaluation of runs, whose names begin with run, and references, by their MAE."""
    models = {
        name: SimpleNamespace(overall=lambda target, mae=mae: SimpleNamespace(mae=mae)) for name, mae in maes.items()
    }
    trained = {name: object() for name in maes if name.startswith("run")}
    return SimpleNamespace(models=models, protocol=SimpleNamespace(targets={"avg_speed": "mph"}, trained=trained))


def test_a_run_is_compared_with_the_best_reference() -> None:
    (line,) = verdicts(found(copy_last=4.0, average=3.0, run=2.4))
    assert line == "run is 20.0 % better than average, the best reference: MAE 2.4, not 3 mph over all steps"


def test_every_run_has_a_line_a_worse_one_too() -> None:
    lines = verdicts(found(copy_last=2.0, run_a=1.0, run_b=2.5))
    assert ["50.0 % better" in lines[0], "25.0 % worse" in lines[1]] == [True, True]


@pytest.mark.parametrize("maes", [{"run": 1.0}, {"copy_last": 2.0}, {"run": 1.0, "perfect": 0.0}])
def test_there_is_nothing_to_say_without_both(maes: dict[str, float]) -> None:
    assert verdicts(found(**maes)) == []


def test_a_run_without_valid_entries_has_no_verdict() -> None:
    assert verdicts(found(copy_last=2.0, run=float("nan"))) == []
