"""Social pooling on one CPU thread: three ways to the same sums, forward and backward.

    OMP_NUM_THREADS=1 python benchmarks/pooling_cpu.py

gather: K keys and values per sensor.  formula: masked N x N products of all windows at once.  dense: the same tile by
tile, as ``socialx/model/attention.py`` does it.  Medians of interleaved rounds in one process; all see the same
tensors, and their outputs are compared.  It is where ``DENSE_UP_TO`` in ``socialx/model/pooling.py`` comes from.
"""

from __future__ import annotations

import statistics
import time
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from socialx.data import geo
from socialx.environment import cpu_field, keep_freed_memory
from socialx.model.attention import attention
from socialx.model.pooling import DotAttention, Geometry

SHAPES = [
    (32, 207, 64),
    (32, 207, 32),
    (16, 325, 32),
    (8, 512, 32),
    (4, 1000, 32),
    (2, 2000, 32),
]  # windows, sensors, neighbours
WIDTH, HEADS, ROUNDS = 64, 4, 5


def build(sensors: int, neighbours: int) -> DotAttention:
    xy = np.random.default_rng(0).uniform(0, 30, (sensors, 2))
    return DotAttention(WIDTH, Geometry(HEADS, geo.nearest(xy, neighbours)))


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    keep_freed_memory(True)  # as in training
    print(f"{cpu_field('model name')}, torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}")
    print("| windows | sensors | neighbours | gather ms | formula ms | dense ms | gather / dense | formula / dense |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    for windows, sensors, neighbours in SHAPES:
        pooling = build(sensors, neighbours)
        parts = [torch.randn(windows, sensors, HEADS, WIDTH // HEADS, requires_grad=True) for _ in range(3)]
        paths = {"gather": pooling.attend_gathered, "formula": pooling.attend_dense, "dense": pooling.attend_dense}
        seconds: dict[str, list[float]] = {name: [] for name in paths}
        outputs = {}
        for _ in range(ROUNDS + 1):
            for name, attend in paths.items():
                with mock.patch("socialx.model.pooling.attention", formula if name == "formula" else attention):
                    began = time.thread_time()
                    outputs[name] = attend(*parts)
                    outputs[name].sum().backward()
                    seconds[name].append(time.thread_time() - began)
        ms = {name: 1e3 * statistics.median(spent[1:]) for name, spent in seconds.items()}
        for name in ("gather", "formula"):
            torch.testing.assert_close(outputs[name], outputs["dense"], rtol=1e-4, atol=1e-4)
        row = " | ".join(f"{value:.0f}" for value in ms.values())
        ratios = " | ".join(f"{ms[name] / ms['dense']:.2f}" for name in ("gather", "formula"))
        print(f"| {windows} | {sensors} | {neighbours} | {row} | {ratios} |", flush=True)


def formula(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """As ``attention``, all windows at once."""
    return torch.softmax(query @ key.mT + bias, -1) @ value


if __name__ == "__main__":
    main()
