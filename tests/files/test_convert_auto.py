"""Whatever users hold: what it is told by, what is known of it, what must be said, in the words of the command."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import h5py
import numpy as np
import pytest

from socialx.files.formats.contents import Clock, Request, parse_freq
from socialx.files.formats.registry import FORMATS
from socialx.files.published import DATASETS
from socialx.files.readings import read
from socialx.files.recognition import find, recognise
from socialx.files.store import open_store
from tests.array_files import fractions, tiled
from tests.commands import EXCERPT, LOCATIONS, ROOT, process, socialx
from tests.data_files import (
    IDS,
    refusal,
    shown,
    speeds,
    timestamps,
    write_csv,
    write_frame,
    write_locations,
    write_stations,
)
from tests.older_files import OLDER


def windows_of(folder: Path, values: np.ndarray, times: list[str]) -> Path:
    """DCRNN's three files: 12 + 12 steps, 70/10/20 in order."""
    series = tiled(values, fractions(times))
    count = len(values) - 23
    index = np.arange(count)[:, None]
    x, y = series[index + np.arange(12)], series[index + np.arange(12, 24)]
    test, train = round(count * 0.2), round(count * 0.7)
    parts = {"train": slice(0, train), "val": slice(train, count - test), "test": slice(count - test, count)}
    for name, part in parts.items():
        np.savez_compressed(folder / f"{name}.npz", x=x[part], y=y[part])
    return folder


def libcity(folder: Path, values: np.ndarray, times: list[str]) -> Path:
    """NAME.geo and NAME.dyna; longitude first."""
    places = (f'{vdid},Point,"[{-118 - i / 100}, {34 + i / 100}]"' for i, vdid in enumerate(IDS))
    (folder / "MINE.geo").write_text("\n".join(["geo_id,type,coordinates", *places]) + "\n")
    rows = [
        f"{i * len(times) + t},state,{time.replace(' ', 'T')}Z,{vdid},{float(values[t, i])!r}"
        for i, vdid in enumerate(IDS)
        for t, time in enumerate(times)
    ]
    (folder / "MINE.dyna").write_text("\n".join(["dyna_id,type,time,entity_id,traffic_speed", *rows]) + "\n")
    return folder


ROWS = 60
TIMES, VALUES = timestamps(ROWS), speeds(ROWS)


def basicts(folder: Path) -> Path:
    tiled(VALUES, fractions(TIMES)).astype(np.float32).tofile(folder / "data.dat")
    described = {"shape": [ROWS, 3, 2], "frequency (minutes)": 5, "feature_description": ["speed", "time of day"]}
    (folder / "desc.json").write_text(json.dumps({"name": "mine"} | described))
    return folder


def t_gcn(path: Path) -> Path:
    lines = [",".join(IDS), *(",".join(map(repr, row)) for row in VALUES.tolist())]
    path.write_text("\n".join(lines) + "\n")
    return path


def matrix(path: Path) -> Path:
    np.savetxt(path, VALUES, "%.17e", ",")
    return path


def exported(path: Path) -> Path:
    rows = [";".join([time, *map(repr, row)]) for time, row in zip(TIMES, VALUES.tolist(), strict=True)]
    path.write_text("\n".join([";".join(["when", *IDS]), *rows]).replace(".", ",") + "\n")
    return path


