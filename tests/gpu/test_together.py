"""Recordings and the loop of a training in one piece, tiny."""

from __future__ import annotations

import pytest
import torch

from socialx.core.precision import Precision
from socialx.data.loaders import DeviceLoader, WindowOrder
from socialx.data.series import Series
from socialx.data.source import Arrays
from socialx.training.cuda_graph import WARMUP, CapturedStep
from socialx.training.learner import Learner
from socialx.training.loop import fit
from tests.gpu.device import CUDA
from tests.networks import forecaster, speeds

pytestmark = pytest.mark.gpu
SENSORS, STEPS = 2, WARMUP + 1


def fitted(cuda_graph: bool) -> Learner:
    values, valid, seconds = speeds(60, SENSORS)
    series = Series(Arrays(values[..., None], valid[..., None], seconds), 12, 12, CUDA)
    train, validation = (
        DeviceLoader(series, WindowOrder(torch.arange(first, first + STEPS).numpy(), 1, shuffle=False))
        for first in (0, 20)
    )
    rates = {"learning_rate": 3e-3, "weight_decay": 1e-3, "total_steps": 60, "gradient_clip_val": 5.0}
    model = forecaster(SENSORS, neighbours=1)
    made = Learner(model, Precision("32-true", CUDA), **rates, cuda_graph=cuda_graph)  # type: ignore[arg-type]
    fit(made, train, validation, horizon=12, max_epochs=1, patience=1)
    return made


@pytest.mark.filterwarnings("error::socialx.core.errors.FallbackWarning")
def test_a_training_replays() -> None:
    """Steps as they are, recording, replay, and the same of forecasts in a validation."""
    recorded, plain = fitted(True), fitted(False)
    assert recorded.steps == plain.steps == STEPS
    for step in (recorded._device_step, recorded._forecast_step):
        assert isinstance(step, CapturedStep)
        assert [shape.recording is not None for shape in step._shapes.values()] == [True]
    for ours, theirs in zip(recorded.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-3)
