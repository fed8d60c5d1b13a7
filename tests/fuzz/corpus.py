"""The inputs as they should be, each with the commands that read it, and the cases that are made of them.

A case is (seed, number): everything about it is drawn from these two.
"""

from __future__ import annotations

import io
import json
import random
import shlex
import shutil
import tomllib
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
import yaml

from tests import array_files, data_files, older_files, published_files
from tests.commands import SMALL
from tests.data_files import BAY_IDS, IDS, speeds, timestamps
from tests.fuzz import child, drawn, mutations
from tests.fuzz.results import EXPORT, MAP, PAGE, RESULTS
from tests.fuzz.server import NEXT, SERVED

Files = dict[str, bytes]
OUT = "out.h5"
LOCATIONS = "loc.csv"
START = "--start '2012-03-01 00:00'"
CLOCK = f"{START} --freq 5min"
TIMED = f"--meta-csv {LOCATIONS} --output-h5 {OUT}"
WRITE = f"{TIMED} --ids ids.txt"
TRAIN = f"train {{}} --max-epochs 1 {shlex.join(SMALL)}"
ROWS = 40


@dataclass(frozen=True)
class Command:
    """A command line, what it may write, and what is compared where it ends well.

    writes: files or folders that an exit code of 0 or 3 may leave new or changed.  oracle: a name in ``oracles``.
    """

    words: tuple[str, ...]
    writes: tuple[str, ...] = ()
    oracle: str = ""


def command(line: str, *writes: str, oracle: str = "") -> Command:
    """A command as it is typed after ``socialx``."""
    return Command(tuple(shlex.split(line)), writes, oracle)


@dataclass(frozen=True)
class Base:
    """Files that are right, those of them that are damaged, and the commands that read these."""

    name: str
    files: Mapping[str, bytes]
    targets: tuple[str, ...]
    commands: tuple[Command, ...]
    weight: float = 1.0


@dataclass(frozen=True)
class Case:
    """One damaged input and the command that reads it."""

    seed: int
    number: int
    base: Base
    target: str
    how: str
    content: bytes | None  # None: another kind of file stands there
    command: Command
    named: str  # the name that the target has in this case
    kind: str = "file"  # or what stands in its place
    raw: bool = True  # the bytes were damaged, not what they mean
    drawn: drawn.Drawn | None = None

    @property
    def repeat(self) -> str:
        """The command that runs this case alone."""
        what = "drawn " if self.drawn else ""
        return f"python -m tests.fuzz {what}--seed {self.seed} --case {self.number}"

    def lay_out(self, folder: Path) -> None:
        """Write the files of the case, and a victim that no command may change."""
        write_all({name: content for name, content in self.base.files.items() if name != self.target}, folder)
        with h5py.File(folder / "victim.h5", "w") as file:
            file["g/d"] = np.arange(5.0)
        mutations.lay_out(folder / self.named, self.kind, self.content)


def write_all(files: Mapping[str, bytes], folder: Path) -> None:
    """Write files and the folders above them."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def read_all(folder: Path, hidden: bool = False) -> Files:
    """All files below a folder, by their names; hidden: temporaries, too."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and (hidden or path.name[0] != ".")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@dataclass
class Corpus:
    """All bases, and what undamaged runs give."""

    bases: list[Base]
    expected: dict[str, Any] = field(default_factory=dict)

    def case(self, seed: int, number: int, scratch: Path) -> Case:
        """The case of this number; ``scratch`` is an empty folder for files on the way."""
        dice = random.Random(f"{seed}:{number}")
        (base,) = dice.choices(self.bases, [each.weight for each in self.bases])
        if base is DRAWN:
            return _drawn(seed, number)
        target, chosen = dice.choice(base.targets), dice.choice(base.commands)
        content = base.files[target]
        if dice.random() >= 0.06:
            suffix = Path(target).suffix
            others = [text for each in self.bases for name, text in each.files.items() if Path(name).suffix == suffix]
            changed, how, raw = mutations.mutate(content, target, dice, others, scratch)
            return Case(seed, number, base, target, how, changed, chosen, target, raw=raw)
        kind = dice.choice((*mutations.KINDS, *mutations.NAMES))
        named = target
        if kind in mutations.NAMES and "/" not in target:
            if target not in chosen.words:  # a file that the command does not name must keep its name
                return Case(seed, number, base, target, "empty", content, chosen, target, "empty")
            named = mutations.other_name(Path(target), kind)
            words = tuple(named if word == target else word for word in chosen.words)
            chosen = replace(chosen, words=words, writes=tuple(name.replace(target, named) for name in chosen.writes))
        return Case(seed, number, base, target, kind, content, chosen, named, kind)


