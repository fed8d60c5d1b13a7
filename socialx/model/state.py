"""A state dict is checked before a model takes it: it may come from a file of somebody else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def check_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """ValueError where a state dict does not have the names, shapes and types of this model, or is not finite."""
    expected = model.state_dict()
    if differ := sorted(map(str, set(expected) ^ set(state))):
        raise ValueError(f"{len(differ)} names differ from the model's ({', '.join(differ[:3])})")
    if differ := [name for name in expected if not alike(state[name], expected[name])]:
        like = expected[differ[0]]
        raise ValueError(f"{differ[0]} is not finite or not {like.dtype} {tuple(like.shape)}")


def alike(value: Any, like: Tensor) -> bool:
    """Whether this is a finite tensor of that shape and type; one on the meta device has no numbers."""
    same = isinstance(value, Tensor) and value.shape == like.shape and value.dtype == like.dtype
    return same and value.layout == torch.strided and not value.is_meta and bool(value.isfinite().all())
