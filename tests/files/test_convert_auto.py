"""Whatever users hold: one command makes the file, or says what it is and the command that helps."""

import json
import re
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from socialx.core.errors import SettingsError
from socialx.files.sources import NAMES
from socialx.files.sources.readings import read
from socialx.files.sources.recognition import FORMATS, find, recognise
from socialx.files.sources.request import ConvertOptions, parse_freq
from socialx.files.store.head import read_head
from socialx.files.store.published import DATASETS
from socialx.files.store.store import open_store
from socialx.files.store.writer import create
from tests.commands import ROOT, refused, socialx, works
from tests.data_files import (
    BAY_IDS,
    IDS,
    changed,
    drop,
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

ROWS = 60
TIMES, VALUES = timestamps(ROWS), speeds(ROWS)


def taiwan(folder: Path) -> Path:
    for number, (when, row) in enumerate(zip(TIMES, VALUES.tolist(), strict=True)):
        lanes = [{"LaneID": 0, "Speed": speed, "Vehicles": [{"Volume": 1}]} for speed in row]
        vds = [
            {"VDID": vdid, "DataCollectTime": f"{when.replace(' ', 'T')}+08:00", "LinkFlows": [{"Lanes": [lane]}]}
            for vdid, lane in zip(IDS, lanes, strict=True)
        ]
        (folder / f"{number:03}.json").write_text(json.dumps({"VDLives": vds}))
    return folder


CLOCK = ["--first-time", TIMES[0], "--freq", "5min", "--channel", "speed"]
BUILDERS: dict[str, tuple[Callable[[Path], Path], list[str]]] = {
    "csv": (lambda f: write_csv(f / "d.csv", TIMES, VALUES), []),
    "hdfstore": (lambda f: write_frame(f / "d.h5", TIMES, VALUES), []),
    "npy": (lambda f: np.save(f / "d.npy", VALUES) or f / "d.npy", CLOCK),  # type: ignore[func-returns-value]
    "taiwan-vd": (taiwan, []),
}


@pytest.mark.parametrize("name", FORMATS)
def test_whatever_it_is_one_command_makes_the_same_file(tmp_path: Path, name: str) -> None:
    build, options = BUILDERS[name]
    (tmp_path / "my dir é").mkdir()
    data = build(tmp_path / "my dir é")
    arguments = [data, *options, "--meta-csv", write_locations(tmp_path / "meta.csv"), "--output-h5"]
    assert f"({name})" in works("convert", "auto", *arguments, tmp_path / "out.h5", "--validate").stderr
    store = open_store(tmp_path / "out.h5")
    assert store.timestamps.astype(str).tolist() == TIMES
    wanted = VALUES.astype(np.float32)  # a lane without a reading is none
    assert (np.nan_to_num(store.values) if name == "taiwan-vd" else store.values).tobytes() == wanted.tobytes()
    assert (store.sensors.ids, store.sensors.latitude.tolist()) == (IDS, [34.0, 34.01, 34.02])
    works("convert", name, *arguments, tmp_path / "named.h5")
    assert open_store(tmp_path / "named.h5").checksum == store.checksum
    assert json.loads(works("inspect", data, "--json").stdout)["kind"] == name
    assert socialx("inspect", data, "--fail-unless", "all").exit_code == 1


def proposed(*arguments: str | Path) -> list[str]:
    """The proposed command, as a shell takes it."""
    return shlex.split(works(*arguments).stderr.splitlines()[-1].removeprefix("next: "))


@pytest.mark.parametrize("verb", [["inspect"], ["convert", "auto"]])
@pytest.mark.parametrize("name", FORMATS)
def test_what_is_proposed_works_as_typed(tmp_path: Path, name: str, verb: list[str]) -> None:
    (tmp_path / "my dir é").mkdir()
    data = BUILDERS[name][0](tmp_path / "my dir é")
    meta = write_locations(tmp_path / "meta.csv")
    said = {"YYYY-MM-DD HH:MM:SS": TIMES[0], "LOCATIONS.csv": meta, "OUT.h5": tmp_path / "out put.h5"}
    command = [said.get(word, word) for word in proposed(*verb, data)[1:]]
    after = proposed(*command, *(["--channel", "speed"] if name == "npy" else []))  # which an array does not say
    assert after[:4] == ["socialx", "train", "--data", str(tmp_path / "out put.h5")]


def test_a_data_set_is_known_by_its_ids(tmp_path: Path) -> None:
    for name, dataset in DATASETS.items():
        ids = tuple(str(vdid) for vdid in dataset.ids[: dataset.sensors])
        data = write_csv(tmp_path / "mine.csv", timestamps(5), speeds(5, len(ids)), ids)
        meta = tmp_path / "meta.csv"
        meta.write_text("sensor_id,latitude,longitude\n" + "".join(f"{vdid},37,-121\n" for vdid in ids))
        source = read("auto", ConvertOptions(data, meta_csv=meta))
        assert (source.dataset_name, source.units) == (dataset.dataset_name, {"avg_speed": "mph"})
        assert source.timezone == "America/Los_Angeles"
        assert any(f"{name}, by the ids" in note for note in shown(source.notes))
        other = write_csv(tmp_path / "mine.csv", timestamps(5), speeds(5, len(ids) - 1), ids[1:])
        assert read("auto", ConvertOptions(other, meta_csv=meta)).dataset_name == "mine"


def test_a_named_data_set_is_the_one_in_the_file(tmp_path: Path) -> None:
    def source(ids: tuple[str, ...]) -> ConvertOptions:
        return ConvertOptions(write_csv(tmp_path / "d.csv", TIMES[:9], speeds(9), ids), without_positions=True)

    assert refusal(lambda: read("metr-la", source(BAY_IDS)), "400001", "convert pems-bay").code == "convert.other-set"
    refusal(lambda: read("metr-la", source(("7", "8", "9"))), "(7, 8, 9)", "--channel")
    notes = shown(read("metr-la", source((*IDS[:2], "999999"))).notes)
    assert any("999999" in note for note in notes)


def test_another_network_is_called_by_its_file_and_says_what_was_assumed(tmp_path: Path) -> None:
    data = write_csv(tmp_path / "My City.csv", TIMES, VALUES)
    arguments = ["convert", "csv", data, "--meta-csv", write_locations(tmp_path / "meta.csv"), "--output-h5"]
    done = works(*arguments, tmp_path / "out.h5")
    assert "--units mph or " in done.stderr
    assert "--missing none" in done.stderr
    store = open_store(tmp_path / "out.h5")
    assert (store.dataset_name, store.unit, store.missing, store.timezone) == ("my_city", "unknown", 0.0, None)
    choices = ["--name", "lyon", "--units", "KMH", "--missing", "none", "--timezone", "America/Los_Angeles"]
    works(*arguments, tmp_path / "said.h5", *choices)
    store = open_store(tmp_path / "said.h5")
    assert (store.dataset_name, store.unit, store.missing) == ("lyon", "km/h", None)
    assert store.timezone == "America/Los_Angeles"
    assert store.valid.all()
    with h5py.File(tmp_path / "said.h5") as file:
        assert file.attrs["feature_set"] == "lyon_v1"
    works(*arguments, tmp_path / "m.h5", "--missing", "-1")
    assert open_store(tmp_path / "m.h5").missing == -1.0


def test_ids_from_a_list_from_the_index_column_or_only_numbers(tmp_path: Path) -> None:
    np.save(tmp_path / "d.npy", VALUES)
    meta = write_locations(tmp_path / "meta.csv")
    request = ConvertOptions(tmp_path / "d.npy", meta_csv=meta, first_time=TIMES[0], step_s=300, channel="speed")
    assert read("npy", request).sensors.ids == IDS
    (tmp_path / "ids.txt").write_text("\n".join(reversed(IDS)) + "\n")
    request = replace(request, ids=tmp_path / "ids.txt")
    listed = read("npy", request)
    assert (listed.sensors.ids, listed.sensors.latitude.tolist()) == (IDS[::-1], [34.02, 34.01, 34.0])
    (tmp_path / "ids.txt").write_text("1,2\n")
    refusal(lambda: read("npy", request), "ids.txt", "3 sensors")
    numbered = tmp_path / "numbered.csv"
    numbered.write_text("sensor_id,latitude,longitude\n2,36,-1\n0,34,-1\n1,35,-1\n")
    found = read("npy", replace(request, meta_csv=numbered, ids=None))
    assert (found.sensors.ids, found.sensors.latitude.tolist()) == (("0", "1", "2"), [34, 35, 36])
    assert any("--ids FILE" in note for note in shown(found.notes))


def test_without_positions_now_and_backfilled_later(tmp_path: Path) -> None:
    data, out = write_csv(tmp_path / "d.csv", TIMES, VALUES), tmp_path / "out.h5"
    assert "--without-positions" in refused("convert", "csv", data, "--output-h5", out)
    arguments = ["convert", "csv", data, "--without-positions", "--output-h5", out]
    assert socialx(*arguments, "--validate").exit_code == 3
    words = proposed(*arguments, "--overwrite")
    assert words[:4] == ["socialx", "backfill", str(out), "--meta-csv"]
    assert "--pooling none" in " ".join(words)
    works("backfill", out, "--meta-csv", write_locations(tmp_path / "meta.csv"))
    works("inspect", out, "--fail-unless", "positions,vd_info")


@pytest.mark.parametrize("said", [["--first-time", TIMES[0]], ["--channel", "1"], ["--ids", "ids"], ["--freq", "5min"]])
def test_a_flag_that_would_be_ignored_is_refused(tmp_path: Path, said: list[str]) -> None:
    data, meta = write_frame(tmp_path / "d.h5", TIMES, VALUES), write_locations(tmp_path / "meta.csv")
    line = refused("convert", "metr-la", data, "--meta-csv", meta, "--output-h5", tmp_path / "o.h5", *said, code=2)
    assert said[0] in line


def test_what_nobody_knows_is_listed(tmp_path: Path) -> None:
    (tmp_path / "d.bin").write_bytes(b"\x00\x01\x02")
    refusal(lambda: recognise(read_head(tmp_path / "d.bin")), str(tmp_path / "d.bin"))
    (tmp_path / "folder").mkdir()
    refusal(lambda: recognise(read_head(tmp_path / "folder")), str(tmp_path / "folder"))
    refusal(lambda: recognise(read_head(tmp_path / "gone")), str(tmp_path / "gone"))
    refusal(lambda: find("hdfstor"), "hdfstore")
    refusal(lambda: find("metr-al"), "metr-la")
    assert find("export") is FORMATS["csv"]  # an older name
    for wrong in (["convert", "auto"], ["convert", "csv", "a.csv", "--data-csv", "b.csv"], ["convert", "csv", "a.csv"]):
        assert socialx(*wrong).exit_code == 2


@pytest.mark.parametrize("name", ["largest-npz", "torch-mts", "pyg-t", "basicts", "windows-npz"])
def test_former_formats_lead_to_their_recipe(name: str) -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "docs/how-to/recipes.md").read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    line = refusal(lambda: find(name), "docs/how-to/recipes.md#")
    assert re.findall(r"recipes\.md#([\w-]+)", line)[0] in anchors