DRAWN = Base("drawn", {}, (), (), 4)  # each of its cases is another table


def _drawn(seed: int, number: int) -> Case:
    found = drawn.draw(seed, number)
    words = command(
        f"convert auto {found.name} --without-positions --output-h5 {OUT} {shlex.join(found.said)}", OUT, oracle="drawn"
    )
    base = replace(DRAWN, name="drawn, plain names" if found.plain else "drawn, odd names")
    return Case(seed, number, base, found.name, found.how, found.content, words, found.name, drawn=found)


def build(folder: Path) -> Corpus:
    """All bases.  What runs socialx runs in a child, as later cases do."""
    bases = [*_texts(folder), *_arrays(folder), *_hdf5(folder), *_older(folder), *_settings(folder)]
    runs, expected = _runs(folder)
    return Corpus([*bases, *runs, DRAWN], expected)


def made(folder: Path, name: str, *writers: Callable[[Path], object]) -> Files:
    """The files that these functions write into a new folder."""
    here = folder / name
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir()
    for writer in writers:
        writer(here)
    return read_all(here)


def _convert(kind: str, data: str, options: str, oracle: str) -> tuple[Command, ...]:
    """``convert`` by the name of a format, by auto, by auto without an output, and ``inspect`` of the input."""
    named = command(f"convert {kind} {data} {options}", OUT, oracle=oracle)
    valid = replace(named, words=(*named.words, "--validate"))
    auto = command(f"convert auto {data} {options}", OUT, oracle=oracle)
    seen = (command(f"convert auto {data}"), command(f"inspect {data} --json"))
    return named, named, valid, auto, auto, *seen


def _places(here: Path) -> None:
    data_files.write_locations(here / LOCATIONS)
    (here / "ids.txt").write_text("\n".join(IDS) + "\n")


def _texts(folder: Path) -> list[Base]:
    times, values = timestamps(ROWS), speeds(ROWS)
    places = made(folder, "texts", _places)
    published = made(folder, "csv", lambda here: data_files.write_csv(here / "data.csv", times, values))["data.csv"]
    header = (",".join(IDS) + "\n").encode()
    numbers = "".join(",".join(map(repr, row)) + "\n" for row in values.tolist()).encode()

    def base(kind: str, content: bytes, commands: tuple[Command, ...], weight: float, target: str = "data.csv") -> Base:
        return Base(kind, {**places, "data.csv": content}, (target,), commands, weight)

    metr_la = command(f"convert metr-la data.csv {TIMED}", OUT, oracle="csv")
    matrix = command(f"convert matrix-csv data.csv {WRITE} {CLOCK}", OUT, oracle="matrix")
    by_name = (metr_la, *_convert("published-csv", "data.csv", TIMED, "csv"))
    in_iso = b"time" + published.replace(b" ", b"T")
    bay = made(
        folder,
        "bay",
        lambda here: data_files.write_stations(here / LOCATIONS),
        lambda here: data_files.write_csv(here / "data.csv", timestamps(ROWS, "2017-01-01T00:00:00"), values, BAY_IDS),
    )
    pems_bay = [command(f"convert pems-bay data.csv {TIMED}{end}", OUT, oracle="csv") for end in ("", WITHOUT)]
    city = made(folder, "libcity", lambda here: published_files.write_both(here, 12))
    return [
        base("published-csv", published, by_name, 2),
        base("csv", in_iso, _convert("csv", "data.csv", f"{TIMED} --units mph", "csv"), 2),
        base("export", _exported(times, values), EXPORTED, 1.5),
        base("export-long", _exported_long(times, values), EXPORTED, 1.5),
        base("export-lanes", _exported_lanes(times, values), LANES, 1.5),
        Base(
            "points", {"data.csv": published, "at.json": _points(), "at.xml": _datex()}, ("at.json", "at.xml"), POINTS
        ),
        base("json-lines", _json_lines(times, values), EXPORTED, 1.5),
        base("export-thousands", _thousands(times), EXPORTED, 1),
        Base("per-sensor", {**places, **_per_sensor(times, values)}, ("S1.csv", "months.zip"), PER_SENSOR, 1.5),
        base("export-turned", exported_turned(times, values), TURNED, 1.5),
        base("clock", _put_back(values), CLOCKS, 1.5),
        base("clock-zoned", _put_back(values, "+00:00"), CLOCKS, 1),
        base("t-gcn", header + numbers, _convert("t-gcn", "data.csv", f"{TIMED} {CLOCK}", "t-gcn"), 1.5),
        base("matrix-csv", numbers, _convert("matrix-csv", "data.csv", f"{WRITE} {CLOCK}", "matrix"), 1.5),
        base("locations", published, (metr_la,), 1.5, LOCATIONS),
        base("ids", numbers, (matrix,), 1, "ids.txt"),
        Base("pems-bay", bay, ("data.csv", LOCATIONS), tuple(pems_bay), 1.5),
        Base(
            "libcity",
            city,
            ("METR_LA.dyna", "METR_LA.dyna", "METR_LA.geo"),
            _convert("libcity", "METR_LA.dyna", f"--output-h5 {OUT}", "libcity"),
            1.5,
        ),
    ]


