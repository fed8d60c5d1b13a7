"""A state dict is checked before a model takes it: it may come from a file of somebody else, or of another network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

# Weights of single sensors, by the end of their name, and which axis is that of the sensors.
SENSOR_TABLES = {
    **{"tokens.sensor": 0, "tokens.adaptive_embedding": 0, "per_sensor_output": 0, "sensor.weight": 0},
    **{"geometry.goal": 1, "geometry.source": 1},
}
TIME_TABLES = ("tokens.time_of_day", "tokens.day_of_week")


def check_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """ValueError where a state dict does not have the names, shapes and types of this model, or is not finite."""
    expected = model.state_dict()
    if differ := sorted(map(str, set(expected) ^ set(state))):
        raise ValueError(f"{len(differ)} names differ from the model's ({', '.join(differ[:3])})")
    if differ := [name for name in expected if not tensor_matches(state[name], expected[name])]:
        like = expected[differ[0]]
        raise ValueError(f"{differ[0]} is not finite or not {like.dtype} {tuple(like.shape)}")


def sensor_axis(name: str) -> int | None:
    """Which axis of a weight is that of the sensors; None: it is not of single sensors."""
    return next((axis for end, axis in SENSOR_TABLES.items() if f".{name}".endswith(f".{end}")), None)


def select_sensor_weights(state: Mapping[str, Tensor], indices: Sequence[int]) -> dict[str, Tensor]:
    """The weights for other sensors; indices: where each stands in the tables, -1: nowhere, its weights are zero."""
    selected, index = dict(state), torch.tensor(indices)
    for name, table in state.items():
        axis = sensor_axis(name)
        if axis is not None and table.dim() > axis and table.shape[axis] > int(index.max()):
            rows = table.index_select(axis, index.clamp(min=0))
            selected[name] = torch.where((index >= 0).view(-1, *[1] * (table.dim() - 1 - axis)), rows, 0)
    return selected


def starting_state(
    model: nn.Module, state: Mapping[str, Tensor], indices: Sequence[int] | None
) -> tuple[dict[str, Tensor], int]:
    """What a model starts from that goes on with the weights of another one, and how many of the numbers are new.

    indices: where each sensor stands in the tables of the other model, -1: nowhere, its weights are zero; None: they are
    of other sensors.  New tables of sensors and times are zero, so that both models forecast the same.  ``source``
    stays as it was drawn: a pair bias is its product with ``goal``, and with two zeros neither would learn.  ValueError
    as of ``check_state``, and of it alone.
    """
    start, new = {name: tensor for name, tensor in state.items() if sensor_axis(name) is None}, 0
    for name, fresh in model.state_dict().items():
        axis = sensor_axis(name)
        if name in TIME_TABLES and name not in state:  # a zero-shot model has none
            start[name] = torch.zeros_like(fresh)
            new += fresh.numel()
        if axis is None:
            continue
        chosen = select_sensor_weights({name: state[name]}, indices)[name] if indices and name in state else None
        if chosen is not None and tensor_matches(chosen, fresh):
            start[name] = chosen
            new += fresh.numel() // fresh.shape[axis] * (indices or ()).count(-1)
        else:
            start[name] = fresh if name.endswith("source") else torch.zeros_like(fresh)
            new += fresh.numel()
    check_state(model, start)
    return start, new


def tensor_matches(value: Any, like: Tensor) -> bool:
    """Whether this is a finite tensor of that shape and type; one on the meta device has no numbers."""
    same = isinstance(value, Tensor) and value.shape == like.shape and value.dtype == like.dtype
    return same and value.layout == torch.strided and not value.is_meta and bool(value.isfinite().all())
