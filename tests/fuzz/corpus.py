"""The inputs as they should be, each with the commands that read it, and the cases that are made of them.

A case is (seed, number): everything about it is drawn from these two.
"""

from __future__ import annotations

import io
import json
import random
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from safetensors.torch import load as load_tensors

from tests import array_files, data_files, older_files
from tests.commands import SMALL
from tests.data_files import BAY_IDS, IDS, speeds, timestamps
from tests.files import test_convert_basicts as basicts
from tests.files import test_convert_libcity as libcity
from tests.files import test_convert_windows_npz as windows
from tests.fuzz import child, mutations
from tests.fuzz.results import EXPORT, MAP, PAGE, RESULTS
from tests.fuzz.server import NEXT, SERVED

Files = dict[str, bytes]
OUT = "out.h5"
LOCATIONS = "loc.csv"
CLOCK = ("--start", "2012-03-01 00:00", "--freq", "5min")
START = ("--start", "2012-03-01 00:00")
WRITE = ("--meta-csv", LOCATIONS, "--ids", "ids.txt", "--output-h5", OUT)
TIMED = ("--meta-csv", LOCATIONS, "--output-h5", OUT)
ROWS = 40


@dataclass(frozen=True)
class Command:
    """A command line, what it may write, and what is compared where it ends well.

    writes: files or folders that an exit code of 0 or 3 may leave new or changed.  oracle: a name in ``oracles``.
    """

    words: tuple[str, ...]
    writes: tuple[str, ...] = ()
    oracle: str = ""


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
    kind: str  # "file", or what stands in its place
    command: Command
    named: str  # the name that the target has in this case
    raw: bool = True  # the bytes were damaged, not what they mean

    @property
    def repeat(self) -> str:
        """The command that runs this case alone."""
        return f"python -m tests.fuzz --seed {self.seed} --case {self.number}"

    def lay_out(self, folder: Path) -> None:
        """Write the files of the case, and a victim that no command may change."""
        for name, content in self.base.files.items():
            if name != self.target:
                write(folder / name, content)
        with h5py.File(folder / "victim.h5", "w") as file:
            file["g/d"] = np.arange(5.0)
        mutations.lay_out(folder / self.named, self.kind, self.content)


def write(path: Path, content: bytes) -> None:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@dataclass
class Corpus:
    """All bases, and what undamaged runs give."""

    bases: list[Base]
    expected: dict[str, Any] = field(default_factory=dict)

    def case(self, seed: int, number: int, scratch: Path) -> Case:
        """The case of this number; ``scratch`` is an empty folder for files on the way."""
        dice = random.Random(f"{seed}:{number}")
        (base,) = dice.choices(self.bases, [each.weight for each in self.bases])
        target = dice.choice(base.targets)
        command = dice.choice(base.commands)
        if dice.random() < 0.06:
            kind = dice.choice(mutations.KINDS)
            named = mutations.other_name(target, kind)
            words = tuple(named if word == target else word for word in command.words)
            writes = tuple(each.replace(target, named) for each in command.writes)
            if named != target and words == command.words:  # the command does not name it: it must keep its name
                named, kind = target, "empty"
            else:
                command = replace(command, words=words, writes=writes)
            return Case(seed, number, base, target, kind, base.files[target], kind, command, named)
        others = [content for each in self.bases for name, content in each.files.items() if alike(name, target)]
        content, how, raw = mutations.mutate(base.files[target], target, dice, others, scratch)
        return Case(seed, number, base, target, how, content, "file", command, target, raw)


def alike(name: str, other: str) -> bool:
    """Whether two files are of one kind."""
    return Path(name).suffix == Path(other).suffix


def build(folder: Path) -> Corpus:
    """All bases.  What runs socialx runs in a child, as later cases do."""
    bases = [*_texts(folder), *_arrays(folder), *_hdf5(folder), *_older(folder), *_settings(folder)]
    runs, expected = _runs(folder)
    return Corpus([*bases, *runs], expected)


def _read(folder: Path) -> Files:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


def _fresh(folder: Path, name: str) -> Path:
    made = folder / name
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    return made


