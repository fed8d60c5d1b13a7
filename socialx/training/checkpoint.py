"""Checkpoint files, written atomically and read without running code from the file (``weights_only``)."""

from __future__ import annotations

import pickle
import zipfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from socialx.core.disk import atomic_write, check_regular
from socialx.core.errors import SocialxError, in_short
from socialx.training.process_group import ProcessGroup

ANOTHER = "train again or name another run"

# Errors that zipfile, pickle and torch raise on other files than checkpoints.
UNREADABLE = (
    *(zipfile.BadZipFile, pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError),
    *(TypeError, AttributeError, IndexError, AssertionError, NotImplementedError, MemoryError, OverflowError),
)
# Errors that an invalid state raises while it is taken apart and checked.
UNFIT = (ValueError, KeyError, TypeError, AttributeError, IndexError, RuntimeError, OverflowError)


def save(path: Path, content: dict[str, Any]) -> None:
    """Write ``content`` (tensors and plain values) to ``path`` atomically: readers find the old or the new file."""
    with atomic_write(path) as temporary:
        torch.save(content, temporary)


def snapshot(content: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of ``content`` with every tensor cloned into host memory, safe from later training steps.

    Tensors on a CUDA device arrive in one copy per type, so the host waits for the device once.
    """
    leaves, structure = tree_flatten(content)
    indices_by_type: dict[tuple[torch.device, torch.dtype], list[int]] = defaultdict(list)
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor):
            indices_by_type[leaf.device, leaf.dtype].append(index)
    with torch.no_grad():
        for indices in indices_by_type.values():
            line = torch.cat([leaves[index].reshape(-1) for index in indices]).cpu()
            for index, part in zip(indices, line.split([leaves[index].numel() for index in indices]), strict=True):
                leaves[index] = part.view(leaves[index].shape).clone()
    return tree_unflatten(leaves, structure)


def load(path: Path, device: torch.device, *keys: str) -> dict[str, Any]:
    """Return the content of the checkpoint ``path``, with tensors on ``device``; keys: names that must be present.

    A checkpoint is a zip archive with a CRC per tensor, which torch ignores, so the CRCs are compared first.  Raises
    SocialxError where the file is missing, damaged or another kind of file, or lacks a key.
    """
    try:
        check_regular(path)
        with zipfile.ZipFile(path) as archive:
            if damaged := archive.testzip():
                raise ValueError(f"the CRC of {damaged} differs")
        content = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise SocialxError(
            "checkpoint.missing", path, "the checkpoint is missing", "name a run folder that train wrote"
        ) from None
    except torch.OutOfMemoryError:
        raise
    except UNREADABLE as error:
        raise SocialxError(
            "checkpoint.unreadable", path, f"the checkpoint is unreadable ({in_short(error, 100)})", ANOTHER
        ) from None
    if not isinstance(content, dict) or not set(keys) <= set(content):
        raise SocialxError("checkpoint.lacks", path, f"the checkpoint lacks {', '.join(keys)}", ANOTHER)
    return content


def random_state(device: torch.device, group: ProcessGroup) -> list[dict[str, Any]]:
    """Return the random generator states (CPU, and CUDA ``device``) of all processes by rank, for a checkpoint."""
    cpu = group.all_gather(torch.get_rng_state())
    if device.type != "cuda":
        return [{"cpu": state, "cuda": None} for state in cpu]
    cuda = group.all_gather(torch.cuda.get_rng_state(device))
    return [{"cpu": one, "cuda": other} for one, other in zip(cpu, cuda, strict=True)]


def set_random_state(states: Any, device: torch.device, group: ProcessGroup) -> None:
    """Restore this process's random generators from ``states``, the list that ``random_state`` returned.

    A generator that lacks a saved state keeps the seed: on a GPU after training on a CPU, and in additional processes.
    """
    if group.rank >= len(states):
        return
    state = states[group.rank]
    torch.set_rng_state(state["cpu"].cpu().clone())
    if state["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)
