"""The layers on one CPU thread, forward and backward: the encoder against the package's own, and ways of pooling.

    OMP_NUM_THREADS=1 python benchmarks/layers_cpu.py [--rounds 5]

Medians of interleaved rounds in one process, so that a noisy machine hurts all ways.  The first table: all sequences of
16 windows of 207 sensors through the package's forward and through ours; ``unchunked`` is ours with all sequences at
once.  How exact ours is, is tested (tests/model/test_encoder_matches_package.py).  Writes
benchmarks/results/encoder_cpu.json.

The second table: three ways to the same sums of social pooling, whose outputs are compared.  gather: K keys and values
per sensor.  formula: masked N x N products of all windows at once.  dense: the same tile by tile, as
``socialx/model/tiled_attention.py`` does it.  It is where ``DENSE_UP_TO`` in ``socialx/model/pooling.py`` comes from.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import RESULTS, head, interleaved_ab, line, machine, median_ms, parser, write
from socialx.core.environment import keep_freed_memory
from socialx.data import geo
from socialx.model.pooling import DotAttention, Geometry
from socialx.model.tiled_attention import attention
from socialx.model.xlstm.encoder import CPU_CHUNK, SharedEncoder
from socialx.model.xlstm.exact import encode
from socialx.settings.schema import HEADS, ModelSettings, PoolingSettings

SENSORS, LOOKBACK, BLOCKS, SLSTM_AT = 207, 12, 2, [1]
SEQUENCES = 16 * SENSORS
# Windows, sensors, neighbours
SHAPES = [(32, 207, 64), (32, 207, 32), (16, 325, 32), (8, 512, 32), (4, 1000, 32), (2, 2000, 32)]
WIDTH = 64


def encoder_step(forward: Callable[[Tensor], Tensor], encoder: SharedEncoder, x: Tensor) -> None:
    """One forward, and the gradients of x and all parameters."""
    torch.autograd.grad(forward(x).square().mean(), [x, *encoder.parameters()])


def encoder_ms(width: int, rounds: int) -> dict[str, float]:
    """Milliseconds of one width."""
    torch.manual_seed(0)
    encoder = SharedEncoder(ModelSettings(width=width, blocks=BLOCKS, slstm_at=SLSTM_AT, patch=1), LOOKBACK)
    x = torch.randn(SEQUENCES, LOOKBACK, width, requires_grad=True)
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "package": lambda x: encoder.stack(x)[:, -1],
        "fused": encoder,
        "whole": lambda x: encode(encoder.stack, x),
    }
    spent, _ = interleaved_ab({name: partial(encoder_step, way, encoder, x) for name, way in ways.items()}, rounds)
    ms = median_ms(spent)
    rounded = {f"{name}_ms": round(each, 1) for name, each in ms.items()}
    return {"width": width, **rounded, "ratio": round(ms["package"] / ms["fused"], 2)}


def formula(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """As ``attention``, all windows at once."""
    return torch.softmax(query @ key.mT + bias, -1) @ value


def pooling_step(attend: Callable[..., Tensor], sums: Callable[..., Tensor], parts: list[Tensor]) -> Tensor:
    """The output of a forward and backward pass; sums: what the dense ways compute."""
    with mock.patch("socialx.model.pooling.attention", sums):
        output = attend(*parts)
        output.sum().backward()
    return output


def pooling_ms(windows: int, sensors: int, neighbours: int, rounds: int) -> dict[str, float]:
    """Milliseconds of each way of a layer over sensors at random places."""
    near = geo.nearest_neighbours(np.random.default_rng(0).uniform(0, 30, (sensors, 2)), neighbours)
    pooling = DotAttention(WIDTH, Geometry(near, PoolingSettings(adaptive_adjacency_rank=0)))
    parts = [torch.randn(windows, sensors, HEADS, WIDTH // HEADS, requires_grad=True) for _ in range(3)]
    ways = {
        "gather": partial(pooling_step, pooling.attend_gathered, attention, parts),
        "formula": partial(pooling_step, pooling.attend_dense, formula, parts),
        "dense": partial(pooling_step, pooling.attend_dense, attention, parts),
    }
    spent, outputs = interleaved_ab(ways, rounds, time.thread_time)
    for name in ("gather", "formula"):
        torch.testing.assert_close(outputs[name], outputs["dense"], rtol=1e-4, atol=1e-4)
    return median_ms(spent)


def main() -> None:
    rounds = parser(__doc__, rounds=5).parse_args().rounds
    torch.set_num_threads(1)
    facts = machine() | {"xlstm": version("xlstm")}
    print(facts)
    print(head("width", "package ms", "fused ms", "unchunked", "ratio"))
    rows = []
    for width in (64, 128):
        rows.append(encoder_ms(width, rounds))
        forms = ("", ".0f", ".0f", ".0f", ".1f")
        print(line(format(value, form) for value, form in zip(rows[-1].values(), forms, strict=True)), flush=True)
    shape: dict[str, Any] = {"sequences": SEQUENCES, "lookback": LOOKBACK, "blocks": BLOCKS, "slstm_at": SLSTM_AT}
    shape |= {"heads": HEADS, "encoder_batch": CPU_CHUNK}
    write(RESULTS / "encoder_cpu.json", {"machine": facts, "shape": shape, "rounds": rounds, "rows": rows})
    keep_freed_memory(True)  # as in training
    columns = ("gather ms", "formula ms", "dense ms", "gather / dense", "formula / dense")
    print(head("windows", "sensors", "neighbours", *columns))
    for sizes in SHAPES:
        ms = pooling_ms(*sizes, rounds)
        ratios = [f"{ms[name] / ms['dense']:.2f}" for name in ("gather", "formula")]
        print(line([*sizes, *(f"{value:.0f}" for value in ms.values()), *ratios]), flush=True)


if __name__ == "__main__":
    main()
