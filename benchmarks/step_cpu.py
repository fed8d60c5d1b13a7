"""The whole training step on one CPU thread: against its lower bound, and compiled.

    OMP_NUM_THREADS=1 python benchmarks/step_cpu.py --data metr_la.h5 [--rounds 5]

Steps of ``--preset xlstm-small``, of the same with ``--patch 1``, and of ``--preset mlp-small``: each takes turns with
its compiled forms, in processes of their own, one of which works at a time.  The lower bound counts the operations of
all matrix products, divided by the rate of a large product, and the bytes that must move, divided by the rate of a
copy; nothing overlaps.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from timeit import repeat
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import sizes
from benchmarks.common import RESULTS, machine, parser, processes_in_turns, write

RESULT = RESULTS / "step_cpu.json"
SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    "xlstm-small": ("xlstm-small", {}),
    "xlstm-small, patch 1": ("xlstm-small", {"model.patch": 1}),
    "mlp-small": ("mlp-small", {}),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "compiled": {"trainer.compile": "default"},
    "compiled, bf16-mixed": {"trainer.compile": "default", "trainer.precision": "bf16-mixed"},
}
# Bytes that a step must move per token and unit of width, forward and backward, in 16-bit activations with everything
# between two matrix products in one pass and recomputed.
BYTES = {"mlstm": 118, "slstm": 210, "last mlstm": 66, "last slstm": 117}


def interleaved_ab(size: str, data: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds of a step of each variant."""
    preset, given = SIZES[size]
    command = [sizes.__file__, "work", preset, str(data)]
    commands = {name: [*command, json.dumps(given | changes)] for name, changes in VARIANTS.items()}
    found = processes_in_turns(commands, rounds, warm_up=2)  # two steps compile and fill the allocator
    spent = {name: [1e3 * wall for wall, _, _ in steps] for name, (_, steps) in found.items()}
    base = statistics.median(spent["as it is"])
    return {
        name: {"ms": statistics.median(ms), "least_ms": min(ms), "ratio": base / statistics.median(ms)}
        for name, ms in spent.items()
    }


def rates() -> dict[str, float]:
    """What one thread of this machine reaches: operations of a large product, and bytes of a copy beyond the caches."""
    side = torch.randn(2048, 2048)
    source = torch.randn(1 << 26)
    target = torch.empty_like(source)
    return {
        "gflop_per_s": 2 * 2048**3 / min(repeat(lambda: side @ side, number=1, repeat=8)) / 1e9,
        "copy_gb_per_s": 8 * len(source) / min(repeat(lambda: target.copy_(source), number=1, repeat=8)) / 1e9,
    }


def bound(data: Path, machine: dict[str, float]) -> dict[str, float]:
    """The lower bound of a step of xlstm-small in milliseconds."""
    learner, train = sizes.learner_of("xlstm-small", {"data.path": data})
    example = next(iter(train.epoch(0)))
    learner.step([example])
    with FlopCounterMode(display=False) as counter:
        learner.step([example])
    windows, _, sensors = example.batch.inputs.shape[:3]
    model: Any = learner.model
    tokens, width, heads = windows * int(model.encoder.lookback) * sensors, 64, 4
    encoder = 2 * (BYTES["mlstm"] + BYTES["last slstm"]) * width * tokens  # the two blocks of xlstm-small, in float32
    attention = 2 * 8 * 4 * windows * heads * sensors**2  # eight passes over each of two layers' weights
    flop, moved = counter.get_total_flops(), encoder + attention
    parts = {"products_ms": flop / machine["gflop_per_s"] / 1e6, "bytes_ms": moved / machine["copy_gb_per_s"] / 1e6}
    return {"gflop": flop / 1e9, **parts, "bound_ms": sum(parts.values())}


def main() -> None:
    given = parser(__doc__, data=True, rounds=5).parse_args()
    torch.set_num_threads(1)
    data, reached = given.data.resolve(), rates()
    record: dict[str, Any] = {"machine": machine() | reached, "bound": bound(data, reached)}
    for size in SIZES:
        record[size] = interleaved_ab(size, data, given.rounds)
    for variant in record["xlstm-small"].values():
        variant["of_bound"] = record["bound"]["bound_ms"] / variant["ms"]
    write(RESULT, record)
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
