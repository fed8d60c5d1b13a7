"""LibCity's .geo and .dyna: sensors in the order of .geo, longitude before latitude, all rows at their times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from socialx.errors import SettingsError
from socialx.files.convert_options import Request
from socialx.files.formats import libcity, text_cells
from socialx.files.formats.contents import Contents
from socialx.files.readings import read as read_any
from tests.array_files import joined
from tests.data_files import IDS, refusal, speeds, timestamps
from tests.data_files import reason as why
from tests.published_files import GEO_ORDER, iso, write_both, write_dyna, write_geo

FORMAT = libcity.FORMATS[0]


def read(path: Path, channel: str | None = None) -> Contents:
    return FORMAT.read(Request(path, channel=channel))


def edit(path: Path, change: Callable[[list[str]], object]) -> None:
    lines = path.read_text().splitlines()
    change(lines)
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("size", [1, 700, 1 << 22])
@pytest.mark.parametrize("block", [1, 200, 1 << 23])
def test_every_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, block: int) -> None:
    monkeypatch.setattr(text_cells, "PIECE_BYTES", size)
    monkeypatch.setattr(libcity, "BLOCK_BYTES", block)
    path, values = write_both(tmp_path)
    contents = read(path)
    order = [IDS[place] for place in GEO_ORDER]
    assert (contents.ids, contents.sensors) == (tuple(order), 3)
    assert (contents.feature, contents.units) == ("avg_speed", None)
    assert contents.notes == (f"{path}: its times end with Z, which LibCity writes after wall times: taken as those",)
    times, read_speeds = joined(contents)
    assert times == timestamps(30)
    assert read_speeds.tobytes() == values[:, GEO_ORDER].astype(np.float32).tobytes()
    assert list(contents.locations or ()) == [int(vdid) for vdid in order]
    for i, vdid in enumerate(order):
        place = (contents.locations or {})[int(vdid)]
        assert (place.sensor_id, place.latitude, place.longitude, place.direction) == (
            vdid,
            34 + i / 100,
            -118 - i / 100,
            "",
        )
        assert np.isnan([place.lanes, place.length]).all()


def test_the_folder_and_either_file(tmp_path: Path) -> None:
    path, values = write_both(tmp_path)
    (tmp_path / "METR_LA.rel").write_text("rel_id,type,origin_id,destination_id,cost\n")
    reason = "LibCity's METR_LA.geo and METR_LA.dyna with traffic_speed"
    for source in (tmp_path, path, path.with_suffix(".geo")):
        assert why(FORMAT, source) == reason
        assert np.array_equal(joined(read(source))[1], values[:, GEO_ORDER].astype(np.float32))
    assert why(FORMAT, tmp_path / "METR_LA.rel") is None
    assert FORMAT.has_clock


@pytest.mark.parametrize(
    "form", [iso, lambda t: iso(t)[:16] + "Z", lambda t: iso(t)[:-1], lambda t: t, lambda t: t[:16], lambda t: t + "Z"]
)
def test_forms_of_time(tmp_path: Path, form: Callable[[str], str]) -> None:
    write_geo(tmp_path)
    contents = read(write_dyna(tmp_path, {"traffic_speed": speeds(5)}, form=form))
    assert joined(contents)[0] == timestamps(5)
    assert len(contents.notes) == form(timestamps(1)[0]).endswith("Z")


def test_missing_cells_rows_and_sensors(tmp_path: Path) -> None:
    path, values = write_both(tmp_path)
    lacking = 1 + 30 + 7  # line of the second sensor at its eighth time
    edit(path, lambda lines: (lines.pop(lacking), lines.__setitem__(3, lines[3].rpartition(",")[0] + ",")))
    edit(path.with_suffix(".geo"), lambda lines: lines.insert(2, '999,Point,"[0, 0]"'))
    contents = read(path)
    assert contents.ids == tuple(IDS[place] for place in GEO_ORDER)
    expected = values.copy()
    expected[7, 1] = expected[2, 0] = np.nan
    assert np.array_equal(joined(contents)[1], expected[:, GEO_ORDER].astype(np.float32), equal_nan=True)
    assert contents.notes[1:] == (
        f"{path}: 1 row is not in it: taken as missing readings",
        f"{path.with_suffix('.geo')}: 1 of 4 sensors have no rows in METR_LA.dyna (999): they are left out",
    )


def test_several_channels(tmp_path: Path) -> None:
    channels = {name: speeds(6, seed=seed) for seed, name in enumerate(("traffic_flow", "occupancy", "traffic_speed"))}
    write_geo(tmp_path)
    path = write_dyna(tmp_path, channels)
    for asked, feature in ((None, "avg_speed"), ("traffic_speed", "avg_speed"), ("traffic_flow", "traffic_flow")):
        contents = read(path, asked)
        assert (contents.feature, contents.units) == (feature, None)
        assert np.array_equal(joined(contents)[1], channels[asked or "traffic_speed"].astype(np.float32))
    refusal(lambda: read(path, "speed"), str(path), "no column 'speed'", "traffic_flow, occupancy, traffic_speed")
    write_dyna(tmp_path, {"traffic_flow": channels["traffic_flow"], "occupancy": channels["occupancy"]})
    refusal(lambda: read(path), "traffic_flow, occupancy: choose one with --channel")
    with pytest.raises(SettingsError):
        read(path)
    write_dyna(tmp_path, {"inflow": channels["occupancy"]})
    assert read(path).feature == "inflow"
    assert np.array_equal(joined(read(path))[1], channels["occupancy"].astype(np.float32))


@pytest.mark.parametrize(("channel", "missing"), [("traffic_flow", None), ("occupancy", None), ("traffic_speed", 0.0)])
def test_zero_of_a_count_is_a_reading(tmp_path: Path, channel: str, missing: float | None) -> None:
    write_geo(tmp_path)
    found = read_any("auto", Request(write_dyna(tmp_path, {channel: speeds(6)})))
    assert found.readings.missing == missing


def test_sensors_without_positions(tmp_path: Path) -> None:
    """PEMSD4 and LOS_LOOP have ``[]`` for all sensors."""
    path, _ = write_both(tmp_path)
    geo = path.with_suffix(".geo")
    edit(geo, lambda lines: lines.__setitem__(1, f"{IDS[2]},Point,[]"))
    contents = read(path)
    assert set(contents.locations or ()) == {int(IDS[0]), int(IDS[1])}
    assert contents.notes[1] == f"{geo}: it has no position for 1 of 3 sensors"
    edit(geo, lambda lines: lines.__setitem__(slice(1, None), [f"{vdid},Point,[]" for vdid in IDS]))
    contents = read(path)
    assert contents.locations is None
    assert contents.ids == IDS


def test_other_columns_quotes_and_spellings_of_ids(tmp_path: Path) -> None:
    (tmp_path / "a.geo").write_bytes(
        b'\xef\xbb\xbfname,geo_id,type,coordinates\r\n"A, B",007,Point,"[-118.5,34.5]"\r\n'
    )
    rows = '0,state,"2012-03-01T00:00:00Z",7.0,"x, y",5.5\r\n\r\n1,state,2012-03-01T00:05:00Z,7,z,"nan"\r\n'
    (tmp_path / "a.dyna").write_bytes(b"dyna_id,type,time,entity_id,note,traffic_speed\r\n" + rows.encode())
    contents = read(tmp_path)
    times, values = joined(contents)
    assert (contents.ids, times) == (("007",), ["2012-03-01 00:00:00", "2012-03-01 00:05:00"])
    assert np.array_equal(values, [[5.5], [np.nan]], equal_nan=True)
    location = (contents.locations or {})[7]
    assert (location.latitude, location.longitude) == (34.5, -118.5)


def replace(number: int, old: str, new: str) -> Callable[[list[str]], object]:
    def change(lines: list[str]) -> None:
        assert old in lines[number]
        lines[number] = lines[number].replace(old, new)

    return change


def swap(one: int, other: int) -> Callable[[list[str]], object]:
    def change(lines: list[str]) -> None:
        lines[one], lines[other] = lines[other], lines[one]

    return change


def last_cell(number: int, new: str) -> Callable[[list[str]], object]:
    return lambda lines: lines.__setitem__(number, lines[number].rpartition(",")[0] + new)


def each(change: Callable[[str], str]) -> Callable[[list[str]], object]:
    return lambda lines: lines.__setitem__(slice(1, None), [change(line) for line in lines[1:]])


# Lines of 3 sensors with 5 rows each: the header is 0, the sensors begin at 1, 6 and 11.
BAD_DYNA = {
    "no time": (replace(0, "time", "when"), "not columns with time, entity_id"),
    "grid": (replace(0, "entity_id", "row_id,column_id"), "not columns with time, entity_id"),
    "no channel": (lambda lines: lines.__setitem__(0, "dyna_id,type,time,entity_id"), "its columns are none"),
    "no rows": (lambda lines: lines.__delitem__(slice(1, None)), "it has no rows"),
    "first lacks one": (lambda lines: lines.pop(2), f"{IDS[1]} has the time 2012-03-01T00:05:00Z, which the first"),
    "a later time": (replace(10, "00:20", "00:25"), f"00:25:00Z, which the first sensor, {IDS[0]}, has not"),
    "another form": (replace(12, "00:05:00Z", "00:05Z"), f"sensor {IDS[2]} has the time 2012-03-01T00:05Z, which"),
    "a time twice": (replace(8, "00:10", "00:05"), f"{IDS[1]} has the time 2012-03-01T00:05:00Z, after a later or the"),
    "unsorted": (swap(7, 8), f"sensor {IDS[1]} has the time 2012-03-01T00:05:00Z, after a later"),
    "unsorted first": (swap(2, 3), "line 4 has the time 2012-03-01T00:05:00Z, not after 2012-03-01T00:10:00Z"),
    "first twice": (replace(3, "00:10", "00:05"), "line 4 has the time 2012-03-01T00:05:00Z, not after"),
    "by time": (swap(2, 6), f"sensor {IDS[0]} comes again at 2012-03-01T00:10:00Z"),
    "comes again": (lambda lines: lines.append(lines[6]), f"sensor {IDS[1]} comes again at 2012-03-01T00:00:00Z"),
    "unknown sensor": (replace(9, IDS[1], "12"), "METR_LA.geo has no sensor '12'"),
    "no sensor": (replace(9, IDS[1], ""), "line 10 has no time or no entity_id"),
    "empty time": (replace(9, "2012-03-01T00:15:00Z", ""), "line 10 has no time or no entity_id"),
    "offset": (each(lambda line: line.replace("Z", "-0800")), "'2012-03-01T00:00:00-0800', not YYYY"),
    "late offset": (replace(2, "Z", "+08:00"), "line 3 has the time '2012-03-01T00:05:00+08:00', not YYYY"),
    "late Z": (replace(2, "Z", ""), "line 3 has the time '2012-03-01T00:05:00', not"),
    "epoch": (replace(1, "2012-03-01T00:00:00Z", "1330560000"), "line 2 has the time '1330560000', not YYYY"),
    "text": (lambda lines: lines.__setitem__(7, lines[7] + "x"), "line 8, column 'traffic_speed' is"),
    "true": (each(lambda line: line.rpartition(",")[0] + ",True"), "line 2, column 'traffic_speed' is 'True'"),
    "infinite": (last_cell(7, ",inf"), "line 8, column 'traffic_speed' is 'inf'"),
    "short": (last_cell(7, ""), "line 8 has 4 cells, not 5"),
    "long": (lambda lines: lines.__setitem__(7, lines[7] + ",1"), "line 8 has 6 cells, not 5"),
    "cut off": (lambda lines: lines.__setitem__(-1, lines[-1][:9]), "line 16 has 3 cells, not 5"),
    "trajectory": (each(lambda line: line.replace("state", "trajectory")), "rows of type 'trajectory'"),
}
BAD_GEO = {
    "line": (replace(1, "Point", "LineString"), "line 2 is a 'LineString', not a Point"),
    "twice": (replace(2, IDS[0], "0" + IDS[2]), f"line 3 has the geo_id '0{IDS[2]}', empty or for a second time"),
    "no id": (replace(2, IDS[0], ""), "line 3 has the geo_id ''"),
    "latitude first": (replace(1, "[-118.0, 34.0]", "[34.0, -118.0]"), "line 2 has the coordinates '[34.0, -118.0]'"),
    "three numbers": (replace(1, "34.0]", "34.0, 5]"), "not [longitude, latitude]"),
    "text": (replace(1, "[-118.0, 34.0]", "here"), "has the coordinates 'here'"),
    "nan": (replace(1, "34.0", "NaN"), "not [longitude, latitude]"),
    "null": (replace(1, "34.0", "null"), "not [longitude, latitude]"),
    "no quotes": (replace(1, '"', ""), "line 2 has 4 cells, not 3"),
    "no sensors": (lambda lines: lines.__delitem__(slice(1, None)), "it has no sensors"),
    "no coordinates": (replace(0, "coordinates", "place"), "not columns with geo_id, type, coordinates"),
}


@pytest.mark.parametrize("size", [1, 1 << 22])
@pytest.mark.parametrize("case", BAD_DYNA)
def test_bad_readings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, size: int) -> None:
    monkeypatch.setattr(text_cells, "PIECE_BYTES", size)
    change, words = BAD_DYNA[case]
    path, _ = write_both(tmp_path, rows=5)
    edit(path, change)
    refusal(lambda: read(path), str(path), words)


def test_a_long_row_before_a_short_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = write_both(tmp_path, rows=5)
    lines = path.read_text().splitlines(keepends=True)
    edit(path, lambda lines: (last_cell(11, ",1,2")(lines), last_cell(12, "")(lines)))
    monkeypatch.setattr(text_cells, "PIECE_BYTES", len("".join(lines[1:11])) - 1)
    refusal(lambda: read(path), "line 12 has 6 cells, not 5")


@pytest.mark.parametrize("case", BAD_GEO)
def test_bad_sensors(tmp_path: Path, case: str) -> None:
    change, words = BAD_GEO[case]
    path, _ = write_both(tmp_path, rows=5)
    edit(path.with_suffix(".geo"), change)
    refusal(lambda: read(path), str(path.with_suffix(".geo")), words)


def test_what_is_not_libcity(tmp_path: Path) -> None:
    path, _ = write_both(tmp_path, rows=3)
    geo = path.with_suffix(".geo")
    (tmp_path / "b").mkdir()
    refusal(lambda: read(tmp_path / "b"), str(tmp_path / "b"), "no file .dyna")
    refusal(lambda: read(tmp_path / "x.csv"), "neither .geo nor .dyna")
    for gone in (tmp_path / "b", tmp_path / "x.csv", tmp_path / "gone.dyna", Path("/dev/null")):
        assert why(FORMAT, gone) is None
    (tmp_path / "C.dyna").write_text("")
    assert why(FORMAT, tmp_path) is None
    assert why(FORMAT, geo) is not None
    refusal(lambda: read(tmp_path), "2 files .dyna (C.dyna, METR_LA.dyna): name one")
    refusal(lambda: read(tmp_path / "C.dyna"), "C.geo: no such file")
    (tmp_path / "C.dyna").unlink()
    for broken in (path, geo):
        kept = broken.read_bytes()
        for content in (b"", np.random.default_rng(0).bytes(999), b"a,b\n1,2\n", b"\xff\xfe\n"):
            broken.write_bytes(content)
            assert why(FORMAT, tmp_path) is None
            refusal(lambda: read(tmp_path), str(broken))
        broken.unlink()
        assert why(FORMAT, tmp_path) is None
        broken.mkdir()
        assert why(FORMAT, tmp_path) is None
        broken.rmdir()
        broken.write_bytes(kept)
    assert why(FORMAT, tmp_path) is not None
