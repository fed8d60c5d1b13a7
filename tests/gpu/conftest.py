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
