"""The recipes of docs/how-to/recipes.md, run as they stand, give the series that the files were made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from socialx.files.sources.recognition import RECIPES, find, recognise
from socialx.files.store.head import read_head
from socialx.files.store.store import Store, open_store
from tests.array_files import fractions, tiled, weekdays
from tests.commands import ROOT, socialx
from tests.data_files import refusal, speeds, timestamps
from tests.documents import blocks
from tests.published_files import Windows, columns, cut, write_dat, write_parts, write_windows

PAGE = ROOT / RECIPES
CLOCK, WINDOWS, DAT, PARTS = blocks(PAGE, "python")
ROWS = 700


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


def ran(recipe: str, output: str) -> Store:
    names: dict[str, Any] = {}
    for code in (CLOCK, recipe):
        assert len([line for line in code.splitlines() if line.strip()]) <= 15
        exec(compile(code, RECIPES, "exec"), names)  # noqa: S102
    return open_store(Path(output))


def check(store: Store, at: list[str]) -> None:
    found = pd.DataFrame(store.values, pd.to_datetime(store.seconds, unit="s"))
    wanted = pd.DataFrame(values().astype(np.float32), pd.to_datetime(at)).resample("5min").asfreq()
    pd.testing.assert_frame_equal(found, wanted, check_freq=False, check_index_type=False, check_exact=True)
    assert store.sensors.ids == ("0", "1", "2")
    assert store.missing == 0


def of_metr_la(first: int = 1, series: np.ndarray | None = None) -> Windows:
    at = times("2012-03-01")
    series = tiled(values(), fractions(at)) if series is None else series
    return cut(series, np.arange(-11, 1), np.arange(first, 13))


@pytest.mark.parametrize("first", [1, 0, -2])
def test_windows(first: int) -> None:
    Path("METR-LA").mkdir()
    write_windows(Path("METR-LA"), of_metr_la(first))
    store = ran(WINDOWS, "windows.h5")
    check(store, times("2012-03-01"))
    assert (store.feature, store.unit) == ("avg_speed", "mph")


def swapped(windows: Windows) -> None:
    windows["train.npz"]["x"][[3, 9]] = windows["train.npz"]["x"][[9, 3]]


def gap(windows: Windows) -> None:
    for name in ("x", "y"):
        windows["val.npz"][name] = windows["val.npz"][name][4:]


def scaled(windows: Windows) -> None:
    windows["test.npz"]["y"] = windows["test.npz"]["y"] * 2


@pytest.mark.parametrize(
    ("change", "words"), [(swapped, "train: windows out"), (gap, "val: windows out"), (scaled, "y does not go on")]
)
def test_windows_that_are_no_series_are_noticed(change: Any, words: str) -> None:
    Path("METR-LA").mkdir()
    windows = of_metr_la()
    change(windows)
    write_windows(Path("METR-LA"), windows)
    with pytest.raises(AssertionError, match=words):
        ran(WINDOWS, "windows.h5")


def test_basicts_up_to_0_5() -> None:
    Path("PEMS-BAY").mkdir()
    at = times("2017-01-01")
    write_dat(Path("PEMS-BAY"), tiled(values(), fractions(at), weekdays(at) / 7))
    check(ran(DAT, "basicts.h5"), at)


@pytest.mark.parametrize("channels", [0, 1, 3])
def test_basicts_from_1_0_on(channels: int) -> None:
    Path("PEMS08").mkdir()
    at = times("2016-07-01")
    array = np.stack([values(), *[speeds(ROWS - 12, seed=9)] * (channels - 1)], axis=-1) if channels else values()
    write_parts(Path("PEMS08"), array, columns(at), "traffic flow")
    store = ran(PARTS, "parts.h5")
    check(store, at)
    assert store.feature == "flow"


@pytest.mark.parametrize("named", [".", "data.dat", "desc.json", "train_data.npy", "test_timestamps.npy", "val.npz"])
def test_files_of_a_recipe_are_refused_with_its_page(named: str) -> None:
    folder = Path("here")
    folder.mkdir()
    if named in (".", "data.dat", "desc.json"):
        write_dat(folder, tiled(values(), fractions(times("2017-01-01"))))
    elif named.endswith(".npz"):
        write_windows(folder, of_metr_la())
    else:
        write_parts(folder, values(), columns(times("2016-07-01")))
    for path in {folder, folder / named}:
        refusal(lambda path=path: recognise(read_head(path)), str(path), f"make a frame with the recipe in {RECIPES}")
        done = socialx("convert", "auto", path, "--output-h5", "out.h5")
        assert done.exit_code == 1
        assert RECIPES in done.stderr
        assert socialx("inspect", path).exit_code == 1


@pytest.mark.parametrize("name", ["basicts", "windows-npz", "Windows_NPZ"])
def test_the_names_of_their_formats_lead_to_the_page(name: str) -> None:
    refusal(lambda: find(name), name, f"the recipe in {RECIPES}")
