"""Batches and scores on CUDA are those of a CPU, and no loader waits for the device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from socialx.data.calendar import WALL
from socialx.data.loaders import ChunkLoader, Loader, Loading, ResidentLoader, WorkerLoader
from socialx.data.order import Order, Share
from socialx.data.series import Series
from socialx.data.source import Arrays
from socialx.precision import Precision
from socialx.scoring.references import CopyLast, HistoricalAverage
from socialx.training.loop import examples_of, run_steps
from tests.gpu.device import CUDA, ROWS, learner, refused_waits, resident, series
from tests.networks import CPU, scores_of, speeds

pytestmark = pytest.mark.gpu


def test_batches_equal_the_cpus() -> None:
    def cut(made: Series, start: int) -> tuple[Tensor, ...]:
        starts = torch.tensor([start], device=made.device)
        return (*made.window(starts), *made.target(starts))

    for start in (0, 17, ROWS // 2):
        on_cpu, on_cuda = (cut(series(device), start) for device in (CPU, CUDA))
        assert all(torch.equal(a.nan_to_num(), b.cpu().nan_to_num()) for a, b in zip(on_cpu, on_cuda, strict=True))


@pytest.mark.parametrize("mode", ["chunk", "workers"])
@pytest.mark.parametrize("workers", [0, 2])
def test_all_modes_serve_the_same_batches(mode: str, workers: int) -> None:
    values, valid, seconds = speeds(3600, 5)
    source = Arrays(values[..., None], valid[..., None], seconds)
    order = Order(np.arange(3000), batch_size=48, shuffle=True, seed=2, chunk=700, share=Share(1, 2))

    def part(rows: slice) -> Series:
        return Series(source, 12, 12, CPU, rows=slice(rows.start, min(rows.stop, 3600)), pinned=mode == "chunk")

    expected = ResidentLoader(Series(source, 12, 12, CUDA), order)
    if mode == "chunk":
        loader: Loader = ChunkLoader(part, 24, CUDA, order)
    else:
        loader = WorkerLoader(part, 24, CUDA, Loading(workers=workers), 1 << 20, order)
    for epoch in range(2):
        for one, other in zip(expected.epoch(epoch), loader.epoch(epoch), strict=True):
            moved = other.to(CUDA)
            pairs = zip((*one.batch, *one.target), (*moved.batch, *moved.target), strict=True)
            assert all(torch.equal(a.nan_to_num(-1.0), b.nan_to_num(-1.0)) and b.is_cuda for a, b in pairs)


@pytest.mark.parametrize("cuda_graph", [False, True])
@pytest.mark.parametrize("mode", ["resident", "chunk", "workers"])
def test_no_loader_waits_for_the_device(mode: str, cuda_graph: bool) -> None:
    """Nor is a step of its batches another where it is recorded."""
    values, valid, seconds = speeds(1200, 5)
    source = Arrays(values[..., None], valid[..., None], seconds)
    order = Order(np.arange(1000), batch_size=48, shuffle=True, chunk=0 if mode == "resident" else 300)

    def part(rows: slice) -> Series:
        return Series(source, 12, 12, CPU, rows=slice(rows.start, min(rows.stop, 1200)), pinned=mode == "chunk")

    loaders: dict[str, Callable[[], Loader]] = {
        "resident": lambda: ResidentLoader(Series(source, 12, 12, CUDA), order),
        "chunk": lambda: ChunkLoader(part, 24, CUDA, order),
        "workers": lambda: WorkerLoader(part, 24, CUDA, Loading(workers=1), 1 << 20, order),
    }
    made, plain = learner(dropout=0.0, cuda_graph=cuda_graph), learner(dropout=0.0)
    data = loaders[mode]()
    run_steps(made, examples_of(made, data, 0), lambda loss, batches: False)
    with refused_waits():
        run_steps(made, examples_of(made, data, 1), lambda loss, batches: False)
    for epoch in range(2):
        run_steps(plain, ResidentLoader(Series(source, 12, 12, CUDA), order).epoch(epoch), lambda loss, batches: False)
    assert made.steps == plain.steps == 2 * len(data)
    for ours, theirs in zip(made.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-3)


def test_scores_of_the_baselines_equal_the_cpus() -> None:
    values, valid, seconds = speeds(ROWS, 5)
    for model in (
        CopyLast(12, True, [50.0]),
        CopyLast(12, False, [50.0]),
        HistoricalAverage([(values[..., None], valid[..., None], seconds)], (5, 1), 5, WALL),
    ):
        maes = []
        for device in (CPU, CUDA):
            data = ResidentLoader(series(device), Order(resident("test").starts, 16))
            maes.append(scores_of(model.to(device), data, Precision("32-true", device)).overall.mae)
        assert maes[1] == pytest.approx(maes[0], rel=1e-9)
