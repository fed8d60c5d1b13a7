"""Nothing is taken for something else in silence: data set, quantity, times, the file that is written."""

from __future__ import annotations

import gzip
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from socialx.core.errors import SettingsError
from socialx.files.sources import readings
from socialx.files.sources.recognition import recognise
from socialx.files.sources.request import ConvertOptions
from socialx.files.store.head import read_head
from socialx.files.store.layout import Readings
from socialx.files.store.writer import create
from tests.array_files import fractions, tiled, weekdays
from tests.commands import socialx
from tests.data_files import BAY_IDS, IDS, refusal, shown, speeds, timestamps, write_csv, write_frame, write_locations
from tests.older_files import OLDER
from tests.published_files import write_dyna, write_geo

CLOCK = {"first_time": "2012-03-01 00:00:00", "step_s": 300}


def read(kind: str, data: Path, **request: object) -> Readings:
    """Without positions, so that only the data matter."""
    return readings.read(kind, ConvertOptions(data, **request, without_positions=True))  # type: ignore[arg-type]


def libcity(folder: Path) -> Path:
    write_geo(folder)
    return write_dyna(folder, {"traffic_speed": speeds(9)})


def torch_mts(folder: Path) -> Path:
    times = timestamps(40)
    np.savez(folder / "data.npz", data=tiled(speeds(40), fractions(times), weekdays(times)))
    return folder / "data.npz"


# ---- which data set


def test_a_named_data_set_is_the_one_in_the_file(tmp_path: Path) -> None:
    data = write_csv(tmp_path / "data.csv", timestamps(9), speeds(9), BAY_IDS)
    others = "the 3 sensors (400001, 400017, 400030) are not those of metr-la"
    refusal(
        lambda: read("metr-la", data), others, f"socialx convert pems-bay {data} --meta-csv", "whose ids look alike"
    )
    assert not any("400001" in note for note in shown(read("pems-bay", data).notes))
    data = write_csv(tmp_path / "data.csv", timestamps(9), speeds(9), ("7", "8", "9"))
    refusal(lambda: read("metr-la", data), f"socialx convert auto {data} --name NAME --meta-csv")
    data = write_csv(tmp_path / "data.csv", timestamps(9), speeds(9), (*IDS[:2], "9"))
    assert shown(read("metr-la", data).notes) == [f"{data}: 1 of its 3 sensors are not of metr-la (9)"]
    data = write_csv(tmp_path / "data.csv", timestamps(9), speeds(9, 208), tuple(map(str, range(716_400, 716_608))))
    refusal(lambda: read("metr-la", data), "the 208 sensors")


