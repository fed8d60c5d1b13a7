"""A published table of a city is a row: the one of the how-to page, in a package of its own."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import socialx as api
from socialx.core.errors import SocialxError
from socialx.files.sources import recognition
from socialx.files.store.store import open_store
from tests.commands import socialx
from tests.examples_to_extend import example

LOOPS, ROW = example("loops.csv"), example("city_loops.py")


@pytest.fixture(autouse=True)
def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "city_loops.py").write_text(ROW)
    formats = runpy.run_path(str(tmp_path / "city_loops.py"))["FORMATS"]
    monkeypatch.setattr(recognition, "package_formats", lambda: formats)


def write(folder: Path, change: Callable[[str], str] = str) -> Path:
    (folder / "loops.csv").write_text(change(LOOPS))
    return folder / "loops.csv"


def test_a_row_is_all_that_a_published_table_needs(tmp_path: Path) -> None:
    data, out = write(tmp_path), tmp_path / "out.h5"
    done = socialx("convert", "auto", data, "--without-positions", "--output-h5", out)
    assert done.exit_code == 0, done.stderr
    assert "the columns Zeit, Loop, Volume, Velocity, Closed (city-loops)" in done.stderr
    assert "1 of 4 readings (25.0%) are of closed roads: no readings" in done.stderr
    store = open_store(out)
    assert store.timestamps.astype(str).tolist() == ["2024-01-31 00:00:00", "2024-01-31 00:05:00"]
    assert (store.sensors.ids, store.unit, store.timezone) == (("L1", "L2"), "km/h", "Europe/Berlin")
    np.testing.assert_array_equal(store.values, [[48.5, 52], [47, np.nan]])
    api.convert("city-loops", data, channel="flow", output=tmp_path / "flow.h5", without_positions=True)
    assert open_store(tmp_path / "flow.h5").unit == "veh/h"
    np.testing.assert_array_equal(open_store(tmp_path / "flow.h5").values, [[120, 90], [110, np.nan]])


BAD: dict[str, tuple[str, str, str]] = {
    "time": ("31.01.2024 00:05,L1", "01/31/2024 00:05,L1", "line 4 has the time '01/31/2024 00:05', not written as %d"),
    "sensor": ("00:05,L2", "00:05,", "line 5 has the Loop '', no id"),
    "mark": ("52,0", "52,7", "line 3 has the Closed 7, not 0, 1 or empty"),
    "reading": ("48.5", "fast", "line 2, column 'Velocity' is 'fast', not a number"),
    "columns": (
        "Closed",
        "Open",
        "no rows of city-loops (line 1 is 'Zeit,Loop,Volume,Velocity,Open').\n  try: use loops.csv as",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_row_says_what_is_wrong(tmp_path: Path, case: str) -> None:
    old, new, words = BAD[case]
    assert LOOPS.count(old) == 1
    data = write(tmp_path, lambda text: text.replace(old, new))
    with pytest.raises(SocialxError) as caught:
        api.convert("city-loops", data, output=tmp_path / "out.h5", without_positions=True)
    assert words in str(caught.value)


def test_another_zone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SocialxError, match=r"the times are in Europe/Berlin\.\n  try: drop it"):
        api.convert("city-loops", write(tmp_path), timezone="UTC", output=tmp_path / "o.h5", without_positions=True)
