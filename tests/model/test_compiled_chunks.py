"""On a CPU one chunk of the encoder is compiled, for one number of sequences, and computes what the plain one does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from socialx.model.xlstm.encoder import SharedEncoder
from tests.encoders import LOOKBACK, gradients, make, sequences


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sequences each call of a compiled function had; it runs as it is."""
    seen: list[int] = []

    def compiled(run: Callable[[Tensor], Tensor], **options: object) -> Callable[[Tensor], Tensor]:
        def counted(x: Tensor) -> Tensor:
            seen.append(len(x))
            return run(x)

        return counted

    monkeypatch.setattr(torch, "compile", compiled)
    return seen


def both(encoder: SharedEncoder, count: int) -> list[list[Tensor]]:
    """Output and gradients, compiled and plain."""
    results = []
    for mode in ("default", None):
        encoder.compile_chunks(mode)
        x = sequences(count, LOOKBACK, 32, torch.float64)
        y = encoder(x)
        results.append([y.detach(), *gradients(y, x, encoder).values()])
    return results


@pytest.mark.parametrize("count", [1, 10, 23, 40])
def test_chunks_of_one_size_are_the_plain_forward_with_all_gradients(count: int, sizes: list[int]) -> None:
    encoder = make(32, 3, [0, 2], dtype=torch.float64, encoder_batch=10).train()
    for compiled, plain in zip(*both(encoder, count), strict=True):
        torch.testing.assert_close(compiled, plain, rtol=1e-10, atol=1e-12)
    assert len(set(sizes)) == 1
    assert sum(sizes) < count + len(sizes)  # a chunk has not one sequence too many


def test_later_batches_have_the_chunks_of_the_first_one(sizes: list[int]) -> None:
    encoder = make(32, 2, [1], encoder_batch=10).train()
    encoder.compile_chunks("default")
    for count in (38, 7, 55, 38):
        assert encoder(sequences(count, LOOKBACK, 32)).shape == (count, 32)
    assert set(sizes) == {10}
    assert len(sizes) == 4 + 1 + 6 + 4


def test_scoring_stays_as_it_is(sizes: list[int]) -> None:
    encoder = make(32, 2, [1], encoder_batch=10)
    encoder.compile_chunks("default")
    encoder.eval()(sequences(5, LOOKBACK, 32))
    with torch.no_grad():
        encoder.train()(sequences(5, LOOKBACK, 32))
    assert sizes == []


@pytest.mark.slow
@pytest.mark.parametrize("low", [None, torch.bfloat16])
def test_the_traced_chunk_is_the_plain_one(low: torch.dtype | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """aot_eager traces forward and backward and does not call a C++ compiler; fullgraph refuses any break."""
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda run, **_: compile_(run, fullgraph=True, backend="aot_eager"))
    encoder, results = make(32, 2, [1], encoder_batch=10).train(), []
    for mode in ("default", None):
        encoder.compile_chunks(mode)
        x = sequences(23, LOOKBACK, 32)
        with torch.autocast("cpu", dtype=low, enabled=low is not None):
            y = encoder(x)
        results.append([y.detach().float(), *gradients(y.float(), x, encoder).values()])
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if low is None else {"rtol": 0.05, "atol": 0.1}
    for compiled, plain in zip(*results, strict=True):
        torch.testing.assert_close(compiled, plain, **tolerance)