def _convert(kind: str, data: str, *words: str, auto: bool = True, oracle: str) -> tuple[Command, ...]:
    """``convert`` by the name of a format, by auto, by auto without an output, and ``inspect`` of the input."""
    named = Command(("convert", kind, data, *words), (OUT,), oracle)
    valid = replace(named, words=(*named.words, "--validate"))
    found = Command(("convert", "auto", data, *words), (OUT,), oracle)
    only = Command(("convert", "auto", data))
    seen = Command(("inspect", data, "--json"))
    return (named, named, valid, found, found, only, seen) if auto else (named, named, valid, only, seen)


def _texts(folder: Path) -> list[Base]:
    times, values = timestamps(ROWS), speeds(ROWS)
    here = _fresh(folder, "texts")
    data_files.write_locations(here / LOCATIONS)
    (here / "ids.txt").write_text("\n".join(IDS) + "\n")
    places = _read(here)
    data_files.write_csv(here / "data.csv", times, values)
    published = (here / "data.csv").read_bytes()
    iso = b"time" + published.replace(b" ", b"T")
    found = [
        Base(
            "published-csv",
            {**places, "data.csv": published},
            ("data.csv",),
            (
                Command(("convert", "metr-la", "data.csv", *TIMED), (OUT,), "csv"),
                *_convert("published-csv", "data.csv", *TIMED, oracle="csv"),
            ),
            2,
        ),
        Base(
            "csv",
            {**places, "data.csv": iso},
            ("data.csv",),
            _convert("csv", "data.csv", *TIMED, "--units", "mph", oracle="csv"),
            2,
        ),
        Base("export", {**places, "data.csv": _exported(times, values)}, ("data.csv",), EXPORTED, 1.5),
        Base("export-long", {**places, "data.csv": _exported_long(times, values)}, ("data.csv",), EXPORTED, 1.5),
        Base("export-turned", {**places, "data.csv": exported_turned(times, values)}, ("data.csv",), TURNED, 1.5),
        Base(
            "t-gcn",
            {**places, "data.csv": (",".join(IDS) + "\n").encode() + _numbers(values)},
            ("data.csv",),
            _convert("t-gcn", "data.csv", *TIMED, *CLOCK, oracle="t-gcn"),
            1.5,
        ),
        Base(
            "matrix-csv",
            {**places, "data.csv": _numbers(values)},
            ("data.csv",),
            _convert("matrix-csv", "data.csv", *WRITE, *CLOCK, oracle="matrix"),
            1.5,
        ),
        Base(
            "locations",
            {**places, "data.csv": published},
            (LOCATIONS,),
            (Command(("convert", "metr-la", "data.csv", *TIMED), (OUT,), "csv"),),
            1.5,
        ),
        Base(
            "ids",
            {**places, "data.csv": _numbers(values)},
            ("ids.txt",),
            (Command(("convert", "matrix-csv", "data.csv", *WRITE, *CLOCK), (OUT,), "matrix"),),
        ),
    ]
    bay = _fresh(folder, "bay")
    data_files.write_stations(bay / LOCATIONS)
    data_files.write_csv(bay / "data.csv", timestamps(ROWS, "2017-01-01T00:00:00"), values, BAY_IDS)
    found.append(
        Base(
            "pems-bay",
            _read(bay),
            ("data.csv", LOCATIONS),
            (
                Command(("convert", "pems-bay", "data.csv", *TIMED), (OUT,), "csv"),
                Command(("convert", "pems-bay", "data.csv", *TIMED, "--without-positions"), (OUT,), "csv"),
            ),
            1.5,
        )
    )
    city = _fresh(folder, "libcity")
    libcity.write_both(city, 12)
    found.append(
        Base(
            "libcity",
            _read(city),
            ("METR_LA.dyna", "METR_LA.dyna", "METR_LA.geo"),
            _convert("libcity", "METR_LA.dyna", "--output-h5", OUT, oracle="libcity"),
            1.5,
        )
    )
    return found


EXPORTED = (
    Command(("convert", "export", "data.csv", *TIMED), (OUT,)),
    Command(("convert", "auto", "data.csv", *TIMED, "--quantity", "flow"), (OUT,)),
    Command(("convert", "auto", "data.csv", *TIMED, "--missing", "-1,0", "--units", "km/h"), (OUT,)),
    Command(("convert", "auto", "data.csv", *TIMED, "--transposed"), (OUT,)),
    Command(("convert", "auto", "data.csv")),
    Command(("inspect", "data.csv", "--json")),
)


