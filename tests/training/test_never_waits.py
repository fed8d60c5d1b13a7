"""No host sync in a step: nothing that a CUDA device would have to be waited for."""

from collections.abc import Callable

import pytest
import torch

from socialx.core.precision import Precision
from socialx.scoring.metrics import RunningScores
from socialx.training.learner import Learner
from socialx.training.loop import run_steps
from tests.meters import NeverWaits
from tests.networks import CPU, example, forecaster, loader, network, trainer

WAITING: list[Callable[[torch.Tensor], object]] = [
    lambda t: t.item(),
    lambda t: bool(t),
    lambda t: t.nonzero(),
    lambda t: torch.ones(1)[t.bool().reshape(1)],
    lambda t: torch.masked_select(t, t.bool()),
]


@pytest.mark.parametrize("waiting", WAITING)
def test_the_guard_sees_waits(waiting: Callable[[torch.Tensor], object]) -> None:
    with NeverWaits(), pytest.raises(AssertionError, match="waits for"):
        waiting(torch.tensor(1.0))


@pytest.mark.parametrize("precision", ["32-true", "16-mixed", "bf16-mixed"])
def test_a_training_step_never_waits(precision: str) -> None:
    made = Learner(
        forecaster(dropout=0.1, social=2),
        network(),
        Precision(precision, CPU),
        trainer(weight_decay=1e-3, lr_warmup_steps=2, gradient_clip_val=5.0, accumulate_grad_batches=2),
    )
    made.step([example()])  # the optimizer and the scaler make their state once
    data = loader(batch_size=100, shuffle=True)  # 404 windows: the last batch is padded
    with NeverWaits():
        run_steps(made, data.epoch(1), lambda loss, batches: False)
    assert made.steps == 1 + 3


def test_scoring_never_waits_before_the_end() -> None:
    model, sums = forecaster().eval(), RunningScores(12, 1, CPU)
    with NeverWaits(), torch.no_grad():
        for b, target in loader(batch_size=100).epoch(0):
            sums.update(model(b), b, target)
    assert sums.compute()[0].overall.count > 0
