"""One forecast by each program that a run is exported to, beside the model itself.

    OMP_NUM_THREADS=1 python benchmarks/export.py [RUN] [--data FILE.h5] [--repeats 20]

All forecasts are of one window of all sensors, on one thread in one process, and take turns, so that a noisy machine
hurts all of them.  The table shows medians of CPU time, which other work on the machine hardly changes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnxruntime
import torch

import socialx
from benchmarks.common import RESULTS, head, interleaved_ab, line, machine, median_ms, parser, write
from socialx.settings.layers import ConfigLayers
from socialx.tasks.export import FIXED
from socialx.tasks.opened import open_forecasting


def forecasters(run: Path, data: Path | None, folder: Path) -> dict[str, Callable[[], np.ndarray]]:
    """One forecast of the last window of the file: by the model, by the torch program, by onnxruntime."""
    for suffix in (".pt2", ".onnx"):
        socialx.export(run, folder / f"model{suffix}", data=data)
    layers = ConfigLayers().over({**FIXED, **({} if data is None else {"data.path": data})})
    opened = open_forecasting(run, layers, split=False)
    experiment, model = opened.experiment, opened.at_the_end.eval()
    issued = experiment.data.store.seconds[-1:]
    ((_, batch),) = experiment.data.context(0).batches(issued, 1)
    program = torch.export.load(str(folder / "model.pt2")).module()
    given = {"inputs": batch.inputs, "last_observed": batch.last_observed, "origin": torch.from_numpy(issued)}
    feed = {name: tensor.numpy() for name, tensor in given.items()}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / "model.onnx", options)
    return {
        "model": lambda: model(batch).numpy(),
        "torch program": lambda: program(*given.values()).numpy(),
        "onnxruntime": lambda: session.run(["forecast"], feed)[0],
    }


def main() -> None:
    arguments = parser(__doc__, repeats=20, output=RESULTS / "export.json")
    arguments.add_argument("run", type=Path, nargs="?", default=Path("metr-la"))
    arguments.add_argument("--data", type=Path)
    given = arguments.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        ways = forecasters(given.run, given.data, Path(folder))
        with torch.inference_mode():
            spent, made = interleaved_ab(ways, given.repeats, time.process_time)
    rows = {
        name: {"cpu_ms": round(ms, 2), "differs": float(np.abs(made[name] / made["model"] - 1).max())}
        for name, ms in median_ms(spent).items()
    }
    print(head("program", "CPU ms", "differs"))
    for name, row in rows.items():
        print(line([name, row["cpu_ms"], f"{row['differs']:.1e}"]))
    versions = {name: version(name) for name in ("onnx", "onnxscript", "onnxruntime")}
    write(given.output, {"run": str(given.run), "machine": machine() | versions, "forecasts": rows})


if __name__ == "__main__":
    main()
