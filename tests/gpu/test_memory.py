"""Memory on CUDA: recomputing needs less, and running out names what to try."""

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from socialx.model.xlstm.encoder import SharedEncoder
from socialx.settings.schema import ModelSettings
from tests.commands import small_file, socialx, works
from tests.gpu.device import CUDA, PSEUDO

pytestmark = pytest.mark.gpu
SEQUENCES = 256 if PSEUDO else 4096
SHAPE = LARGE = ["--width", "256", "--blocks", "6", "--precision", "auto"]
if PSEUDO:
    SHAPE = ["--width", "32", "--blocks", "2", "--precision", "32-true"]
    SHAPE += ["--cuda-graph", "off"]  # a recording of it keeps what a card would use again


def step_of(sequences: int | None, recomputed: bool, dropout: float = 0.0) -> tuple[int, list[Tensor]]:
    """Bytes at the peak of one forward and backward of these sequences in fp64, and all gradients."""
    torch.manual_seed(0)
    sizes = {"width": 64, "blocks": 4, "slstm_at": (1, 3), "dropout": dropout}
    encoder = SharedEncoder(ModelSettings(**sizes, encoder_batch=sequences, activation_checkpointing=recomputed), 12)
    encoder.double().to(CUDA).train()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SEQUENCES, 12, 64, generator=generator, dtype=torch.float64).to(CUDA).requires_grad_()
    for _ in range(2):  # the first makes the workspaces of the libraries, which stay
        encoder.zero_grad(set_to_none=True)
        x.grad = None
        gc.collect()
        torch.cuda.reset_peak_memory_stats(CUDA)
        before = torch.cuda.memory_allocated(CUDA)
        torch.manual_seed(2)
        encoder(x).square().sum().backward()
        peak = torch.cuda.max_memory_allocated(CUDA) - before
    return peak, [x.grad.cpu(), *(p.grad.cpu() for p in encoder.parameters() if p.grad is not None)]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("sequences", "recomputed", "dropout", "share"),
    [(SEQUENCES // 8, False, 0.0, 0.4), (None, True, 0.0, 0.6), (SEQUENCES // 2, True, 0.0, 0.4), (None, True, 0.3, 1)],
)
def test_recomputing_needs_less_memory_for_the_same_gradients(
    sequences: int | None, recomputed: bool, dropout: float, share: float
) -> None:
    whole, truth = step_of(None, False, dropout)
    peak, gradients = step_of(sequences, recomputed, dropout)
    assert peak < share * whole
    for found, expected in zip(gradients, truth, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8 * float(expected.abs().max()))


@contextmanager
def room_for(bytes_: int) -> Iterator[None]:
    """Let this process have so many bytes of the card more than it holds."""
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(CUDA).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(CUDA) + bytes_) / total, CUDA)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, CUDA)


def named(stderr: str) -> list[list[str]]:
    """The flags of each remedy in the line below an error."""
    (remedies,) = re.findall(r"^error.*out of memory.*\n  try: add (.*)$", stderr, re.MULTILINE)
    return [flags.split() for flags in remedies.split(", or ")]


def need_of(command: list[Any]) -> int:
    """Bytes of the card that a command takes."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(CUDA)
    before = torch.cuda.memory_reserved(CUDA)
    assert socialx(*command).exit_code == 0
    return torch.cuda.max_memory_reserved(CUDA) - before


def test_the_shape_that_fills_a_card_trains(tmp_path: Path) -> None:
    command = ["train", "--data", small_file(tmp_path, 60, 2), *LARGE, "--device", "cuda", "--patch", "12"]
    assert socialx(*command, "--max-epochs", "1", "--run-dir", tmp_path / "run").exit_code == 0


def test_out_of_memory_names_settings_that_then_train(tmp_path: Path) -> None:
    data = small_file(tmp_path, rows=400, sensors=28)
    command = ["train", "--data", data, *SHAPE, "--device", "cuda", "--batch-size", "64", "--max-epochs", "1"]
    with room_for(need_of([*command, "--run-dir", tmp_path / "whole"]) * 3 // 4):
        result = socialx(*command, "--run-dir", tmp_path / "asked")
        assert result.exit_code == 1
        remedies = named(result.stderr)
        assert [flags[0] for flags in remedies] == ["--batch-size", "--encoder-batch", "--activation-checkpointing"]
        works(*command, *remedies[0], "--run-dir", tmp_path / "halved")


def test_scoring_out_of_memory_names_settings_that_then_score(tmp_path: Path) -> None:
    data, run = small_file(tmp_path, rows=400, sensors=28), tmp_path / "run"
    train = ["train", "--data", data, *SHAPE, "--batch-size", "16", "--max-epochs", "1"]
    assert socialx(*train, "--device", "cuda", "--run-dir", run).exit_code == 0
    score = ["evaluate", run, "--split", "train", "--device", "cuda"]
    with room_for(need_of([*score, "--batch-size", "240"]) * 3 // 4):
        result = socialx(*score, "--batch-size", "240")
        assert result.exit_code == 1, result.stdout
        assert [flags[0] for flags in named(result.stderr)] == ["--set", "--batch-size"]
        for windows in (120, 60, 30):  # halved as often as it takes
            again = socialx(*score, "--batch-size", windows)
            if again.exit_code == 0:
                return
        pytest.fail(again.stderr)
