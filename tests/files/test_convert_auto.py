"""Whatever users hold: what it is told by, what is known of it, what must be said, in the words of the command."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from socialx.files.sources import NAMES
from socialx.files.sources.contents import RowClock
from socialx.files.sources.readings import read
from socialx.files.sources.recognition import FORMATS, find, recognise
from socialx.files.sources.request import ConvertOptions, parse_freq
from socialx.files.store.head import read_head
from socialx.files.store.published import DATASETS
from socialx.files.store.store import open_store
from socialx.files.store.time_axis import as_text
from socialx.settings.layers import preset_here
from tests.array_files import fractions, tiled
from tests.commands import ROOT, socialx
from tests.data_files import (
    IDS,
    changed,
    drop,
    refusal,
    seconds_of,
    shown,
    speeds,
    timestamps,
    write_csv,
    write_frame,
    write_locations,
    write_stations,
)
from tests.older_files import OLDER
from tests.published_files import write_dyna, write_geo, write_t_gcn

ROWS = 60
TIMES, VALUES = timestamps(ROWS), speeds(ROWS)


def libcity(folder: Path) -> Path:
    write_geo(folder)
    return write_dyna(folder, {"traffic_speed": VALUES}).parent


def matrix(path: Path) -> Path:
    np.savetxt(path, VALUES, "%.17e", ",")
    return path


def rows_of_sensors(path: Path, header: str, row: Callable[[str, str, float], str]) -> Path:
    every = (
        (t, vdid, v)
        for t, values in zip(TIMES, VALUES.tolist(), strict=True)
        for vdid, v in zip(IDS, values, strict=True)
    )
    path.write_text(header + "".join(f"{row(*each)}\n" for each in every))
    return path


def pems_station(time: str, vdid: str, value: float) -> str:
    return f"{time[5:7]}/{time[8:10]}/{time[:4]}{time[10:]},{vdid},7,5,S,ML,.43,90,100,20,.02,{value!r},10,20,.02,60,1"


def utd19(time: str, vdid: str, value: float) -> str:
    second = 3600 * int(time[11:13]) + 60 * int(time[14:16])
    return f"{time[:10]},{second},{vdid},60,0.02,,losangeles,{value!r}"


def taiwan(folder: Path) -> Path:
    for number, (when, row) in enumerate(zip(TIMES, VALUES.tolist(), strict=True)):
        lanes = [{"LaneID": 0, "Speed": speed, "Vehicles": [{"Volume": 1}]} for speed in row]
        vds = [
            {"VDID": vdid, "DataCollectTime": f"{when.replace(' ', 'T')}+08:00", "LinkFlows": [{"Lanes": [lane]}]}
            for vdid, lane in zip(IDS, lanes, strict=True)
        ]
        (folder / f"{number:03}.json").write_text(json.dumps({"VDLives": vds}))
    return folder


def saved(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


START, CLOCK = ["--first-time", TIMES[0]], ["--first-time", TIMES[0], "--freq", "5min"]
BUILDERS = {
    "published-csv": (lambda f: write_csv(f / "d.csv", TIMES, VALUES), []),
    "csv": (
        lambda f: (
            Path(f / "d.csv")
            if (f / "d.csv").write_text(write_csv(f / "e.csv", TIMES, VALUES).read_text().replace(",", "time,", 1))
            else f
        ),
        [],
    ),
    "t-gcn": (lambda f: write_t_gcn(f / "los_speed.csv", VALUES), CLOCK),
    "matrix-csv": (lambda f: matrix(f / "V_228.csv"), CLOCK),
    "hdfstore": (lambda f: write_frame(f / "d.h5", TIMES, VALUES), []),
    "torch-mts": (lambda f: saved(f / "data.npz", data=tiled(VALUES, fractions(TIMES))), START),
    "largest-npz": (
        lambda f: saved(
            f / "his.npz",
            data=tiled((VALUES - 40) / 8, fractions(TIMES), np.full(ROWS, 3)),
            mean=np.array(40.0),
            std=np.array(8.0),
        ),
        START,
    ),
    "pems-npz": (lambda f: saved(f / "PEMS04.npz", data=tiled(VALUES * 9, VALUES / 99, VALUES)), CLOCK),
    "npy": (lambda f: np.save(f / "d.npy", VALUES) or f / "d.npy", CLOCK),
    "pyg-t": (lambda f: np.save(f / "node_values.npy", tiled(VALUES, fractions(TIMES))) or f, START),
    "libcity": (libcity, []),
    "pems-station": (lambda f: rows_of_sensors(f / "d07.txt", "", pems_station), []),
    "utd19": (lambda f: rows_of_sensors(f / "u.csv", "day,interval,detid,flow,occ,error,city,speed\n", utd19), []),
    "taiwan-vd": (taiwan, []),
}


def test_every_format_is_tried_here() -> None:
    assert set(BUILDERS) == set(FORMATS)


@pytest.mark.parametrize("name", BUILDERS)
def test_whatever_it_is_one_command_makes_the_same_file(tmp_path: Path, name: str) -> None:
    build, options = BUILDERS[name]
    (tmp_path / "in").mkdir()
    data = build(tmp_path / "in")
    meta = write_locations(tmp_path / "meta.csv")
    said = socialx("convert", "auto", data)
    assert said.exit_code == 0, said.stderr
    told = f"{data}: {FORMATS[name].title}: {FORMATS[name].recognise(read_head(data))} ({name})\n"
    assert said.stdout == told
    assert said.stderr.startswith("next: socialx convert auto")
    arguments = [data, *options, "--meta-csv", meta, "--output-h5"]
    done = socialx("convert", "auto", *arguments, tmp_path / "out.h5", "--validate")
    assert done.exit_code == 0, done.stderr
    assert done.stderr.startswith(f"note: {told[:-1]}.\n")
    store = open_store(tmp_path / "out.h5")
    assert store.timestamps.astype(str).tolist() == TIMES
    if name == "largest-npz":
        assert np.allclose(store.values, VALUES, atol=1e-4)
    elif name == "taiwan-vd":  # a lane without a reading is none
        assert np.nan_to_num(store.values).tobytes() == VALUES.astype(np.float32).tobytes()
    else:
        assert store.values.tobytes() == VALUES.astype(np.float32).tobytes()
    assert store.sensors.ids == IDS
    assert store.sensors.latitude.tolist() == [34.0, 34.01, 34.02]
    assert socialx("inspect", tmp_path / "out.h5").stdout.startswith("kind")
    # Named instead of recognised, it is the same.
    socialx("convert", name, *arguments, tmp_path / "named.h5")
    assert open_store(tmp_path / "named.h5").checksum == store.checksum
    # And inspect says what it is, and what to type.
    asked = json.loads(socialx("inspect", data, "--json").stdout)
    assert asked["kind"] == name
    assert asked["next"].startswith(f"socialx convert auto {data}")
    assert socialx("inspect", data, "--fail-unless", "all").exit_code == 1


OPENED: list[str] = []
sys.addaudithook(lambda event, given: OPENED.append(str(given[0])) if event == "open" else None)


@pytest.mark.parametrize("name", ["published-csv", "csv", "t-gcn", "matrix-csv"])
def test_a_file_is_opened_three_times_at_most(tmp_path: Path, name: str) -> None:
    build, options = BUILDERS[name]
    data, meta = build(tmp_path), write_locations(tmp_path / "meta.csv")
    for kind in ("auto", name):
        OPENED.clear()
        done = socialx("convert", kind, data, *options, "--meta-csv", meta, "--output-h5", tmp_path / f"{kind}.h5")
        assert done.exit_code == 0, done.stderr
        assert OPENED.count(str(data)) <= 3, kind


def test_libcity_brings_its_own_positions(tmp_path: Path) -> None:
    done = socialx("convert", "libcity", libcity(tmp_path), "--output-h5", tmp_path / "out.h5")
    assert done.exit_code == 0, done.stderr
    sensors = open_store(tmp_path / "out.h5").sensors
    assert sensors.latitude.tolist() == [34.0, 34.01, 34.02]
    assert sensors.longitude.tolist() == [-118.0, -118.01, -118.02]


def test_a_data_set_is_known_by_its_ids(tmp_path: Path) -> None:
    for name, dataset in DATASETS.items():
        ids = tuple(str(vdid) for vdid in dataset.ids[: dataset.sensors])
        data = write_csv(tmp_path / "mine.csv", timestamps(5), speeds(5, len(ids)), ids)
        meta = (write_stations if dataset.static else write_locations)(tmp_path / "meta.csv", ids)
        if dataset.static:  # the helper's places leave the map at 325 sensors
            meta.write_text("sensor_id,latitude,longitude\n" + "".join(f"{vdid},37,-121\n" for vdid in ids))
        source = read("auto", ConvertOptions(data, meta_csv=meta))
        assert source.dataset_name == dataset.dataset_name
        assert (source.timezone, source.units) == ("America/Los_Angeles", "mph")
        assert any(f"{name}, by the ids of its {len(ids)} sensors" in note for note in shown(source.notes))
        other = write_csv(tmp_path / "mine.csv", timestamps(5), speeds(5, len(ids) - 1), ids[1:])
        assert read("auto", ConvertOptions(other, meta_csv=meta)).dataset_name == "mine"


def test_another_network_is_called_by_its_file_and_says_what_was_assumed(tmp_path: Path) -> None:
    data = write_csv(tmp_path / "My City.csv", TIMES, VALUES)
    arguments = ["convert", "csv", data, "--meta-csv", write_locations(tmp_path / "meta.csv"), "--output-h5"]
    done = socialx(*arguments, tmp_path / "out.h5")
    assert "the unit is unknown.\n  try: name it with --units mph or --units km/h" in done.stderr
    assert "0 is treated as missing" in done.stderr
    store = open_store(tmp_path / "out.h5")
    assert (store.dataset_name, store.unit, store.missing, store.timezone) == ("my_city", "unknown", 0.0, None)
    choices = ["--name", "lyon", "--units", "km/h", "--missing", "none", "--timezone", "America/Los_Angeles"]
    done = socialx(*arguments, tmp_path / "said.h5", *choices)
    size = f" --preset {preset_here()}" if preset_here() else ""
    assert done.stderr.endswith(f"next: socialx train --data {tmp_path / 'said.h5'}{size}\n")
    store = open_store(tmp_path / "said.h5")
    assert (store.dataset_name, store.unit, store.missing, store.timezone) == (
        "lyon",
        "km/h",
        None,
        "America/Los_Angeles",
    )
    assert store.valid.all()
    with h5py.File(tmp_path / "said.h5") as file:
        assert file.attrs["feature_set"] == "lyon_v1"
    assert socialx(*arguments, tmp_path / "m.h5", "--missing", "-1").exit_code == 0
    assert open_store(tmp_path / "m.h5").missing == -1.0
    assert "neither a number nor none" in socialx(*arguments, tmp_path / "n.h5", "--missing", "zero").stderr


def test_ids_from_a_list_from_the_index_column_or_only_numbers(tmp_path: Path) -> None:
    np.save(tmp_path / "d.npy", VALUES)
    meta = write_locations(tmp_path / "meta.csv")
    request = ConvertOptions(tmp_path / "d.npy", meta_csv=meta, first_time=TIMES[0], step_s=300)
    indexed = read("npy", request)
    assert indexed.sensors.ids == IDS
    assert f"{meta}: ids from its column index" in shown(indexed.notes)
    (tmp_path / "ids.txt").write_text("\n".join(reversed(IDS)) + "\n")
    request = replace(request, ids=tmp_path / "ids.txt")
    listed = read("npy", request)
    assert listed.sensors.ids == IDS[::-1]
    assert listed.sensors.latitude.tolist() == [34.02, 34.01, 34.0]
    (tmp_path / "ids.txt").write_text("1,2\n")
    refusal(lambda: read("npy", request), "2 ids for the 3 sensors")
    numbered = tmp_path / "numbered.csv"
    numbered.write_text("sensor_id,latitude,longitude\n2,36,-1\n0,34,-1\n1,35,-1\n")
    found = read("npy", replace(request, meta_csv=numbered, ids=None))
    assert found.sensors.ids == ("0", "1", "2")
    assert found.sensors.latitude.tolist() == [34, 35, 36]
    assert any(
        "no sensor ids, so the sensors are 0 to 2.\n  try: name ids with --ids FILE" in note
        for note in shown(found.notes)
    )


def test_without_positions_now_and_backfilled_later(tmp_path: Path) -> None:
    data = write_csv(tmp_path / "d.csv", TIMES, VALUES)
    done = socialx("convert", "csv", data, "--output-h5", tmp_path / "out.h5")
    assert done.exit_code == 1
    assert (
        "holds no positions of its sensors.\n  try: add --meta-csv LOCATIONS.csv, or --without-positions" in done.stderr
    )
    arguments = ["convert", "csv", data, "--without-positions", "--output-h5", tmp_path / "out.h5", "--validate"]
    done = socialx(*arguments)
    assert (done.exit_code, "3 of 3 sensors have no location" in done.stderr) == (3, True)
    assert socialx("backfill", tmp_path / "out.h5").exit_code == 1
    assert socialx("backfill", tmp_path / "out.h5", "--meta-csv", write_locations(tmp_path / "meta.csv")).exit_code == 0
    assert socialx("inspect", tmp_path / "out.h5", "--fail-unless", "positions,vd_info").exit_code == 0


def test_flow_is_not_called_a_speed(tmp_path: Path) -> None:
    data = saved(tmp_path / "PEMS08.npz", data=tiled(VALUES * 9, VALUES / 99, VALUES))
    arguments = ["convert", "pems-npz", data, *CLOCK, "--meta-csv", write_locations(tmp_path / "meta.csv")]
    done = socialx(*arguments, "--channel", "flow", "--output-h5", tmp_path / "out.h5")
    assert f"next: socialx train --data {tmp_path / 'out.h5'} --targets flow" in done.stderr
    store = open_store(tmp_path / "out.h5")
    assert (store.feature, store.unit) == ("flow", "vehicles per step")
    assert socialx("inspect", tmp_path / "out.h5", "--fail-unless", "units,positions").exit_code == 0


def test_known_data_sets_know_their_start(tmp_path: Path) -> None:
    meta = write_locations(tmp_path / "meta.csv")
    timed = saved(tmp_path / "data.npz", data=tiled(VALUES, fractions(TIMES)))
    source = read("metr-la", ConvertOptions(timed, meta_csv=meta))
    assert next(source.blocks).seconds[0] == seconds_of(TIMES)[0]
    # PEMS-BAY lacks an hour, so that rows without a clock need the user's word.
    data = write_t_gcn(tmp_path / "speed.csv", VALUES)
    refusal(lambda: read("pems-bay", ConvertOptions(data, meta_csv=meta)), "--first-time", "--freq")
    assert next(read("metr-la", ConvertOptions(data, meta_csv=meta)).blocks).seconds[1] == seconds_of(TIMES)[1]


def test_a_flag_that_would_be_ignored_is_refused(tmp_path: Path) -> None:
    data, meta = write_csv(tmp_path / "d.csv", TIMES, VALUES), write_locations(tmp_path / "meta.csv")
    arguments = ["convert", "metr-la", data, "--meta-csv", meta, "--output-h5", tmp_path / "out.h5"]
    for flag, value in (("--first-time", TIMES[0]), ("--channel", "1"), ("--ids", str(meta))):
        done = socialx(*arguments, flag, value)
        assert done.exit_code == 2
        assert done.stderr.startswith(f"error: {flag} is superfluous: METR-LA.csv and PEMS-BAY.csv as published")
        assert done.stderr.endswith(" says that itself.\n  try: drop it\n")
    done = socialx(*arguments, "--freq", "5min")
    assert done.exit_code == 2
    assert done.stderr == "error: metr-la keeps the rows that it has as published.\n  try: drop --freq\n"
    assert not (tmp_path / "out.h5").exists()


def test_what_nobody_knows_is_listed(tmp_path: Path) -> None:
    (tmp_path / "d.bin").write_bytes(b"\x00\x01\x02")
    line = refusal(lambda: recognise(read_head(tmp_path / "d.bin")), "no known format", *FORMATS)
    assert str(tmp_path / "d.bin") in line
    (tmp_path / "folder").mkdir()
    refusal(lambda: recognise(read_head(tmp_path / "folder")), "an empty folder")
    (tmp_path / "folder" / "d.bin").write_bytes(b"\x00\x01")
    refusal(lambda: recognise(read_head(tmp_path / "folder")), "socialx knows nothing in this folder")
    refusal(lambda: recognise(read_head(tmp_path / "gone")), "no such file")
    refusal(lambda: find("libcty"), "did you mean libcity?")
    assert find("export") is FORMATS["csv"]  # an older name
    for wrong in (["convert", "auto"], ["convert", "csv", "a.csv", "--data-csv", "b.csv"], ["convert", "csv", "a.csv"]):
        assert socialx(*wrong).exit_code == 2
    assert "for example 5min" in socialx("convert", "auto", tmp_path, "--freq", "often").stderr


def test_help_names_every_format() -> None:
    text = " ".join(socialx("convert", "--help").stdout.split()).replace("- ", "-")  # a line may end within a name
    assert [name for name in FORMATS if name not in text] == []
    assert tuple(FORMATS) == NAMES
    page = (ROOT / "docs/data.md").read_text()
    assert [name for name in FORMATS if f"`{name}`" not in page] == []


def test_the_clock_of_rows_without_dates() -> None:
    assert [parse_freq(text) for text in ("5min", "300s", "1h", " 15 MIN ")] == [300, 300, 3600, 900]
    for wrong in ("", "5", "min", "0min", "5 weeks", "-5min"):
        refusal(lambda: parse_freq(wrong), "--freq")  # noqa: B023
    for wrong in ("2012-03-01", "2012-02-30 00:00:00", "now"):
        refusal(
            lambda: RowClock(ConvertOptions(Path("x"), first_time=wrong, step_s=300)),  # noqa: B023
            f"--first-time {shlex.quote(wrong)} ",
        )
    clock = RowClock(ConvertOptions(Path("x"), first_time="2012-02-28 23:50:00", step_s=300))
    assert [as_text(int(each)) for each in (*clock.seconds(3), *clock.seconds(1))] == [
        "2012-02-28 23:50:00", "2012-02-28 23:55:00", "2012-02-29 00:00:00", "2012-02-29 00:05:00"
    ]  # fmt: skip
    clock = RowClock(ConvertOptions(Path("x"), first_time="2017-03-12 01:55:00", step_s=300))
    days = *clock.seconds_at(np.array([6900, 10800])), *clock.seconds_at(np.array([0, 0]))
    assert [as_text(int(each)) for each in days] == [
        "2017-03-12 01:55:00", "2017-03-12 03:00:00", "2017-03-13 00:00:00", "2017-03-14 00:00:00"
    ]  # fmt: skip
    refusal(lambda: RowClock(ConvertOptions(Path("x"), first_time="2017-03-12 00:00:00")).seconds(1), "--freq")
    wrong_start = RowClock(ConvertOptions(Path("x"), first_time="2017-03-12 00:00:00", step_s=300))
    refusal(lambda: wrong_start.seconds_at(np.array([60])), "at 00:01:00, not 00:00:00")


@pytest.fixture
def machine_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """What moves this machine to another time zone."""

    def move(zone: str) -> None:
        patch.setenv("TZ", zone)
        time.tzset()

    with monkeypatch.context() as patch:
        yield move
    time.tzset()


def test_output_does_not_depend_on_the_machines_zone(tmp_path: Path, machine_zone: Callable[[str], None]) -> None:
    times = timestamps(60, "2012-03-11T00:00:00")  # over the hour that the clocks of Los Angeles skip
    data, meta = write_csv(tmp_path / "d.csv", times, speeds(60)), write_locations(tmp_path / "meta.csv")
    written, patched = set(), set()
    for number, zone in enumerate(("UTC", "America/Los_Angeles", "Asia/Taipei")):
        machine_zone(zone)
        output, older = tmp_path / f"{number}.h5", tmp_path / "older.h5"
        assert socialx("convert", "auto", data, "--meta-csv", meta, "--output-h5", output).exit_code == 0
        with h5py.File(output) as file:
            assert (np.diff(file["metadata/timestamps_epoch"][:]) == 300).all()
        date = rb"20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[+]00:00"
        content, count = re.subn(date, b"DATE", output.read_bytes())
        assert count == 1  # creation_date is all that may differ
        written.add(content)
        changed(OLDER["P0"](older), drop("metadata/timestamps_epoch"))
        assert socialx("backfill", older).exit_code == 0
        patched.add(older.read_bytes())
    assert len(written) == len(patched) == 1
