"""A state dict is checked before a model takes it: it may come from a file of somebody else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def check_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """ValueError where a state dict does not have the names, shapes and types of this model, or is not finite."""
    own = model.state_dict()
    if differ := sorted(map(str, set(own) ^ set(state))):
        raise ValueError(f"{len(differ)} names differ from the model's ({', '.join(differ[:3])})")
    if differ := [name for name in own if not alike(state[name], own[name])]:
        like = own[differ[0]]
        raise ValueError(f"{differ[0]} is not finite or not {like.dtype} {tuple(like.shape)}")


def alike(found: Any, like: Tensor) -> bool:
    """Whether this is a finite tensor of that shape and type; one on the meta device has no numbers."""
    same = isinstance(found, Tensor) and found.shape == like.shape and found.dtype == like.dtype
    return same and found.layout == torch.strided and not found.is_meta and bool(found.isfinite().all())
