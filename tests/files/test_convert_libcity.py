"""LibCity's .geo and .dyna: sensors in the order of .geo, longitude before latitude, all rows at their times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from socialx.files.sources.contents import Contents
from socialx.files.sources.readings import read as read_any
from socialx.files.sources.request import ConvertOptions
from socialx.files.sources.tables import grid, known_tables, text_cells
from tests.array_files import joined
from tests.data_files import IDS, refusal, shown, speeds, timestamps
from tests.data_files import reason as why
from tests.published_files import GEO_ORDER, iso, write_both, write_dyna, write_geo

FORMAT = known_tables.FORMATS[0]


def read(path: Path, channel: str | None = None, **said: str) -> Contents:
    return FORMAT.read(ConvertOptions(path, channel=channel, **said))  # type: ignore[arg-type]


def edit(path: Path, change: Callable[[list[str]], object]) -> None:
    lines = path.read_text().splitlines()
    change(lines)
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("size", [1, 700, 1 << 22])
@pytest.mark.parametrize("block", [1, 200, 1 << 23])
def test_every_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, block: int) -> None:
    monkeypatch.setattr(text_cells, "PIECE_BYTES", size)
    monkeypatch.setattr(grid, "BLOCK_BYTES", block)
    path, values = write_both(tmp_path)
    contents = read(path)
    order = [IDS[index] for index in GEO_ORDER]
    assert (contents.ids, contents.sensors) == (tuple(order), 3)
    assert (contents.feature, contents.units) == ("avg_speed", None)
    assert contents.notes == (f"{path}: its times end with Z, which LibCity writes after wall times: taken as those",)
    times, read_speeds = joined(contents)
    assert times == timestamps(30)
    assert read_speeds.tobytes() == values[:, GEO_ORDER].astype(np.float32).tobytes()
    assert list(contents.locations or ()) == [int(vdid) for vdid in order]
    for i, vdid in enumerate(order):
        location = (contents.locations or {})[int(vdid)]
        assert (location.sensor_id, location.latitude, location.longitude, location.direction) == (
            vdid,
            34 + i / 100,
            -118 - i / 100,
            "",
        )
        assert np.isnan([location.lanes, location.length]).all()


def test_the_folder_and_either_file(tmp_path: Path) -> None:
    path, values = write_both(tmp_path)
    (tmp_path / "METR_LA.rel").write_text("rel_id,type,origin_id,destination_id,cost\n")
    reason = "the columns dyna_id, type, time, entity_id, traffic_speed"
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
    told = [note for note in shown(contents.notes) if "Z, which LibCity writes after wall times" in note]
    assert len(told) == form(timestamps(1)[0]).endswith("Z")
    assert contents.timezone is None


def test_times_with_an_offset_are_written_in_utc(tmp_path: Path) -> None:
    write_geo(tmp_path)
    contents = read(write_dyna(tmp_path, {"traffic_speed": speeds(5)}, form=lambda t: f"{t}-0800"))
    assert joined(contents)[0] == timestamps(5, "2012-03-01T08:00:00")
    assert contents.timezone == "UTC"


def test_a_form_of_time_that_the_user_gives(tmp_path: Path) -> None:
    write_geo(tmp_path)
    path = write_dyna(tmp_path, {"traffic_speed": speeds(5)}, form=lambda t: f"03/01/2012 {t[11:]}")
    refusal(lambda: joined(read(path)), str(path), "may be day/month or month/day")
    assert joined(read(path, time_format="%m/%d/%Y %H:%M:%S"))[0] == timestamps(5)


def test_missing_cells_rows_and_sensors(tmp_path: Path) -> None:
    path, values = write_both(tmp_path)
    lacking = 1 + 30 + 7  # line of the second sensor at its eighth time
    edit(path, lambda lines: (lines.pop(lacking), lines.__setitem__(3, lines[3].rpartition(",")[0] + ",")))
    edit(path.with_suffix(".geo"), lambda lines: lines.insert(2, '999,Point,"[0, 0]"'))
    contents = read(path)
    assert contents.ids == tuple(IDS[index] for index in GEO_ORDER)
    expected = values.copy()
    expected[7, 1] = expected[2, 0] = np.nan
    assert np.array_equal(joined(contents)[1], expected[:, GEO_ORDER].astype(np.float32), equal_nan=True)
    left = f"{path.with_suffix('.geo')}: 1 of 4 sensors lack rows in METR_LA.dyna and are left out (999)"
    assert shown(contents.notes[1:]) == [left]


def test_several_channels(tmp_path: Path) -> None:
    channels = {name: speeds(6, seed=seed) for seed, name in enumerate(("traffic_flow", "occupancy", "traffic_speed"))}
    write_geo(tmp_path)
    path = write_dyna(tmp_path, channels)
    said = {None: "traffic_speed", "speed": "traffic_speed", "traffic_speed": "traffic_speed", "flow": "traffic_flow"}
    features = {"traffic_speed": ("avg_speed", 0.0), "traffic_flow": ("flow", None)}  # zeros are flows
    for asked, channel in said.items():
        contents = read(path, asked)
        assert ((contents.feature, contents.missing), contents.units) == (features[channel], None)
        assert np.array_equal(joined(contents)[1], channels[channel].astype(np.float32))
    refusal(lambda: read(path, "density"), "density", "no column", "traffic_flow, occupancy, traffic_speed")
    contents = read(path, "traffic_speed,traffic_flow")
    assert (contents.feature, list(contents.others)) == ("avg_speed", ["flow"])
    both = np.stack([channels["traffic_speed"], channels["traffic_flow"]], axis=2)
    assert np.array_equal(np.concatenate([block.speeds for block in contents.blocks]), both.astype(np.float32))
    write_dyna(tmp_path, {"traffic_flow": channels["traffic_flow"], "occupancy": channels["occupancy"]})
    refusal(lambda: read(path), str(path), "traffic_flow, occupancy", "--channel traffic_flow chooses one")
    write_dyna(tmp_path, {"inflow": channels["occupancy"]})
    assert read(path).feature == "flow"
    assert np.array_equal(joined(read(path))[1], channels["occupancy"].astype(np.float32))


@pytest.mark.parametrize(("channel", "missing"), [("traffic_flow", None), ("occupancy", None), ("traffic_speed", 0.0)])
def test_zero_of_a_count_is_a_reading(tmp_path: Path, channel: str, missing: float | None) -> None:
    write_geo(tmp_path)
    readings = read_any("auto", ConvertOptions(write_dyna(tmp_path, {channel: speeds(6)})))
    assert readings.missing == missing


def test_a_channel_whose_name_says_no_quantity(tmp_path: Path) -> None:
    write_geo(tmp_path)
    path = write_dyna(tmp_path, {"risk": speeds(6)})
    refusal(lambda: read(path), str(path), "'risk' says no quantity", "--quantity")
    assert read(path, quantity="occupancy").feature == "occupancy"


def test_sensors_without_positions(tmp_path: Path) -> None:
    """PEMSD4 and LOS_LOOP have ``[]`` for all sensors."""
    path, _ = write_both(tmp_path)
    geo = path.with_suffix(".geo")
    edit(geo, lambda lines: lines.__setitem__(1, f"{IDS[2]},Point,[]"))
    contents = read(path)
    assert set(contents.locations or ()) == {int(IDS[0]), int(IDS[1])}
    edit(geo, lambda lines: lines.__setitem__(slice(1, None), [f'{vdid},Point,"[0, 0]"' for vdid in IDS]))
    assert read(path).locations is None
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


def change_lines(change: Callable[[str], str]) -> Callable[[list[str]], object]:
    return lambda lines: lines.__setitem__(slice(1, None), [change(line) for line in lines[1:]])


# Lines of 3 sensors with 5 rows each: the header is 0, the sensors begin at 1, 6 and 11.
BY_TIME = [1 + 5 * sensor + row for row in range(5) for sensor in range(3)]
PLACED = {
    "unsorted": (swap(7, 8), swap(2, 3), swap(1, 13)),
    "by time": (lambda lines: lines.__setitem__(slice(1, None), [lines[row] for row in BY_TIME]),),
    "comes again": (lambda lines: lines.append(lines[6]),),
}


@pytest.mark.parametrize("size", [1, 1 << 22])
@pytest.mark.parametrize("case", PLACED)
def test_rows_are_placed_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, size: int) -> None:
    monkeypatch.setattr(text_cells, "PIECE_BYTES", size)
    path, values = write_both(tmp_path, rows=5)
    for change in PLACED[case]:
        edit(path, change)
    times, read_speeds = joined(read(path))
    assert times == timestamps(5)
    assert np.array_equal(read_speeds, values[:, GEO_ORDER].astype(np.float32))


@pytest.mark.parametrize("size", [1, 1 << 22])
def test_sensors_with_other_times_than_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(text_cells, "PIECE_BYTES", size)
    path, values = write_both(tmp_path, rows=5)
    edit(path, lambda lines: (replace(10, "00:20", "00:25")(lines), lines.pop(2)))
    expected = np.full((6, 3), np.nan)
    expected[:5] = values
    expected[1, 0] = np.nan
    expected[5, 1], expected[4, 1] = expected[4, 1], np.nan
    times, read_speeds = joined(read(path))
    assert times == timestamps(6)
    assert np.array_equal(read_speeds, expected[:, GEO_ORDER].astype(np.float32), equal_nan=True)


BAD_DYNA = {
    "no time": (replace(0, "time", "when"), "no rows of libcity (line 1 is 'dyna_id,type,when"),
    "grid": (replace(0, "entity_id", "row_id,column_id"), "no rows of libcity (line 1 is"),
    "no channel": (lambda lines: lines.__setitem__(0, "dyna_id,type,time,entity_id"), "no rows of libcity (line 1 is"),
    "no rows": (lambda lines: lines.__delitem__(slice(1, None)), "the file ends after line 1"),
    "another form": (replace(12, "00:05:00Z", "00:05Z"), "line 13 has the time '2012-03-01T00:05Z', not written like"),
    "no such day": (replace(12, "03-01", "02-30"), "line 13 has the time '2012-02-30T00:05:00Z', not written like"),
    "a time twice": (replace(8, "00:10", "00:05"), f"{IDS[1]} has two observations at 2012-03-01 00:05:00"),
    "first twice": (replace(3, "00:10", "00:05"), f"{IDS[0]} has two observations at 2012-03-01 00:05:00"),
    "other spelling": (
        lambda lines: lines.append(lines[7].replace(IDS[1], f"0{IDS[1]}").rpartition(",")[0] + ",99.5"),
        f"{IDS[1]} has two observations at 2012-03-01 00:05:00",
    ),
    "unknown sensor": (replace(9, IDS[1], "12"), "line 10 has the entity_id '12', which METR_LA.geo lacks"),
    "no sensor": (replace(9, IDS[1], ""), "line 10 has the entity_id '', no id"),
    "empty time": (replace(9, "2012-03-01T00:15:00Z", ""), "line 10 has no 'time'"),
    "late offset": (replace(2, "Z", "+08:00"), "line 3 has the time '2012-03-01T00:05:00+08:00', not written like"),
    "late Z": (replace(2, "Z", ""), "line 3 has the time '2012-03-01T00:05:00', not"),
    "epoch": (replace(1, "2012-03-01T00:00:00Z", "1330560000"), "not written like its first one, '1330560000'"),
    "no first time": (replace(1, "2012-03-01T00:00:00Z", "now"), "the first time 'now' has an unknown form"),
    "text": (lambda lines: lines.__setitem__(7, lines[7] + "x"), "line 8, column 'traffic_speed' is"),
    "true": (change_lines(lambda line: line.rpartition(",")[0] + ",True"), "line 2, column 'traffic_speed' is 'True'"),
    "infinite": (last_cell(7, ",inf"), "line 8, column 'traffic_speed' is 'inf'"),
    "short": (last_cell(7, ""), "line 8 has 4 cells, not 5"),
    "long": (lambda lines: lines.__setitem__(7, lines[7] + ",1"), "line 8 has 6 cells, not 5"),
    "cut off": (lambda lines: lines.__setitem__(-1, lines[-1][:9]), "line 16 has 3 cells, not 5"),
    "trajectory": (
        change_lines(lambda line: line.replace("state", "trajectory")),
        "line 2 has the type 'trajectory', not state",
    ),
    "one trajectory": (replace(7, "state", "trajectory"), "line 8 has the type 'trajectory', not state"),
}
BAD_GEO = {
    "line": (replace(1, "Point", "LineString"), "line 2 has the type 'LineString', not Point"),
    "twice": (replace(2, IDS[0], "0" + IDS[2]), f"line 3 has the geo_id '0{IDS[2]}', empty or for a second time"),
    "no id": (replace(2, IDS[0], ""), "line 3 has the geo_id ''"),
    "latitude first": (replace(1, "[-118.0, 34.0]", "[34.0, -118.0]"), "line 2 has the coordinates '[34.0, -118.0]'"),
    "three numbers": (replace(1, "34.0]", "34.0, 5]"), "not [longitude, latitude]"),
    "text": (replace(1, "[-118.0, 34.0]", "here"), "has the coordinates 'here'"),
    "nan": (replace(1, "34.0", "NaN"), "not [longitude, latitude]"),
    "null": (replace(1, "34.0", "null"), "not [longitude, latitude]"),
    "no quotes": (replace(1, '"', ""), "line 2 has 4 cells, not 3"),
    "no sensors": (lambda lines: lines.__delitem__(slice(1, None)), "the file holds no sensors"),
    "no coordinates": (replace(0, "coordinates", "place"), "not columns with geo_id, type, coordinates"),
}


@pytest.mark.parametrize("size", [1, 1 << 22])
@pytest.mark.parametrize("case", BAD_DYNA)
def test_bad_readings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, size: int) -> None:
    monkeypatch.setattr(text_cells, "PIECE_BYTES", size)
    change, words = BAD_DYNA[case]
    path, _ = write_both(tmp_path, rows=5)
    edit(path, change)
    refusal(lambda: joined(read(path)), str(path), words)


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
    refusal(lambda: read(tmp_path / "b"), str(tmp_path / "b"), "nor a folder with a file .dyna")
    refusal(lambda: read(tmp_path / "x.csv"), "neither a file .geo or .dyna")
    for gone in (tmp_path / "b", tmp_path / "x.csv", tmp_path / "gone.dyna", Path("/dev/null")):
        assert why(FORMAT, gone) is None
    (tmp_path / "C.dyna").write_text("")
    assert why(FORMAT, tmp_path) is None
    assert why(FORMAT, geo) is not None
    refusal(lambda: read(tmp_path), "2 files .dyna (C.dyna, METR_LA.dyna). Try: name one of them")
    refusal(lambda: read(tmp_path / "C.dyna"), "C.geo: there is no such file")
    (tmp_path / "C.dyna").unlink()
    for broken in (path, geo):
        kept = broken.read_bytes()
        for content in (b"", np.random.default_rng(0).bytes(999), b"a,b\n1,2\n", b"\xff\xfe\n"):
            broken.write_bytes(content)
            assert (why(FORMAT, tmp_path) is None) is (broken == path or not content)
            refusal(lambda: read(tmp_path), str(broken))
        broken.unlink()
        assert why(FORMAT, tmp_path) is None
        broken.mkdir()
        assert why(FORMAT, tmp_path) is None
        broken.rmdir()
        broken.write_bytes(kept)
    assert why(FORMAT, tmp_path) is not None
