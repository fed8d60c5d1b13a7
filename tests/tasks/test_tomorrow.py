"""A time after the data: what is said of it, what forecasts it, and how that forecast is shown."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from socialx.drawing.terminal import lead_text, lead_times
from socialx.files.store.time_axis import Clock, as_text
from socialx.forecast.forecast import Forecast, Observed
from socialx.forecast.picture import print_forecast
from socialx.settings.layers import preset_here
from tests.commands import SMALL, refused, works

LAST = "2012-05-04 09:15:00"


def test_a_time_after_the_data_names_the_reach_and_a_longer_horizon(run: Path, data: Path, tmp_path: Path) -> None:
    error = refused("predict", run, "--at", "2012-05-05 08:00", code=2)
    reach = f"{data} .* {LAST}, .* --at '2012-05-05 08:00:00', .* 60 min, to 2012-05-04 10:15:00"
    assert error.code == "predict.late"
    assert re.search(rf"{reach}\.\n.* --at '{LAST}', ", error)
    _, *words = shlex.split(error.partition(" 24 h: ")[2])
    size = ["--preset", preset_here()] if preset_here() else []
    assert words == ["train", "--data", str(data), *size, "--horizon", "288"]
    longer = tmp_path / "longer"
    works(*words[:3], "--horizon", "24", "--run-dir", longer, "--max-epochs", "1", *SMALL)
    assert "2 h" in works("predict", longer).stdout


def test_a_time_within_the_reach_names_the_last_row_alone(run: Path) -> None:
    error = refused("predict", run, "--at", "2012-05-04 10:00", code=2)
    assert (error.code, f" --at '{LAST}'" in error, "train" in error) == ("predict.late", True, False)


@pytest.mark.parametrize(
    "text", ["2012-06-29 7:00", "29.06.2012 07:00", "29.6.2012 7:00", "29.06.2012 7:00:00", " 2012-06-29T7:00 "]
)
def test_times_as_people_write_them(text: str) -> None:
    assert as_text(Clock(None, None).seconds(text, "at")) == "2012-06-29 07:00:00"


@pytest.mark.parametrize("text", ["7:00", "29.06.12 07:00", "30.02.2012", "2012-06-29 7", "06/29/2012", "1.2.3.4"])
def test_what_is_no_time_is_refused(run: Path, text: str) -> None:
    assert refused("predict", run, "--at", text, code=2).code == "time.unreadable"


@pytest.mark.parametrize(
    ("horizon", "step", "shown"),
    [
        (12, 5, ["15 min", "30 min", "60 min"]),
        (24, 5, ["15 min", "30 min", "60 min", "2 h"]),
        (288, 5, ["15 min", "30 min", "60 min", "3 h", "6 h", "12 h", "24 h"]),
        (30, 5, ["15 min", "30 min", "60 min", "150 min"]),
        (24, 60, ["60 min", "3 h", "6 h", "12 h", "24 h"]),
        (2, 5, ["10 min"]),
    ],
)
def test_the_reported_steps(horizon: int, step: int, shown: list[str]) -> None:
    assert [each and lead_text(each) for each in lead_times(horizon, step)] == [*shown, None]


@pytest.mark.parametrize("interval", [None, 0.9])
def test_a_forecast_of_a_day_fits_into_80_columns(interval: float | None, capsys: pytest.CaptureFixture[str]) -> None:
    values = np.full((1, 288, 3, 1), 61.25, np.float32)
    issued = np.array(["2012-05-03T23:55:00"], "datetime64[s]")
    times = issued[:, None] + 300 * np.arange(1, 289)
    observed = Observed(issued, values[:, 0])
    ends = {} if interval is None else {"interval": interval, "lower": values - 10, "upper": values + 9}
    forecast = Forecast(
        ("717490", "717489", "717486"), ("avg_speed",), ("mph",), issued, times, values, np.array([[12, 3, 12]]),
        np.ones((1, 3), bool), 12, 5, None, "run", "city", observed, **ends
    )  # fmt: skip
    print_forecast(forecast, forecast.sensors, Console(width=80))
    printed = capsys.readouterr().out
    assert "…" not in printed
    head = next(line for line in printed.splitlines() if "sensor " in line)
    wanted = ["6 h", "12 h", "24 h"] if interval else ["30 min", "60 min", "3 h", "6 h", "12 h", "24 h"]
    assert re.findall(r"\d+ (?:min|h)\b", head) == wanted
