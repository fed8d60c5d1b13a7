"""Kill commands at random moments: nothing may be lost, half written, blocked, or left by the next command."""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import h5py
import numpy as np
import torch
from safetensors.torch import load as load_tensors

from tests import data_files, older_files
from tests.commands import SMALL
from tests.fuzz import child
from tests.fuzz.corpus import Files, read_all, write_all

FIRST = ("train", "--data", "data.h5", "--run-dir", "run", "--max-epochs", "3", *SMALL, "--batch-size", "8")
RESUME = ("train", "--resume", "run")
OLD = b"the old file"
OLD_OF = {
    "page.html": b"<!doctype html>",
    "map.geojson": b'{"type": "FeatureCollection"}',
}  # replaced by their own kind
# Commands that use a run or a file, and the file that each of them replaces.
OF_RUN = (
    ("calibrate", ("calibrate", "run"), "run/intervals.safetensors"),
    ("report", ("report", "run", "-o", "page.html"), "page.html"),
    ("export", ("export", "run", "out.safetensors", "--overwrite"), "out.safetensors"),
    ("predict", ("predict", "run", "--output", "ahead.csv", "--overwrite"), "ahead.csv"),
    ("explain", ("explain", "run", "--geojson", "map.geojson"), "map.geojson"),
    ("inspect", ("inspect", "data.h5", "--geojson", "map.geojson"), "map.geojson"),
)


@dataclass
class Tally:
    """What was seen after the kills of one command, and what was wrong: lost, half, blocked, weights or litter."""

    name: str
    kills: int = 0
    early: int = 0  # the command had ended before the kill
    wrong: list[str] = field(default_factory=list)


def kill(words: tuple[str, ...], folder: Path, seconds: float) -> bool:
    """Start a command and end it after so many seconds; whether it was still running."""
    from socialx.cli import main

    def call() -> None:
        sys.argv = ["socialx", *words]
        main()

    null = os.open(os.devnull, os.O_WRONLY)
    pid = child.start(call, folder, null, null)
    os.close(null)
    handle = os.pidfd_open(pid)
    running = not select.select([handle], [], [], seconds)[0]
    os.close(handle)
    if running:
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return running


def repeat(
    tally: Tally,
    words: tuple[str, ...],
    files: Files,
    folder: Path,
    count: int,
    dice: random.Random,
    seconds: float,
    after: Callable[[Path, Tally], None],
) -> Tally:
    """Kill a command ``count`` times at uniformly random moments of its length, each time in the same folder anew."""
    while tally.kills < count and tally.early < 5 * count:
        _anew(folder, files)
        if kill(words, folder, dice.uniform(0, seconds)):
            tally.kills += 1
            after(folder, tally)
        else:  # it has become faster
            tally.early += 1
            seconds *= 0.97
    return tally


def _anew(folder: Path, files: Files) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    write_all(files, folder)


def _whole_run(words: tuple[str, ...], files: Files, folder: Path) -> float:
    """Run a command that nobody kills; the seconds that it takes."""
    _anew(folder, files)
    done = child.command(words, folder)
    child.check(done)
    return done.seconds


def _temporaries(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob(".*.tmp")]


def _next(words: tuple[str, ...], folder: Path, tally: Tally, kind: str) -> bool:
    done = child.command(words, folder)
    if done.code != 0:
        tally.wrong.append(f"{kind}: after the kill, {' '.join(words[:3])}: {done.stderr[-300:]}")
        return False
    if found := _temporaries(folder):
        tally.wrong.append(f"litter: {found}")
    return True


def _content(path: Path) -> bytes:
    """What must be whole in a file that is right: the readings of a data file, all bytes of any other."""
    if path.suffix != ".h5":
        return path.read_bytes()
    with h5py.File(path) as file:
        assert len(file["metadata/vd_info"]) == len(file["metadata/vdids"])
        return bytes(file["data/features"][:].tobytes())


def _replaced(
    name: str, words: tuple[str, ...], output: str, files: Files, folder: Path, count: int, dice: random.Random
) -> Tally:
    """A command that replaces a file, which it writes the same each time."""
    seconds = _whole_run(words, files, folder)
    right, old = _content(folder / output), files[output]

    def after(folder: Path, tally: Tally) -> None:
        path = folder / output
        try:
            if path.read_bytes() != old and _content(path) != right:
                tally.wrong.append("half: other readings")
        except FileNotFoundError:
            tally.wrong.append("lost: no file")
        except (OSError, KeyError, AssertionError, RuntimeError) as error:
            tally.wrong.append(f"half: {error}")
        if _next(words, folder, tally, "blocked") and _content(path) != right:
            tally.wrong.append("lost: other readings after the next command")

    return repeat(Tally(name), words, files, folder, count, dice, seconds, after)


def _end(folder: Path) -> dict[str, torch.Tensor]:
    """All weights that a run ends with: the best and the last ones, and the moments."""
    last = torch.load(folder / "run/last.pt", weights_only=True)["learner"]
    found = {f"last {name}": tensor for name, tensor in last["model"].items()}
    for number, moments in last["optimizer"]["state"].items():
        found |= {f"moment {number} {name}": tensor for name, tensor in moments.items()}
    best = load_tensors((folder / "run/best.safetensors").read_bytes())
    return found | {f"best {name}": tensor for name, tensor in best.items()}


def _same(right: dict[str, torch.Tensor], found: dict[str, torch.Tensor]) -> bool:
    return set(right) == set(found) and all(torch.equal(tensor, found[name]) for name, tensor in right.items())


