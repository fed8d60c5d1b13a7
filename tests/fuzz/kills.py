"""Kill commands at random moments: nothing may be lost, half written, blocked, or left by the next command."""

import os
import random
import select
import shutil
import signal
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
# Replaced by their own kind alone.
OLD_OF = {"page.html": b"<!doctype html>", "map.geojson": b'{"type": "FeatureCollection"}'}
OLD_OF |= {"out.safetensors": b"PK", "ahead.csv": b"origin,sensor,time,lead_minutes,forecast,unit,input_status"}
# Commands that use a run or a file, and the file that each of them replaces.
OF_RUN = (
    ("calibrate run", "run/intervals.safetensors"),
    ("report run -o page.html", "page.html"),
    ("export run out.safetensors --overwrite", "out.safetensors"),
    ("predict run --output ahead.csv --overwrite", "ahead.csv"),
    ("explain run --geojson map.geojson", "map.geojson"),
    ("inspect data.h5 --geojson map.geojson", "map.geojson"),
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
    null = os.open(os.devnull, os.O_WRONLY)
    pid = child.start(lambda: child.main(words), folder, null, null)
    os.close(null)
    handle = os.pidfd_open(pid)
    running = not select.select([handle], [], [], seconds)[0]
    os.close(handle)
    if running:
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return running


@dataclass
class Kills:
    """Kills of commands in a folder, at random moments."""

    folder: Path
    dice: random.Random

    def anew(self, files: Files) -> None:
        """Empty the folder and write files into it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        write_all(files, self.folder)

    def repeat(
        self, name: str, words: tuple[str, ...], files: Files, count: int, check: Callable[[], Callable[[Tally], None]]
    ) -> Tally:
        """Kill a command ``count`` times at uniformly random moments of its length, each time in the same folder anew.

        check: called after a run that nobody kills, for what looks at the folder after each kill.
        """
        self.anew(files)
        whole = child.command(words, self.folder)
        child.check(whole)
        tally, seconds, after = Tally(name), whole.seconds, check()
        while tally.kills < count and tally.early < 5 * count:
            self.anew(files)
            if kill(words, self.folder, self.dice.uniform(0, seconds)):
                tally.kills += 1
                after(tally)
            else:  # it has become faster
                tally.early += 1
                seconds *= 0.97
        return tally

    def next(self, words: tuple[str, ...], tally: Tally, kind: str) -> bool:
        """Run a command after a kill; whether it ended well."""
        done = child.command(words, self.folder)
        if done.code != 0:
            tally.wrong.append(f"{kind}: after the kill, {' '.join(words[:3])}: {done.stderr[-300:]}")
        elif found := [str(path) for path in self.folder.rglob(".*.tmp")]:
            tally.wrong.append(f"litter: {found}")
        return done.code == 0

    def replaced(self, name: str, words: tuple[str, ...], output: str, files: Files, count: int) -> Tally:
        """A command that replaces a file, which it writes the same each time."""
        path, old = self.folder / output, files[output]

        def check() -> Callable[[Tally], None]:
            right = _content(path)

            def after(tally: Tally) -> None:
                try:
                    if path.read_bytes() != old and _content(path) != right:
                        tally.wrong.append("half: other readings")
                except FileNotFoundError:
                    tally.wrong.append("lost: no file")
                except (OSError, KeyError, AssertionError, RuntimeError) as error:
                    tally.wrong.append(f"half: {error}")
                if self.next(words, tally, "blocked") and _content(path) != right:
                    tally.wrong.append("lost: other readings after the next command")

            return after

        return self.repeat(name, words, files, count, check)

    def trained(self, name: str, words: tuple[str, ...], files: Files, count: int) -> Tally:
        """``train`` or ``train --resume``: what remains goes on to the weights of a run that nobody stopped."""
        run = self.folder / "run"

        def check() -> Callable[[Tally], None]:
            right = _end(run)

            def after(tally: Tally) -> None:
                resumable = (run / "last.pt").exists()
                scored = (run / "best.safetensors").exists()
                if scored and child.command(("evaluate", "run", "--json"), self.folder).code != 0:
                    tally.wrong.append("half: evaluate after the kill")
                if not resumable and "run/last.pt" in files:
                    tally.wrong.append("lost: last.pt")
                if resumable:
                    kept = {f"run/{name}": content for name, content in read_all(run, hidden=True).items()}
                    done, found = child.command(RESUME, self.folder), _end(run)
                    if done.code != 0 and "nothing is left" not in done.stderr and "complete" not in done.stderr:
                        tally.wrong.append(f"blocked: --resume after the kill: {done.stderr[-300:]}")
                    elif right.keys() != found.keys() or not all(torch.equal(right[at], found[at]) for at in right):
                        tally.wrong.append("weights: not those of the run that nobody stopped")
                    if done.code == 0 and [*self.folder.rglob(".*.tmp")]:
                        tally.wrong.append("litter: of the run that was killed")
                    shutil.rmtree(run)
                    write_all(kept, self.folder)
                if self.dice.random() < 0.5 or not resumable:
                    self.next((*FIRST, "--overwrite"), tally, "blocked")

            return after

        return self.repeat(name, words, files, count, check)


def _content(path: Path) -> bytes:
    """What must be whole in a file that is right: the readings of a data file, all bytes of any other."""
    if path.suffix != ".h5":
        return path.read_bytes()
    with h5py.File(path) as file:
        assert len(file["metadata/vd_info"]) == len(file["metadata/vdids"])
        return bytes(file["data/features"][:].tobytes())


def _end(run: Path) -> dict[str, torch.Tensor]:
    """All weights that a run ends with: the best and the last ones, and the moments."""
    last = torch.load(run / "last.pt", weights_only=True)["learner"]
    found = {f"last {name}": tensor for name, tensor in last["model"].items()}
    for number, moments in last["optimizer"]["state"].items():
        found |= {f"moment {number} {name}": tensor for name, tensor in moments.items()}
    best = load_tensors((run / "best.safetensors").read_bytes())
    return found | {f"best {name}": tensor for name, tensor in best.items()}


def main(count: int, seed: int) -> int:
    """Kill each command ``count`` times and print the table; 1 where anything was wrong."""
    print(f"{count} kills of each command, seed {seed}", flush=True)
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as place:
        for tally in tallies(Path(place), count, random.Random(seed)):
            print(f"{tally.name}: {tally.kills} kills, {tally.early} came late, {len(tally.wrong)} wrong", flush=True)
            wrong += [f"{tally.name}: {each}" for each in tally.wrong]
    print("\n".join(wrong) if wrong else "nothing was lost, half written, blocked or left")
    return 1 if wrong else 0


def tallies(place: Path, count: int, dice: random.Random) -> Iterator[Tally]:
    """The tallies of every command that writes; ``place`` is an empty folder."""
    made, kills = place / "made", Kills(place / "kills", dice)
    made.mkdir()

    def make() -> None:
        data_files.small_store(made / "data.h5", 80)
        times, speeds = data_files.timestamps(4000), data_files.speeds(4000)
        for name, part in (("rows", slice(None)), ("first", slice(3000)), ("later", slice(3000, None))):
            data_files.write_csv(made / f"{name}.csv", times[part], speeds[part])
        values = np.random.default_rng(0).uniform(5, 70, (4000, 4, 3)).astype(np.float32)
        values[..., 1], values[..., 2] = 37.5, -121.5
        attributes = older_files.root("metr_la", "metr_la_v1", values.shape)
        older_files.grouped(made / "old.h5", values, ("avg_speed", "latitude", "longitude"), attributes, "mph")

    child.check(child.run(make))
    first = ("convert", "metr-la", "first.csv", "--meta-csv", "locations.csv", "--output-h5", "grows.h5")
    child.check(child.command(first, made))
    files, often = read_all(made) | {"out.h5": OLD}, 4 * count  # of files that are costly to lose, and quick to write

    def some(*names: str) -> Files:
        return {name: files[name] for name in names}

    words = ("convert", "metr-la", "rows.csv", "--meta-csv", "locations.csv", "--output-h5", "out.h5", "--overwrite")
    yield kills.replaced("convert", words, "out.h5", some("rows.csv", "locations.csv", "out.h5"), often)
    appended = ("append", "grows.h5", "later.csv")
    yield kills.replaced("append", appended, "grows.h5", some("grows.h5", "later.csv"), often)
    yield kills.replaced("backfill", ("backfill", "old.h5"), "old.h5", some("old.h5"), often)
    yield kills.trained("train", FIRST, some("data.h5"), count)
    started = _interrupted(some("data.h5"), kills)
    yield kills.trained("resume", RESUME, started, count)
    whole = {name: content for name, content in started.items() if not name.endswith(".tmp")}  # a training's
    for line, output in OF_RUN:
        given = {**whole, output: OLD_OF.get(output, OLD)}
        yield kills.replaced(line, tuple(line.split()), output, given, count)


def _interrupted(data: Files, kills: Kills) -> Files:
    """A run that was killed after its first epoch."""

    def call() -> None:
        from socialx.core.progress import Epoch
        from socialx.training import loop

        def end(event: object) -> None:
            if isinstance(event, Epoch):
                os.kill(os.getpid(), signal.SIGKILL)

        loop.emit = end  # type: ignore[assignment]
        child.main(FIRST)

    kills.anew(data)
    if child.run(call, kills.folder).signal != signal.SIGKILL:
        raise RuntimeError("the run was not killed")
    return read_all(kills.folder, hidden=True)
