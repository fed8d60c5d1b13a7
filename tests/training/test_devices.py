"""Nothing of a step lives on the host: on a machine without CUDA the meta device stands in for the card.

Meta tensors have a device and a shape but no numbers.  A CPU tensor with at least one axis that meets them would be, on
a real card, an error or a copy in every step.
"""

import contextlib
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from socialx.data.calendar import WALL
from socialx.data.geo import nearest_neighbours
from socialx.dataset.loaders import DeviceLoader, WindowOrder
from socialx.scoring.metrics import RunningScores, masked_absolute_error
from socialx.scoring.references import HistoricalAverage, NaiveLast
from tests.networks import forecaster, loader, network, positions, series, speeds

META = torch.device("meta")


class OneDevice(TorchDispatchMode):
    """Raises where a tensor of the host takes part, but for the copy of an array to the device, which is counted."""

    copies = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func == torch.ops.aten.lift_fresh.default:
            return out
        if func == torch.ops.aten._to_copy.default and out.device == META and args[0].device != META:
            self.copies += 1
            return out
        for tensor in _pytree.tree_leaves((args, kwargs, out)):
            if isinstance(tensor, torch.Tensor) and tensor.device != META and tensor.dim():
                raise AssertionError(f"{func}: a {tuple(tensor.shape)} tensor on {tensor.device}")
        return out


@pytest.fixture
def on_meta(monkeypatch: pytest.MonkeyPatch) -> DeviceLoader:
    """Batches on the meta device; autocast, which does not know that device, does nothing."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)
    real = loader(batch_size=100)
    made = series(*speeds(600, 5))
    for name in ("readings", "ages", "latest", "calendar", "seconds"):
        setattr(made, name, getattr(made, name).to(META))
    made.device = META
    return DeviceLoader(made, WindowOrder(real.starts, 100))


def models() -> dict[str, nn.Module]:
    values, valid, seconds = speeds(600, 5)
    return {
        "forecaster": forecaster(social=2),
        "dense and gathered": forecaster(network(near=nearest_neighbours(positions(5), 1))),
        "copy-last": NaiveLast(12, False, [50.0]),
        "zeros copied": NaiveLast(12, True, [50.0]),
        "historical average": HistoricalAverage([(values[..., None], valid[..., None], seconds)], (5, 1), 5, WALL),
    }


def test_the_guard_sees_the_host() -> None:
    with OneDevice(), pytest.raises(AssertionError, match="on cpu"):
        torch.ones(3)


@pytest.mark.parametrize("name", models())
def test_forward_loss_and_scores_stay_on_the_device(name: str, on_meta: DeviceLoader) -> None:
    model, sums = models()[name].to(META), RunningScores(12, 1, META)
    with OneDevice() as guard:
        for batch, target in on_meta.epoch(0):
            forecast = model(batch)
            loss = masked_absolute_error(forecast, target.values, target.valid)
            sums.update(forecast, batch, target)
            if loss.requires_grad:
                loss.backward()
    assert guard.copies <= 2  # the order of the epoch, and which windows of its last batch are padding
    assert forecast.device == META
    assert all(p.grad is None or p.grad.device == META for p in model.parameters())