def _trained(name: str, words: tuple[str, ...], files: Files, folder: Path, count: int, dice: random.Random) -> Tally:
    """``train`` or ``train --resume``: what remains goes on to the weights of a run that nobody stopped."""
    seconds = _whole_run(words, files, folder)
    right = _end(folder)

    def after(folder: Path, tally: Tally) -> None:
        run = folder / "run"
        resumable = (run / "last.pt").exists()
        if (run / "best.safetensors").exists():
            done = child.command(("evaluate", "run", "--json"), folder)
            if done.code != 0:
                tally.wrong.append(f"half: evaluate after the kill: {done.stderr[-300:]}")
        if not resumable and "run/last.pt" in files:
            tally.wrong.append("lost: last.pt")
        if resumable:
            kept = {f"run/{name}": content for name, content in read_all(run, hidden=True).items()}
            done = child.command(RESUME, folder)
            if done.code != 0 and "nothing is left" not in done.stderr and "complete" not in done.stderr:
                tally.wrong.append(f"blocked: --resume after the kill: {done.stderr[-300:]}")
            elif not _same(right, _end(folder)):
                tally.wrong.append("weights: not those of the run that nobody stopped")
            if done.code == 0 and (found := _temporaries(folder)):
                tally.wrong.append(f"litter: {found}")
            shutil.rmtree(run)
            write_all(kept, folder)
        if dice.random() < 0.5 or not resumable:
            _next((*FIRST, "--overwrite"), folder, tally, "blocked")

    return repeat(Tally(name), words, files, folder, count, dice, seconds, after)


def main(count: int, seed: int) -> int:
    """Kill each command ``count`` times and print the table; 1 where anything was wrong."""
    dice = random.Random(seed)
    print(f"{count} kills of each command, seed {seed}", flush=True)
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as place:
        for tally in tallies(Path(place), count, dice):
            print(f"{tally.name}: {tally.kills} kills, {tally.early} came late, {len(tally.wrong)} wrong", flush=True)
            wrong += [f"{tally.name}: {each}" for each in tally.wrong]
    print("\n".join(wrong) if wrong else "nothing was lost, half written, blocked or left")
    return 1 if wrong else 0


def tallies(place: Path, count: int, dice: random.Random) -> Iterator[Tally]:
    """The tallies of every command that writes; ``place`` is an empty folder."""
    made, folder = place / "made", place / "kills"
    made.mkdir()

    def make() -> None:
        data_files.small_store(made / "data.h5", 80)
        rows = 4000
        times, speeds = data_files.timestamps(rows), data_files.speeds(rows)
        data_files.write_csv(made / "rows.csv", times, speeds)
        data_files.write_csv(made / "first.csv", times[:3000], speeds[:3000])
        data_files.write_csv(made / "later.csv", times[3000:], speeds[3000:])
        values = np.random.default_rng(0).uniform(5, 70, (rows, 4, 3)).astype(np.float32)
        values[..., 1], values[..., 2] = 37.5, -121.5
        attributes = older_files.root("metr_la", "metr_la_v1", values.shape)
        older_files.grouped(made / "old.h5", values, ("avg_speed", "latitude", "longitude"), attributes, "mph")

    child.check(child.run(make))
    data = {"data.h5": (made / "data.h5").read_bytes()}
    table = {name: (made / name).read_bytes() for name in ("rows.csv", "locations.csv")}
    often = 4 * count  # of files that are costly to lose, and quick to write
    words = ("convert", "metr-la", "rows.csv", "--meta-csv", "locations.csv", "--output-h5", "out.h5", "--overwrite")
    yield _replaced("convert", words, "out.h5", {**table, "out.h5": OLD}, folder, often, dice)
    old = {"old.h5": (made / "old.h5").read_bytes()}
    first = ("convert", "metr-la", "first.csv", "--meta-csv", "locations.csv", "--output-h5", "grows.h5")
    child.check(child.command(first, made))
    grows = {name: (made / name).read_bytes() for name in ("grows.h5", "later.csv")}
    yield _replaced("append", ("append", "grows.h5", "later.csv"), "grows.h5", grows, folder, often, dice)
    yield _replaced("backfill", ("backfill", "old.h5"), "old.h5", old, folder, often, dice)
    yield _trained("train", FIRST, data, folder, count, dice)
    started = _interrupted(data, folder)
    yield _trained("resume", RESUME, started, folder, count, dice)
    whole = {
        name: content for name, content in started.items() if not name.endswith(".tmp")
    }  # a training's, not theirs
    for name, words, output in OF_RUN:
        yield _replaced(name, words, output, {**whole, output: OLD_OF.get(output, OLD)}, folder, count, dice)


def _interrupted(data: Files, folder: Path) -> Files:
    """A run that was killed after its first epoch."""

    def call() -> None:
        from socialx.core.progress import Epoch
        from socialx.training import loop

        def end(event: object) -> None:
            if isinstance(event, Epoch):
                os.kill(os.getpid(), signal.SIGKILL)

        loop.emit = end  # type: ignore[assignment]
        sys.argv = ["socialx", *FIRST]
        main_of_socialx()

    from socialx.cli import main as main_of_socialx

    _anew(folder, data)
    if child.run(call, folder).signal != signal.SIGKILL:
        raise RuntimeError("the run was not killed")
    return read_all(folder, hidden=True)
