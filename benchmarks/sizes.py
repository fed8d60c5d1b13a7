"""What a training step of each --size takes on one CPU thread, for networks of several sizes: docs/choosing.md.

    OMP_NUM_THREADS=1 python benchmarks/sizes.py [--rounds 3] [--sensors 50 207 325] [--sizes small medium large]

The data is synthetic and as long as METR-LA: 34,272 rows of five minutes, one reading in twenty missing, sensors at
random in a square of 40 km.  The sizes take turns in processes of their own, a step each; the tables show medians.  Of
each step both the wall time and the CPU time of the process are taken: beside other programs only the second says what
a quiet machine would take.  ``large`` runs as 4 batches of 16 windows a step, which trains the same as one of 64 and
needs a quarter of the memory.  An epoch is all training windows, without the validation after it.
Writes benchmarks/results/sizes.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from large import blocks

from socialx.build import build
from socialx.environment import cpu_field
from socialx.files.hdf5_layout import Readings, Sensors
from socialx.files.writer import create
from socialx.settings_layers import SIZES, Layers
from socialx.tasks.training import make_learner, train_loader

RESULT = Path(__file__).parent / "results/sizes.json"
ROWS, SQUARE_KM, KM_PER_DEGREE = 34_272, 40.0, 111.0
BATCHES: dict[str, dict[str, Any]] = {"large": {"loader.batch_size": 16, "trainer.accumulate_grad_batches": 4}}


def make(path: Path, rows: int, sensors: int) -> None:
    """A file like METR-LA."""
    degrees = SQUARE_KM / KM_PER_DEGREE
    random = np.random.default_rng(1)
    latitude, longitude = 34.0 + random.uniform(0, degrees, sensors), -118.5 + random.uniform(0, degrees, sensors)
    places = Sensors(tuple(f"{700000 + number}" for number in range(sensors)), latitude, longitude)
    create(path, Readings("sizes", "speed", places, blocks(rows, sensors), "mph", 0.0, None, "synthetic", "synthetic"))


def work() -> None:
    """Say what is trained, then answer each line of standard input with the wall and CPU seconds of one step."""
    _, _, size, data = sys.argv
    torch.set_num_threads(1)
    given = {"data.path": data, "trainer.device": "cpu", "trainer.threads": 1, **BATCHES.get(size, {})}
    problem = build(Layers(size=size).over(given).load().settings)
    train = train_loader(problem)
    learner = make_learner(problem, len(train))
    batches = list(islice(train.epoch(0), learner.accumulate_grad_batches))
    said = {
        "parameters": sum(parameter.numel() for parameter in problem.model.parameters()),
        "windows_per_step": train.batch_size * learner.accumulate_grad_batches,
        "windows_per_epoch": train.num_windows,
    }
    print(json.dumps(said), flush=True)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        learner.step(batches)
        spent = [time.perf_counter() - wall, time.process_time() - cpu]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps([*spent, peak]), flush=True)


def in_turns(data: Path, sizes: list[str], rounds: int) -> dict[str, dict[str, float]]:
    """Steps of each size in turns; the first one fills the allocator and does not count."""
    processes = {
        size: subprocess.Popen(
            [sys.executable, __file__, "work", size, str(data)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for size in sizes
    }
    found: dict[str, dict[str, float]] = {size: answer(process) for size, process in processes.items()}
    steps: dict[str, list[list[float]]] = {size: [] for size in sizes}
    for turn in range(rounds + 1):
        for size, process in processes.items():
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            seconds = answer(process)
            if turn:
                steps[size].append(seconds)
    for size, process in processes.items():
        process.communicate()
        wall, cpu, peak = (list(column) for column in zip(*steps[size], strict=True))
        of = found[size]
        per_epoch = of["windows_per_epoch"] / of["windows_per_step"] / 60
        of |= {
            "step_s": round(statistics.median(wall), 3),
            "step_cpu_s": round(statistics.median(cpu), 3),
            "epoch_minutes": round(statistics.median(wall) * per_epoch, 1),
            "epoch_cpu_minutes": round(statistics.median(cpu) * per_epoch, 1),
            "peak_mib": round(max(peak)),
        }
    return found


def answer(process: subprocess.Popen[str]) -> Any:
    """The next line that a process says."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        sys.exit(f"{process.args}: exit {process.wait()}")
    return json.loads(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sensors", type=int, nargs="+", default=[50, 207, 325])
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    machine = {"cpu": cpu_field("model name"), "capability": torch.backends.cpu.get_cpu_capability(), "threads": 1}
    record: dict[str, Any] = {"machine": machine | {"torch": torch.__version__}, "rounds": options.rounds}
    record["load_before"] = os.getloadavg()[0]
    record["rows"] = options.rows
    record["sensors"] = {}
    with tempfile.TemporaryDirectory() as folder:
        for sensors in options.sensors:
            data = Path(folder) / f"{sensors}.h5"
            make(data, options.rows, sensors)
            record["sensors"][str(sensors)] = found = in_turns(data, options.sizes, options.rounds)
            for size, of in found.items():
                times = (
                    f"{of['step_s']:8.2f} s a step, {of['step_cpu_s']:8.2f} s of CPU, {of['epoch_minutes']:7.1f} min"
                )
                print(f"{sensors:>5} sensors  {size:<7} {times} an epoch, {of['peak_mib']:6} MiB", flush=True)
    record["load_after"] = os.getloadavg()[0]
    options.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    work() if sys.argv[1:2] == ["work"] else main()