WITHOUT = " --without-positions"
EXPORTED = (
    command(f"convert export data.csv {TIMED}", OUT),
    command(f"convert auto data.csv {TIMED} --quantity flow", OUT),
    command(f"convert auto data.csv {TIMED} --missing -1,0 --units km/h", OUT),
    command(f"convert auto data.csv {TIMED} --transposed", OUT),
    command("convert auto data.csv"),
    command("inspect data.csv --json"),
)
LANES = (
    command(f"convert auto data.csv {TIMED}", OUT),
    command(f"convert auto data.csv {TIMED} --quantity flow", OUT),
    command(f"convert auto data.csv {TIMED} --channel flow,speed,occupancy", OUT),
    command(f"convert auto data.csv {TIMED} --channel speed,flow --missing -1,0 --units km/h", OUT),
    command("inspect data.csv --json"),
)
POINTS = tuple(
    command(f"convert auto data.csv --meta-csv {name} --output-h5 {OUT}{end}", OUT)
    for name in ("at.json", "at.xml")
    for end in ("", WITHOUT)
)
TURNED = (
    command(f"convert auto data.csv {TIMED} --transposed", OUT),
    command(f"convert export data.csv {TIMED} --transposed --units km/h", OUT),
    command("convert auto data.csv --transposed"),
    command(f"convert auto data.csv {TIMED}", OUT),
)


CLOCKS = tuple(
    command(f"convert auto data.csv {TIMED} --timezone {zone}", OUT)
    for zone in ("Europe/Paris", "Australia/Lord_Howe", "Etc/GMT-1")
)
APPENDED = (
    command("append data.h5 data.csv", "data.h5"),
    command("append data.h5 data.csv --missing 255,0", "data.h5"),
    command("append data.h5 data.csv --timezone Europe/Paris", "data.h5"),
    command("append data.h5 data.csv --round-times", "data.h5"),
)


def _put_back(values: np.ndarray, offset: str = "") -> bytes:
    """A row an hour around the end of daylight saving time, whose hour comes twice, with equal readings."""
    hours = [f"2023-10-{28 + row // 24} {row % 24:02}:00:00" for row in range(ROWS - 1)]
    hours.insert(26, hours[26])
    values = values.copy()
    values[27] = values[26]
    rows = [f"{hour}{offset},{','.join(map(repr, row))}" for hour, row in zip(hours, values.tolist(), strict=True)]
    return "\n".join([",".join(["time", *IDS]), *rows, ""]).encode()


PER_SENSOR = (
    command(f"convert auto S1.csv S2.csv {WITHOUT} --output-h5 {OUT}", OUT),
    command(f"convert auto months.zip {WITHOUT} --output-h5 {OUT}", OUT),
    command("inspect months.zip --json"),
)


def _json_lines(times: list[str], values: np.ndarray) -> bytes:
    """A row for each time, with a footer."""
    rows = [
        dict(zip(["time", *IDS], [time, *row], strict=True)) for time, row in zip(times, values.tolist(), strict=True)
    ]
    return "\n".join([*map(json.dumps, rows), ""]).encode()


def _thousands(times: list[str]) -> bytes:
    """Whole numbers with points between their thousands, and a total below them."""
    rows = [f"{time};{600 + 10 * row};1.{row:03};{row}" for row, time in enumerate(times)]
    return "\n".join([";".join(["time", *IDS]), *rows, "Total;1;2;3", ""]).encode()