TURNED = (
    Command(("convert", "auto", "data.csv", *TIMED, "--transposed"), (OUT,)),
    Command(("convert", "export", "data.csv", *TIMED, "--transposed", "--units", "km/h"), (OUT,)),
    Command(("convert", "auto", "data.csv", "--transposed")),
    Command(("convert", "auto", "data.csv", *TIMED), (OUT,)),
)


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


def exported_turned(times: list[str], values: np.ndarray) -> bytes:
    """A row for each sensor and a column for each time."""
    rows = [",".join([name, *map(repr, column)]) for name, column in zip(IDS, values.T.tolist(), strict=True)]
    return "\n".join([",".join(["sensor", *times]), *rows, ""]).encode()


def _numbers(values: np.ndarray) -> bytes:
    return "".join(",".join(map(repr, row)) + "\n" for row in values.tolist()).encode()


def _npz(**members: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **members)
    return _undated(stream.getvalue())


def _undated(content: bytes) -> bytes:
    """A zip with fixed dates, so that a case is the same on every day."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(stream, "w") as new:
        for info in old.infolist():
            plain = zipfile.ZipInfo(info.filename)
            plain.compress_type = info.compress_type
            new.writestr(plain, old.read(info))
    return stream.getvalue()


def _arrays(folder: Path) -> list[Base]:
    here = _fresh(folder, "places")
    data_files.write_locations(here / LOCATIONS)
    (here / "ids.txt").write_text("\n".join(IDS) + "\n")
    places = _read(here)
    rows = 320  # more than a day: the days of the week change
    times, values = timestamps(rows), speeds(rows)
    of_day, of_week = array_files.fractions(times), array_files.weekdays(times)
    three = np.stack([speeds(rows, seed=seed) for seed in range(3)], axis=-1)
    mean, std = values.mean(), values.std()

    def base(kind: str, files: Files, targets: tuple[str, ...], data: str, said: tuple[str, ...], oracle: str) -> Base:
        commands = _convert(kind, data, *WRITE, *said, oracle=oracle)
        return Base(kind, {**places, **files}, targets, commands, 1.2)

    single = array_files.npy_bytes(values)
    found = [
        base("npy", {"data.npy": single}, ("data.npy",), "data.npy", CLOCK, "npy"),
        base("npy", {"data.npz": _npz(speed=values)}, ("data.npz",), "data.npz", CLOCK, "npz-any"),
        base("pems-npz", {"data.npz": _npz(data=three)}, ("data.npz",), "data.npz", CLOCK, "npz-last"),
        base(
            "torch-mts",
            {"data.npz": _npz(data=array_files.tiled(values, of_day, of_week)), "index.npz": _npz(train=np.zeros(3))},
            ("data.npz", "data.npz", "index.npz"),
            "data.npz",
            START,
            "npz-first",
        ),
        base(
            "largest-npz",
            {
                "his.npz": _npz(
                    data=array_files.tiled((values - mean) / std, of_day, of_week),
                    mean=np.array(mean),
                    std=np.array(std),
                )
            },
            ("his.npz",),
            "his.npz",
            START,
            "largest",
        ),
        base(
            "pyg-t",
            {"node_values.npy": array_files.npy_bytes(array_files.tiled(values, of_day))},
            ("node_values.npy",),
            "node_values.npy",
            START,
            "npy-first",
        ),
    ]
    cut = windows.cut(array_files.tiled(values[:120], of_day[:120]), np.arange(-11, 1), np.arange(1, 13))
    members = {name: _npz(**parts) for name, parts in cut.items()}
    found.append(base("windows-npz", members, tuple(members), "train.npz", START, "windows"))
    older = _fresh(folder, "basicts_dat")
    basicts.write_dat(older, array_files.tiled(values, of_day, of_week / 7))
    found.append(base("basicts", _read(older), ("data.dat", "desc.json"), "data.dat", START, "basicts-dat"))
    newer = _fresh(folder, "basicts_npy")
    basicts.write_parts(newer, values, basicts.columns(times))
    content = _read(newer)
    found.append(base("basicts", content, tuple(content), "meta.json", START, "basicts-npy"))
    return found


def _hdf5(folder: Path) -> list[Base]:
    here = _fresh(folder, "hdf5")
    data_files.write_locations(here / LOCATIONS)
    data_files.write_frame(here / "frame.h5", timestamps(ROWS), speeds(ROWS), order=[2, 0, 1])
    frame = Base(
        "hdfstore",
        _read(here),
        ("frame.h5",),
        _convert("hdfstore", "frame.h5", *TIMED, oracle="hdfstore"),
        3,
    )
    content = store(folder)
    commands = (
        Command(("inspect", "data.h5", "--json")),
        Command(("inspect", "data.h5", "--require", "all")),
        Command(("inspect", "data.h5", "--plot", "plot.png"), ("plot.png",)),
        Command(("inspect", "data.h5", "--geojson", MAP), (MAP,), "positions"),
        Command(("backfill", "data.h5", "--dry-run")),
        Command(("backfill", "data.h5"), ("data.h5",), "backfill"),
        Command(("evaluate", "--baselines", "--data", "data.h5", "--json"), (), "baselines"),
        Command(("train", "--data", "data.h5", "--run-dir", "new", "--max-epochs", "1", *SMALL), ("new",)),
        Command(("convert", "auto", "data.h5")),
    )
    return [frame, Base("canonical", {"data.h5": content}, ("data.h5",), commands, 4)]


def store(folder: Path) -> bytes:
    """A canonical file, without the date of its making."""
    here = _fresh(folder, "store")

    def make() -> None:
        data_files.small_store(here / "data.h5", 80)
        with h5py.File(here / "data.h5", "r+") as file:
            file.attrs["creation_date"] = "2025-09-01T00:00:00"

    child.check(child.run(make))
    return (here / "data.h5").read_bytes()


def _older(folder: Path) -> list[Base]:
    found = []
    for name, builder in older_files.OLDER.items():
        here = _fresh(folder, f"older_{name}")
        child.check(child.run(lambda builder=builder, here=here: builder(here / "old.h5")))
        older_files.meta(here / LOCATIONS)
        more = ("--meta", LOCATIONS, "--rewrite")
        commands = (
            Command(("backfill", "old.h5"), ("old.h5",), "backfill"),
            Command(("backfill", "old.h5", *more), ("old.h5",), "backfill"),
            Command(("backfill", "old.h5", *more, "--backup"), ("old.h5", "old.h5.bak"), "backfill"),
            Command(("backfill", "old.h5", *more, "--dry-run")),
            Command(("inspect", "old.h5", "--json")),
        )
        targets = ("old.h5",) * 6 + ((LOCATIONS,) if name in ("M0", "TW2") else ())
        found.append(Base(f"older {name}", _read(here), targets, commands, 0.6))
    return found


SETTINGS = {
    "settings.yaml": """\
