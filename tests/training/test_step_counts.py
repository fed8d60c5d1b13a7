"""One training step of the shipped preset, on tensors without data: what it asks of the device."""

from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from benchmarks.step_bytes import Traffic, as_on_cuda, counted, example, learner


@pytest.mark.slow
def test_a_step_asks_for_few_launches_and_bytes(record_property: Callable[[str, object], None]) -> None:
    found = counted(16, 207)
    record_property("launches", found.calls.total())
    record_property("gigabytes", found.bytes.total() / 1e9)
    assert found.calls.total() <= 631
    assert found.bytes.total() <= 0.926e9


def test_bytes_of_operations() -> None:
    """Read and written once each; a view moves nothing, a repeated row counts once, what is overwritten is not read."""
    with FakeTensorMode(), Traffic() as found:
        x = torch.empty(6, 4)
        x.view(4, 6).t()
        x + x.new_empty(4).expand(6, 4)  # 96 + 16 + 96
        x.mul_(2)  # 96 + 96
        x.copy_(x.new_empty(6, 4))  # 96 + 96
        torch._foreach_mul_([x, x.new_empty(2)], 2)  # 2 (96 + 8), in one launch
        torch._foreach_copy_([x, x.new_empty(2)], [x.new_empty(4, 6).t(), x.new_empty(2)])  # other strides: one by one
    expected = {"_foreach_copy_": 208, "add": 208, "mul_": 192, "copy_": 192, "_foreach_mul_": 208}
    assert dict(found.bytes) == {("small", name): bytes_ for name, bytes_ in expected.items()}
    assert {name: calls for (_, name), calls in found.calls.items() if calls > 1} == {"_foreach_copy_": 2}


def test_reading_a_loss_raises() -> None:
    with as_on_cuda():
        loss = learner(2, 5).step([example(2, 5)])
        with pytest.raises(DataDependentOutputException):
            float(loss)
