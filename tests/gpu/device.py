"""What the tests on a CUDA device share.  The pseudo device of tests/pseudo_cuda runs most of them, at tiny sizes."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import pytest
import torch

from socialx.core.precision import Precision
from socialx.data.series import Series, WindowLayout
from socialx.data.source import Arrays
from socialx.dataset.loaders import DeviceLoader, WindowOrder
from socialx.dataset.windows import split_windows
from socialx.settings.schema import DataSettings
from socialx.training.learner import Learner
from socialx.training.process_group import SINGLE
from tests.networks import forecaster, network, speeds, trainer

CUDA = torch.device("cuda", 0)
PSEUDO = "tests.pseudo_cuda.device" in sys.modules
ROWS, BATCH = (120, 16) if PSEUDO else (600, 100)
needs_card = pytest.mark.skipif(PSEUDO, reason="only a card shows it")
no_bf16 = not (torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False))
bf16 = pytest.param("bf16-mixed", marks=pytest.mark.skipif(no_bf16, reason="this card has no bfloat16"))
compiler = find_spec("triton") and any(map(shutil.which, ("cc", "gcc", "clang")))
newer = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (7, 0)
compiles = [
    needs_card,
    pytest.mark.skipif(not (compiler and newer), reason="needs Triton, a C compiler and capability 7.0"),
]
in_every_precision = pytest.mark.parametrize("precision", ["32-true", "16-mixed", bf16])


@contextmanager
def refused_waits() -> Iterator[None]:
    """Whatever waits for the device raises."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def series(device: torch.device) -> Series:
    values, valid, seconds = speeds(ROWS, 5)
    return Series(Arrays(values[..., None], valid[..., None], seconds), WindowLayout(12, 12), device)


def on_device(part: str = "train", batch_size: int = BATCH, shuffle: bool = True) -> DeviceLoader:
    _, _, seconds = speeds(ROWS, 5)
    windows = split_windows(seconds, 5, DataSettings(lookback=12, horizon=12))
    return DeviceLoader(series(CUDA), WindowOrder(windows.split(part), batch_size, shuffle))


def learner(precision: str = "32-true", dropout: float = 0.1, patch: int = 1, **options: object) -> Learner:
    group = options.pop("group", SINGLE)
    chosen = trainer(**{"learning_rate": 3e-3, "weight_decay": 1e-3, "gradient_clip_val": 5.0, **options})
    model = forecaster(width=32, dropout=dropout, social=2, patch=patch)
    return Learner(model, network(), Precision(precision, CUDA), chosen, group)  # type: ignore[arg-type]
