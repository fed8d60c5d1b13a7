"""The trained model of the repository gives the forecast that is stored here.

``python -m tests.tasks.test_pretrained`` writes the reference anew, for a change of the forecast that is meant.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import socialx
from socialx.forecast.forecast import Forecast
from tests.commands import ROOT, works

FOLDER = ROOT / "socialx/trained/metr-la"
REFERENCE = Path(__file__).parent / "pretrained_forecast.json"
AT = "2012-06-27 07:45:00"  # in the morning peak, with the next hour in the file


@pytest.fixture
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # the run names its data from there


def forecast() -> Forecast:
    return socialx.predict("metr-la", at=AT)


@pytest.mark.usefixtures("_in_the_repository")
def test_the_forecast_is_the_stored_one() -> None:
    stored, found = json.loads(REFERENCE.read_text()), forecast()
    assert list(found.sensors) == stored["sensors"]
    values = np.array(stored["mph"])  # [P,N], rounded to 0.001
    np.testing.assert_allclose(found.values[0, :, :, 0], values, atol=0.002)  # float32 sums differ between machines


@pytest.mark.usefixtures("_in_the_repository")
def test_the_forecast_beats_the_last_reading() -> None:
    """Against readings of the next hour, which the model does not see."""
    found = forecast()
    now, after = found.at_issue()[0], np.searchsorted(found.observed.times, found.times[0])
    truth = found.observed.values[after, :, 0]  # [P,N]
    assert float(np.nanmean(np.abs(found.values[0, :, :, 0] - truth))) < 0.85 * float(np.nanmean(np.abs(now - truth)))


@pytest.mark.usefixtures("_in_the_repository")
def test_most_readings_of_the_last_day_are_inside_its_intervals() -> None:
    found = socialx.predict("metr-la", start="2012-06-27 00:00", end="2012-06-27 22:00", every="2h", interval=0.8)
    truth = found.observed.values[np.searchsorted(found.observed.times, found.times)]  # [W,P,N,G]
    inside = (found.lower <= truth) & (truth <= found.upper)
    assert inside[np.isfinite(truth)].mean() == pytest.approx(0.8, abs=0.05)


def test_its_scores_and_protocol_are_beside_it() -> None:
    scores = json.loads((FOLDER / "scores.json").read_text())
    own = scores["scores"]["metr-la"]["avg_speed"]
    assert [round(own["by_step"][step]["mae"], 2) for step in (2, 5, 11)] == [2.56, 2.87, 3.24]
    assert own["all"]["count"] == 14_955_041
    run = socialx.load_run(FOLDER)
    assert (run.protocol.windows, run.best.epoch) == ({"train": 23_974, "validation": 3_425, "test": 6_850}, 6)
    assert scores["protocol"]["checksum"] == run.protocol.checksum


@pytest.mark.usefixtures("_in_the_repository")
def test_the_first_command_of_a_newcomer_works() -> None:
    assert re.match(r"avg_speed .* 207 .* 2012-06-27 23:55:00", works("predict", "metr-la").stdout)


if __name__ == "__main__":
    made = forecast()
    content = {"sensors": list(made.sensors), "mph": made.values[0, :, :, 0].round(3).tolist()}
    values = [[round(value, 3) for value in row] for row in content["mph"]]
    REFERENCE.write_text(json.dumps({**content, "mph": values}) + "\n")
