"""The shared encoder against the package's own forward on one CPU thread: forward and backward, in one process.

    OMP_NUM_THREADS=1 python benchmarks/encoder_cpu.py [--rounds 5] [--width 64 128]

Two comparisons: all sequences of 16 windows of 207 sensors through the package's forward and through ours; and one
call of ours for all sensors against a loop that calls the package once per sensor, as a model would be written that
does not fold sensors into the batch.

They take turns, so that a noisy machine hurts both; the tables show medians.  Errors of the first are against the
package in float64, those of the second against the loop.  (In float32 the package's own gradients can be off by 1e-3:
where the two arguments of its maximum over the input and forget gates are exactly equal, autograd halves them twice.)
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from copy import deepcopy
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor

from socialx.model.xlstm.encoder import CPU_CHUNK, SharedEncoder
from socialx.model.xlstm.exact import encode
from socialx.model.xlstm.weights import weights_of

SENSORS, HISTORY, BLOCKS, SLSTM_AT, HEADS = 207, 12, 2, [1], 4
SEQUENCES = 16 * SENSORS
RESULT = Path(__file__).parent / "results" / "encoder_cpu.json"


def make_encoder(width: int) -> SharedEncoder:
    """Every parameter is moved a little: the package starts its recurrent kernels and gate weights at zero."""
    torch.manual_seed(0)
    encoder = SharedEncoder(width, BLOCKS, SLSTM_AT, HEADS, HISTORY)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return encoder


def step(forward: Callable[[Tensor], Tensor], encoder: SharedEncoder, x: Tensor) -> tuple[float, list[Tensor]]:
    """Milliseconds of one forward and backward; the output [S,E] and the gradients of x and all parameters."""
    wanted = [x, *encoder.parameters()]
    start = time.perf_counter()
    y = forward(x)
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    grads = torch.autograd.grad((weights * y).mean(), wanted)
    spent_ms = 1e3 * (time.perf_counter() - start)
    return spent_ms, [y.detach(), *grads]


def float64_truth(encoder: SharedEncoder, x: Tensor) -> list[Tensor]:
    """What step returns from the package in float64, in chunks, since all at once would keep over 10 GB."""
    exact = deepcopy(encoder).double()
    exact.impl = "reference"
    return step(exact, exact, x.detach().double().requires_grad_())[1]


def worst_errors(ours: list[Tensor], theirs: list[Tensor]) -> tuple[float, float]:
    """max|a-b| / max|b| of the output, and of the worst gradient.

    A gradient that is zero but for rounding is measured against a thousandth of the largest one.
    """
    largest = max(float(b.abs().max()) for b in theirs[1:])
    floors = [1e-30] + [1e-3 * largest] * (len(theirs) - 1)
    errors = [
        float((a - b).abs().max()) / max(float(b.abs().max()), floor)
        for a, b, floor in zip(ours, theirs, floors, strict=True)
    ]
    return errors[0], max(errors[1:])


Runs = dict[str, Callable[[Tensor], Tensor]]


def in_turns(
    runs: Runs, encoder: SharedEncoder, x: Tensor, rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[Tensor]]]:
    """Milliseconds of every round and the last results, by name."""
    spent_ms: dict[str, list[float]] = {name: [] for name in runs}
    results: dict[str, list[Tensor]] = {}
    for turn in range(rounds + 1):
        for name, forward in runs.items():
            once_ms, results[name] = step(forward, encoder, x)
            if turn:  # the first turn warms the allocator
                spent_ms[name].append(once_ms)
    return spent_ms, results


def against_a_loop(windows: int, rounds: int, width: int = 64) -> dict[str, float]:
    encoder = make_encoder(width)
    x = torch.randn(windows * SENSORS, HISTORY, width, requires_grad=True)

    def loop(x: Tensor) -> Tensor:
        """Sensor by sensor, [B,T,E] each, one set of weights."""
        own = [encoder.stack(x[sensor::SENSORS])[:, -1] for sensor in range(SENSORS)]
        return torch.stack(own, 1).flatten(0, 1)

    spent_ms, results = in_turns({"loop": loop, "shared": encoder}, encoder, x, rounds)
    loop_ms, shared_ms = (statistics.median(times) for times in spent_ms.values())
    output_error, gradient_error = worst_errors(results["shared"], results["loop"])
    return {
        "windows": windows,
        "width": width,
        "loop_ms": round(loop_ms, 1),
        "shared_ms": round(shared_ms, 1),
        "ratio": round(loop_ms / shared_ms, 2),
        "output_error": output_error,
        "gradient_error": gradient_error,
    }


def measure(width: int, rounds: int) -> dict[str, float]:
    encoder = make_encoder(width)
    x = torch.randn(SEQUENCES, HISTORY, width, requires_grad=True)
    runs: Runs = {
        "package": lambda x: encoder.stack(x)[:, -1],
        "fused": encoder,
        "whole": lambda x: encode(weights_of(encoder.stack), x),  # fused, but all sequences at once
    }
    spent_ms, results = in_turns(runs, encoder, x, rounds)
    package_ms, fused_ms, whole_ms = (statistics.median(spent_ms[name]) for name in runs)
    truth = float64_truth(encoder, x)
    output_error, gradient_error = worst_errors(results["fused"], truth)
    package_output_error, package_gradient_error = worst_errors(results["package"], truth)
    return {
        "width": width,
        "package_ms": round(package_ms, 1),
        "fused_ms": round(fused_ms, 1),
        "whole_ms": round(whole_ms, 1),
        "ratio": round(package_ms / fused_ms, 2),
        "ratio_least": round(min(spent_ms["package"]) / min(spent_ms["fused"]), 2),
        "output_error": output_error,
        "gradient_error": gradient_error,
        "package_output_error": package_output_error,
        "package_gradient_error": package_gradient_error,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="timed turns of each (default 5)")
    parser.add_argument("--width", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--output", type=Path, default=RESULT, help="where the numbers go (default %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| width | package ms | fused ms | unchunked | ratio | of the fastest | output error | gradient | package's |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    rows = []
    for width in arguments.width:
        row = measure(width, arguments.rounds)
        rows.append(row)
        print(
            f"| {width} | {row['package_ms']:.0f} | {row['fused_ms']:.0f} | {row['whole_ms']:.0f} | {row['ratio']:.1f} "
            f"| {row['ratio_least']:.1f} | {row['output_error']:.1e} | {row['gradient_error']:.1e} "
            f"| {row['package_gradient_error']:.1e} |",
            flush=True,
        )
    print("\n| windows | loop over sensors ms | shared ms | ratio | output error | gradient |")
    print("|---:|---:|---:|---:|---:|---:|")
    loops = []
    for windows in (16, 1):
        row = against_a_loop(windows, arguments.rounds)
        loops.append(row)
        print(
            f"| {windows} | {row['loop_ms']:.0f} | {row['shared_ms']:.0f} | {row['ratio']:.1f} "
            f"| {row['output_error']:.1e} | {row['gradient_error']:.1e} |",
            flush=True,
        )
    facts = {
        "torch": torch.__version__,
        "xlstm": version("xlstm"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    shape = {"sequences": SEQUENCES, "history": HISTORY, "blocks": BLOCKS, "slstm_at": SLSTM_AT, "heads": HEADS}
    record = {"machine": facts, "shape": {**shape, "chunk": CPU_CHUNK}, "rounds": arguments.rounds, "rows": rows}
    record["loop"] = loops
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
