"""Exports of a run: seconds and size of each format, and one forecast by each program beside the model itself.

    OMP_NUM_THREADS=1 python benchmarks/export.py [RUN] [--data FILE.h5] [--repeats 20]

All forecasts are of one window of all sensors, on one thread in one process, and take turns, so that a noisy machine
hurts all of them.  The table shows medians.  CPU time is given too: other work on the machine hardly changes it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

import socialx
from socialx.environment import cpu_field
from socialx.files.exports import FORMATS
from socialx.settings_layers import Layers
from socialx.tasks.exporting import FIXED
from socialx.tasks.trained import load_trained

RUN = Path("metr_la")
RESULT = Path(__file__).parent / "results" / "export.json"


def exported(run: Path, data: Path | None, folder: Path) -> dict[str, dict[str, float]]:
    """Seconds, CPU seconds and megabytes of each format."""
    found = {}
    for name, suffix in FORMATS.items():
        wall, cpu = time.perf_counter(), time.process_time()
        made = socialx.export(run, folder / f"model{suffix}", data=data)
        found[name] = {
            "seconds": round(time.perf_counter() - wall, 1),
            "cpu_seconds": round(time.process_time() - cpu, 1),
            "megabytes": round(made.bytes / 1e6, 2),
        }
    return found


def forecasters(run: Path, data: Path | None, folder: Path) -> dict[str, Callable[[], np.ndarray]]:
    """One forecast of the last window of the file: by the model, by the torch program, by onnxruntime."""
    layers = Layers().over({**FIXED, **({} if data is None else {"data.path": data})})
    problem, _ = load_trained(run, layers, split=False)
    model, issued = problem.model.eval(), problem.data.store.seconds[-1:]
    ((_, batch),) = problem.data.histories(0).batches(issued, 1)
    program = torch.export.load(str(folder / "model.pt2")).module()
    given = {"history": batch.history, "carried": batch.carried, "issued_at": torch.from_numpy(issued)}
    feed = {name: tensor.numpy() for name, tensor in given.items()}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / "model.onnx", options)
    return {
        "model": lambda: model(batch).numpy(),
        "torch program": lambda: program(*given.values()).numpy(),
        "onnxruntime": lambda: session.run(["forecast"], feed)[0],
    }


@torch.inference_mode()
def timed(ways: dict[str, Callable[[], np.ndarray]], repeats: int) -> dict[str, dict[str, float]]:
    """Median milliseconds of each, by the clock and of CPU time, and the largest relative difference from the model."""
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    first = ways["model"]()
    worst = {name: float(np.abs(run() / first - 1).max()) for name, run in ways.items()}  # also warms up
    for _ in range(repeats):
        for name, run in ways.items():
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            spent[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    found = {}
    for name, each in spent.items():
        wall_ms, cpu_ms = (round(1e3 * statistics.median(times), 2) for times in zip(*each, strict=True))
        found[name] = {"ms": wall_ms, "cpu_ms": cpu_ms, "differs": worst[name]}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path, nargs="?", default=RUN)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--output", type=Path, default=RESULT)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        files = exported(given.run, given.data, Path(folder))
        forecasts = timed(forecasters(given.run, given.data, Path(folder)), given.repeats)
    result: dict[str, Any] = {
        "run": str(given.run),
        "cpu": cpu_field("model name"),
        "load": round(os.getloadavg()[0], 1),
        **{name: version(name) for name in ("torch", "onnx", "onnxscript", "onnxruntime")},
        "exports": files,
        "forecasts": forecasts,
    }
    for name, row in {**files, **forecasts}.items():
        print(f"{name:14}", "  ".join(f"{key} {value:.3g}" for key, value in row.items()))
    given.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