def test_numbered_sensors_may_be_any(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", speeds(9))
    notes = shown(read("metr-la", tmp_path / "v.npy").notes)
    assert any("begin at 2012-03-01 00:00:00, as metr-la does as published" in note for note in notes)
    given = read("metr-la", tmp_path / "v.npy", first_time=timestamps(1)[0])
    assert given.notes
    assert not any("published" in note for note in shown(given.notes))


def test_an_assumed_start_is_not_called_said(tmp_path: Path) -> None:
    data = torch_mts(tmp_path)
    words = ("the published start, 2017-01-01, is a Sunday", "correct --first-time")
    refusal(lambda: read("pems-bay", data), *words)


@pytest.mark.parametrize("key", ["df", "speed"])
def test_a_frame_does_not_say_its_unit(tmp_path: Path, key: str) -> None:
    source = read("auto", write_frame(tmp_path / "mine.h5", timestamps(9), speeds(9), key))
    assert source.units == "unknown"
    assert any("the unit is unknown" in note for note in shown(source.notes))
    assert read("metr-la", write_frame(tmp_path / "la.h5", timestamps(9), speeds(9), key)).units == "mph"


def test_a_file_name_is_not_a_data_set(tmp_path: Path) -> None:
    np.save(tmp_path / "PEMS-BAY.npy", speeds(9))
    source = read("auto", tmp_path / "PEMS-BAY.npy", **CLOCK)
    assert (source.dataset_name, source.feature_set) == ("mine", "mine_v1")
    assert any("not those of pems_bay" in note for note in shown(source.notes))
    part = write_csv(tmp_path / "METR-LA.csv", timestamps(9), speeds(9))
    assert read("auto", part).dataset_name == "metr_la"


# ---- which quantity, unit and zone


@pytest.mark.parametrize(
    ("said", "feature", "unit"), [("flow", "flow", "vehicles per step"), ("Speed", "avg_speed", None)]
)
def test_a_quantity_without_a_name_can_be_given_one(tmp_path: Path, said: str, feature: str, unit: str | None) -> None:
    torch_mts(tmp_path)
    np.save(tmp_path / "node_values.npy", tiled(speeds(40), fractions(timestamps(40))))
    np.save(tmp_path / "v.npy", speeds(40))
    for name, clock in (("data.npz", {}), ("node_values.npy", {}), ("v.npy", {"step_s": 300})):
        source = read("auto", tmp_path / name, first_time=timestamps(1)[0], channel=said, **clock)
        assert (source.feature, source.units) == (feature, unit or "unknown")
        plain = read("auto", tmp_path / name, first_time=timestamps(1)[0], **clock)
        assert any("named avg_speed, as the file does not say what it is" in note for note in shown(plain.notes))


def test_units_zones_and_missing_values_must_be_some(tmp_path: Path) -> None:
    data = write_csv(tmp_path / "data.csv", timestamps(9), speeds(9))
    for said in (["--timezone", "Mars/Phobos"], ["--units", "furlongs"], ["--units", ""], ["--missing", "inf"],
                 ["--missing", "nan"]):  # fmt: skip
        result = socialx("convert", "auto", data, "--without-positions", "--output-h5", tmp_path / "o.h5", *said)
        assert result.exit_code == 2
        assert f"error: {said[0]} " in result.stderr
    assert not (tmp_path / "o.h5").exists()
    assert read("auto", data, units="KMH", timezone="Europe/Paris").units == "km/h"


def test_directions_that_are_none_are_noted(tmp_path: Path) -> None:
    data = write_csv(tmp_path / "data.csv", timestamps(9), speeds(9))
    meta = tmp_path / "meta.csv"
    rows = [f"{vdid},34,-118,{way}" for vdid, way in zip(IDS, ("NB", "E", ""), strict=True)]
    meta.write_text("\n".join(["sensor_id,lat,lon,dir", *rows]) + "\n")
    source = readings.read("auto", ConvertOptions(data, meta_csv=meta))
    assert f"{meta}: directions that are none of N, E, S, W (NB): unknown in the output" in shown(source.notes)
    assert source.sensors.direction == ("", "E", "")


# ---- which times


def test_freq_is_never_ignored(tmp_path: Path) -> None:
    torch_mts(tmp_path)
    np.save(tmp_path / "node_values.npy", tiled(speeds(40), fractions(timestamps(40))))
    for data in (tmp_path / "data.npz", tmp_path / "node_values.npy"):
        with pytest.raises(SettingsError):
            read("auto", data, first_time=timestamps(1)[0], step_s=600)
        line = refusal(lambda data=data: read("auto", data, first_time=timestamps(1)[0], step_s=600))
        assert re.fullmatch(r".* says .*itself.*: drop --freq", line)
    assert socialx("convert", "npy", "v.npy", "--freq", "90s", "--output-h5", tmp_path / "o.h5").exit_code == 2


def test_readings_are_not_ids(tmp_path: Path) -> None:
    data = tmp_path / "flow.csv"
    data.write_text("12,45,33\n13,44,30\n15,41,31\n")
    refusal(lambda: read("auto", data, **CLOCK), "line 1 may be such a row or sensor ids", "t-gcn")
    assert read("t-gcn", data, **CLOCK).sensors.ids == ("12", "45", "33")


# ---- what to type next


def proposed(*arguments: str | Path) -> list[str]:
    """The proposed command, as a shell takes it."""
    result = socialx(*arguments)
    assert result.exit_code == 0, result.stderr
    return shlex.split(result.stderr.splitlines()[-1].removeprefix("next: "))


@pytest.mark.parametrize("verb", [["inspect"], ["convert", "auto"]])
@pytest.mark.parametrize("kind", ["npy", "channels", "torch-mts", "pyg-t", "untimed", "csv", "libcity"])
def test_what_is_proposed_works_as_typed(tmp_path: Path, kind: str, verb: list[str]) -> None:
    folder = tmp_path / "my dir é"
    folder.mkdir()
    arrays = {"npy": speeds(60), "channels": np.stack([speeds(60)] * 2, axis=-1)}
    if kind in arrays:
        np.save(data := folder / "v.npy", arrays[kind])
    elif kind in ("pyg-t", "untimed"):
        np.save(
            data := folder / "node_values.npy",
            tiled(speeds(60), fractions(timestamps(60)) if kind == "pyg-t" else 2 * speeds(60)),
        )
    elif kind == "csv":
        data = write_csv(folder / "a b.csv", timestamps(60), speeds(60), ("0", "1", "2"))
    else:
        data = {"torch-mts": torch_mts, "libcity": libcity}[kind](folder)
    meta = write_locations(folder / "meta.csv", IDS if kind == "libcity" else ("0", "1", "2"))
    command = proposed(*verb, data)
    said = {"YYYY-MM-DD HH:MM:SS": timestamps(1)[0], "LOCATIONS.csv": meta, "OUT.h5": folder / "out put.h5"}
    after = proposed(*(said.get(word, word) for word in command[1:]))
    assert after[:4] == ["socialx", "train", "--data", str(folder / "out put.h5")]
    assert after[4:] in ([], ["--preset", "mlp-small"])


def test_without_positions_the_next_step_is_to_add_them(tmp_path: Path) -> None:
    data = write_csv(tmp_path / "data.csv", timestamps(60), speeds(60))
    out = tmp_path / "out.h5"
    command = " ".join(proposed("convert", "auto", data, "--without-positions", "--output-h5", out))
    assert command.startswith(f"socialx backfill {out} --meta-csv LOCATIONS.csv, or ")
    assert "--pooling none" in command


@pytest.mark.parametrize(("name", "flags"), [("V0", "--rewrite"), ("P1", ""), ("M0", "")])
@pytest.mark.parametrize("kind", ["auto", "metr-la"])
def test_a_file_of_ours_is_called_so(tmp_path: Path, name: str, flags: str, kind: str) -> None:
    path = OLDER[name](tmp_path / "old file.h5")
    result = socialx("convert", kind, path, "--output-h5", tmp_path / "out.h5")
    assert result.exit_code == 1
    assert f"a socialx file ({name}: " in result.stderr
    assert f": socialx backfill '{path}' {flags}".rstrip() + "\n" in result.stderr


# ---- which file is written


def test_no_input_is_overwritten(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", speeds(9))
    ids = tmp_path / "ids.txt"
    ids.write_text(",".join(IDS))
    (tmp_path / "mts").mkdir()
    torch_mts(tmp_path / "mts")
    inputs = {
        ids: (tmp_path / "v.npy", {**CLOCK, "ids": ids}),
        tmp_path / "METR_LA.geo": (libcity(tmp_path), {}),
        tmp_path / "mts/data.npz": (tmp_path / "mts", {"first_time": timestamps(1)[0]}),
    }
    for path, (data, request) in inputs.items():
        before = path.read_bytes()
        readings = read("auto", data, **request)
        refusal(lambda path=path, readings=readings: create(path, readings, overwrite=True), "is an input")
        assert path.read_bytes() == before
    given = ["--first-time", timestamps(1)[0], "--freq", "5min", "--ids", ids, "--without-positions", "--overwrite"]
    result = socialx("convert", "npy", tmp_path / "v.npy", *given, "--output-h5", ids)
    assert (result.exit_code, ids.read_text()) == (1, ",".join(IDS))


# ---- what a file is not


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"when;7\nyesterday;1,5\n", "no table with a column of times"),
     (b"when\t7\nnow\t1\n", "no table with a column of times"),
     ("when,7\nnow,1\n".encode("utf-16"), "(no table with a column of times|UTF-16)"),
     (gzip.compress(b"time,7\n", mtime=0), "no row after the header"),
     (b"BZh9", "(no table with a column of times|packed by bzip2)"),
     (b"PK\x03\x04" + bytes(400), "(truncated or damaged|cannot be read)")]
)  # fmt: skip
def test_what_keeps_a_file_from_being_read_is_said(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(content)
    for action in (lambda: recognise(read_head(path)), lambda: read("csv", path)):
        assert re.search(words, refusal(action, str(path)))


def test_a_space_in_an_id_is_said(tmp_path: Path) -> None:
    data = tmp_path / "data.csv"
    data.write_text("time,A 1\n2012-03-01 00:00,5\n2012-03-01 00:05,6\n")
    refusal(lambda: create(tmp_path / "o.h5", read("csv", data)), "without spaces and '/' ('A 1')")
