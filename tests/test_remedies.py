"""Every command that a message names is one that works: it is provoked, read off what was printed, and run.

A remedy is a ``Command`` in the source.  Each of them has a case below, so that a new one cannot be left out.
"""

import ast
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

import socialx as api
from socialx.cli import command as door
from socialx.cli import error_flags
from socialx.core import sealed_tensors as sealed
from socialx.core.errors import Command, SocialxError, spelling
from socialx.core.notebook import files_in
from socialx.core.progress import Epoch, Start
from socialx.files.sources import append
from socialx.files.sources.readings import read
from socialx.files.sources.request import ConvertOptions
from socialx.scoring.intervals import NARROW
from socialx.training import launch
from socialx.training.loop import TrainState
from tests import older_files
from tests.commands import EXCERPT, LOCATIONS, ROOT, SMALL, cut_csv, edited, keep_rows, registered, small_file, socialx
from tests.data_files import BAY_IDS, speeds, timestamps, write_csv
from tests.data_files import write_frame as write_hdfstore

PACKAGE = ROOT / "socialx"


class _Begun(Exception):
    """A training has begun, which is all that is asked of one."""


@cache
def sites() -> dict[str, ast.Call]:
    """Every ``Command(...)`` of the package: its module and function, and which of the function's it is."""
    found: dict[str, ast.Call] = {}

    def walk(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            inside = f"{name}.{child.name}" if isinstance(child, ast.FunctionDef | ast.ClassDef) else name
            if isinstance(child, ast.Call) and re.match(
                r"Command\((?!'')", ast.unparse(child)
            ):  # '' names arguments only
                number = 1 + sum(key.startswith(f"{name}#") for key in found)
                found[f"{name}#{number}"] = child
            walk(child, inside)

    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        walk(ast.parse(path.read_text()), name)
    return found


@dataclass
class World:
    """A folder with a file and a run in it; what stands for a file of the user's, and what was printed so far."""

    folder: Path
    data: Path
    run: Path
    patch: pytest.MonkeyPatch
    fill: dict[str, Path | str] = field(default_factory=dict)
    made: dict[str, list[Command]] = field(default_factory=dict)  # site -> commands made there
    printed: dict[int, str] = field(default_factory=dict)  # identity of a command -> as printed
    kept: list[Command] = field(default_factory=list)  # so that no identity comes twice

    def watch(self) -> None:
        """Note every command that is made, and how the command line writes it."""
        begin, write = Command.__init__, error_flags.write

        def made(command: Command, *arguments: Any, **options: Any) -> None:
            begin(command, *arguments, **options)
            frame = sys._getframe(1)
            module = ".".join(Path(frame.f_code.co_filename).with_suffix("").parts[len(PACKAGE.parts) :])
            for site, call in sites().items():
                if site.startswith(f"{module}.") and call.lineno <= frame.f_lineno <= (call.end_lineno or 0):
                    self.made.setdefault(site, []).append(command)

        def printed(task: str, part: Any) -> str:
            text = write(task, part)
            if isinstance(part, Command):
                self.printed[id(part)] = text
                self.kept.append(part)
            return text

        registered()
        self.patch.setattr(Command, "__init__", made)
        for module in [each for name, each in sys.modules.items() if name.startswith("socialx.cli.")]:
            if hasattr(module, "write"):
                self.patch.setattr(module, "write", printed)

    def says(self, *words: str | Path) -> str:
        """Return what a command prints."""
        result = socialx(*words)
        return result.stdout + result.stderr

    def refusal(self, task: str, call: Callable[[], object]) -> str:
        """What a refusal says on the command line of a task."""
        with pytest.raises(SocialxError) as caught, spelling(lambda part: door.write(task, part)):
            call()
        return "\n".join(caught.value.lines())

    def older(self, build: Callable[[Path], Path], name: str = "old.h5") -> Path:
        """A file of an earlier writer, whose locations are those of its sensors."""
        self.fill["LOCATIONS.csv"] = older_files.meta(self.folder / "places.csv")
        return build(self.folder / name)

    def unplaced(self) -> Path:
        """A file whose sensors have no position."""
        path = self.folder / "unplaced.h5"
        api.convert("auto", cut_csv(self.folder / "cut.csv", 400), path, without_positions=True)
        return path


@pytest.fixture
def world(data: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")
    for name, value in {"WIDTH": "8", "BLOCKS": "1", "SLSTM_AT": ""}.items():
        monkeypatch.setenv(f"SOCIALX_MODEL__{name}", value)
    monkeypatch.setenv("SOCIALX_PROFILE__STEPS", "2")
    monkeypatch.setenv("SOCIALX_PROFILE__TRIALS", "false")
    csv = cut_csv(tmp_path / "mine.csv", 400)
    named = {"FILE": csv, "FILE.csv": csv, "READINGS": csv, "OLD": csv, "LOCATIONS.csv": LOCATIONS}
    own = Path(shutil.copy(data, tmp_path / "own.h5"))
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    words = {"NAME": "city", "RUN": run, "UNIT": "mph", "ZONE": "Europe/Paris"}
    made = World(tmp_path, own, run, monkeypatch, {**named, "OUT.h5": tmp_path / "made.h5", **words})
    made.watch()
    return made


def train(world: World, *words: str | Path) -> str:
    return world.says("train", "--data", world.data, "--max-epochs", "1", "--run-dir", "new", *SMALL, *words)


def interrupted(world: World) -> str:
    def stop(event: object) -> None:
        if isinstance(event, Epoch):
            signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("socialx.cli.training_commands.Show", lambda: stop)
        return train(world, "--max-epochs", "2")


def killed(world: World) -> str:
    def ends(*config: Any) -> Callable[..., None]:
        failure = ProcessFailure(local_rank=0, pid=1, exitcode=-signal.SIGKILL, error_file="none")

        def fail(*words: str) -> None:
            raise ChildFailedError("train", {0: failure})

        return fail

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "elastic_launch", ends)
        return world.refusal("train", lambda: launch.launch(2, ["train"]))


def without(world: World, name: str, text: str | None = None) -> Path:
    """The run with a file of it removed, or with another text in it."""
    path = world.run / name
    path.unlink() if text is None else path.write_text(text)
    return world.run


def overlap(world: World) -> str:
    """Rows that the file has no place for: they are from before it ends, and it lacks them."""
    lines = world.fill["OLD"].read_text().splitlines()
    with edited(world.data, world.folder / "short.h5") as file:
        keep_rows(file, np.delete(np.arange(400), [200, 201]))
    new = world.fill["NEW"] = world.folder / "new.csv"
    new.write_text("\n".join([lines[0], *lines[201:203], *lines[399:]]) + "\n")
    world.fill["OLD"].write_text("\n".join(lines[:201]) + "\n")
    return world.says("append", "short.h5", new)


def hdfstore(world: World) -> Path:
    table = pd.read_csv(world.fill["FILE"], index_col=0)
    return write_hdfstore(world.folder / "store.h5", list(table.index), table.to_numpy(), ids=tuple(table.columns))


def others(world: World, ids: tuple[str, ...]) -> Path:
    path = write_csv(world.folder / "others.csv", timestamps(40), speeds(40), ids)
    rows = [f"{name},{37 + place / 100},{-122 + place / 100}" for place, name in enumerate(ids)]
    world.fill["LOCATIONS.csv"] = world.folder / "places.csv"
    (world.folder / "places.csv").write_text("\n".join(["sensor_id,latitude,longitude", *rows]) + "\n")
    return path


def unstated(world: World) -> Path:
    """A file that does not say what a missing reading is."""
    with h5py.File(world.data, "r+") as file:
        del file["metadata"].attrs["missing_value"]
    return world.data


def named(world: World, *words: str) -> Path:
    """A file of the user's own network."""
    path = world.folder / "mine.h5"
    world.says("convert", "csv", world.fill["FILE"], "--meta-csv", LOCATIONS, "--name", "city", *words, *TO[:1], path)
    return path


def unchecked(world: World) -> str:
    """A file that is too large to be looked at where it is written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("socialx.tasks.data_files.LOOKED_BYTES", 0)
        return world.says("convert", "metr-la", EXCERPT, "--meta-csv", LOCATIONS, *TO)


def larger(world: World) -> str:
    """A forecast from a file of more sensors than the run has."""
    path = world.folder / "larger.h5"
    world.says("convert", "metr-la", EXCERPT, "--meta-csv", LOCATIONS, *TO[:1], path)
    return world.says("predict", world.run, "--data", path)


def of_two_columns(world: World) -> Path:
    """A table with a row per reading and two columns of numbers, of which one is likely to be the reading."""
    table = pd.read_csv(others(world, ("a", "b", "c")), index_col=0).rename_axis("time")
    rows = table.reset_index().melt("time", var_name="sensor", value_name="speed")
    rows.assign(temperature=rows["speed"] / 9).to_csv(world.folder / "rows.csv", index=False)
    return world.folder / "rows.csv"


def exchanged(world: World) -> Path:
    """A file whose latitudes and longitudes were exchanged; the right ones are the locations."""
    data, wrong = others(world, ("a", "b", "c")), world.folder / "wrong.csv"
    rows = [(name, 48.1 + place / 100, 11.5) for place, name in enumerate("abc")]
    world.fill["LOCATIONS.csv"].write_text("\n".join(["id,lat,lon", *(f"{i},{y},{x}" for i, y, x in rows)]) + "\n")
    wrong.write_text("\n".join(["id,lat,lon", *(f"{i},{x},{y}" for i, y, x in rows)]) + "\n")
    path = world.folder / "munich.h5"
    api.convert("csv", data, path, meta_csv=wrong, timezone="Europe/Berlin", units="km/h")
    return path


def edited_settings(world: World) -> Path:
    text = (world.run / "settings.yaml").read_text()
    assert "seed: 0" in text
    return without(world, "settings.yaml", text.replace("seed: 0", "seed: 7"))


def coarse(world: World, run: str | Path = "zero-shot") -> str:
    """A file with a row in three quarters of an hour."""
    header, *rows = world.fill["FILE"].read_text().splitlines()
    world.fill["FILE"].write_text("\n".join([header, *rows[::9]]) + "\n")
    world.fill["FILE.h5"] = named(world, "--units", "mph")
    return world.says("predict", run, "--data", world.fill["FILE.h5"])


def at_other_places(world: World) -> str:
    """The ids of the run at other places."""
    places = pd.read_csv(LOCATIONS).assign(latitude=lambda table: table["latitude"] + 5)
    places.to_csv(world.folder / "moved.csv", index=False)
    moved = world.folder / "moved.h5"
    api.convert("metr-la", cut_csv(world.folder / "cut.csv", 400), moved, meta_csv=world.folder / "moved.csv")
    return world.says("evaluate", world.run, "--data", moved)


def without_tables(world: World) -> str:
    """The same, and a run without weights of single sensors."""
    tables = ("--no-sensor-embedding", "--set", "pooling.adaptive_adjacency_rank=0")
    socialx("train", "--data", world.data, "--max-epochs", "1", "--run-dir", "shared", *SMALL, *tables)
    return coarse(world, "shared")


def older_intervals(world: World) -> str:
    """A run whose intervals an earlier version stored: without the quantiles inside the middle half."""
    path, world.fill["RUN"] = world.run / "intervals.safetensors", world.run
    tables, described = sealed.read(path)
    cut = {name: table if name == "free_flow" else table[len(NARROW) :] for name, table in tables.items()}
    sealed.write(path, cut, described)
    return world.says("predict", world.run, "--below", "30")


def shipped(world: World) -> str:
    """A run that comes with the package, in which nothing is written."""
    world.fill["FILE.h5"] = world.data
    return world.says("calibrate", "zero-shot", "--data", world.data)


def beside_a_card(w: World, seen: bool) -> str:
    """A training on the CPU: torch sees a card that it has no code for, or does not see one."""
    w.patch.setattr(shutil, "which", lambda name, **_: f"/usr/bin/{name}")
    answers = {
        "device_count": 1,
        "get_device_capability": (7, 0),
        "get_arch_list": ["sm_80"],
        "get_device_name": "Card",
    }
    for name, answer in {"is_available": seen, **answers}.items():
        w.patch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    return train(w)


def in_utc(world: World, run: str | Path) -> str:
    """A forecast from a file whose times are in UTC, and whose local zone nobody said."""
    utc = world.folder / "utc.h5"
    api.convert("csv", world.fill["FILE"], utc, meta_csv=LOCATIONS, name="metr_la", units="mph", timezone="UTC")
    return world.says("predict", run, "--data", utc)


def kept_file(world: World) -> str:
    """A forecast from a table in UTC, whose local zone is said of the file that the user may keep."""
    kept = world.fill["mine.h5"] = world.folder / "kept.h5"
    api.convert("csv", world.fill["FILE"], kept, meta_csv=LOCATIONS, units="mph", timezone="UTC", name="city")
    table = (world.fill["FILE"], "--meta-csv", LOCATIONS, "--timezone", "UTC", "--units", "mph")
    return world.says("predict", "zero-shot", "--data", *table)


TO = ("--output-h5", "x.h5")
FRAME = pd.DataFrame([[1.0]])
# Where the command is made -> what makes it, and says what was printed.
CASES: dict[str, Callable[[World], str]] = {
    "dataset.__init__.read_dataset#1": lambda w: w.says("train"),
    "dataset.__init__.Dataset.note_clock#1": lambda w: in_utc(w, "zero-shot"),
    "scoring.protocol._places#1": at_other_places,
    "scoring.protocol._clock#1": lambda w: in_utc(w, w.run),
    "tasks.train.describe_start#2": lambda w: train(w, "--precision", "16-mixed"),
    "cli.scoring_commands.calibrate#1": lambda w: w.says("calibrate", w.run),
    "cli.training_commands.train#1": train,
    "files.sources.append#1": overlap,
    "inspection.checks._timezone#1": lambda w: w.says("inspect", named(w)),
    "inspection.checks._units#1": lambda w: w.says("inspect", named(w)),
    "inspection.checks.zone_mismatch#1": lambda w: w.says("inspect", exchanged(w)),
    "files.sources.hdfstore._find_key#1": lambda w: w.refusal(
        "convert", lambda: read("hdfstore", ConvertOptions(w.data))
    ),
    "files.store.layout.read_layout#1": lambda w: w.says("train", "--data", hdfstore(w)),
    "files.store.layout.read_layout#2": lambda w: w.says("train", "--data", w.older(older_files.v0)),
    "files.sources.positions.neighbours.find_neighbours#1": lambda w: w.says(
        "train", "--data", w.unplaced(), "--max-epochs", "1"
    ),
    "files.sources.backfill.Completion.refusal#1": lambda w: w.says("backfill", w.unplaced()),
    "files.sources.backfill.Completion.refusal#2": lambda w: w.says("backfill", w.older(older_files.v0)),
    "files.sources.readings._check_published#1": lambda w: w.says("convert", "metr-la", others(w, BAY_IDS), *TO),
    "files.sources.readings._check_published#2": lambda w: w.says(
        "convert", "metr-la", others(w, ("a", "b", "c")), "--meta-csv", w.fill["LOCATIONS.csv"], *TO
    ),
    "files.sources.readings._units#1": lambda w: w.says(
        "convert", "csv", w.fill["FILE"], "--meta-csv", LOCATIONS, "--name", "city", *TO[:1], w.fill["OUT.h5"]
    ),
    "files.sources.recognition.socialx_kind#1": lambda w: w.says("inspect", w.older(older_files.v0)),
    "files.sources.recognition.command#1": lambda w: w.says("convert", "auto", w.fill["FILE"]),
    "files.sources.tables.formats.describe#1": lambda w: w.says("convert", "auto", LOCATIONS, *TO),
    "files.sources.tables.questions.command#1": lambda w: w.says(
        "convert", "auto", of_two_columns(w), "--meta-csv", w.folder / "places.csv", *TO
    ),
    "files.sources.recognition.refuse_socialx_file#1": lambda w: w.says("convert", "auto", w.data, *TO),
    "files.store.store.open_store#1": lambda w: w.says("train", "--data", unstated(w)),
    "core.notebook.files_in#1": lambda w: w.refusal("convert", lambda: files_in(FRAME)),
    "core.precision.resolve_device#1": lambda w: beside_a_card(w, True),
    "scoring.protocol._told_kind#1": without_tables,
    "settings.layers._refuse_edits#1": lambda w: w.says("evaluate", edited_settings(w)),
    "tasks.calibrate.calibrate#1": shipped,
    "tasks.doctor._run_check#1": lambda w: w.says("doctor", "--set", "model.width=-1"),
    "tasks.doctor._data#1": lambda w: w.says("doctor"),
    "tasks.data_files._convert#1": unchecked,
    "tasks.data_files._convert#2": lambda w: w.says("convert", "metr-la", EXCERPT, "--meta-csv", LOCATIONS, *TO),
    "tasks.data_files._convert#3": lambda w: w.says("convert", "auto", EXCERPT, "--without-positions", *TO),
    "tasks.data_files._convert#4": lambda w: w.says("convert", "auto", EXCERPT, "--without-positions", *TO),
    "tasks.predict.predict#1": lambda w: w.says("predict", w.run, "zero-shot"),
    "tasks.predict._note_zero_shot#1": lambda w: w.says(
        "predict", "zero-shot", "--data", small_file(w.folder, 9 * 288, 4)
    ),
    "tasks.trained_model.note_left_out#1": larger,
    "tasks.trained_model.resampling_factor#1": coarse,
    "tasks.train.describe_start#1": lambda w: beside_a_card(w, False),
    "tasks.user_data._convert_temporarily.with_options#1": lambda w: w.says("predict", w.run, "--data", w.fill["FILE"]),
    "tasks.user_data._naming.spell#1": kept_file,
    "tasks.user_data._convert_temporarily.retell#1": lambda w: w.says(
        *("predict", "zero-shot", "--data", of_two_columns(w), "--meta-csv", w.folder / "places.csv"),
        *("--units", "mph"),
    ),
    "tasks.user_data._refuse_table_options#1": lambda w: w.says(
        "predict", w.run, "--data", w.data, "--meta-csv", LOCATIONS
    ),
    "tasks.predict.parse_horizon#1": lambda w: w.says("predict", w.run, "--horizon", "4h"),
    "tasks.predict.parse_horizon#2": lambda w: w.says("predict", w.run, "--horizon", "4h"),
    "tasks.predict._late_origin#1": lambda w: w.says("predict", w.run, "--at", "2012-06-27 00:00"),
    "training.launch.launch#1": killed,
    "training.loop.TrainState.refuse_other_batches#1": lambda w: w.refusal(
        "train", lambda: TrainState(ranks=2).refuse_other_batches(w.run / "last.pt", 8, 1)
    ),
    "training.loop.TrainState.refuse_other_batches#2": lambda w: w.refusal(
        "train", lambda: TrainState(batch=9).refuse_other_batches(w.run / "last.pt", 8, 1)
    ),
    "training.loop.resume_training#1": lambda w: w.says("train", "--resume", w.run),
    "training.process_group.ProcessGroup.resume_command#1": interrupted,
    "training.run_folder.RunFolder.check_format#1": lambda w: w.says("evaluate", without(w, "format.txt")),
    "training.run_folder._read_protocol#1": lambda w: w.says("evaluate", without(w, "protocol.json", "{}")),
    "training.run_folder.TrainedRun.read_intervals#1": lambda w: w.says(
        "predict", without(w, "intervals.safetensors"), "--interval", "0.9"
    ),
    "scoring.intervals.ConformalIntervals.check_quantiles#1": older_intervals,
    "training.run_folder.open_to_resume#1": lambda w: w.says("train", "--resume", without(w, "last.pt")),
    "drawing.map.sensor_places#1": lambda w: w.says("inspect", w.unplaced(), "--geojson", "map.geojson"),
}


def test_every_remedy_has_a_case() -> None:
    assert sorted(sites()) == sorted(CASES)


@pytest.mark.parametrize("site", CASES)
def test_a_printed_command_works(world: World, site: str) -> None:
    if site == "files.sources.append#1":  # made when its module is imported
        world.made[site] = [append.WHOLE]
    said = " ".join(CASES[site](world).split())
    texts = {world.printed.get(id(command), "nothing") for command in world.made.get(site, ())}
    commands = [text for text in texts if text in said]
    assert commands, said
    for command in commands:
        program, *words = (world.fill.get(word, word) for word in shlex.split(command))
        assert program == "socialx"
        run(world, *map(str, words))


def run(world: World, *words: str) -> None:
    """Run a command to its end, a training to its beginning."""

    class ResultRepr:
        def __init__(self) -> None: ...
        def __call__(self, event: object) -> None:
            if isinstance(event, Start):
                raise _Begun

    if words[0] != "train":
        result = socialx(*words)
        assert result.exit_code == 0, result.output
        return
    world.patch.setattr("socialx.cli.training_commands.Show", ResultRepr)
    world.patch.setattr(launch, "launch", lambda devices, words: api.train and _begin())
    with pytest.raises(_Begun):
        print(socialx(*words).output)


def _begin() -> int:
    raise _Begun
