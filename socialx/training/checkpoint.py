"""Checkpoints: written whole or not at all, read without running code from the file (``weights_only``)."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import torch

from socialx.errors import SocialxError


def save(path: Path, content: dict[str, Any]) -> None:
    """Write tensors and plain values to ``path``: the old file or the complete new one is there at every moment."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as out:
            torch.save(content, out)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load(path: Path, device: torch.device) -> dict[str, Any]:
    """Read a checkpoint onto ``device``.  Raises SocialxError where it is missing, cut short or not a checkpoint."""
    try:
        return torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise SocialxError(f"{path}: no such checkpoint: socialx train writes one into its run folder") from None
    except (RuntimeError, EOFError, KeyError, ValueError, OSError, pickle.UnpicklingError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SocialxError(
            f"{path}: not a readable checkpoint ({reason[:100]}): train again or name another run"
        ) from None


def random_state() -> dict[str, Any]:
    """The states of the generators that dropout draws from."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def set_random_state(state: dict[str, Any]) -> None:
    """Put ``random_state`` back."""
    torch.set_rng_state(state["cpu"].cpu())
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([s.cpu() for s in state["cuda"]])
