"""Social pooling on one CPU thread: three ways to the same sums, forward and backward.

    OMP_NUM_THREADS=1 python benchmarks/pooling_cpu.py

gather: K keys and values per sensor.  formula: masked N x N products of all windows at once.  dense: the same tile by
tile, as ``socialx/model/tiled_attention.py`` does it.  Medians of interleaved rounds in one process; all see the same
tensors, and their outputs are compared.  It is where ``DENSE_UP_TO`` in ``socialx/model/pooling.py`` comes from.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import head, interleaved_ab, line, machine, median_ms, parser
from socialx.core.environment import keep_freed_memory
from socialx.data import geo
from socialx.model.pooling import DotAttention, Geometry
from socialx.model.tiled_attention import attention
from socialx.settings.schema import HEADS, PoolingSettings

# Windows, sensors, neighbours
SHAPES = [(32, 207, 64), (32, 207, 32), (16, 325, 32), (8, 512, 32), (4, 1000, 32), (2, 2000, 32)]
WIDTH, ROUNDS = 64, 5


def build(sensors: int, neighbours: int) -> DotAttention:
    """A layer over sensors at random places."""
    near = geo.nearest_neighbours(np.random.default_rng(0).uniform(0, 30, (sensors, 2)), neighbours)
    return DotAttention(WIDTH, Geometry(near, PoolingSettings(adaptive_adjacency_rank=0)))


def formula(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """As ``attention``, all windows at once."""
    return torch.softmax(query @ key.mT + bias, -1) @ value


def step(attend: Callable[..., Tensor], sums: Callable[..., Tensor], parts: list[Tensor]) -> Tensor:
    """The output of a forward and backward pass; sums: what the dense ways compute."""
    with mock.patch("socialx.model.pooling.attention", sums):
        output = attend(*parts)
        output.sum().backward()
    return output


def main() -> None:
    parser(__doc__).parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    keep_freed_memory(True)  # as in training
    print(machine())
    columns = ("gather ms", "formula ms", "dense ms", "gather / dense", "formula / dense")
    print(head("windows", "sensors", "neighbours", *columns))
    for windows, sensors, neighbours in SHAPES:
        pooling = build(sensors, neighbours)
        parts = [torch.randn(windows, sensors, HEADS, WIDTH // HEADS, requires_grad=True) for _ in range(3)]
        ways = {
            "gather": partial(step, pooling.attend_gathered, attention, parts),
            "formula": partial(step, pooling.attend_dense, formula, parts),
            "dense": partial(step, pooling.attend_dense, attention, parts),
        }
        spent, outputs = interleaved_ab(ways, ROUNDS, time.thread_time)
        ms = median_ms(spent)
        for name in ("gather", "formula"):
            torch.testing.assert_close(outputs[name], outputs["dense"], rtol=1e-4, atol=1e-4)
        ratios = [f"{ms[name] / ms['dense']:.2f}" for name in ("gather", "formula")]
        print(line([windows, sensors, neighbours, *(f"{value:.0f}" for value in ms.values()), *ratios]), flush=True)


if __name__ == "__main__":
    main()
