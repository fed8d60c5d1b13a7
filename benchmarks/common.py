"""What the benchmarks share: arguments, the machine, turns, tables, results, trainings, readings that are made."""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import socialx
from socialx.cli.progress_bars import Show
from socialx.core.environment import cpu_field
from socialx.dataset import Dataset, read_dataset
from socialx.files.sources.holidays import load_holidays
from socialx.files.store.layout import Block, Readings, Sensors
from socialx.files.store.writer import create
from socialx.settings.layers import ARGUMENT, ConfigLayers, flat
from socialx.settings.schema import DataSettings, LoaderSettings, Settings
from socialx.training.loop import TrainState

RESULTS = Path(__file__).parent / "results"
METR_LA = "METR-LA as socialx convert writes it"
START, BLOCK_ROWS = np.datetime64("2019-01-01T00:00:00"), 2016  # of readings that are made
Ways = Mapping[str, Callable[[], Any]]


def parser(description: str | None, data: bool = False, **options: Any) -> argparse.ArgumentParser:
    """Arguments of a script; description: its docstring, which --help prints as it stands.

    data: METR-LA is asked for.  options: the default of each option, whose type it has; False for a switch.
    """
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if data:
        made.add_argument("--data", type=Path, required=True, help=METR_LA)
    for name, value in options.items():
        kind: dict[str, Any] = {"type": type(value), "default": value, "help": "default: %(default)s"}
        made.add_argument(f"--{name.replace('_', '-')}", **({"action": "store_true"} if value is False else kind))
    return made


def numbers(text: str) -> list[int]:
    """``1,2,3`` as typed."""
    return [int(each) for each in text.split(",")]


def machine() -> dict[str, Any]:
    """Of one CPU thread, for the record; load: how busy other programs keep the machine."""
    return {
        "cpu": cpu_field("model name"),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "load": round(os.getloadavg()[0], 1),
    }


def known(path: Path) -> Any:
    """What a file of results holds; nothing where it is not there."""
    return json.loads(path.read_text()) if path.exists() else {}


def write(path: Path, content: Any) -> None:
    """Write a file of results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def line(cells: Iterable[object]) -> str:
    """A row of a table in Markdown."""
    return f"| {' | '.join(map(str, cells))} |"


def head(first: str, *others: str) -> str:
    """The head of a table, whose first column is text and whose other ones are numbers."""
    return f"{line([first, *others])}\n|---|{'---:|' * len(others)}"


# --------------------------------------------------------------------------------------------------------- time


def interleaved_ab(
    ways: Ways, rounds: int, clock: Callable[[], float] = time.perf_counter
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Seconds of each round and the last results, by name: a noisy machine hurts all ways.  One round more warms up."""
    spent: dict[str, list[float]] = {name: [] for name in ways}
    results: dict[str, Any] = {}
    for turn in range(rounds + 1):
        for name, run in ways.items():
            began = clock()
            results[name] = run()
            if turn:
                spent[name].append(clock() - began)
    return spent, results


def median_ms(spent: dict[str, list[float]]) -> dict[str, float]:
    """The median milliseconds of each."""
    return {name: 1e3 * statistics.median(seconds) for name, seconds in spent.items()}


def answer_lines(step: Callable[[], object], facts: object = None) -> None:
    """Say the facts, then answer each line of standard input with the wall and CPU seconds of a step, and peak MiB."""
    print(json.dumps(facts), flush=True)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        step()
        spent = [time.perf_counter() - wall, time.process_time() - cpu]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps([*spent, peak]), flush=True)


def processes_in_turns(
    commands: Mapping[str, list[str]], rounds: int, warm_up: int
) -> dict[str, tuple[Any, list[list[float]]]]:
    """The facts and answers of processes that ``answer_lines``, one of which works at a time."""
    started = {
        name: subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name, words in commands.items()
    }

    def answer(process: subprocess.Popen[str]) -> Any:
        assert process.stdout is not None
        text = process.stdout.readline()
        if not text:
            sys.exit(f"{process.args!r}: exit {process.wait()}")
        return json.loads(text)

    found: dict[str, tuple[Any, list[list[float]]]] = {name: (answer(each), []) for name, each in started.items()}
    for turn in range(warm_up + rounds):
        for name, process in started.items():
            assert process.stdin is not None
            print(file=process.stdin, flush=True)
            seconds = answer(process)
            if turn >= warm_up:
                found[name][1].append(seconds)
    for process in started.values():
        process.communicate()
    return found