def saved(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


START, CLOCK = ["--start", TIMES[0]], ["--start", TIMES[0], "--freq", "5min"]
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
    "t-gcn": (lambda f: t_gcn(f / "los_speed.csv"), CLOCK),
    "matrix-csv": (lambda f: matrix(f / "V_228.csv"), CLOCK),
    "hdfstore": (lambda f: write_frame(f / "d.h5", TIMES, VALUES), []),
    "windows-npz": (lambda f: windows_of(f, VALUES, TIMES), START),
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
    "basicts": (basicts, START),
    "libcity": (lambda f: libcity(f, VALUES, TIMES), []),
    "export": (lambda f: exported(f / "d.csv"), []),
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
    told = f"{data}: {FORMATS[name].title}: {FORMATS[name].recognise(data)} ({name})\n"
    assert said.stdout == told
    assert said.stderr.startswith("next: socialx convert auto")
    arguments = [data, *options, "--meta-csv", meta, "--output-h5"]
    done = socialx("convert", "auto", *arguments, tmp_path / "out.h5", "--validate")
    assert done.exit_code == 0, done.stderr
    assert done.stderr.startswith(told)
    store = open_store(tmp_path / "out.h5")
    assert store.timestamps.astype(str).tolist() == TIMES
    if name == "largest-npz":
        assert np.allclose(store.values, VALUES, atol=1e-4)
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
    assert socialx("inspect", data, "--require", "all").exit_code == 1


def test_libcity_brings_its_own_positions(tmp_path: Path) -> None:
    done = socialx("convert", "libcity", libcity(tmp_path, VALUES, TIMES), "--output-h5", tmp_path / "out.h5")
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
        source = read("auto", Request(data), meta)
        assert (source.dataset, source.readings.dataset_name) == (dataset, dataset.dataset_name)
        assert (source.readings.timezone, source.readings.units) == ("America/Los_Angeles", "mph")
        assert any(f"{name}, by the ids of its {len(ids)} sensors" in note for note in shown(source.notes))
        other = write_csv(tmp_path / "mine.csv", timestamps(5), speeds(5, len(ids) - 1), ids[1:])
        assert read("auto", Request(other), meta).dataset is None


def test_another_network_is_called_by_its_file_and_says_what_was_assumed(tmp_path: Path) -> None:
    data = write_csv(tmp_path / "My City.csv", TIMES, VALUES)
    arguments = ["convert", "csv", data, "--meta-csv", write_locations(tmp_path / "meta.csv"), "--output-h5"]
    done = socialx(*arguments, tmp_path / "out.h5")
    assert "the unit is not said in it: --units mph or --units km/h" in done.stderr
    assert "0 counts as no reading" in done.stderr
    store = open_store(tmp_path / "out.h5")
    assert (store.dataset_name, store.unit, store.missing, store.timezone) == ("my_city", "unknown", 0.0, None)
    choices = ["--name", "lyon", "--units", "km/h", "--missing", "none", "--timezone", "Europe/Paris"]
    done = socialx(*arguments, tmp_path / "said.h5", *choices)
    assert done.stderr == f"next: socialx train --data {tmp_path / 'said.h5'}\n"
    store = open_store(tmp_path / "said.h5")
    assert (store.dataset_name, store.unit, store.missing, store.timezone) == ("lyon", "km/h", None, "Europe/Paris")
    assert store.valid.all()
    with h5py.File(tmp_path / "said.h5") as file:
        assert file.attrs["feature_set"] == "lyon_v1"
    assert socialx(*arguments, tmp_path / "m.h5", "--missing", "-1").exit_code == 0
    assert open_store(tmp_path / "m.h5").missing == -1.0
    assert "neither a number nor none" in socialx(*arguments, tmp_path / "n.h5", "--missing", "zero").stderr


def test_ids_from_a_list_from_the_index_column_or_only_numbers(tmp_path: Path) -> None:
    np.save(tmp_path / "d.npy", VALUES)
    meta = write_locations(tmp_path / "meta.csv")
    request = Request(tmp_path / "d.npy", start=TIMES[0], step_s=300)
    indexed = read("npy", request, meta)
    assert indexed.readings.sensors.ids == IDS
    assert f"{meta}: ids from its column index" in shown(indexed.notes)
    (tmp_path / "ids.txt").write_text("\n".join(reversed(IDS)) + "\n")
    listed = read("npy", Request(tmp_path / "d.npy", tmp_path / "ids.txt", TIMES[0], 300), meta)
    assert listed.readings.sensors.ids == IDS[::-1]
    assert listed.readings.sensors.latitude.tolist() == [34.02, 34.01, 34.0]
    (tmp_path / "ids.txt").write_text("1,2\n")
    short = Request(tmp_path / "d.npy", tmp_path / "ids.txt", TIMES[0], 300)
    refusal(lambda: read("npy", short, meta), "2 ids for the 3 sensors")
    numbered = tmp_path / "numbered.csv"
    numbered.write_text("sensor_id,latitude,longitude\n2,36,-1\n0,34,-1\n1,35,-1\n")
    found = read("npy", request, numbered)
    assert found.readings.sensors.ids == ("0", "1", "2")
    assert found.readings.sensors.latitude.tolist() == [34, 35, 36]
    assert any("no sensor ids, so they are 0 to 2: --ids FILE gives them" in note for note in shown(found.notes))


def test_without_positions_now_and_backfilled_later(tmp_path: Path) -> None:
    data = write_csv(tmp_path / "d.csv", TIMES, VALUES)
    done = socialx("convert", "csv", data, "--output-h5", tmp_path / "out.h5")
    assert done.exit_code == 1
    assert "holds no positions of its sensors: add --meta-csv LOCATIONS.csv, or --without-positions" in done.stderr
    arguments = ["convert", "csv", data, "--without-positions", "--output-h5", tmp_path / "out.h5", "--validate"]
    done = socialx(*arguments)
    assert (done.exit_code, "3 of 3 sensors have no position" in done.stderr) == (3, True)
    assert socialx("backfill", tmp_path / "out.h5").exit_code == 1
    assert socialx("backfill", tmp_path / "out.h5", "--meta", write_locations(tmp_path / "meta.csv")).exit_code == 0
    assert socialx("inspect", tmp_path / "out.h5", "--require", "positions,vd_info").exit_code == 0


def test_flow_is_not_called_a_speed(tmp_path: Path) -> None:
    data = saved(tmp_path / "PEMS08.npz", data=tiled(VALUES * 9, VALUES / 99, VALUES))
    arguments = ["convert", "pems-npz", data, *CLOCK, "--meta-csv", write_locations(tmp_path / "meta.csv")]
    done = socialx(*arguments, "--channel", "flow", "--output-h5", tmp_path / "out.h5")
    assert f"next: socialx train --data {tmp_path / 'out.h5'} --targets flow" in done.stderr
    store = open_store(tmp_path / "out.h5")
    assert (store.feature, store.unit) == ("flow", "vehicles per step")
    assert socialx("inspect", tmp_path / "out.h5", "--require", "units,positions").exit_code == 0


def test_known_data_sets_know_their_start(tmp_path: Path) -> None:
    windows_of(tmp_path, VALUES, TIMES)
    meta = write_locations(tmp_path / "meta.csv")
    source = read("metr-la", Request(tmp_path), meta)
    assert next(source.readings.blocks).timestamps[0] == TIMES[0].encode()
    # PEMS-BAY lacks an hour, so that rows without a clock need the user's word.
    data = t_gcn(tmp_path / "speed.csv")
    refusal(lambda: read("pems-bay", Request(data), meta), "--start", "--freq")
    assert next(read("metr-la", Request(data), meta).readings.blocks).timestamps[1] == TIMES[1].encode()


def test_a_flag_that_would_be_ignored_is_refused(tmp_path: Path) -> None:
    data, meta = write_csv(tmp_path / "d.csv", TIMES, VALUES), write_locations(tmp_path / "meta.csv")
    arguments = ["convert", "metr-la", data, "--meta-csv", meta, "--output-h5", tmp_path / "out.h5"]
    for flag, value in (("--start", TIMES[0]), ("--freq", "5min"), ("--channel", "1"), ("--ids", str(meta))):
        done = socialx(*arguments, flag, value)
        assert done.exit_code == 2
        assert done.stderr.startswith(f"error: {flag}: METR-LA.csv and PEMS-BAY.csv as published")
    assert not (tmp_path / "out.h5").exists()


def test_what_nobody_knows_is_listed(tmp_path: Path) -> None:
    (tmp_path / "d.bin").write_bytes(b"\x00\x01\x02")
    line = refusal(lambda: recognise(tmp_path / "d.bin"), "no known format", *FORMATS)
    assert str(tmp_path / "d.bin") in line
    (tmp_path / "folder").mkdir()
    refusal(lambda: recognise(tmp_path / "folder"), "an empty folder")
    (tmp_path / "folder/d.bin").touch()
    refusal(lambda: recognise(tmp_path / "folder"), "nothing in this folder is known (d.bin)")
    refusal(lambda: recognise(tmp_path / "gone"), "no such file")
    refusal(lambda: find("libcty"), "did you mean libcity?")
    for wrong in (["convert", "auto"], ["convert", "csv", "a.csv", "--data-csv", "b.csv"], ["convert", "csv", "a.csv"]):
        assert socialx(*wrong).exit_code == 2
    assert "for example 5min" in socialx("convert", "auto", tmp_path, "--freq", "often").stderr


def test_help_names_every_format() -> None:
    text = " ".join(socialx("convert", "--help").stdout.split())
    assert [name for name in FORMATS if name not in text] == []
    page = (ROOT / "docs/data.md").read_text()
    assert [name for name in FORMATS if f"`{name}`" not in page] == []


def test_the_clock_of_rows_without_dates() -> None:
    assert [parse_freq(text) for text in ("5min", "300s", "1h", " 15 MIN ")] == [300, 300, 3600, 900]
    for wrong in ("", "5", "min", "0min", "5 weeks", "-5min"):
        refusal(lambda: parse_freq(wrong), "--freq")  # noqa: B023
    for wrong in ("2012-03-01", "2012-02-30 00:00:00", "now"):
        refusal(lambda: Clock(Request(Path("x"), start=wrong, step_s=300)), f"--start {shlex.quote(wrong)}: ")  # noqa: B023
    clock = Clock(Request(Path("x"), start="2012-02-28 23:50:00", step_s=300))
    assert [*clock.timestamps(3), *clock.timestamps(1)] == [
        b"2012-02-28 23:50:00", b"2012-02-28 23:55:00", b"2012-02-29 00:00:00", b"2012-02-29 00:05:00",
    ]  # fmt: skip
    clock = Clock(Request(Path("x"), start="2017-03-12 01:55:00", step_s=300))
    assert [*clock.timestamps_at(np.array([6900, 10800])), *clock.timestamps_at(np.array([0, 0]))] == [
        b"2017-03-12 01:55:00", b"2017-03-12 03:00:00", b"2017-03-13 00:00:00", b"2017-03-14 00:00:00",
    ]  # fmt: skip
    refusal(lambda: Clock(Request(Path("x"), start="2017-03-12 00:00:00")).timestamps(1), "--freq")
    wrong_start = Clock(Request(Path("x"), start="2017-03-12 00:00:00", step_s=300))
    refusal(lambda: wrong_start.timestamps_at(np.array([60])), "at 00:01:00, not 00:00:00")


@pytest.mark.slow
def test_output_does_not_depend_on_the_machines_zone(tmp_path: Path) -> None:
    written, patched = set(), set()
    for zone in ("UTC", "America/Los_Angeles", "Asia/Taipei"):
        output, older = tmp_path / f"{zone.replace('/', '_')}.h5", tmp_path / "older.h5"
        arguments = ["--data-csv", EXCERPT, "--meta-csv", LOCATIONS, "--output-h5", output]
        assert process("convert", "auto", *arguments, TZ=zone).returncode == 0
        date = rb"20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[+]00:00"
        content, count = re.subn(date, b"DATE", output.read_bytes())
        assert count == 1  # creation_date is all that may differ
        written.add(content)
        OLDER["P0"](older)
        with h5py.File(older, "r+") as file:
            del file["metadata/timestamps_epoch"]
        assert process("backfill", older, TZ=zone).returncode == 0
        patched.add(older.read_bytes())
    assert len(written) == len(patched) == 1
