"""The shared encoder against the package's own forward on one CPU thread: forward and backward, in one process.

    OMP_NUM_THREADS=1 python benchmarks/encoder_cpu.py [--rounds 5] [--width 64 128]

All sequences of 16 windows of 207 sensors go through the package's forward and through ours, in turns, so that a noisy
machine hurts both; the table shows medians.  ``unchunked`` is ours with all sequences at once.  How exact ours is, is
tested (tests/model/test_encoder_matches_package.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import RESULTS, head, interleaved_ab, line, machine, median_ms, parser, write
from socialx.model.xlstm.encoder import CPU_CHUNK, SharedEncoder
from socialx.model.xlstm.exact import encode
from socialx.settings.schema import HEADS, ModelSettings

SENSORS, LOOKBACK, BLOCKS, SLSTM_AT = 207, 12, 2, [1]
SEQUENCES = 16 * SENSORS


def step(forward: Callable[[Tensor], Tensor], encoder: SharedEncoder, x: Tensor) -> None:
    """One forward, and the gradients of x and all parameters."""
    torch.autograd.grad(forward(x).square().mean(), [x, *encoder.parameters()])


def measure(width: int, rounds: int) -> dict[str, float]:
    """Milliseconds of one width."""
    torch.manual_seed(0)
    encoder = SharedEncoder(ModelSettings(width=width, blocks=BLOCKS, slstm_at=SLSTM_AT, patch=1), LOOKBACK)
    x = torch.randn(SEQUENCES, LOOKBACK, width, requires_grad=True)
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "package": lambda x: encoder.stack(x)[:, -1],
        "fused": encoder,
        "whole": lambda x: encode(encoder.stack, x),
    }
    spent, _ = interleaved_ab({name: partial(step, way, encoder, x) for name, way in ways.items()}, rounds)
    ms = median_ms(spent)
    rounded = {f"{name}_ms": round(each, 1) for name, each in ms.items()}
    return {"width": width, **rounded, "ratio": round(ms["package"] / ms["fused"], 2)}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=5, help="timed turns of each (default 5)")
    arguments.add_argument("--width", type=int, nargs="+", default=[64, 128])
    arguments.add_argument("--output", type=Path, default=RESULTS / "encoder_cpu.json", help="where the numbers go")
    given = arguments.parse_args()
    torch.set_num_threads(1)
    forms = ("", ".0f", ".0f", ".0f", ".1f")
    print(head("width", "package ms", "fused ms", "unchunked", "ratio"))
    rows = []
    for width in given.width:
        rows.append(measure(width, given.rounds))
        print(line(format(value, form) for value, form in zip(rows[-1].values(), forms, strict=True)), flush=True)
    shape: dict[str, Any] = {"sequences": SEQUENCES, "lookback": LOOKBACK, "blocks": BLOCKS, "slstm_at": SLSTM_AT}
    shape |= {"heads": HEADS, "encoder_batch": CPU_CHUNK}
    facts = machine() | {"xlstm": version("xlstm")}
    write(given.output, {"machine": facts, "shape": shape, "rounds": given.rounds, "rows": rows})


if __name__ == "__main__":
    main()
