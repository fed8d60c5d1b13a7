"""What a training step of each --preset takes on one CPU thread, by size of network: benchmarks/results/sizes.md.

    OMP_NUM_THREADS=1 python benchmarks/sizes.py [--rounds 3] [--sensors 50 207 325] [--sizes mlp-small ...]

The data is synthetic and as long as METR-LA: 34,272 rows of five minutes, one reading in twenty missing, sensors at
random in a square of 40 km.  The sizes take turns in processes of their own, a step each; the tables show medians.  Of
each step both the wall time and the CPU time of the process are taken: beside other programs only the second says what
a quiet machine would take.  ``xlstm-large`` runs as 4 batches of 16 windows a step, which trains the same as one of 64
and needs a quarter of the memory.  An epoch is all training windows, without the validation after it. Writes
benchmarks/results/sizes.json.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import RESULTS, answer_lines, machine, make_network, parser, processes_in_turns, write
from socialx.dataset.loaders import Loader
from socialx.settings.layers import PRESETS, ConfigLayers
from socialx.tasks.build import build
from socialx.tasks.train import make_learner
from socialx.tasks.training_data import train_loader
from socialx.training.learner import Learner

ROWS = 34_272
BATCHES: dict[str, dict[str, Any]] = {"xlstm-large": {"loader.batch_size": 16, "trainer.accumulate_grad_batches": 4}}


def learner_of(size: str, given: dict[str, Any]) -> tuple[Learner, Loader]:
    """What the toolkit trains for a preset with these settings on a CPU thread, and its batches."""
    own = {"trainer.device": "cpu", "trainer.threads": 1, **given}
    experiment = build(ConfigLayers(preset=size).over(own).load().settings)
    train = train_loader(experiment)
    return make_learner(experiment, len(train)), train


def work() -> None:
    """Say what is trained, then answer each line of standard input with the seconds of one step."""
    _, _, size, data, given = sys.argv
    torch.set_num_threads(1)
    learner, train = learner_of(size, {"data.path": data, **BATCHES.get(size, {}), **json.loads(given)})
    batches = list(islice(train.epoch(0), learner.trainer.accumulate_grad_batches))
    said = {
        "parameters": sum(parameter.numel() for parameter in learner.model.parameters()),
        "windows_per_step": train.batch_size * learner.trainer.accumulate_grad_batches,
        "windows_per_epoch": train.num_windows,
    }
    answer_lines(lambda: learner.step(batches), said)


def interleaved_ab(data: Path, sizes: list[str], rounds: int) -> dict[str, dict[str, float]]:
    """Steps of each size in turns; the first one fills the allocator and does not count."""
    commands = {size: [__file__, "work", size, str(data), "{}"] for size in sizes}
    found = {}
    for size, (said, steps) in processes_in_turns(commands, rounds, warm_up=1).items():
        wall, cpu, peak = (list(column) for column in zip(*steps, strict=True))
        per_epoch = said["windows_per_epoch"] / said["windows_per_step"] / 60
        found[size] = said | {
            "step_s": round(statistics.median(wall), 3),
            "step_cpu_s": round(statistics.median(cpu), 3),
            "epoch_minutes": round(statistics.median(wall) * per_epoch, 1),
            "epoch_cpu_minutes": round(statistics.median(cpu) * per_epoch, 1),
            "peak_mib": round(max(peak)),
        }
    return found


def main() -> None:
    arguments = parser(__doc__, rounds=3, rows=ROWS, output=RESULTS / "sizes.json")
    arguments.add_argument("--sensors", type=int, nargs="+", default=[50, 207, 325])
    arguments.add_argument("--sizes", nargs="+", choices=list(PRESETS), default=list(PRESETS))
    given = arguments.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    record: dict[str, Any] = {"machine": machine(), "rounds": given.rounds, "rows": given.rows, "sensors": {}}
    with tempfile.TemporaryDirectory() as folder:
        for sensors in given.sensors:
            data = Path(folder) / f"{sensors}.h5"
            make_network(data, given.rows, sensors)
            record["sensors"][str(sensors)] = found = interleaved_ab(data, given.sizes, given.rounds)
            for size, of in found.items():
                step = f"{of['step_s']:8.2f} s a step, {of['step_cpu_s']:8.2f} s of CPU"
                epoch = f"{of['epoch_minutes']:7.1f} min an epoch, {of['peak_mib']:6} MiB"
                print(f"{sensors:>5} sensors  {size:<7} {step}, {epoch}", flush=True)
    record["load_after"] = round(os.getloadavg()[0], 1)
    write(given.output, record)


if __name__ == "__main__":
    work() if sys.argv[1:2] == ["work"] else main()
