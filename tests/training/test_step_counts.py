"""One training step of the size that a GPU is measured with, on tensors without data: what it asks of the device.

The Triton path is chosen as on CUDA, and nothing is computed.  The tensors say that they are on a CPU, so that autocast
follows the CPU's rules.  An operation of our own counts once, with what it reads and writes, not with its kernels.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from unittest import mock

os.environ["TRITON_INTERPRET"] = "1"

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from socialx.batch import Batch, Example, Target
from socialx.model.forecaster import Forecaster, Tokens
from socialx.model.pooling import DotAttention, SocialLayer
from socialx.model.xlstm.encoder import SharedEncoder
from socialx.precision import Precision
from socialx.training.learner import Learner
from tests.model.test_residual import Operations
from tests.networks import CPU, example, network, pooling, positions

WINDOWS, SENSORS, WIDTH = 64, 207, 128
AT_ONCE = WINDOWS * SENSORS  # sequences


def learner(impl: str) -> Learner:
    """Four blocks and two social layers over all pairs, as in ``benchmarks/gpu.py``."""
    xy = positions(SENSORS)
    social = [SocialLayer(WIDTH, pooling(xy, WIDTH, heads=4, neighbours=None), 0.1) for _ in range(2)]
    encoder = SharedEncoder(WIDTH, 4, [1, 3], 4, 12, 0.1, impl, chunk=AT_ONCE)
    model = Forecaster(Tokens(WIDTH, SENSORS, 12, 288), encoder, social, 12, network(SENSORS).normaliser())
    with mock.patch.object(model, "to", return_value=model):  # parameters without data cannot be moved
        return Learner(
            model,
            Precision("bf16-mixed", CPU),
            learning_rate=1e-3,
            weight_decay=1e-3,
            total_steps=10,
            warmup_steps=2,
            gradient_clip_val=5.0,
        )


def windows() -> Example:
    """As many windows and sensors, without data."""

    def grown(small: torch.Tensor) -> torch.Tensor:
        return torch.zeros([WINDOWS, *(SENSORS if size == 5 else size for size in small.shape[1:])], dtype=small.dtype)

    small = example(sensors=5)
    return Example(Batch(*map(grown, small.batch)), Target(*map(grown, small.target)))


def counted(impl: str) -> Operations:
    """The operations of the second step; the first one makes the optimizer's state."""
    with ExitStack() as stack:
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(mock.patch.object(SharedEncoder, "choice", return_value=(impl, "")))
        if impl == "triton":
            stack.enter_context(mock.patch.object(DotAttention, "attend_dense", DotAttention.attend_fused))
        made, given = learner(impl), windows()
        made.step([given])
        with Operations() as operations:
            made.step([given])
    return operations


def test_a_step_asks_for_few_operations_and_bytes_and_reads_nothing(
    record_property: Callable[[str, object], None],
) -> None:
    ours, torchs = counted("triton"), counted("fused")
    for name, found in (("triton", ours), ("fused", torchs)):
        record_property(f"{name}_operations", found.count.total())
        record_property(f"{name}_gigabytes", found.bytes / 1e9)
    assert ours.count["socialx.mlstm.default"] == ours.count["socialx.slstm_backward.default"] == 2
    assert ours.count.total() <= 700
    assert ours.bytes <= 17.5e9
    assert torchs.count.total() > 2 * ours.count.total()
    assert torchs.bytes > 3 * ours.bytes


def test_reading_a_loss_raises() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        loss = learner("fused").step([windows()])
        with pytest.raises(DataDependentOutputException):
            float(loss)