def _per_sensor(times: list[str], values: np.ndarray) -> Files:
    """A file for each sensor, and a zip of two months."""
    columns = values.T.tolist()[:2]
    texts = ["".join(f"{time},{value!r}\n" for time, value in zip(times, each, strict=True)) for each in columns]
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, part in (("a.csv", slice(0, 25)), ("b.csv", slice(20, None))):
            rows = "".join(texts[0].splitlines(keepends=True)[part])
            archive.writestr(zipfile.ZipInfo(name), "time,S1\n" + rows, zipfile.ZIP_DEFLATED)
    files = {f"S{number}.csv": f"time,speed\n{text}".encode() for number, text in enumerate(texts, 1)}
    return files | {"months.zip": stream.getvalue()}


def _exported(times: list[str], values: np.ndarray) -> bytes:
    """As an office writes a table: semicolons, decimal commas, the day first."""
    days = [f"{time[8:10]}.{time[5:7]}.{time[:4]} {time[11:16]}" for time in times]
    cells = [[repr(value).replace(".", ",") for value in row] for row in values.tolist()]
    rows = [";".join([day, *row]) for day, row in zip(days, cells, strict=True)]
    return "\n".join([";".join(["Zeit", *IDS]), *rows, ""]).encode()


def _exported_long(times: list[str], values: np.ndarray) -> bytes:
    """As a database writes it: a row for each reading."""
    rows = [
        f"{time}Z,{name},{value!r},3"
        for time, row in zip(times, values.tolist(), strict=True)
        for name, value in zip(IDS, row, strict=True)
    ]
    return "\n".join(["time,sensor,speed,flow", *rows, ""]).encode()


def _exported_lanes(times: list[str], values: np.ndarray) -> bytes:
    """A row for each lane, with units in the header and below it."""
    rows = [
        f"{time};{name};{lane};{value!r};{3 * lane};{4.5 * lane}"
        for time, row in zip(times, values.tolist(), strict=True)
        for name, value in zip(IDS, row, strict=True)
        for lane in (1, 2)
    ]
    return "\n".join(["time;sensor;lane;speed (mph);flow;occ", ";;;;veh/h;%", *rows, ""]).encode()


def _points() -> bytes:
    """Positions as GeoJSON."""
    features = [
        {"type": "Feature", "id": vdid, "properties": {}, "geometry": {"type": "Point", "coordinates": [-118.1, 34.1]}}
        for vdid in IDS
    ]
    return json.dumps({"type": "FeatureCollection", "features": features}).encode()


def _datex() -> bytes:
    """Positions as DATEX II."""
    point = "<pointCoordinates><latitude>34.1</latitude><longitude>-118.1</longitude></pointCoordinates>"
    inner = "".join(f'<predefinedLocation id="{vdid}">{point}</predefinedLocation>' for vdid in IDS)
    return f'<?xml version="1.0"?><d2LogicalModel>{inner}</d2LogicalModel>'.encode()


def exported_turned(times: list[str], values: np.ndarray) -> bytes:
    """A row for each sensor and a column for each time."""
    rows = [",".join([name, *map(repr, column)]) for name, column in zip(IDS, values.T.tolist(), strict=True)]
    return "\n".join([",".join(["sensor", *times]), *rows, ""]).encode()


def _npz(**members: np.ndarray) -> bytes:
    """A zip with fixed dates, so that a case is the same on every day."""
    packed, stream = io.BytesIO(), io.BytesIO()
    np.savez_compressed(packed, **members)
    with zipfile.ZipFile(packed) as old, zipfile.ZipFile(stream, "w") as new:
        for name in old.namelist():
            new.writestr(zipfile.ZipInfo(name), old.read(name), zipfile.ZIP_DEFLATED)
    return stream.getvalue()


def _arrays(folder: Path) -> list[Base]:
    places = made(folder, "places", _places)
    rows = 320  # more than a day: the days of the week change
    times, values = timestamps(rows), speeds(rows)
    of_day, of_week = array_files.fractions(times), array_files.weekdays(times)
    three = np.stack([speeds(rows, seed=seed) for seed in range(3)], axis=-1)
    with_times = array_files.tiled(values, of_day, of_week)
    mean, std = values.mean(), values.std()
    of_largest = array_files.tiled((values - mean) / std, of_day, of_week)
    largest = _npz(data=of_largest, mean=np.array(mean), std=np.array(std))
    with_index = {"data.npz": _npz(data=with_times), "index.npz": _npz(train=np.zeros(3))}
    nodes = array_files.npy_bytes(array_files.tiled(values, of_day))
    rows_of: list[tuple[str, Files, str, str, str]] = [  # format, files, the one that is named, its clock, the oracle
        ("npy", {"data.npy": array_files.npy_bytes(values)}, "data.npy", CLOCK, "npy"),
        ("npy", {"data.npz": _npz(speed=values)}, "data.npz", CLOCK, "npz-any"),
        ("pems-npz", {"data.npz": _npz(data=three)}, "data.npz", CLOCK, "npz-last"),
        ("torch-mts", with_index, "data.npz", START, "npz-first"),
        ("largest-npz", {"his.npz": largest}, "his.npz", START, "largest"),
        ("pyg-t", {"node_values.npy": nodes}, "node_values.npy", START, "npy-first"),
    ]
    return [
        Base(kind, {**places, **files}, tuple(files), _convert(kind, data, f"{WRITE} {clock}", oracle), 1.2)
        for kind, files, data, clock, oracle in rows_of
    ]


