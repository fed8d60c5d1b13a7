"""Training on 1, 2 and 4 processes: windows/s, efficiency, and the share of a step that summing gradients takes.

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
import torch.distributed as dist
from torch import Tensor

from socialx.build import build
from socialx.settings_layers import load_settings
from socialx.tasks.training import make_learner
from socialx.training.loop import run_steps
from socialx.training.process_group import ProcessGroup, joined

RESULTS = Path(__file__).parent / "results"
WARM_UP = 5
ROUNDS = 3


class Timed(ProcessGroup):
    """Adds up the seconds of every exchange, for which the device is waited for."""

    spent: list[float]

    def sum_(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, timed."""
        wait(tensor.device)
        if self.world > 1:
            dist.barrier()  # what a process waits for a slower one is no exchange
        began = time.perf_counter()
        super().sum_(tensor)
        wait(tensor.device)
        self.spent.append(time.perf_counter() - began)
        return tensor


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
        timed = Timed(group.rank, group.world)
        object.__setattr__(timed, "spent", [])
        learner.group = timed
        whole = seconds(steps)
        if group.first:
            name = torch.cuda.get_device_name(device) if device.type == "cuda" else "one CPU core each"
            windows = steps * size * group.world / taken
            print(json.dumps({
                "processes": group.world, "device": name, "precision": problem.precision.name,
                "windows_per_s": round(windows, 2), "step_ms": round(1e3 * taken / steps, 2),
                "all_reduce_share": round(sum(timed.spent) / whole, 4),
            }))  # fmt: skip


def main() -> None:
    """Start the processes and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--devices", default="1,2,4")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of socialx train")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    words = options.set
    if options.worker:
        worker(options.data, options.steps, words)
        return
    cards = torch.cuda.device_count() if torch.cuda.is_available() else len(os.sched_getaffinity(0))
    rows: list[dict[str, Any]] = []
    own = [*sys.argv[1:], "--worker"]
    for count in [int(each) for each in options.devices.split(",") if int(each) <= cards]:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
        command += [__file__, *own]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            raise SystemExit(done.stderr[-2000:])
        row = json.loads(done.stdout.splitlines()[-1])
        row["efficiency"] = round(row["windows_per_s"] / (count * (rows or [row])[0]["windows_per_s"]), 3)
        rows.append(row)
    capability = torch.backends.cpu.get_cpu_capability()
    print(f"{rows[0]['device']}, CPU capability {capability}, torch {torch.__version__}, {rows[0]['precision']}\n")
    print("| processes | windows/s | step ms | efficiency | all-reduce |\n|---:|---:|---:|---:|---:|")
    for row in rows:
        print("| {processes} | {windows_per_s} | {step_ms} | {efficiency:.1%} | {all_reduce_share:.1%} |".format(**row))
    name = "scaling_gpu.json" if torch.cuda.is_available() else "scaling_cpu.json"
    content = {"settings": words, "data": options.data.name, "capability": capability, "rows": rows}
    (RESULTS / name).write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