data: {path: data.h5, history: 12, horizon: 12}
loader: {batch_size: 16}
model:
  width: 8
  blocks: 1
  slstm_at: []
  heads: 2
pooling: {heads: 2, neighbours: 3}
trainer:
  max_epochs: 1
  learning_rate: 0.002
  run_dir: new
""",
    "settings.toml": """\
[data]
path = "data.h5"
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
""",
}


def _settings(folder: Path) -> list[Base]:
    """Settings that a user wrote, and distances, which only settings name."""
    data, found = store(folder), []
    for name, text in SETTINGS.items():
        shown = Command(("config", "-c", name, "--json"))
        trained = Command(("train", "-c", name, "--max-epochs", "1", "--run-dir", "new", *SMALL), ("new",))
        found.append(Base(name, {name: text.encode(), "data.h5": data}, (name,), (shown, shown, shown, trained), 1.2))
    pairs = [f"{start},{end},{100 + 700 * abs(i - j)}" for i, start in enumerate(IDS) for j, end in enumerate(IDS)]
    matrix = "0,800,1500\n800,0,700.5\n1500,700.5,0\n"
    words = ("train", "--data", "data.h5", "--run-dir", "new", "--max-epochs", "1", *SMALL, "--distances", "roads.csv")
    for name, text in (("list", "\n".join(["from,to,cost", *pairs]) + "\n"), ("matrix", matrix)):
        files = {"data.h5": data, "roads.csv": text.encode()}
        found.append(Base(f"distances {name}", files, ("roads.csv",), (Command(words, ("new",)),), 0.8))
    return found


RESUME = ("train", "--resume", "run", "--max-epochs", "2")
RUN_FILES = (
    *("settings.yaml", "origin.json", "environment.json", "sensors.json", "protocol.json", "metrics.jsonl"),
    *("best.safetensors", "intervals.safetensors", "last.pt"),
)


def _runs(folder: Path) -> tuple[list[Base], dict[str, Any]]:
    """A run of one epoch, the same as the first version wrote it, and what each command gives for the undamaged run."""
    here = _fresh(folder, "trained")
    write(here / "data.h5", store(folder))
    first = ("train", "--data", "data.h5", "--run-dir", "run", "--max-epochs", "1", *SMALL)
    child.check(child.command(first, here))
    child.check(child.run(lambda: _steady(here / "run")))
    files = _read(here)
    scores = Command(("evaluate", "run", "--json"), (), "scores")
    ahead = Command(("predict", "run", "--json"), (), "forecast")
    other = Command(("predict", "run", "--data", "data.h5", "--output", "ahead.csv"), ("ahead.csv",))
    errors = Command(("explain", "run", "--json"), (), "explanation")
    ends = Command(("predict", "run", "--interval", "0.5", "--json"), (), "intervals")
    places = Command(("explain", "run", "--geojson", MAP), (MAP,), "map")
    page = Command(("report", "run", "-o", PAGE), (PAGE,), "report")
    export = Command(("export", "run", EXPORT), (EXPORT,), "export")
    calibrate = Command(("calibrate", "run"), ("run/intervals.safetensors",), "calibration")
    network = Command(("serve", "run", "--port", "0"), (), "network")
    latest = Command(("serve", "run", "--data", "data.h5", "--port", "0"), (), "latest")
    follow = Command(("serve", "run", "--data", SERVED, "--follow", "--port", "0"), (SERVED, NEXT), "follow")
    go_on = Command(RESUME, ("run",), "resumed")
    over = Command((*first, "--overwrite"), ("run",))
    served = {**files, SERVED: files[NEXT]}
    expected: dict[str, Any] = {}
    for command in (scores, ahead, errors, ends, places, page, export, calibrate, network, latest, follow, go_on):
        again = _fresh(folder, "expected")
        for name, content in served.items():
            write(again / name, content)
        done = child.command(command.words, again)
        child.check(done)
        expected[command.oracle] = RESULTS[command.oracle](again, done.stdout)
    reading = (scores, scores, ahead, ends, errors, places, page, export, calibrate, network, latest)
    found = [
        Base(f"run {name}", files, (f"run/{name}",), (*reading, go_on, go_on), 1.2)
        for name in RUN_FILES
        if Path(name).suffix not in (".pt", ".safetensors", ".jsonl")
        if name not in ("origin.json", "environment.json")
    ]
    found += [
        Base(f"run {name}", files, (f"run/{name}",), (go_on, go_on, go_on, scores, page, over), 1.2)
        for name in ("last.pt", "metrics.jsonl", "origin.json", "environment.json")
    ]
    of_intervals = (ends, ends, ahead, page, calibrate, go_on)
    found += [
        Base("run best.safetensors", files, ("run/best.safetensors",), reading, 1.5),
        Base("run intervals.safetensors", files, ("run/intervals.safetensors",), of_intervals, 1.2),
        Base("data of a run", files, ("data.h5",), (*reading, other, go_on), 1.5),
        Base("data of a server", served, ("data.h5",), (follow,), 1.2),
    ]
    older = _as_first_version(files)
    found += [
        Base(f"older run {name}", older, (f"run/{name}",), (*reading, go_on), 0.8) for name in ("best.pt", "stamp.json")
    ]
    return found, expected


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


def _as_first_version(files: Files) -> Files:
    """best.pt and stamp.json in place of best.safetensors and protocol.json."""
    kept = dict(files)
    state = load_tensors(kept.pop("run/best.safetensors"))
    names = {name.replace("normaliser.", "scaled."): tensor for name, tensor in state.items()}
    kept["run/best.pt"] = _packed({"model": names, "epoch": 1})
    stamp = json.loads(kept.pop("run/protocol.json"))
    stamp["scaler"] = stamp.pop("normaliser")
    kept["run/stamp.json"] = json.dumps(stamp, indent=2).encode()
    return kept
