"""One training step of the size that a GPU is measured with, on tensors without data: what it asks of the device."""

from __future__ import annotations

import os
from collections.abc import Callable

os.environ["TRITON_INTERPRET"] = "1"

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from benchmarks.step_bytes import Traffic, as_on_cuda, counted, example, learner
from socialx.model.xlstm import operations

WINDOWS, SENSORS, WIDTH = 64, 207, 128


def test_a_step_asks_for_few_kernels_and_bytes_and_reads_nothing(
    record_property: Callable[[str, object], None],
) -> None:
    ours, torchs = (counted(backend, WINDOWS, SENSORS, WIDTH) for backend in ("triton", "fused"))
    for name, found in (("triton", ours), ("fused", torchs)):
        record_property(f"{name}_kernels", found.calls.total())
        record_property(f"{name}_gigabytes", found.bytes.total() / 1e9)
    assert ours.calls["mlstm", "mlstm_forward"] == ours.calls["slstm", "slstm_backward"] == 2
    assert ours.calls.total() <= 785
    assert ours.bytes.total() <= 17.4e9
    assert torchs.calls.total() > 2 * ours.calls.total()
    assert torchs.bytes.total() > 3 * ours.bytes.total()


def test_a_token_of_several_steps_asks_for_no_more_kernels_and_fewer_bytes() -> None:
    steps = {patch: counted("triton", 8, 20, 64, patch=patch) for patch in (1, 6, 12)}
    calls = {patch: found.calls.total() for patch, found in steps.items()}
    assert calls[12] <= calls[6] == calls[1]  # a single token needs no copy that puts tokens in order
    moved = {patch: found.by_part() for patch, found in steps.items()}
    for part in ("mlstm", "slstm", "add_norm"):
        assert moved[12][part] < moved[6][part] < 0.4 * moved[1][part]


def test_bytes_of_an_operation_of_torch() -> None:
    """Read and written once each; a view moves nothing, a repeated row counts once, what is overwritten is not read."""
    with FakeTensorMode(), Traffic() as found:
        x = torch.empty(6, 4)
        x.view(4, 6).t()
        x + x.new_empty(4).expand(6, 4)  # 96 + 16 + 96
        x.mul_(2)  # 96 + 96
        x.copy_(x.new_empty(6, 4))  # 96 + 96
    assert dict(found.bytes) == {("small", "add"): 208, ("small", "mul_"): 192, ("small", "copy_"): 192}


def test_bytes_of_our_own_operations() -> None:
    """Those of their launches and of the operations of torch around them."""
    with FakeTensorMode(), Traffic() as found:
        x, y, scale = torch.empty(6, 64), torch.empty(6, 64).half(), torch.empty(64)
        operations.add_norm(x, y, None, 1.0, scale, 1e-5, torch.float16)
        u, table = torch.empty(6, 5, 2 * 64), torch.empty(15 + 4 * 2, 64)
        operations.mlstm(u, None, table, 2, torch.empty(4), 1e-5)
    assert found.bytes["add_norm", "add_norm_forward"] == 6 * 64 * (4 + 2 + 4 + 2) + 4 * 64
    numbers = 6 * 5 * 64  # of the channels: they are read, and queries, keys and values written
    assert found.bytes["mlstm", "conv_forward"] == 4 * (4 * numbers + 6 * 5 * 4 + 4 + 21 * 64)


def test_reading_a_loss_raises() -> None:
    with as_on_cuda("fused"):
        loss = learner("fused", 2, 5, 64).step([example(2, 5)])
        with pytest.raises(DataDependentOutputException):
            float(loss)
