"""The recipes of docs/how-to/recipes.md, run as they stand, give the series that the files were made of."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import openpyxl
import pandas as pd
import pytest

from socialx.files.store.store import Store, open_store
from tests import frames
from tests.array_files import fractions, tiled, weekdays
from tests.commands import ROOT, socialx
from tests.data_files import speeds, timestamps, write_frame
from tests.documents import blocks
from tests.published_files import Windows, columns, cut, write_dat, write_parts, write_windows

PAGE = ROOT / "docs/how-to/recipes.md"
HEADINGS = re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE)
OPTIONS = "imports and options"  # above the first heading
RECIPES = dict(zip([OPTIONS, *HEADINGS], blocks(PAGE, "python"), strict=True))
WINDOWS = "Windows of DCRNN and Graph WaveNet"
ROWS = 700
FRAME = frames.network()
LONG = frames.long(FRAME).drop(columns="volume").rename(columns={"sensor": "id"}).astype({"time": str})
XML = "http://datex2.eu/schema/2/2_0"


def times(first: str) -> list[str]:
    """Times five minutes apart, an hour of the second day left out, as where clocks are put forward."""
    every = timestamps(ROWS, f"{first}T00:00:00")
    return every[:312] + every[324:]


def values() -> np.ndarray:
    """Speeds with numbers that float32 does not hold, a zero and a missing one."""
    found = speeds(ROWS - 12)
    found[5, 1], found[7, 0] = 0, np.nan
    return found


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("METR-LA", "PEMS-BAY", "PEMSBAY", "PEMS08"):
        (tmp_path / name).mkdir()


def ran(recipe: str) -> Path:
    """Run a recipe, after what it shares with others; return the file that it wrote."""
    names: dict[str, Any] = {}
    before = set(Path().iterdir())
    for name in (OPTIONS, "Times of day only", recipe):
        code = RECIPES[name]
        assert len([line for line in code.splitlines() if line.strip()]) <= 15
        exec(compile(code, name, "exec"), names)  # noqa: S102
    (made,) = set(Path().iterdir()) - before
    return made


def check(store: Store, wanted: pd.DataFrame) -> None:
    """All times and readings of a file, whatever its ids."""
    found = pd.DataFrame(store.values, pd.to_datetime(store.seconds, unit="s"))
    wanted = wanted.astype(np.float32).resample("5min").asfreq().set_axis(found.columns, axis=1)
    pd.testing.assert_frame_equal(found, wanted, check_freq=False, check_index_type=False, check_names=False)


def json_in_json() -> None:
    by_id = ((vdid, rows[["time", "speed"]].to_dict("records")) for vdid, rows in LONG.groupby("id"))
    stations = [{"id": vdid, "readings": rows} for vdid, rows in by_id]
    Path("feed.json").write_text(json.dumps({"stations": stations}, default=str).replace("NaN", "null"))


def lists_in_cells() -> None:
    LONG.groupby("id", as_index=False)[["time", "speed"]].agg(list).to_parquet("lists.parquet")


def merged_cells() -> None:
    book = openpyxl.Workbook()
    book.active.append(["date", "time", "id", "speed"])
    for row in LONG.itertuples():
        book.active.append([row.time[:10], row.time[11:], row.id, None if np.isnan(row.speed) else row.speed])
    second = next(cell.row for cell in book.active["A"] if cell.value == "2024-02-01")
    for first, last in ((2, second - 1), (second, book.active.max_row)):
        book.active.merge_cells(start_row=first, end_row=last, start_column=1, end_column=1)
    book.save("counts.xlsx")


def several_frames() -> None:
    at = [str(time) for time in FRAME.index]
    write_frame(Path("store.h5"), at, FRAME.to_numpy(), "speed", frames.IDS, order=[2, 0, 1, 3])
    with h5py.File("store.h5", "r+") as file:
        file.copy("speed", "other")


OF_FRAMES = {
    "JSON in JSON": json_in_json,
    "Lists in cells": lists_in_cells,
    "Merged cells": merged_cells,
    "Several frames in an HDFStore": several_frames,
}


@pytest.mark.parametrize("recipe", OF_FRAMES)
def test_rows_and_frames(recipe: str) -> None:
    OF_FRAMES[recipe]()
    store = open_store(ran(recipe))
    assert sorted(store.sensors.ids) == sorted(frames.IDS)
    check(store, FRAME[list(store.sensors.ids)])


def places(recipe: str) -> None:
    assert ran(recipe) == Path("places.csv")
    FRAME.iloc[:, :2].to_csv("city.csv")
    socialx("convert", "auto", "city.csv", "--meta-csv", "places.csv", "--output-h5", "city.h5")
    sensors = open_store(Path("city.h5")).sensors
    assert (sensors.latitude, sensors.longitude) == (pytest.approx([48.5, -33.25]), pytest.approx([11.75, -70.5]))


def test_datex() -> None:
    point = "<pointByCoordinates><pointCoordinates><latitude>{}</latitude><longitude>{}</longitude></pointCoordinates>"
    site = f'<measurementSiteRecord id="{{}}"><name>a</name>{point}</pointByCoordinates></measurementSiteRecord>'
    records = "".join(site.format(*row) for row in (("4001", 48.5, 11.75), ("4002", -33.25, -70.5)))
    Path("sites.xml").write_text(f'<d2LogicalModel xmlns="{XML}"><a>{records}</a></d2LogicalModel>')
    places("Locations in DATEX II")


def test_degrees_and_minutes() -> None:
    rows = "4001,48°30'00\"N,11° 45' 0.0\" E\n4002,33°15'00\"S,70°30'00\"W\n"
    Path("minutes.csv").write_text("id,latitude,longitude\n" + rows.replace('"', ""))
    places("Degrees and minutes")


def test_z_scores() -> None:
    flows = np.round(values() * 10)
    np.savez("his.npz", data=((flows - 30) / 7)[..., None], mean=30.0, std=7.0)
    store = open_store(ran("LargeST"))
    np.testing.assert_array_equal(store.values, flows.astype(np.float32))
    assert (store.feature, store.missing, np.diff(store.seconds).max()) == ("flow", 0, 900)


def of_torch_mts() -> None:
    at = times("2017-01-01")
    np.savez("PEMSBAY/data.npz", data=tiled(values(), fractions(at), weekdays(at)))


def of_metr_la(first: int = 1) -> None:
    write_windows(Path("METR-LA"), windows(first))


def windows(first: int) -> Windows:
    return cut(tiled(values(), fractions(times("2012-03-01"))), np.arange(-11, 1), np.arange(first, 13))


def of_basicts() -> None:
    at = times("2017-01-01")
    write_dat(Path("PEMS-BAY"), tiled(values(), fractions(at), weekdays(at) / 7))


def of_parts(channels: int = 1) -> None:
    array = np.stack([values(), *[speeds(ROWS - 12, seed=9)] * (channels - 1)], axis=-1) if channels else values()
    write_parts(Path("PEMS08"), array, columns(times("2016-07-01")), "traffic flow")


SERIES: dict[str, tuple[str, str, Callable[[], None]]] = {
    "data.npz": ("Torch-MTS and PyTorch Geometric Temporal", "2017-01-01", of_torch_mts),
    **{f"from {n}": (WINDOWS, "2012-03-01", lambda n=n: of_metr_la(n)) for n in (1, 0, -2)},
    "data.dat": ("BasicTS up to 0.5", "2017-01-01", of_basicts),
    **{f"{n} channels": ("BasicTS from 1.0 on", "2016-07-01", lambda n=n: of_parts(n)) for n in (0, 1, 3)},
}


@pytest.mark.parametrize("case", SERIES)
def test_series_with_times_of_day(case: str) -> None:
    recipe, first, write = SERIES[case]
    write()
    store = open_store(ran(recipe))
    check(store, pd.DataFrame(values(), pd.to_datetime(times(first))))
    assert (store.sensors.ids, store.missing) == (("0", "1", "2"), 0)
    assert store.feature == ("flow" if "channels" in case else "avg_speed")


def swapped(windows: Windows) -> None:
    windows["train.npz"]["x"][[3, 9]] = windows["train.npz"]["x"][[9, 3]]


def gap(windows: Windows) -> None:
    for name in ("x", "y"):
        windows["val.npz"][name] = windows["val.npz"][name][4:]


def scaled(windows: Windows) -> None:
    windows["test.npz"]["y"] = windows["test.npz"]["y"] * 2


@pytest.mark.parametrize("change", [swapped, gap, scaled])
def test_windows_that_are_no_series_are_noticed(change: Callable[[Windows], None]) -> None:
    made = windows(1)
    change(made)
    write_windows(Path("METR-LA"), made)
    with pytest.raises(AssertionError):
        ran(WINDOWS)
