"""Tables that do not follow one another: a file per sensor, other columns, zips of tables, rows that overlap."""

from __future__ import annotations

import gzip
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import socialx
from socialx.core.errors import sample
from socialx.files.store.store import open_store
from tests.commands import socialx as run
from tests.data_files import refusal
from tests.frames import IDS, converted, long, network, places_of, same

Tables = Mapping[str, pd.DataFrame]


def by_sensor(frame: pd.DataFrame, name: str | None = None) -> dict[str, pd.DataFrame]:
    """A table of each sensor: time and readings, in a column that has the name of the sensor or another one."""
    return {f"{sensor}.csv": frame[[sensor]].rename(columns={sensor: name or sensor}) for sensor in frame}


def by_sensor_long(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    rows = long(frame).drop(columns="volume")
    return {f"{sensor}.csv": part.set_index("time") for sensor, part in rows.groupby("sensor")}


def with_flow(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {name: part.assign(flow=np.arange(len(part))) for name, part in by_sensor(frame, "speed").items()}


SPLITS: dict[str, Callable[[pd.DataFrame], Tables]] = {
    "time,speed": lambda frame: by_sensor(frame, "speed"),
    "time,value": lambda frame: by_sensor(frame, "Value"),
    "time,speed,flow": with_flow,
    "time,S1": by_sensor,
    "time,sensor,speed": by_sensor_long,
    "two sensors each": lambda frame: {"a.csv": frame[list(IDS[:2])], "b.csv": frame[list(IDS[2:])]},
    "months": lambda frame: {"b.csv": frame[:30], "a.csv": frame[30:]},
    "months that share an hour": lambda frame: {"jan.csv": frame[:36], "feb.csv": frame[24:]},
    "a sensor more": lambda frame: {"old.csv": frame[:30].drop(columns=IDS[3]), "new.csv": frame[30:]},
}


def in_folder(tables: Tables, path: Path) -> Path:
    path.mkdir()
    for name, table in tables.items():
        table.to_csv(path / name)
    return path


def in_files(tables: Tables, path: Path) -> list[Path]:
    return sorted(in_folder(tables, path).iterdir())


def in_zip(tables: Tables, path: Path) -> Path:
    with zipfile.ZipFile(path.with_suffix(".zip"), "w") as archive:
        archive.writestr("__MACOSX/._junk.csv", b"\0")
        for name, table in tables.items():
            archive.writestr(f"export/{name}", table.to_csv())
    return path.with_suffix(".zip")


def packed(tables: Tables, path: Path) -> Path:
    path.mkdir()
    for name, table in tables.items():
        (path / f"{name}.gz").write_bytes(gzip.compress(table.to_csv().encode()))
    return path


def in_workbook(tables: Tables, path: Path) -> Path:
    with pd.ExcelWriter(path.with_suffix(".xlsx")) as book:
        for name, table in tables.items():
            table.to_excel(book, sheet_name=name.removesuffix(".csv"))
    return path.with_suffix(".xlsx")


PLACES: dict[str, Callable[[Tables, Path], Any]] = {
    "folder": in_folder,
    "files": in_files,
    "zip": in_zip,
    "gzip": packed,
    "workbook": in_workbook,
}


def expected(split: str, frame: pd.DataFrame) -> pd.DataFrame:
    wanted = frame.copy()
    if split == "a sensor more":
        wanted.iloc[:30, 3] = np.nan
    return wanted


@pytest.mark.parametrize("layout", PLACES)
@pytest.mark.parametrize("split", SPLITS)
def test_the_tables_are_joined(split: str, layout: str, tmp_path: Path) -> None:
    frame = network()
    path = PLACES[layout](SPLITS[split](frame), tmp_path / "city")
    same(converted(path, meta_csv=places_of(IDS, tmp_path / "loc.csv")), expected(split, frame))


def test_a_note_says_how_the_sensors_are_named(tmp_path: Path) -> None:
    folder = in_folder(SPLITS["time,speed"](network()), tmp_path / "city")
    done = run("convert", "auto", folder, "--without-positions", "--output-h5", tmp_path / "out.h5")
    assert f"each of 4 tables is a sensor with the name of the table ({sample(IDS)})" in done.stderr
    folder = in_folder(SPLITS["a sensor more"](network()), tmp_path / "more")
    done = run("convert", "auto", folder, "--without-positions", "--output-h5", tmp_path / "out2.h5")
    assert f"2 tables are joined by time: 4 sensors ({sample(IDS)}), of which some tables lack {IDS[3]}" in done.stderr


def test_flow_of_a_file_per_sensor(tmp_path: Path) -> None:
    folder = in_folder(SPLITS["time,speed,flow"](network()), tmp_path / "city")
    socialx.convert("auto", folder, tmp_path / "out.h5", quantity="flow", without_positions=True)
    store = open_store(tmp_path / "out.h5")
    assert store.feature == "flow"
    np.testing.assert_array_equal(store.values, np.arange(60.0)[:, None].repeat(4, axis=1))


def test_positions_in_the_zip_are_set_aside(tmp_path: Path) -> None:
    frame = network()
    path = in_zip({"a.csv": frame[:30], "b.csv": frame[30:]}, tmp_path / "city")
    meta = places_of(IDS, tmp_path / "loc.csv")
    with zipfile.ZipFile(path, "a") as archive:
        archive.write(meta, "sensors.csv")
    same(converted(path), frame)


def test_other_readings_of_one_time_are_refused(tmp_path: Path) -> None:
    frame = network(seed=3).fillna(50.0)
    other = frame[24:].copy()
    other.iloc[3, 1] += 1
    months = in_folder({"a.csv": frame[:36], "b.csv": other}, tmp_path / "months")
    refusal(lambda: converted(months), f"{IDS[1]} has two observations at", "remove one of them")
    path = tmp_path / "one.csv"
    pd.concat([frame[:36], other]).to_csv(path)
    refusal(lambda: converted(path), "two rows at", "with different observations")
    refusal(lambda: converted(path, timezone="Europe/Berlin"), "two rows at", "with different observations")


@pytest.mark.parametrize("options", [{}, {"timezone": "Europe/Berlin"}])
def test_a_block_of_rows_that_stands_twice_is_read_once(options: dict[str, str], tmp_path: Path) -> None:
    frame, path = network(200), tmp_path / "city.csv"
    pd.concat([frame[:100], frame[90:100], frame[100:], frame[150:]]).to_csv(path)
    same(converted(path, **options), frame)
    done = run("convert", "auto", path, "--without-positions", "--output-h5", tmp_path / "o.h5", "--missing", "none")
    assert "60 rows repeat an earlier one, which is kept" in done.stderr


def test_a_row_that_comes_late_is_refused(tmp_path: Path) -> None:
    frame, path = network(), tmp_path / "city.csv"
    pd.concat([frame[:20], frame[21:30], frame[20:21], frame[30:]]).to_csv(path)
    refusal(lambda: converted(path), "not in order of time")


@pytest.mark.parametrize("freq", ["5min", "30min", "1h"])
def test_the_hour_that_comes_twice_is_no_block(freq: str, tmp_path: Path) -> None:
    """Rows without traffic in both hours are two hours."""
    times = pd.date_range("2024-10-26 22:00", "2024-10-27 03:00", freq=freq, tz="UTC")
    frame = pd.DataFrame(0.0, times.tz_convert("Europe/Berlin").tz_localize(None), ["a", "b", "c"])
    path = tmp_path / "city.csv"
    frame.to_csv(path, index_label="time")
    refusal(lambda: converted(path), "look like the hour that comes twice", "--timezone")
    assert len(converted(path, timezone="Europe/Berlin")) == len(times)
    halves = in_folder({"a.csv": frame[["a"]], "b.csv": frame[["b"]]}, tmp_path / "halves")
    refusal(lambda: converted(halves), "look like the hour that comes twice")


def test_a_zip_cannot_name_files_outside_of_it(tmp_path: Path) -> None:
    frame = network()
    secret = tmp_path / "secret.csv"
    frame.to_csv(secret)
    path = tmp_path / "city.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(str(secret), frame.to_csv())
        archive.writestr("../secret.csv", frame.to_csv())
        archive.writestr("a/../../secret.csv", frame.to_csv())
        archive.writestr("good.csv", (frame + 1).to_csv())
    same(converted(path), frame + 1)


@given(
    rows=st.integers(3, 40),
    cuts=st.lists(st.integers(0, 3), min_size=4, max_size=4),
    seed=st.integers(0, 1000),
    name=st.sampled_from([None, "speed"]),
)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_files_per_sensor_are_the_wide_table(
    rows: int, cuts: list[int], seed: int, name: str | None, tmp_path: Path
) -> None:
    """Each sensor may begin and end when it wants."""
    frame = network(rows + 8, seed=seed)
    parts = {
        f"{sensor}.csv": frame[[sensor]].iloc[cut:][: rows + 4 - cut] for sensor, cut in zip(IDS, cuts, strict=True)
    }
    wanted = pd.concat(parts.values(), axis=1, sort=True)
    for path in tmp_path.glob("city/*"):
        path.unlink()
    (tmp_path / "city").mkdir(exist_ok=True)
    for file, part in parts.items():
        part.rename(columns=lambda column: name or column).to_csv(tmp_path / "city" / file)
    same(converted(tmp_path / "city"), wanted)
