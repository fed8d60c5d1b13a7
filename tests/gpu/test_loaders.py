"""Batches and scores on CUDA are those of a CPU, and no loader waits for the device."""

import numpy as np
import pytest
import torch
from torch import Tensor

from socialx.core.precision import Precision
from socialx.data.calendar import WALL
from socialx.data.series import Series, WindowLayout
from socialx.data.source import Arrays
from socialx.dataset.loaders import DeviceLoader, Loader, RankShare, ShardLoader, WindowOrder, WorkerLoader
from socialx.scoring.references import HistoricalAverage, NaiveLast
from socialx.settings.schema import LoaderSettings
from socialx.training.loop import epoch_examples, run_steps
from tests.gpu.device import CUDA, ROWS, learner, on_device, refused_waits, series
from tests.networks import CPU, scores_of, speeds

pytestmark = pytest.mark.gpu


def test_batches_equal_the_cpus() -> None:
    def cut(made: Series, start: int) -> tuple[Tensor, ...]:
        starts = torch.tensor([start], device=made.device)
        return (*made.window(starts), *made.target(starts))

    for start in (0, 17, ROWS // 2):
        on_cpu, on_cuda = (cut(series(device), start) for device in (CPU, CUDA))
        assert all(torch.equal(a.nan_to_num(), b.cpu().nan_to_num()) for a, b in zip(on_cpu, on_cuda, strict=True))


def made(mode: str, rows: int, order: WindowOrder, workers: int = 1) -> Loader:
    values, valid, seconds = speeds(rows, 5)
    source = Arrays(values[..., None], valid[..., None], seconds)

    def part(asked: slice) -> Series:
        return Series(
            source, WindowLayout(12, 12), CPU, rows=slice(asked.start, min(asked.stop, rows)), pinned=mode == "sharded"
        )

    if mode == "on_device":
        return DeviceLoader(Series(source, WindowLayout(12, 12), CUDA), order)
    if mode == "sharded":
        return ShardLoader(part, 24, CUDA, order)
    return WorkerLoader(part, 24, CUDA, LoaderSettings(num_workers=workers, shard_gb=2**-11), order)


@pytest.mark.parametrize("mode", ["sharded", "workers"])
@pytest.mark.parametrize("workers", [0, 2])
def test_all_modes_serve_the_same_batches(mode: str, workers: int) -> None:
    order = WindowOrder(np.arange(3000), batch_size=48, shuffle=True, seed=2, shard=700, share=RankShare(1, 2))
    expected, loader = (made(each, 3600, order, workers) for each in ("on_device", mode))
    for epoch in range(2):
        for one, other in zip(expected.epoch(epoch), loader.epoch(epoch), strict=True):
            moved = other.to(CUDA)
            pairs = zip((*one.batch, *one.target), (*moved.batch, *moved.target), strict=True)
            assert all(torch.equal(a.nan_to_num(-1.0), b.nan_to_num(-1.0)) and b.is_cuda for a, b in pairs)


@pytest.mark.parametrize("cuda_graph", [False, True])
@pytest.mark.parametrize("mode", ["on_device", "sharded", "workers"])
def test_no_loader_waits_for_the_device(mode: str, cuda_graph: bool) -> None:
    """Nor is a step of its batches another where it is recorded."""
    order = WindowOrder(np.arange(1000), batch_size=48, shuffle=True, shard=0 if mode == "on_device" else 300)
    recorded, plain = learner(dropout=0.0, cuda_graph=cuda_graph), learner(dropout=0.0)
    data, resident_data = made(mode, 1200, order), made("on_device", 1200, order)
    found: list[Tensor] = []
    expected: list[Tensor] = []
    run_steps(recorded, epoch_examples(recorded, data, 0), lambda loss, _: found.append(loss) is not None)
    with refused_waits():
        run_steps(recorded, epoch_examples(recorded, data, 1), lambda loss, _: found.append(loss) is not None)
    for epoch in range(2):
        run_steps(plain, resident_data.epoch(epoch), lambda loss, _: expected.append(loss) is not None)
    assert len(found) == 2 * len(data)
    torch.testing.assert_close(torch.stack(found), torch.stack(expected), rtol=1e-3, atol=1e-3)


def test_scores_of_the_baselines_equal_the_cpus() -> None:
    values, valid, seconds = speeds(ROWS, 5)
    for model in (
        NaiveLast(12, True, [50.0]),
        NaiveLast(12, False, [50.0]),
        HistoricalAverage([(values[..., None], valid[..., None], seconds)], (5, 1), 5, WALL),
    ):
        maes = []
        for device in (CPU, CUDA):
            data = DeviceLoader(series(device), WindowOrder(on_device("test").starts, 16))
            maes.append(scores_of(model.to(device), data, Precision("32-true", device)).overall.mae)
        assert maes[1] == pytest.approx(maes[0], rel=1e-9)
