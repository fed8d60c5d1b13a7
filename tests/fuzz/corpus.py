"""The inputs as they should be, each with the commands that read it, and the cases that are made of them.

A case is (seed, number): everything about it is drawn from these two.
"""

import io
import json
import random
import shlex
import shutil
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import torch
import yaml

from tests import data_files, older_files
from tests.commands import SMALL
from tests.data_files import IDS, speeds, timestamps
from tests.fuzz import child, drawn, mutations
from tests.fuzz.results import EXPORT, MAP, PAGE, RESULTS
from tests.fuzz.server import NEXT, SERVED

Files = dict[str, bytes]
OUT, LOCATIONS = "out.h5", "loc.csv"
CLOCK = "--first-time '2012-03-01 00:00' --freq 5min"
TO = f"--output-h5 {OUT}"
TIMED, WITHOUT = f"--meta-csv {LOCATIONS} {TO}", f"--without-positions {TO}"
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
    """Files that are right, those of them that are damaged, and the commands that read these.

    spec: what a table of them holds.
    """

    name: str
    files: Mapping[str, bytes]
    targets: tuple[str, ...]
    commands: tuple[Command, ...]
    weight: float = 1.0
    spec: Mapping[str, Any] = field(default_factory=dict)


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

    @property
    def repeat(self) -> str:
        """The command that runs this case alone."""
        what = "drawn " if self.base.name.startswith("drawn") else ""
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


DRAWN = Base("drawn", {}, (), (), 5)  # each of its cases is another table


@dataclass
class Corpus:
    """All bases, and what undamaged runs give."""

    bases: list[Base]
    expected: dict[str, Any] = field(default_factory=dict)

    def case(self, seed: int, number: int, scratch: Path) -> Case:
        """The case of this number; ``scratch`` is an empty folder for files on the way."""
        dice = random.Random(f"{seed}:{number}")
        (base,) = dice.choices(self.bases, [each.weight for each in self.bases])
        whole = base is DRAWN and dice.random() < 0.6
        base = _drawn(seed, number, dice.choice(DOORS)) if base is DRAWN else base
        target, chosen = dice.choice(base.targets), dice.choice(base.commands)
        content = base.files[target]
        if whole:
            return Case(seed, number, base, target, base.name, content, chosen, target)
        if dice.random() >= 0.06:
            suffix = Path(target).suffix
            others = [text for each in self.bases for name, text in each.files.items() if Path(name).suffix == suffix]
            changed, how, raw = mutations.mutate(content, target, dice, others or [content], scratch)
            told = target != drawn.SPEC and (drawn.SPEC in chosen.words or not base.name.startswith("drawn"))
            if not told:  # another description, or none
                chosen = replace(chosen, oracle="")
            return Case(seed, number, base, target, how, changed, chosen, target, raw=raw)
        kind, named = dice.choice((*mutations.KINDS, *mutations.NAMES)), target
        if kind in mutations.NAMES and "/" not in target:
            if target not in chosen.words:  # a file that the command does not name must keep its name
                return Case(seed, number, base, target, "empty", content, chosen, target, "empty")
            named = mutations.other_name(Path(target), kind)
            words = tuple(named if word == target else word for word in chosen.words)
            chosen = replace(chosen, words=words, writes=tuple(name.replace(target, named) for name in chosen.writes))
        return Case(seed, number, base, target, kind, content, replace(chosen, oracle=""), named, kind)


DOORS = (f"--table {drawn.SPEC} {WITHOUT}",) * 3 + (f"--meta-csv {drawn.AT} {TO}", WITHOUT)


def _drawn(seed: int, number: int, door: str) -> Base:
    """A drawn table, which is described, or must prove itself; the quantity is said."""
    found = drawn.draw(seed, number)
    said = "" if drawn.SPEC in door else f" --quantity {next(iter(found.spec['values']))} --missing none"
    words = command(f"convert auto {found.name} {door}{said}", OUT, oracle="table")
    targets = (found.name, found.name, drawn.SPEC) if drawn.SPEC in door else (found.name,)
    return Base(f"drawn {found.how}", found.files(), targets, (words,), spec=found.spec)


