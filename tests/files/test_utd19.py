"""utd19_u.csv and detectors_public.csv of UTD19: one city of many, error flags, cities without speeds."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import socialx as api
from socialx.core.errors import SocialxError
from socialx.files.store.store import open_store
from tests.commands import socialx
from tests.data_files import timestamps

HEADER = "day,interval,detid,flow,occ,error,city,speed"
ESSEN, AUGSBURG = ("D1", "D2/a.5"), ("D1", "U1-52G")
ROWS = 12


def lines() -> list[str]:
    """Rows by city, detector, day and interval: Augsburg without speeds, Essen with; both have a detector D1."""
    rows = [HEADER]
    for city, detectors in (("augsburg", AUGSBURG), ("essen", ESSEN)):
        for index, detector in enumerate(detectors):
            for row in range(ROWS):
                day, second = ("2017-05-06", 85800 + 300 * row) if row < 2 else ("2017-05-07", 300 * (row - 2))
                error = "1" if (city, index, row) == ("essen", 1, 3) else "0" if row % 2 else ""
                speed = f"{30 + index + row}.5" if city == "essen" else ""
                rows.append(f"{day},{second},{detector},{60 * (row + index)},0.0{row},{error},{city},{speed}")
    return rows


def write(path: Path, rows: list[str]) -> Path:
    text = ("\n".join(rows) + "\n").encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def positions(path: Path) -> Path:
    rows = ["detid,length,pos,fclass,road,limit,citycode,lanes,linkid,long,lat"]
    for city, detectors, north in (("augsburg", AUGSBURG, 48.3), ("ESSEN", ESSEN, 51.4)):
        for index, detector in enumerate(detectors):
            at = f"{7 + index / 100:.2f},{north + index / 100:.2f}"
            rows.append(f'{detector},0.37,0.015,primary,"Allee, Nord",50,{city},{1 + index},1128,{at}')
    rows.append("L1,0.37,0.015,primary,NA,NA,losanageles,1,7,-118.3,34.05")
    return write(path, rows)


@pytest.mark.parametrize("suffix", ["csv", "csv.gz"])
def test_the_speeds_of_a_city_of_several(tmp_path: Path, suffix: str) -> None:
    data, meta = write(tmp_path / f"utd19_u.{suffix}", lines()), positions(tmp_path / "detectors_public.csv")
    output = ["--meta-csv", meta, "--output-h5", tmp_path / "out.h5"]
    done = socialx("convert", "auto", data, *output)
    assert done.exit_code == 1
    assert "the detectors of 2 cities (augsburg, essen).\n  try: choose a city: --city augsburg" in done.stderr
    wrong = socialx("convert", "auto", data, *output, "--city", "esen")
    assert (wrong.exit_code, "which has 2 cities (augsburg, essen).\n  try: --city augsburg" in wrong.stderr) == (
        2,
        True,
    )
    done = socialx("convert", "auto", data, *output, "--city", "Essen", "--timezone", "Europe/Berlin", "--validate")
    assert done.exit_code == 0, done.stderr
    assert "1 of 24 readings (4.2%) are marked as errors: no readings" in done.stderr
    store = open_store(tmp_path / "out.h5")
    assert store.timestamps.astype(str).tolist() == timestamps(ROWS, "2017-05-06T23:50:00")
    assert (store.sensors.ids, store.unit, store.timezone) == (("D1", "D2_a.5"), "km/h", "Europe/Berlin")
    assert "1 id has a space or / (D2/a.5), written as _" in done.stderr
    expected = np.array([[30.5 + index + row for index in range(2)] for row in range(ROWS)], np.float32)
    expected[3, 1] = np.nan
    assert np.array_equal(store.values, expected, equal_nan=True)
    assert store.sensors.latitude.tolist() == [51.4, 51.41]
    assert store.sensors.longitude.tolist() == [7.0, 7.01]
    assert np.asarray(store.sensors.lanes).tolist() == [1, 2]
    assert store.sensors.length is None  # that of the file is of roads, in kilometres


def test_flows_where_a_city_has_no_speeds(tmp_path: Path) -> None:
    rows = [line for line in lines() if ",essen," not in line]
    data, meta = write(tmp_path / "augsburg.csv", rows), positions(tmp_path / "detectors_public.csv")
    done = socialx("convert", "utd19", data, "--meta-csv", meta, "--output-h5", tmp_path / "out.h5")
    assert done.exit_code == 0, done.stderr
    assert "all speeds are missing, so the flow is read" in done.stderr
    store = open_store(tmp_path / "out.h5")
    assert (store.feature, store.unit, store.missing, store.sensors.ids) == ("flow", "veh/h", None, AUGSBURG)
    assert store.values.tolist() == [[60.0 * row, 60.0 * (row + 1)] for row in range(ROWS)]
    assert store.sensors.latitude.tolist() == [48.3, 48.31]


def test_several_quantities_with_their_units(tmp_path: Path) -> None:
    data = write(tmp_path / "utd19_u.csv", lines())
    said = {"city": "essen", "channel": "flow,speed,occupancy", "without_positions": True}
    api.convert("utd19", data, output=tmp_path / "out.h5", **said)
    stores = [open_store(tmp_path / "out.h5", name) for name in ("flow", "avg_speed", "occupancy")]
    assert [store.unit for store in stores] == ["veh/h", "km/h", "share"]
    assert stores[2].values[:, 0].tolist() == pytest.approx([float(f"0.0{row}") for row in range(ROWS)])
    assert [np.isnan(store.values[3, 1]) for store in stores] == [True, True, True]
    assert stores[1].values[0].tolist() == [30.5, 31.5]


def test_occupancies_that_are_no_parts_of_one_have_no_unit(tmp_path: Path) -> None:
    rows = [line.replace(",0.011,", ",37.5,") for line in lines()]
    data = write(tmp_path / "utd19_u.csv", rows)
    arguments = ["--city", "essen", "--channel", "occ", "--without-positions", "--output-h5", tmp_path / "out.h5"]
    done = socialx("convert", "auto", data, *arguments)
    assert "occupancies reach 37.5, above 1, so their unit is left open" in done.stderr
    assert (open_store(tmp_path / "out.h5").feature, open_store(tmp_path / "out.h5").unit) == ("occupancy", "unknown")


def test_what_to_type_names_a_city_where_there_are_several(tmp_path: Path) -> None:
    data = write(tmp_path / "utd19_u.csv", lines())
    assert "--city CITY" in socialx("convert", "auto", data).stderr
    alone = write(tmp_path / "essen.csv", [HEADER, *(line for line in lines() if ",essen," in line)])
    assert "--city" not in socialx("convert", "auto", alone).stderr
    other = tmp_path / "d.csv"
    other.write_text("time,S1,S2\n2024-01-31 00:00,5,6\n2024-01-31 00:05,5,6\n")
    assert "--city" in socialx("convert", "csv", other, "--city", "x", "--output-h5", tmp_path / "o.h5").stderr


def test_a_folder_of_rows(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in/utd19_u.csv", lines())
    meta = positions(tmp_path / "detectors_public.csv")
    api.convert("auto", tmp_path / "in", meta_csv=meta, city="essen", output=tmp_path / "out.h5")
    assert open_store(tmp_path / "out.h5").sensors.latitude.tolist() == [51.4, 51.41]


def test_los_angeles_is_found_as_both_files_write_it(tmp_path: Path) -> None:
    rows = [HEADER, *(f"2017-09-26,{300 * row},L1,50,0.1,,losangeles,40" for row in range(6))]
    meta = positions(tmp_path / "detectors_public.csv")
    api.convert("utd19", write(tmp_path / "la.csv", rows), meta_csv=meta, output=tmp_path / "out.h5")
    assert open_store(tmp_path / "out.h5").sensors.latitude.tolist() == [34.05]


def test_large_files_of_cities_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socialx.files.sources.tables.text_cells.PIECE_BYTES", 100)
    data = write(tmp_path / "utd19_u.csv", [line.replace("U1-52G", "essen-7") for line in lines()])  # a name in an id
    api.convert("utd19", data, city="essen", output=tmp_path / "out.h5", without_positions=True)
    assert open_store(tmp_path / "out.h5").values[:, 0].tolist() == [30.5 + row for row in range(ROWS)]


def spoilt(change: Callable[[list[str]], None]) -> list[str]:
    rows = lines()
    change(rows)
    return rows


BAD: dict[str, tuple[list[str], str]] = {
    "cut": (spoilt(lambda rows: rows.append(rows[-1][:20])), "line 50 has 3 cells, not 8.\n  try: correct the line"),
    "wide": (
        spoilt(lambda rows: rows.insert(30, rows[30] + ",1")),
        "line 31 has 9 cells, not 8.\n  try: correct the line",
    ),
    "interval": (
        spoilt(lambda rows: rows.insert(30, rows[30].replace(",900,", ",86400,"))),
        "line 31 has the interval 86400, not whole seconds of a day",
    ),
    "error": (
        spoilt(lambda rows: rows.insert(30, rows[30].replace(",,essen", ",2,essen").replace(",0,essen", ",2,essen"))),
        "line 31 has the error 2, not 0, 1 or empty",
    ),
    "day": (
        spoilt(lambda rows: rows.insert(30, rows[30].replace("2017-05-07", "2017-13-07"))),
        "line 31 has the time '2017-13-07",
    ),
    "doubled": (
        spoilt(lambda rows: rows.append(rows[-1][:-4] + "99.5")),
        "D2/a.5 has two observations at 2017-05-07 00:45:00 (42.5, 99.5).\n  try: remove one of them",
    ),
    "word": (spoilt(lambda rows: rows.append(rows[-1] + "x")), "line 50, column 'speed' is '42.5x', not a number"),
    "no rows": ([HEADER], "the file ends after line 1"),
    "others": (["day,interval,detid,flow", "2017-05-06,0,D1,5"], "no rows of utd19 (line 1 is"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_rows_are_named(tmp_path: Path, case: str) -> None:
    rows, words = BAD[case]
    data = write(tmp_path / "utd19_u.csv", rows)
    with pytest.raises(SocialxError) as caught:
        api.convert("utd19", data, city="essen", output=tmp_path / "out.h5", without_positions=True)
    assert words in str(caught.value)
    assert str(data) in str(caught.value)


def test_rows_that_stand_twice_are_read_once(tmp_path: Path) -> None:
    data = write(tmp_path / "utd19_u.csv", spoilt(lambda rows: rows.append(rows[-1])))
    api.convert("utd19", data, city="essen", output=tmp_path / "out.h5", without_positions=True)
    assert open_store(tmp_path / "out.h5").values.shape == (ROWS, 2)


def test_positions_of_other_cities_are_refused(tmp_path: Path) -> None:
    rows = [line.replace("essen", "bern") for line in lines()]
    meta = positions(tmp_path / "detectors_public.csv")
    with pytest.raises(SocialxError) as caught:
        api.convert("utd19", write(tmp_path / "u.csv", rows), city="bern", meta_csv=meta, output=tmp_path / "out.h5")
    assert "the file has no sensors of bern, but of augsburg, ESSEN, losanageles" in str(caught.value)
