"""Products are exact in every test on a CUDA device."""

from collections.abc import Iterator

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
def a_small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product and a copy of a size that the pseudo device does at once."""
    from socialx.profiling import measure
    from tests.gpu.device import PSEUDO

    if PSEUDO:
        monkeypatch.setattr(measure, "MATRIX", {"cuda": 64, "cpu": 64})
        monkeypatch.setattr(measure, "COPY_BYTES", {"cuda": 1 << 16, "cpu": 1 << 16})
