"""Social pooling on one CPU thread: gathering K neighbours against masked N x N products, forward and backward.

    OMP_NUM_THREADS=1 python benchmarks/pooling_cpu.py

Medians of interleaved rounds in one process; both paths see the same tensors, and their outputs are compared.  It is
where ``DENSE_UP_TO`` in ``socialx/model/pooling.py`` comes from.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch

from socialx.data import geo
from socialx.model.pooling import DotAttention, Geometry

SHAPES = [(16, 207, 32), (16, 325, 32), (8, 512, 32), (4, 1000, 32), (2, 2000, 32)]  # windows, sensors, neighbours
WIDTH, HEADS, ROUNDS = 64, 4, 5


def build(sensors: int, neighbours: int) -> DotAttention:
    xy = np.random.default_rng(0).uniform(0, 30, (sensors, 2))
    return DotAttention(WIDTH, Geometry(HEADS, geo.nearest(xy, neighbours)))


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("| windows | sensors | neighbours | gather ms | dense ms | gather / dense | difference |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for windows, sensors, neighbours in SHAPES:
        pooling = build(sensors, neighbours)
        parts = [torch.randn(windows, sensors, HEADS, WIDTH // HEADS, requires_grad=True) for _ in range(3)]
        paths = {"gather": pooling.attend_gathered, "dense": pooling.attend_dense}
        seconds: dict[str, list[float]] = {name: [] for name in paths}
        outputs = {}
        for _ in range(ROUNDS + 1):
            for name, attend in paths.items():
                began = time.perf_counter()
                outputs[name] = attend(*parts)
                outputs[name].sum().backward()
                seconds[name].append(time.perf_counter() - began)
        gather, dense = (1e3 * statistics.median(seconds[name][1:]) for name in ("gather", "dense"))
        difference = (outputs["gather"] - outputs["dense"]).abs().max().item()
        row = f"{windows} | {sensors} | {neighbours} | {gather:.0f} | {dense:.0f} | {gather / dense:.1f}"
        print(f"| {row} | {difference:.0e} |")


if __name__ == "__main__":
    main()
