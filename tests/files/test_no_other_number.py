"""A table never becomes other numbers than it holds without a word: quantities, units, lanes and signs."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest

import socialx
from socialx.core.errors import SettingsError, SocialxError
from socialx.files.store.store import open_store
from tests import frames
from tests.data_files import refusal, unchanged

ROWS = {"sensor_column": "sensor", "without_positions": True}
LANES = ["S1_L1", "S1_L2", "S2_L1", "S2_L2"]


def long(first: int = 0, **columns: Any) -> pd.DataFrame:
    """A row for each of two sensors at 24 times."""
    times = pd.date_range("2024-01-30", periods=first + 24, freq="5min", name="time")[first:].repeat(2)
    return pd.DataFrame({"sensor": ["S1", "S2"] * 24, **columns}, index=times)


def lanes(names: list[str], quantity: str, rows: int = 24, first: int = 0) -> pd.DataFrame:
    """A row for each lane, which all have 10, and the last time 12."""
    times = pd.date_range("2024-01-30", periods=first + rows, freq="5min", name="time")[first:]
    table = pd.DataFrame({name: 10.0 + 2.0 * (times == times[-1]) for name in names}, times)
    table = table.reset_index().melt("time", value_name=quantity)
    table[["sensor", "lane"]] = table.pop("variable").str.split("_L", expand=True)
    return table.sort_values("time", kind="stable").set_index("time")


def saved(path: Path, table: pd.DataFrame, **options: Any) -> Path:
    table.to_csv(path, **options)
    return path


def converted(path: Path, **options: Any) -> Path:
    socialx.convert("auto", path, path.with_suffix(".h5"), **ROWS, **options)
    return path.with_suffix(".h5")


@pytest.mark.parametrize(("held", "given"), [("speed", "flow"), ("flow", "speed"), ("speed", "occupancy")])
def test_another_quantity_is_not_appended(tmp_path: Path, held: str, given: str) -> None:
    values = np.arange(48) % 7 + 50.5
    output = converted(saved(tmp_path / "a.csv", long(**{held: values})), channel=held)
    path = saved(tmp_path / "b.csv", long(24, **{given: values}))
    with unchanged(output):
        for options in ({}, {"channel": given, "sensor_column": "sensor"}):
            with pytest.raises(SocialxError):
                socialx.append(output, path, **options)


def test_the_unit_of_speeds_is_never_that_of_flows(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.csv", long(flow=np.arange(48), speed=60.0))
    output = converted(path, channel="flow,speed")
    socialx.backfill(output, units="mph")
    assert (open_store(output, "flow").unit, open_store(output, "avg_speed").unit) == ("unknown", "mph")
    alone = converted(path, channel="flow", overwrite=True)
    with unchanged(alone), pytest.raises(SettingsError, match="speeds"):
        socialx.backfill(alone, units="mph")
    with pytest.raises(SettingsError, match="speeds"):
        converted(path, channel="flow", units="km/h", overwrite=True)
    socialx.backfill(alone, units="veh/h")
    assert open_store(alone).unit == "veh/h"


def test_two_units_in_one_table_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(frames.network(ids=["S1", "S2"]).to_csv().replace("S1,S2", "S1 (mph),S2 (km/h)"))
    at = frames.places_of(["S1", "S2"], tmp_path / "at.csv")
    for options in ({}, {"channel": "{sensor}"}):
        with pytest.raises(SocialxError):
            socialx.convert("auto", tmp_path / "a.csv", tmp_path / "o.h5", meta_csv=at, **options)


def test_numbers_below_0_are_neither_terms_nor_weights(tmp_path: Path) -> None:
    table = lanes(["S1_L1", "S1_L2"], "flow").assign(speed=60.0)
    table.iloc[1, table.columns.get_loc("flow")] = -1
    table.iloc[3, table.columns.get_loc("speed")] = -1
    output = converted(saved(tmp_path / "a.csv", table), channel="flow,speed")
    flow, speed = open_store(output, "flow").values[:, 0], open_store(output, "avg_speed").values[:, 0]
    np.testing.assert_array_equal(flow[:3], [np.nan, 20, 20])
    np.testing.assert_array_equal(speed[:3], [60, 60, 60])


@pytest.mark.parametrize("quantity", ["flow", "speed"])
def test_append_wants_the_lanes_of_the_file(tmp_path: Path, quantity: str) -> None:
    output = converted(saved(tmp_path / "a.csv", lanes(LANES, quantity)), channel=quantity)
    path = saved(tmp_path / "b.csv", lanes([name for name in LANES if name != "S1_L2"], quantity, 12, 24))
    with unchanged(output):
        refusal(lambda: socialx.append(output, path), "S1", "1, 2", task="append")
    socialx.append(output, saved(tmp_path / "c.csv", lanes(LANES, quantity, 12, 24)))
    assert open_store(output).values[-2].tolist() == ([20, 20] if quantity == "flow" else [10, 10])
    with h5py.File(output, "r+") as file:
        del file["metadata/combined_lanes"]
        file["metadata/combined_lanes"] = np.array([1.5, 2.0])
    refusal(lambda: socialx.append(output, tmp_path / "a.csv"), "combined_lanes", task="append")


@pytest.mark.parametrize("form", ["%Y%m%d%H%M", "%Y%m%d%H%M%S"])
def test_times_without_signs(tmp_path: Path, form: str) -> None:
    table = frames.network(24, ids=["S1", "S2"])
    path = saved(tmp_path / "a.csv", table.set_axis(table.index.strftime(form)), index_label="time")
    assert (frames.converted(path).index == table.index).all()


@pytest.mark.parametrize(("decimal", "wanted"), [(",", 1025), (".", 1.025)])
def test_a_sign_before_three_digits_is_asked(tmp_path: Path, decimal: str, wanted: float) -> None:
    times = pd.date_range("2024-01-30", periods=24, freq="5min", name="time")
    path = saved(tmp_path / "a.csv", pd.DataFrame({"S1": "1.025", "S2": "1.050"}, times), sep=";")
    with pytest.raises(SettingsError, match="decimal"):
        frames.converted(path, "flow", quantity="flow")
    assert frames.converted(path, "flow", quantity="flow", decimal=decimal)["S1"].iloc[0] == np.float32(wanted)