@pytest.mark.parametrize(("name", "flags"), [("V0", "--rewrite"), ("P1", ""), ("M0", "")])
@pytest.mark.parametrize("kind", ["auto", "metr-la"])
def test_a_file_of_ours_is_called_so(tmp_path: Path, name: str, flags: str, kind: str) -> None:
    path = OLDER[name](tmp_path / "old file.h5")
    line = refused("convert", kind, path, "--output-h5", tmp_path / "out.h5")
    assert f"socialx backfill '{path}' {flags}".rstrip() + "\n" in line


def test_no_input_is_overwritten(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", speeds(9))
    (tmp_path / "ids.txt").write_text(",".join(IDS))
    clock = {"first_time": TIMES[0], "step_s": 300, "channel": "speed"}
    meta = write_locations(tmp_path / "meta.csv")
    request = ConvertOptions(tmp_path / "v.npy", ids=tmp_path / "ids.txt", meta_csv=meta, **clock)
    for path in (tmp_path / "v.npy", tmp_path / "ids.txt", meta):
        before = path.read_bytes()
        refusal(lambda path=path: create(path, read("auto", request), overwrite=True), str(path), "is an input")
        assert path.read_bytes() == before


def test_help_names_every_format() -> None:
    text = " ".join(socialx("convert", "--help").stdout.split()).replace("- ", "-")  # a line may end within a name
    assert ([name for name in FORMATS if name not in text], tuple(FORMATS)) == ([], NAMES)
    page = (ROOT / "docs/data.md").read_text()
    assert [name for name in FORMATS if f"`{name}`" not in page] == []


def test_the_step_of_rows_without_dates(tmp_path: Path) -> None:
    assert [parse_freq(text) for text in ("5min", "300s", "1h", " 15 MIN ")] == [300, 300, 3600, 900]
    for wrong in ("", "5", "min", "0min", "5 weeks", "-5min"):
        refusal(lambda: parse_freq(wrong), "--freq")  # noqa: B023
    np.save(tmp_path / "x.npy", VALUES)
    request = ConvertOptions(tmp_path / "x.npy", first_time="2012-02-30 00:00:00", step_s=300, channel="speed")
    with pytest.raises(SettingsError, match="--first-time"):
        read("npy", replace(request, without_positions=True))


# ---- published files


@pytest.mark.parametrize("kind", ["metr-la", "METR_LA", "la", "auto", "csv"])
def test_metr_la_keeps_every_row_and_bit(tmp_path: Path, kind: str) -> None:
    values, times = speeds(700), timestamps(700)
    write_csv(tmp_path / "METR-LA.csv", times, values)
    meta = write_locations(tmp_path / "meta.csv")
    works("convert", kind, tmp_path / "METR-LA.csv", "--meta-csv", meta, "--output-h5", tmp_path / "new/folder/out.h5")
    store = open_store(tmp_path / "new/folder/out.h5")
    assert store.values.tobytes() == values.astype(np.float32).tobytes()
    assert store.timestamps.astype(str).tolist() == times
    assert (store.valid == (values != 0)).all()
    assert (store.dataset_name, store.missing, store.step_minutes) == ("metr_la", 0.0, 5)
    assert store.unit == ("unknown" if kind in ("auto", "csv") else "mph")  # three sensors may be of any network


@pytest.mark.parametrize("write", [write_stations, write_locations])
def test_pems_bay_has_its_static_columns(tmp_path: Path, write: Callable[..., Path]) -> None:
    data = write_csv(tmp_path / "bay.csv", timestamps(20, "2017-01-01"), speeds(20), BAY_IDS)
    works("convert", "bay", data, "--meta-csv", write(tmp_path / "meta.csv", BAY_IDS), "--output-h5", tmp_path / "o.h5")
    with h5py.File(tmp_path / "o.h5") as file:
        features = file["data/features"][:]
    if write is write_stations:
        expected = [[2, 0.5, 37, -121, 0], [3, 1.5, 37.01, -121.01, 90], [4, 2.5, 37.02, -121.02, 180]]
        assert (features[..., 1:] == np.float32(expected)).all()
        assert open_store(tmp_path / "o.h5").sensors.direction == ("N", "E", "S")
    else:
        assert np.isnan(features[..., [1, 2, 5]]).all()
        assert np.isfinite(features[..., [0, 3, 4]]).all()


def test_the_daylight_hour_and_a_gap_are_kept(tmp_path: Path) -> None:
    times = timestamps(40, "2012-03-11T01:00:00")
    data = write_csv(tmp_path / "data.csv", times[:30] + times[33:], speeds(37))
    meta = write_locations(tmp_path / "meta.csv")
    works("convert", "la", data, "--meta-csv", meta, "--output-h5", tmp_path / "out.h5")
    assert open_store(tmp_path / "out.h5").timestamps.astype(str).tolist() == times[:30] + times[33:]


# ---- the machine's clock


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
        works("convert", "auto", data, "--meta-csv", meta, "--output-h5", output)
        with h5py.File(output) as file:
            assert (np.diff(file["metadata/timestamps_epoch"][:]) == 300).all()
        date = rb"20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[+]00:00"
        content, count = re.subn(date, b"DATE", output.read_bytes())
        assert count == 1  # creation_date is all that may differ
        written.add(content)
        changed(OLDER["P0"](older), drop("metadata/timestamps_epoch"))
        works("backfill", older)
        patched.add(older.read_bytes())
    assert len(written) == len(patched) == 1