def build(folder: Path) -> Corpus:
    """All bases.  What runs socialx runs in a child, as later cases do."""
    bases = [*_tables(folder), *_hdf5(folder), *_older(folder), *_settings(folder)]
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


def _convert(kind: str, data: str, options: str, oracle: str = "") -> tuple[Command, ...]:
    """``convert`` by the name of a format, by auto, by auto without an output, and ``inspect`` of the input."""
    named = command(f"convert {kind} {data} {options}", OUT, oracle=oracle)
    auto = command(f"convert auto {data} {options} --validate", OUT, oracle=oracle)
    return named, auto, command(f"convert auto {data}"), command(f"inspect {data} --json")


ZONES = ("Europe/Paris", "Australia/Lord_Howe", "Etc/GMT-1")
ONE = f"{TIMED} --sensor-column sensor --channel speed --missing none"
APPENDED = tuple(
    command(f"append data.h5 data.csv{end}", "data.h5") for end in ("", " --missing 255,0", " --timezone Europe/Paris")
)


def _tables(folder: Path) -> list[Base]:
    times, values = timestamps(ROWS), speeds(ROWS)
    places = made(folder, "texts", lambda here: data_files.write_locations(here / LOCATIONS))
    places |= {"ids.txt": "\n".join(IDS).encode(), "at.json": _points()}
    csv = made(folder, "csv", lambda here: data_files.write_csv(here / "data.csv", times, values))["data.csv"]
    frame = pd.DataFrame(values, pd.DatetimeIndex(times, name="time"), IDS)
    rows = frame.reset_index().melt("time", var_name="sensor", value_name="speed").assign(flow=3)
    german = frame.to_csv(sep=";", decimal=",", date_format="%d.%m.%Y %H:%M").encode()
    lines = rows.astype({"time": str}).to_json(orient="records", lines=True, double_precision=15).encode()
    hours = frame.set_axis(pd.date_range("2023-10-28", periods=ROWS, freq="h", tz="Europe/Paris").tz_localize(None))
    months, array = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(months, "w") as archive:
        for name, part in (("a.csv", frame[:25]), ("b.csv", frame[20:])):
            archive.writestr(zipfile.ZipInfo(name), part.to_csv(), zipfile.ZIP_DEFLATED)
    np.save(array, values)
    wide = {"values": {"speed": drawn.EVERY}, "time": [""]}
    long = {"values": {"speed": "speed"}, "time": ["time"], "sensor": ["sensor"]}
    csvs = {"csv": csv, "German": german, "rows": rows.to_csv(index=False).encode()}
    csvs["clock"] = hours.to_csv(index_label="time").encode()
    named, arrays = command(f"convert metr-la data.csv {TIMED}", OUT, oracle="table"), {"data.npy": array.getvalue()}
    by_npy = _convert("npy", "data.npy", f"--ids ids.txt {CLOCK} {TIMED}", "npy")

    def auto(*options: str) -> list[Command]:
        return [command(f"convert auto data.csv {each}", *([OUT] if OUT in each else [])) for each in options]

    def base(name: str, target: str, *commands: Command, weight: float = 1.5, **spec: Any) -> Base:
        kept = {"data.csv": csvs.get(name, csv), "data.jsonl": lines, "data.zip": months.getvalue(), **arrays, **places}
        return Base(name, kept, (target,), commands, weight, spec)

    dry, points = command("convert auto data.csv --dry-run"), f"--meta-csv at.json {TO}"
    german_too = auto(f"{TIMED} --units km/h", f"{TIMED} --missing -1,0", f"{TIMED} --quantity flow")
    return [
        base("csv", "data.csv", named, *_convert("csv", "data.csv", TIMED, "table"), weight=2, **wide),
        base("locations", LOCATIONS, named, **wide),
        base("points", "at.json", *auto(points)),
        base("German", "data.csv", *german_too, dry, command("inspect data.csv --json"), weight=2),
        base("rows", "data.csv", *_convert("csv", "data.csv", ONE, "table"), **long),
        base("lines", "data.jsonl", *_convert("csv", "data.jsonl", ONE, "table"), **long),
        base("clock", "data.csv", *auto(*(f"{TIMED} --timezone {zone}" for zone in ZONES))),
        base("months", "data.zip", *_convert("csv", "data.zip", TIMED)),
        base("array", "data.npy", *by_npy),
        base("ids", "ids.txt", *by_npy[:2]),
    ]


