"""Training on 1, 2 and 4 processes: windows/s and efficiency.

    python benchmarks/scaling.py --data metr_la.h5 [--devices 1,2,4] [--steps 40] [--set model.width=64 ...]

Starts ``torchrun`` once for each number, on CUDA devices where there are any, else on one CPU core each.  Every process
takes the same steps on windows of its own: the global batch grows with the processes.  Prints a table and writes
``benchmarks/results/scaling_cpu.json`` or ``scaling_gpu.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import METR_LA, RESULTS, head, line, machine, numbers, parser, write
from socialx.build import build
from socialx.settings_layers import load_settings
from socialx.tasks.training import make_learner
from socialx.training.loop import run_steps
from socialx.training.process_group import joined

WARM_UP = 5
ROUNDS = 3


def wait(device: torch.device) -> None:
    """Until the device has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def worker(data: Path, steps: int, words: list[str]) -> None:
    """One process: train, and print a line of JSON in the first one."""
    with joined() as group:
        settings = load_settings(sets=[f"data.path={data}", *words])
        problem = build(settings)
        size, seed = settings.loader.batch_size, settings.trainer.seed
        loader = problem.data.loader("train", size, True, seed, share=group.share)
        learner = make_learner(problem, len(loader), group)
        device = problem.precision.device

        def seconds(count: int) -> float:
            left = count

            def after(loss: Tensor, batches: int) -> bool:
                nonlocal left
                left -= 1
                return left == 0

            def endless() -> Iterator[object]:
                while True:
                    yield from loader.epoch(0)

            group.any(False)
            wait(device)
            began = time.perf_counter()
            run_steps(learner, endless(), after)  # type: ignore[arg-type]
            wait(device)
            return time.perf_counter() - began

        seconds(WARM_UP)
        taken = statistics.median(seconds(steps) for _ in range(ROUNDS))
        if group.first:
            name = torch.cuda.get_device_name(device) if device.type == "cuda" else "one CPU core each"
            windows = steps * size * group.world / taken
            print(json.dumps({
                "processes": group.world, "device": name, "precision": problem.precision.name,
                "windows_per_s": round(windows, 2), "step_ms": round(1e3 * taken / steps, 2),
            }))  # fmt: skip


def main() -> None:
    """Start the processes and print the table."""
    arguments = parser(__doc__)
    arguments.add_argument("--data", type=Path, required=True, help=METR_LA)
    arguments.add_argument("--devices", type=numbers, default=[1, 2, 4])
    arguments.add_argument("--steps", type=int, default=40)
    arguments.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of socialx train")
    arguments.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.worker:
        worker(given.data, given.steps, given.set)
        return
    cards = torch.cuda.device_count() if torch.cuda.is_available() else len(os.sched_getaffinity(0))
    rows: list[dict[str, Any]] = []
    for count in (each for each in given.devices if each <= cards):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
        command += [__file__, *sys.argv[1:], "--worker"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            raise SystemExit(done.stderr[-2000:])
        row = json.loads(done.stdout.splitlines()[-1])
        row["efficiency"] = round(row["windows_per_s"] / (count * (rows or [row])[0]["windows_per_s"]), 3)
        rows.append(row)
    print(f"{rows[0]['device']}, {machine()}, {rows[0]['precision']}\n")
    columns = ("processes", "windows_per_s", "step_ms", "efficiency")
    print(head(*columns))
    for row in rows:
        print(line(row[column] for column in columns))
    name = "scaling_gpu.json" if torch.cuda.is_available() else "scaling_cpu.json"
    write(RESULTS / name, {"settings": given.set, "data": given.data.name, "machine": machine(), "rows": rows})


if __name__ == "__main__":
    main()