def _hdf5(folder: Path) -> list[Base]:
    frame = made(
        folder,
        "hdf5",
        lambda here: data_files.write_locations(here / LOCATIONS),
        lambda here: data_files.write_frame(here / "frame.h5", timestamps(ROWS), speeds(ROWS), order=[2, 0, 1]),
    )
    commands = (
        command("inspect data.h5 --json"),
        command("inspect data.h5 --fail-unless all"),
        command("inspect data.h5 --plot plot.png", "plot.png"),
        command(f"inspect data.h5 --geojson {MAP}", MAP, oracle="positions"),
        command("backfill data.h5 --dry-run"),
        command("backfill data.h5", "data.h5", oracle="backfill"),
        command("evaluate --baselines --data data.h5 --json", oracle="baselines"),
        command(TRAIN.format("--data data.h5 --run-dir new"), "new"),
        command("convert auto data.h5"),
    )
    return [
        Base("hdfstore", frame, ("frame.h5",), _convert("hdfstore", "frame.h5", TIMED, "hdfstore"), 3),
        Base("canonical", store(folder), ("data.h5",), commands, 4),
        Base("appended", _to_append(folder), ("data.csv", "data.csv", "data.h5"), APPENDED, 2),
    ]


def _to_append(folder: Path) -> Files:
    """A canonical file with further codes, whose last rows are a hole, and a table that fills it and goes on."""

    def write(here: Path) -> None:
        data_files.write_csv(here / "data.csv", timestamps(ROWS, "2012-03-01T06:15:00"), speeds(ROWS, seed=1))
        (here / "data.h5").write_bytes(store(folder)["data.h5"])
        with h5py.File(here / "data.h5", "r+") as file:
            file["metadata"].attrs["missing_codes"] = [-1.0, 255.0]
            file["data/features"][75:, :, 0] = np.nan

    return made(folder, "appended", write)


def store(folder: Path) -> Files:
    """A canonical file, without the date of its making."""

    def write(here: Path) -> None:
        data_files.small_store(here / "data.h5", 80)
        with h5py.File(here / "data.h5", "r+") as file:
            file.attrs["creation_date"] = "2025-09-01T00:00:00"

    return made(folder, "store", lambda here: child.check(child.run(lambda: write(here))))


def _older(folder: Path) -> list[Base]:
    more = f"--meta-csv {LOCATIONS} --rewrite"
    commands = (
        command("backfill old.h5", "old.h5", oracle="backfill"),
        command(f"backfill old.h5 {more}", "old.h5", oracle="backfill"),
        command(f"backfill old.h5 {more} --backup", "old.h5", "old.h5.bak", oracle="backfill"),
        command(f"backfill old.h5 {more} --dry-run"),
        command("inspect old.h5 --json"),
    )
    found = []
    for name, builder in older_files.OLDER.items():
        files = made(
            folder,
            f"older_{name}",
            lambda here, builder=builder: child.check(child.run(lambda: builder(here / "old.h5"))),
            lambda here: older_files.meta(here / LOCATIONS),
        )
        targets = ("old.h5",) * 6 + ((LOCATIONS,) if name in ("M0", "TW2") else ())
        found.append(Base(f"older {name}", files, targets, commands, 0.6))
    return found


SETTINGS = """\
[data]
path = "data.h5"
lookback = 12
horizon = 12
[loader]
batch_size = 16
[model]
width = 8
blocks = 1
slstm_at = []
heads = 2
[pooling]
heads = 2
neighbours = 3
[trainer]
max_epochs = 1
learning_rate = 0.002
run_dir = "new"
"""


