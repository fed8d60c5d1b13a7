"""One forecast has another error under each rule that publications use."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import socialx
from socialx.core.batch import Target
from socialx.scoring.published_rules import BATCH, RunningWindows
from tests.commands import works
from tests.networks import batch

METR_LA = Path(os.environ.get("METR_LA", "metr_la.h5"))  # as ``convert metr-la`` writes it
# Of the naive forecast: who uses which rule is in docs/compare-a-model.md.
NAIVE = {
    "canonical": (3.498, 4.205, 5.378, 4.241),
    "rows first": (3.501, 4.210, 5.383, 4.245),
    "mean of windows": (None, None, None, 4.266),
    "mean of batches of 64": (None, None, None, 4.062),
    "cumulative horizons": (3.173, 3.576, 4.241, 4.241),
    "zeros as readings": (10.15, 10.76, 11.80, None),
}


def test_each_rule_is_its_definition() -> None:
    rng, windows, late = np.random.default_rng(0), BATCH + 6, 5
    truth, forecast = rng.uniform(1, 9, (2, windows, 3, 4)).astype(np.float32)
    valid = rng.random(truth.shape) < 0.7
    valid[8:12] = False
    truth[~valid] = 0
    asked = RunningWindows(windows, late)
    for rows in (slice(0, 50), slice(50, windows)):  # and the last window again, which pads the batch
        padded = (np.concatenate([part[rows], part[-1:]]) for part in (forecast, truth, valid))
        parts = [torch.from_numpy(part)[..., None] for part in padded]
        parts[2][-1] = rows.stop < windows and parts[2][-1]
        keep = slice(0, -1) if rows.stop < windows else slice(None)
        asked.update(parts[0][keep], batch(), Target(parts[1][keep], parts[2][keep]))
    found, without = asked.compute()
    error = np.abs(forecast.astype(np.float64) - truth)
    masked, seen = np.where(valid, error, np.nan), valid.any((1, 2))
    in_batches = [np.nanmean(masked[:BATCH]), np.nanmean(masked[BATCH:])]
    wanted = {
        "canonical": np.nanmean(masked),
        "rows first": np.nanmean(masked[late:]),
        "mean of windows": np.mean([np.nanmean(each) for each in masked[seen]]),
        "mean of batches of 64": np.mean(in_batches),
        "cumulative horizons": np.nanmean(masked),
        "zeros as readings": error.mean(),
    }
    assert (without, {rule: maes[-1] for rule, maes in found.items()}) == (4, pytest.approx(wanted))
    assert found["canonical"][1] == pytest.approx(np.nanmean(masked[:, 1]))
    assert found["cumulative horizons"][1] == pytest.approx(np.nanmean(masked[:, :2]))


def test_evaluate_prints_the_rules_of_each_forecast(excerpt: Path) -> None:
    said = works("evaluate", "--baselines", "--protocols", "--data", excerpt).stdout
    assert re.search("naive: MAE .* rules; 0 of", said)
    for rule in NAIVE:
        assert f" {rule} " in said


@pytest.mark.slow
@pytest.mark.skipif(not METR_LA.exists(), reason="METR_LA names no file of METR-LA")
@pytest.mark.parametrize(("rule", "wanted"), NAIVE.items())
def test_the_rules_on_metr_la(rule: str, wanted: tuple[float | None, ...], naive: Any) -> None:
    maes = naive.protocols["naive"][rule]
    found = [None if one is None else round(maes[place], 3) for place, one in zip((2, 5, 11, -1), wanted, strict=True)]
    assert found == pytest.approx(wanted, abs=0.0051 if rule == "zeros as readings" else 0.0006)
    assert naive.without_target == 531


@pytest.fixture(scope="module")
def naive() -> Any:
    return socialx.evaluate(data=METR_LA, baselines=True, protocols=True)
