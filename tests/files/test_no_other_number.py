"""A table never becomes other numbers than it holds without a word: quantities, units, lanes, signs and sensors."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
from socialx.files.sources.tables.columns import column_quantity, combine

import socialx
from socialx.core.errors import SettingsError
from socialx.core.progress import also_subscribe
from socialx.files.store.store import open_store
from tests import frames
from tests.data_files import refusal, unchanged

TIMES = pd.date_range("2024-01-30", periods=24, freq="5min", name="time")


def frame(rows: int = 24, first: int = 0, **columns: Any) -> pd.DataFrame:
    """Columns of one number each, or of a list."""
    times = pd.date_range("2024-01-30", periods=first + rows, freq="5min", name="time")[first:]
    return pd.DataFrame(columns, index=times)


def long(first: int = 0, **columns: Any) -> pd.DataFrame:
    """A row for each of two sensors at 24 times."""
    table = frame(48, first, sensor=["S1", "S2"] * 24, **columns)
    return table.set_index(table.index[:24].repeat(2))


def note_text(told: list[Any]) -> str:
    """The notes among some events."""
    return " ".join(str(event.message) for event in told if hasattr(event, "message"))


def write_table(path: Path, table: pd.DataFrame, **options: Any) -> Path:
    table.to_csv(path, **options)
    return path


def convert_table(path: Path | list[Path], **options: Any) -> Path:
    output = (path if isinstance(path, Path) else path[0]).with_suffix(".h5")
    socialx.convert("auto", path, output, without_positions=True, **options)
    return output


# ---- signs before three digits


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_decimal_counts_in_a_transposed_table(tmp_path: Path, kind: str) -> None:
    cells = {"sensor": ["S1", "S2"], **{str(time): ["1.025", "1.050"] for time in TIMES}}
    table, path = pd.DataFrame(cells), tmp_path / f"a.{kind}"
    table.to_csv(path, index=False, sep=";") if kind == "csv" else table.to_parquet(path)
    for decimal, wanted in {",": [1025, 1050], ".": [1.025, 1.05]}.items():
        result = frames.converted(path, "flow", quantity="flow", transposed=True, decimal=decimal)
        np.testing.assert_array_equal(result.iloc[0], np.array(wanted, np.float32))


# ---- quantities and units


@pytest.mark.parametrize(("held", "given"), [("speed", "flow"), ("flow", "speed"), ("speed", "occupancy")])
def test_another_quantity_is_not_appended(tmp_path: Path, held: str, given: str) -> None:
    output = convert_table(write_table(tmp_path / "a.csv", long(**{held: np.arange(50, 98)})))
    path = write_table(tmp_path / "b.csv", long(24, **{given: np.arange(50, 98)}))
    with unchanged(output):
        text = refusal(lambda: socialx.append(output, path), given, task="append")
        assert "same quantity" in text
        refusal(lambda: socialx.append(output, path, channel=given), "same quantity", task="append")
    socialx.append(output, write_table(tmp_path / "c.csv", long(24, value=np.arange(50, 98))))


def test_the_unit_of_speeds_is_never_that_of_flows(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.csv", long(flow=np.arange(48), speed=60.0))
    output = convert_table(path, channel="flow,speed")
    socialx.backfill(output, units="mph")
    assert open_store(output, "flow").unit == "unknown"
    assert open_store(output, "avg_speed").unit == "mph"
    alone = convert_table(path, channel="flow", overwrite=True)
    with unchanged(alone), pytest.raises(SettingsError, match="speeds"):
        socialx.backfill(alone, units="mph")
    with pytest.raises(SettingsError, match="speeds"):
        convert_table(path, channel="flow", units="km/h", overwrite=True)
    socialx.backfill(alone, units="veh/h")
    assert open_store(alone).unit == "veh/h"


@pytest.mark.parametrize("name", ["flow_quality", "heavy_vehicle_flow", "county", "country", "counter", "speed_limit"])
def test_what_tells_of_readings_is_no_quantity(name: str) -> None:
    assert column_quantity(name) is None


@pytest.mark.parametrize("name", ["vehicle_count", "counts", "TotalFlow", "count_1", "trafficvolume", "device_flow"])
def test_names_of_flows(name: str) -> None:
    assert column_quantity(name) == "flow"


def test_a_unit_in_the_header_and_another_below_it_are_refused(tmp_path: Path) -> None:
    rows = "\n".join(f"{time},60,61" for time in TIMES)
    path = tmp_path / "a.csv"
    path.write_text(f"time,S1 (mph),S2 (mph)\n,km/h,km/h\n{rows}\n")
    refusal(lambda: convert_table(path), "columns", "mph", "km/h")


# ---- lanes


def test_numbers_below_0_are_neither_terms_nor_weights() -> None:
    flow, speed = np.array([[10.0, -1.0], [10.0, 20.0]]), np.array([[60.0, 80.0], [60.0, -1.0]])
    values = np.stack([flow, speed], axis=-1)
    result = combine(values, np.array([0, 0]), ("flow", "avg_speed"), ())
    np.testing.assert_array_equal(result[:, 0], [[np.nan, 70.0], [30.0, 60.0]])


def test_a_note_names_them(tmp_path: Path) -> None:
    table = frame(S1_L1=[10.0] * 24, S1_L2=[-1.0] * 3 + [5.0] * 21, S2_L1=[1.0] * 24, S2_L2=[2.0] * 24)
    told: list[Any] = []
    with also_subscribe(told.append):
        result = frames.converted(write_table(tmp_path / "a.csv", table), "flow", quantity="flow")
    assert "3 numbers of" in note_text(told)
    assert result["S1"].isna().tolist() == [True] * 3 + [False] * 21
    assert result["S1"].iloc[-1] == 15


@pytest.mark.parametrize("shape", ["wide", "long"])
@pytest.mark.parametrize("quantity", ["flow", "speed"])
def test_append_wants_the_lanes_of_the_file(tmp_path: Path, shape: str, quantity: str) -> None:
    def table(lanes: list[str], rows: int, first: int) -> pd.DataFrame:
        wide = frame(rows, first, **dict.fromkeys(lanes, 10.0))
        if shape == "wide":
            return wide
        long = wide.reset_index().melt("time", value_name=quantity)
        long[["sensor", "lane"]] = long.pop("variable").str.split("_L", expand=True)
        return long.sort_values("time").set_index("time")

    every = ["S1_L1", "S1_L2", "S2_L1", "S2_L2"]
    output = convert_table(write_table(tmp_path / "a.csv", table(every, 24, 0)), quantity=quantity)
    path = write_table(tmp_path / "b.csv", table([name for name in every if name != "S1_L2"], 12, 24))
    with unchanged(output):
        refusal(lambda: socialx.append(output, path), "S1 has lanes 1,", "lanes", task="append")
    socialx.append(output, write_table(tmp_path / "c.csv", table(every, 12, 24)))
    assert open_store(output).values[-1].tolist() == ([20, 20] if quantity == "flow" else [10, 10])


def test_a_file_with_wrong_lanes_is_refused(tmp_path: Path) -> None:
    table = frame(S1_L1=[10.0] * 24, S1_L2=[5.0] * 24)
    output = convert_table(write_table(tmp_path / "a.csv", table), quantity="flow")
    with h5py.File(output, "r+") as file:
        del file["metadata/combined_lanes"]
        file["metadata/combined_lanes"] = np.array([1.5, 2.0])
    refusal(lambda: socialx.append(output, tmp_path / "a.csv"), "combined_lanes", task="append")


# ---- sensors


def test_a_file_of_quantities_is_one_sensor(tmp_path: Path) -> None:
    path = write_table(tmp_path / "A9-north.csv", frame(speed=np.arange(24) + 50.0, flow=np.arange(24) + 10.0))
    told: list[Any] = []
    with also_subscribe(told.append):
        result = frames.converted(path)
    assert list(result.columns) == ["A9-north"]
    assert result.iloc[:, 0].tolist() == [50.0 + row for row in range(24)]
    assert "sensor" in note_text(told)
    flows = frames.converted(path, "flow", channel="flow")
    assert flows["A9-north"].tolist() == [10.0 + row for row in range(24)]
    later = write_table(tmp_path / "february.csv", frame(12, 24, speed=70.0, flow=1.0))
    socialx.append(convert_table(path, overwrite=True), later)
    assert open_store(path.with_suffix(".h5")).values[-12:].tolist() == [[70.0]] * 12


def test_files_that_follow_one_another_are_one_sensor_with_a_note(tmp_path: Path) -> None:
    paths = [write_table(tmp_path / f"S{part}.csv", frame(24, 24 * part, speed=50.0 + part)) for part in (0, 1)]
    told: list[Any] = []
    with also_subscribe(told.append):
        result = frames.converted(paths)
    assert result.shape == (48, 1)
    assert "sensor" in note_text(told)


def test_folders_name_sensors_whose_files_have_one_name(tmp_path: Path) -> None:
    archive = tmp_path / "all.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for number in (1, 2):
            file.writestr(f"S{number}/speed.csv", frame(speed=[50.0 + number] * 24).to_csv())
    result = frames.converted(archive)
    assert result.iloc[0].to_dict() == {"S1": 51.0, "S2": 52.0}


@pytest.mark.parametrize("form", ["%Y%m%d%H%M", "%Y%m%d%H%M%S"])
def test_times_without_signs(tmp_path: Path, form: str) -> None:
    table = frame(S1=60.0, S2=61.0)
    table.index = table.index.strftime(form).rename("time")
    assert (frames.converted(write_table(tmp_path / "a.csv", table)).index == TIMES).all()


def test_properties_of_geojson_do_not_replace_its_points(tmp_path: Path) -> None:
    def point(vdid: str, latitude: float) -> dict[str, Any]:
        properties = {"id": vdid, "Latitude": 1.0, "LONGITUDE": 2.0}
        geometry = {"type": "Point", "coordinates": [11.5, latitude]}
        return {"type": "Feature", "properties": properties, "geometry": geometry}

    places = tmp_path / "places.geojson"
    places.write_text(json.dumps({"type": "FeatureCollection", "features": [point("S1", 48.1), point("S2", 48.2)]}))
    output = tmp_path / "a.h5"
    socialx.convert("auto", write_table(tmp_path / "a.csv", frame(S1=60.0, S2=61.0)), output, meta_csv=places)
    assert open_store(output).sensors.latitude.tolist() == [48.1, 48.2]


def test_a_readme_beside_tables_is_no_table(tmp_path: Path) -> None:
    archive = tmp_path / "all.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("S1.csv", frame(speed=[51.0] * 24).to_csv())
        file.writestr("S2.csv", frame(speed=[52.0] * 24).to_csv())
        file.writestr("README.txt", "These are speeds.")
    assert frames.converted(archive).iloc[0].to_dict() == {"S1": 51.0, "S2": 52.0}


@pytest.mark.parametrize("name", ["lat", "Latitude"])
def test_a_column_of_positions_is_no_sensor(tmp_path: Path, name: str) -> None:
    path = write_table(tmp_path / "a.csv", frame(S1=60.0, S2=61.0, **{name: 48.1}))
    refusal(lambda: convert_table(path), f"column {name} holds locations", f"--drop {name}")
    assert list(frames.converted(path, drop=[name]).columns) == ["S1", "S2"]