def _settings(folder: Path) -> list[Base]:
    """Settings that a user wrote, and distances, which only settings name."""
    data, found = store(folder), []
    as_yaml = yaml.safe_dump(tomllib.loads(SETTINGS), sort_keys=False)
    for name, text in (("settings.yaml", as_yaml), ("settings.toml", SETTINGS)):
        shown, trained = command(f"config -c {name} --json"), command(TRAIN.format(f"-c {name} --run-dir new"), "new")
        found.append(Base(name, {name: text.encode(), **data}, (name,), (shown, shown, shown, trained), 1.2))
    pairs = [f"{start},{end},{100 + 700 * abs(i - j)}" for i, start in enumerate(IDS) for j, end in enumerate(IDS)]
    matrix = "0,800,1500\n800,0,700.5\n1500,700.5,0\n"
    trained = command(TRAIN.format("--data data.h5 --run-dir new --distances roads.csv"), "new")
    for name, text in (("list", "\n".join(["from,to,cost", *pairs]) + "\n"), ("matrix", matrix)):
        found.append(Base(f"distances {name}", {**data, "roads.csv": text.encode()}, ("roads.csv",), (trained,), 0.8))
    return found


FIRST = TRAIN.format("--data data.h5 --run-dir run")
GO_ON = command("train --resume run --max-epochs 2", "run", oracle="resumed")
SCORES = command("evaluate run --json", oracle="scores")
ENDS = command("predict run --interval 0.5 --json", oracle="intervals")
AHEAD = command("predict run --json", oracle="forecast")
REPORT = command(f"report run -o {PAGE}", PAGE, oracle="report")
CALIBRATE = command("calibrate run", "run/intervals.safetensors", oracle="calibration")
FOLLOW = command(f"serve run --data {SERVED} --follow --port 0", SERVED, NEXT, oracle="follow")
READING = (
    *(SCORES, SCORES, AHEAD, ENDS, REPORT, CALIBRATE),
    command("explain run --json", oracle="explanation"),
    command(f"explain run --geojson {MAP}", MAP, oracle="map"),
    command(f"export run {EXPORT}", EXPORT, oracle="export"),
    command("serve run --port 0", oracle="network"),
    command("serve run --data data.h5 --port 0", oracle="latest"),
)


def _runs(folder: Path) -> tuple[list[Base], dict[str, Any]]:
    """A run of one epoch, and what each command gives for the undamaged run."""
    here = folder / "trained"
    write_all(store(folder), here)
    child.check(child.command(command(FIRST).words, here))
    child.check(child.run(lambda: _steady(here / "run")))
    files = read_all(here)
    served = {**files, SERVED: files[NEXT]}
    expected: dict[str, Any] = {}
    for each in dict.fromkeys((*READING, FOLLOW, GO_ON)):
        again = folder / f"expected_{each.oracle}"
        write_all(served, again)
        done = child.command(each.words, again)
        child.check(done)
        expected[each.oracle] = RESULTS[each.oracle](again, done.stdout)
    over, other = command(f"{FIRST} --overwrite", "run"), command("predict run --data data.h5 --output a.csv", "a.csv")
    of_states = (GO_ON, GO_ON, GO_ON, SCORES, REPORT, over)
    of_intervals = (ENDS, ENDS, AHEAD, REPORT, CALIBRATE, GO_ON)
    reads: dict[str, tuple[tuple[Command, ...], float]] = {
        **dict.fromkeys(
            ("format.txt", "settings.yaml", "sensors.json", "protocol.json"), ((*READING, GO_ON, GO_ON), 1.2)
        ),
        **dict.fromkeys(("last.pt", "metrics.jsonl", "settings_sources.json", "environment.json"), (of_states, 1.2)),
        "best.safetensors": (READING, 1.5),
        "intervals.safetensors": (of_intervals, 1.2),
    }
    bases = [Base(f"run {name}", files, (f"run/{name}",), *commands) for name, commands in reads.items()]
    bases.append(Base("data of a run", files, ("data.h5",), (*READING, other, GO_ON), 1.5))
    bases.append(Base("data of a server", served, ("data.h5",), (FOLLOW,), 1.2))
    return bases, expected


def _steady(run: Path) -> None:
    """Replace what differs from one day to the next."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (run / "metrics.jsonl").write_text("".join(json.dumps({**row, "windows_per_s": 500.5}) + "\n" for row in rows))
    starts = json.loads((run / "environment.json").read_text())
    (run / "environment.json").write_text(json.dumps([{**each, "command": ["socialx"]} for each in starts], indent=2))
    (run / "last.pt").write_bytes(_packed(torch.load(run / "last.pt", weights_only=True)))


def _packed(content: object) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()