def _points() -> bytes:
    """Positions as GeoJSON."""
    geometry = {"type": "Point", "coordinates": [-118.1, 34.1]}
    features = [{"type": "Feature", "id": vdid, "properties": {}, "geometry": geometry} for vdid in IDS]
    return json.dumps({"type": "FeatureCollection", "features": features}).encode()


def _hdf5(folder: Path) -> list[Base]:
    def write(here: Path) -> None:
        data_files.write_locations(here / LOCATIONS)
        data_files.write_frame(here / "frame.h5", timestamps(ROWS), speeds(ROWS), order=[2, 0, 1])

    frame = made(folder, "hdf5", write)
    commands = (
        command("inspect data.h5 --json"),
        command("inspect data.h5 --fail-unless all"),
        command("inspect data.h5 --plot plot.png", "plot.png"),
        command(f"inspect data.h5 --geojson {MAP}", MAP),
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
    more, found = f"--meta-csv {LOCATIONS} --rewrite", []
    completed = [command(f"backfill old.h5 {end}", "old.h5", "old.h5.bak", oracle="backfill") for end in ("", more)]
    commands = (*completed, command(f"backfill old.h5 {more} --dry-run"), command("inspect old.h5 --json"))
    for name, builder in older_files.OLDER.items():

        def write(here: Path, builder: Callable[[Path], object] = builder) -> None:
            child.check(child.run(lambda: builder(here / "old.h5")))
            older_files.meta(here / LOCATIONS)

        targets = ("old.h5",) * 6 + ((LOCATIONS,) if name in ("M0", "TW2") else ())
        found.append(Base(f"older {name}", made(folder, f"older_{name}", write), targets, commands, 0.6))
    return found


SETTINGS: dict[str, dict[str, Any]] = {
    "data": {"path": "data.h5", "lookback": 12, "horizon": 12},
    "loader": {"batch_size": 16},
    "model": {"width": 8, "blocks": 1, "slstm_at": [], "heads": 2},
    "pooling": {"heads": 2, "neighbours": 3},
    "trainer": {"max_epochs": 1, "learning_rate": 0.002, "run_dir": "new"},
}


def _settings(folder: Path) -> list[Base]:
    """Settings that a user wrote, and distances, which only settings name."""
    data, text = store(folder), yaml.safe_dump(SETTINGS, sort_keys=False).encode()
    shown, trained = command("config -c settings.yaml --json"), "-c settings.yaml --run-dir new"
    pairs = [f"{start},{end},{100 + 700 * abs(i - j)}" for i, start in enumerate(IDS) for j, end in enumerate(IDS)]
    roads, named = (
        "\n".join(["from,to,cost", *pairs, ""]).encode(),
        "--data data.h5 --run-dir new --distances roads.csv",
    )
    commands = (shown, shown, command(TRAIN.format(trained), "new"))
    return [
        Base("settings", {"settings.yaml": text, **data}, ("settings.yaml",), commands, 1.5),
        Base("distances", {**data, "roads.csv": roads}, ("roads.csv",), (command(TRAIN.format(named), "new"),), 1.2),
    ]


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
        **dict.fromkeys(("format.txt", "settings.yaml", "sensors.json", "protocol.json"), ((*READING, GO_ON), 1.2)),
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
