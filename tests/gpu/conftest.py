"""Products are exact in every test on a CUDA device."""

from collections.abc import Iterator
from importlib import import_module

import pytest


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    """No TF32."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture(autouse=True)
def compiled_kernels() -> None:
    """No interpreter, unless the device itself is one."""
    from tests.gpu.device import PSEUDO

    operations = import_module("socialx.model.xlstm.operations")  # triton is not everywhere
    assert operations.INTERPRETED == PSEUDO, "TRITON_INTERPRET is set: nothing would be shown of this card"


@pytest.fixture(autouse=True)
def a_small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product, a copy and a trial of the kernels of a size that the pseudo device does at once."""
    from socialx.model.xlstm import encoder
    from socialx.training.profile import measure
    from tests.gpu.device import PSEUDO

    if PSEUDO:
        monkeypatch.setattr(measure, "MATRIX", {"cuda": 64, "cpu": 64})
        monkeypatch.setattr(measure, "COPY_BYTES", {"cuda": 1 << 16, "cpu": 1 << 16})
        monkeypatch.setattr(encoder, "TRIED", 2)
