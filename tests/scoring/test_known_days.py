"""Scores of runs that know so many days before each day of issue: against a plain loop over windows."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from socialx.settings.layers import ConfigLayers
from socialx.tasks.evaluate import evaluate
from socialx.tasks.opened import open_forecasting
from tests.commands import refused, small_file, small_run, socialx, works

ROWS = 1560  # the validation split goes on past a midnight; the test split is of one day
QUICK = ["--batch-size", "32", "--learning-rate", "0.01"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_file(tmp_path_factory.mktemp("data"), ROWS)


@pytest.fixture(scope="module")
def run(data: Path) -> Path:
    return small_run(data, "run", *QUICK)


@pytest.mark.parametrize("days", ["all", "1", "train"])
def test_scores_are_those_of_a_loop_over_windows(run: Path, days: str) -> None:
    experiment = open_forecasting(run, ConfigLayers()).experiment
    d, model = experiment.data, experiment.model.eval()
    values, valid = (part[..., 0] for part in d.source.read(slice(0, ROWS)))
    total, count = np.zeros(12), np.zeros(12)
    starts, past = d.windows.split("validation"), d.climatology.rolling(max_days=1)
    for start in starts.tolist():
        window = d.loaders.observations.window(torch.tensor([start]))
        seconds = d.store.seconds[start : start + 24]
        issued = seconds - 3600
        if days == "train":
            issued = np.minimum(issued, d.store.seconds[d.windows.training_rows.stop - 1])
        climatology = past.lookup(seconds, issued, (1 if days == "1" else None,))
        confidence = torch.from_numpy(climatology.confidence).float() / 255
        with torch.no_grad():
            forecast = model(
                window._replace(climatology=torch.from_numpy(climatology.readings), climatology_confidence=confidence)
            )[0, :, :, 0].numpy()
        ahead = slice(start + 12, start + 24)
        total += (np.abs(forecast - values[ahead]) * valid[ahead]).sum(1)
        count += valid[ahead].sum(1)
    (scores,) = evaluate([run], split="validation", climatology_days=days).climatology_days.values()
    np.testing.assert_allclose([step.mae for step in scores.targets["avg_speed"].by_step], total / count, rtol=1e-4)
    assert len({int(d.store.seconds[start + 11]) // 86_400 for start in starts}) > 1  # so a day began between them


def test_the_command_prints_them_apart(run: Path) -> None:
    printed = json.loads(works("evaluate", run, "--climatology-days", "all,1,0", "--json").stdout)
    names = [f"{run}, {days}" for days in ("all days", "1 day", "0 days")]
    assert list(printed["climatology_days"]) == names
    scores = [printed["scores"][str(run)], *(printed["climatology_days"][name] for name in names)]
    assert len({of["avg_speed"]["all"]["count"] for of in scores}) == 1
    assert len({of["avg_speed"]["all"]["mae"] for of in scores}) == 3  # a run is scored with all days anyway
    assert "climatology_days" not in json.loads(socialx("evaluate", run, "--json").stdout)
    shown = " ".join(socialx("evaluate", run, "--climatology-days", "all").stdout.split())
    assert "test windows, climatology" in shown


@pytest.mark.parametrize("days", ["week", "-1", "1.5"])
def test_a_number_of_days_is_one(run: Path, days: str) -> None:
    assert "0,7,all" in refused("evaluate", run, f"--climatology-days={days}", code=2)


def test_a_run_without_climatology_is_refused_before_it_is_scored(data: Path, tmp_path: Path) -> None:
    run = small_run(data, tmp_path / "run", "--no-climatology", *QUICK)
    assert (error := refused("evaluate", run, "--climatology-days", "all", code=2)).code == "score.no-climatology"
    assert str(run) in error
    assert "--climatology" in error
    assert evaluate([run])[run].overall().count > 0
