"""The shared encoder against the package's own forward on one CPU thread: forward and backward, in one process.

    OMP_NUM_THREADS=1 python benchmarks/encoder_cpu.py [--rounds 5] [--width 64 128]

All sequences of 16 windows of 207 sensors go through the package's forward and through ours, in turns, so that a noisy
machine hurts both; the table shows medians.  ``unchunked`` is ours with all sequences at once.  Errors are against the
package in float64.  (In float32 the package's own gradients can be off by 1e-3: where the two arguments of its maximum
over the input and forget gates are exactly equal, autograd halves them twice.)
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import RESULTS, head, in_turns, line, machine, median_ms, parser, write
from socialx.model.xlstm.encoder import CPU_CHUNK, SharedEncoder
from socialx.model.xlstm.exact import encode
from socialx.model.xlstm.weights import weights_of

SENSORS, HISTORY, BLOCKS, SLSTM_AT, HEADS = 207, 12, 2, [1], 4
SEQUENCES = 16 * SENSORS


def make_encoder(width: int) -> SharedEncoder:
    """Every parameter is moved a little: the package starts its recurrent kernels and gate weights at zero."""
    torch.manual_seed(0)
    encoder = SharedEncoder(width, BLOCKS, SLSTM_AT, HEADS, HISTORY)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return encoder


def step(forward: Callable[[Tensor], Tensor], encoder: SharedEncoder, x: Tensor) -> list[Tensor]:
    """The output [S,E] of one forward and backward, and the gradients of x and all parameters."""
    y = forward(x)
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    return [y.detach(), *torch.autograd.grad((weights * y).mean(), [x, *encoder.parameters()])]


def float64_truth(encoder: SharedEncoder, x: Tensor) -> list[Tensor]:
    """What step returns from the package in float64, in chunks, since all at once would keep over 10 GB."""
    exact = deepcopy(encoder).double()
    exact.impl = "reference"
    return step(exact, exact, x.detach().double().requires_grad_())


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


def measure(width: int, rounds: int) -> dict[str, float]:
    """Milliseconds and errors of one width."""
    encoder = make_encoder(width)
    x = torch.randn(SEQUENCES, HISTORY, width, requires_grad=True)
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "package": lambda x: encoder.stack(x)[:, -1],
        "fused": encoder,
        "whole": lambda x: encode(weights_of(encoder.stack), x),
    }
    spent, results = in_turns({name: partial(step, way, encoder, x) for name, way in ways.items()}, rounds)
    ms, truth = median_ms(spent), float64_truth(encoder, x)
    output_error, gradient_error = worst_errors(results["fused"], truth)
    return {
        "width": width,
        **{f"{name}_ms": round(each, 1) for name, each in ms.items()},
        "ratio": round(ms["package"] / ms["fused"], 2),
        "output_error": output_error,
        "gradient_error": gradient_error,
        "package_gradient_error": worst_errors(results["package"], truth)[1],
    }


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=5, help="timed turns of each (default 5)")
    arguments.add_argument("--width", type=int, nargs="+", default=[64, 128])
    arguments.add_argument("--output", type=Path, default=RESULTS / "encoder_cpu.json", help="where the numbers go")
    given = arguments.parse_args()
    torch.set_num_threads(1)
    columns = ("package ms", "fused ms", "unchunked", "ratio", "output error", "gradient", "package's")
    forms = ("", ".0f", ".0f", ".0f", ".1f", ".1e", ".1e", ".1e")
    print(head("width", *columns))
    rows = []
    for width in given.width:
        rows.append(measure(width, given.rounds))
        print(line(format(value, form) for value, form in zip(rows[-1].values(), forms, strict=True)), flush=True)
    shape: dict[str, Any] = {"sequences": SEQUENCES, "history": HISTORY, "blocks": BLOCKS, "slstm_at": SLSTM_AT}
    shape |= {"heads": HEADS, "chunk": CPU_CHUNK}
    facts = machine() | {"xlstm": version("xlstm")}
    write(given.output, {"machine": facts, "shape": shape, "rounds": given.rounds, "rows": rows})


if __name__ == "__main__":
    main()
