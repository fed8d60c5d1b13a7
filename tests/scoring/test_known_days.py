"""Scores with a climatology that goes on: against a plain loop over windows; no reading of the future is used."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from socialx.data.climatology import HALF_LIFE_DAYS, KINDS_OF_DAY, PSEUDO_READINGS, REACH
from socialx.scoring.known_days import DayByDay
from socialx.scoring.metrics import RunningScores
from socialx.scoring.scoring_pass import survey
from socialx.settings_layers import Layers
from socialx.tasks.evaluation import evaluate
from socialx.tasks.trained import load_trained
from tests.commands import edited, refused, small_file, small_run, socialx, works

ROWS = 1560  # the validation part goes on past a midnight; the test part is of one day
QUICK = ["--batch-size", "32", "--learning-rate", "0.01"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_file(tmp_path_factory.mktemp("data"), ROWS)


@pytest.fixture(scope="module")
def run(data: Path) -> Path:
    return small_run(data, "run", *QUICK)


def known_before(day: int, values: np.ndarray, valid: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """What is usual, from every row before a day with its own weight; loops and no running sum."""
    sums, counts = (np.zeros((KINDS_OF_DAY, 288, values.shape[1])) for _ in range(2))
    for row in np.flatnonzero(seconds // 86_400 < day):
        own = int(seconds[row] // 86_400)
        kind = max((own + 3) % 7 - 4, 0)  # 1970-01-01 was a Thursday
        weight = 0.5 ** ((day - own) / HALF_LIFE_DAYS)
        slot = int(seconds[row] % 86_400 // 300)
        sums[kind, slot] += weight * values[row] * valid[row]
        counts[kind, slot] += weight * valid[row]
    mean = sums.sum((0, 1)) / counts.sum((0, 1))
    around = [(slot + shift) % 288 for slot in range(288) for shift in range(-REACH, REACH + 1)]
    near = tuple(part[:, around].reshape(KINDS_OF_DAY, 288, 2 * REACH + 1, -1).sum(2) for part in (sums, counts))
    total, count = (part.copy() for part in near)
    for kind, sensor in np.argwhere(~counts.any(1)):  # a kind of day without readings has those of the others
        total[kind, :, sensor], count[kind, :, sensor] = (part[:, :, sensor].sum(0) for part in near)
    return (total + PSEUDO_READINGS * mean) / (count + PSEUDO_READINGS)


def test_scores_are_those_of_a_loop_over_days(run: Path) -> None:
    problem, _ = load_trained(run, Layers.of(None, {}))
    d, model = problem.data, problem.model.eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    values, valid = (part[..., 0] for part in d.source.read(slice(0, ROWS)))
    total, count = np.zeros(12), np.zeros(12)
    starts = d.windows.part("validation")
    of_day = cache(lambda day: known_before(day, values, valid, d.store.seconds))
    for start in starts:
        usual = of_day(int(d.store.seconds[start + 11]) // 86_400)
        model.climatology.usual.copy_(torch.from_numpy(usual[..., None]))
        with torch.no_grad():
            forecast = model(d.series.window(torch.tensor([int(start)])))[0, :, :, 0].numpy()
        ahead = slice(start + 12, start + 24)
        total += (np.abs(forecast - values[ahead]) * valid[ahead]).sum(1)
        count += valid[ahead].sum(1)
    model.load_state_dict(before)
    sums = RunningScores(12, 1, problem.precision.device)
    survey(model, DayByDay(model, d, "validation", 32, np.arange(len(starts))), problem.precision, sums)
    (found,) = sums.compute()
    np.testing.assert_allclose([step.mae for step in found.by_step], total / count, rtol=1e-4)
    assert len({int(d.store.seconds[start + 11]) // 86_400 for start in starts}) > 1  # so a day began between them
    for name, tensor in model.state_dict().items():  # and the model is as it was
        assert torch.equal(tensor, before[name]), name


def test_no_reading_from_the_day_of_issue_on_enters_the_climatology(run: Path, data: Path, tmp_path: Path) -> None:
    seen: list[torch.Tensor] = []

    def climatologies(path: Path) -> list[torch.Tensor]:
        seen.clear()
        problem, _ = load_trained(run, Layers.of(None, {"data": path}))
        model = problem.model
        hook = model.register_forward_pre_hook(lambda model, _: seen.append(model.climatology.usual.clone()))
        places = np.arange(len(problem.data.windows.part("test")))
        survey(model, DayByDay(model, problem.data, "test", 32, places), problem.precision)
        hook.remove()
        return list(seen)

    other = tmp_path / "other.h5"
    with edited(data, other) as file:
        file["data/features"][ROWS - 100 :, :, 0] = 5.0
    before, after = climatologies(data), climatologies(other)
    assert len(before) == len(after) > 1
    assert all(torch.equal(one, two) for one, two in zip(before, after, strict=True))


def test_the_command_prints_them_apart(run: Path) -> None:
    result = works("evaluate", run, "--known-days", "all,1,0", "--json")
    printed = json.loads(result.stdout)
    names = [f"{run}, {days}" for days in ("all days", "1 day", "0 days")]
    assert list(printed["known_days"]) == names
    scores = [printed["scores"][str(run)], *(printed["known_days"][name] for name in names)]
    assert len({of["avg_speed"]["all"]["count"] for of in scores}) == 1
    assert len({of["avg_speed"]["all"]["mae"] for of in scores}) == 4
    assert "known_days" not in json.loads(socialx("evaluate", run, "--json").stdout)
    shown = " ".join(socialx("evaluate", run, "--known-days", "all").stdout.split())
    assert "test windows, climatology of the days before each day" in shown


@pytest.mark.parametrize("days", ["week", "-1", "1.5"])
def test_a_number_of_days_is_one(run: Path, days: str) -> None:
    assert "0,7,all" in refused("evaluate", run, f"--known-days={days}", code=2)


def test_a_run_without_climatology_is_refused_before_it_is_scored(data: Path, tmp_path: Path) -> None:
    run = small_run(data, tmp_path / "run", "--no-climatology", *QUICK)
    error = refused("evaluate", run, "--known-days", "all", code=2)
    assert f"{run} was trained without a climatology" in error
    assert "--climatology" in error
    assert evaluate([run])[run].overall().count > 0
