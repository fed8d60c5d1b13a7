"""Checkpoints: written whole or not at all, read without running code from the file (``weights_only``)."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

from socialx.disk import replacing
from socialx.errors import SocialxError


def save(path: Path, content: dict[str, Any]) -> None:
    """Write tensors and plain values to ``path``: the old file or the complete new one is there at every moment."""
    with replacing(path) as temporary:
        torch.save(content, temporary)


def load(path: Path, device: torch.device, *keys: str) -> dict[str, Any]:
    """Read a checkpoint that holds these keys onto ``device``.

    Raises SocialxError where it is missing, cut short, or something else.
    """
    try:
        content = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise SocialxError(path, "no such checkpoint", "train writes one into its run folder") from None
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, EOFError, KeyError, ValueError, OSError, pickle.UnpicklingError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SocialxError(
            path, f"not a readable checkpoint ({reason[:100]})", "train again or name another run"
        ) from None
    if not isinstance(content, dict) or not set(keys) <= set(content):
        raise SocialxError(path, f"a checkpoint without {', '.join(keys)}", "train again or name another run")
    return content


def random_state(device: torch.device) -> dict[str, Any]:
    """The states of the generators that dropout draws from on this device."""
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Put ``random_state`` back; a run that moves from a CPU to a card starts that card's generator anew."""
    torch.set_rng_state(state["cpu"].cpu())
    if state["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)