# -------------------------------------------------------------------------------------------- files and trainings


def opened(path: Path, holidays: str | None = None) -> Dataset:
    """A file with windows of an hour before and an hour ahead."""
    data = read_dataset(DataSettings(path=path), LoaderSettings(), torch.device("cpu"))
    return replace(data, calendar=replace(data.calendar, holidays=load_holidays(holidays) if holidays else None))


def trained(folder: Path, layers: ConfigLayers) -> socialx.Run:
    """A run with these settings: trained, gone on with where it was interrupted, or read where it is complete."""
    asked = layers.load()
    run = socialx.load_run(folder) if (folder / "metrics.jsonl").exists() else None
    if run is None:
        run = socialx.train(settings=layers, run_dir=folder, overwrite=True, progress=Show())
    elif differ := differences(run.settings, asked.settings, [k for k, v in asked.origin.items() if v == ARGUMENT]):
        sys.exit(f"{folder}: a run with {differ}: name another --runs")
    elif not complete(run):
        run = socialx.train(resume=run, progress=Show())
    if not complete(run):
        sys.exit(f"{folder}: interrupted: the same command goes on")
    return run


def differences(found: Settings, wanted: Settings, keys: list[str]) -> str:
    """What a run was told otherwise than it is asked now."""
    mine, theirs = flat(wanted), flat(found)
    return ", ".join(f"{key} {theirs[key]}, not {mine[key]}" for key in keys if theirs[key] != mine[key])


def complete(run: socialx.Run) -> bool:
    """Whether these epochs are all, or early stopping has ended the run."""
    best = run.best.epoch - 1 if run.best else -1
    return TrainState(epoch=len(run.epochs), best_epoch=best).is_complete(run.settings.trainer)


# ------------------------------------------------------------------------------------------------ made readings


def make_network(
    path: Path,
    rows: int,
    sensors: int,
    latitude: tuple[float, float] = (34.0, 34.36),
    longitude: tuple[float, float] = (-118.5, -118.14),
) -> None:
    """A file of rows of five minutes, of sensors at random in a field of about 40 km."""
    random = np.random.default_rng(1)
    ids = tuple(f"{400000 + number}" for number in range(sensors))
    places = Sensors(ids, random.uniform(*latitude, sensors), random.uniform(*longitude, sensors))
    made = _blocks(rows, sensors)
    create(path, Readings(path.stem, "speed", places, made, {"avg_speed": "mph"}, 0.0, None, "synthetic", "synthetic"))


def _blocks(rows: int, sensors: int) -> Generator[Block, None, None]:
    """Days that slow down twice, noise in eighths of a mph, and one reading in twenty missing."""
    random = np.random.default_rng(0)
    late, deep = random.uniform(-1.5, 1.5, sensors), random.uniform(5, 35, sensors)
    for first in range(0, rows, BLOCK_ROWS):
        step = np.arange(first, min(first + BLOCK_ROWS, rows))
        hour = (step % 288 / 12)[:, None] + late
        slow = np.exp(-(((hour - 8) / 1.5) ** 2)) + np.exp(-(((hour - 17.5) / 2) ** 2))
        speeds = 65 - deep * slow * (step // 288 % 7 < 5)[:, None] + random.normal(0, 2, (len(step), sensors))
        speeds[random.random(speeds.shape) < 0.05] = 0
        yield Block(
            (START + step * np.timedelta64(5, "m")).astype("datetime64[s]").astype(np.int64),
            (np.round(speeds * 8) / 8).clip(0, 80).astype(np.float32)[..., np.newaxis],
        )
