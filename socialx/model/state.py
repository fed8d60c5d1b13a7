"""State dicts, checked before use: a file may be foreign, or from another sensor network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

# Weights per sensor by name suffix, with the sensor axis.
SENSOR_TABLES = {
    **{"tokens.sensor": 0, "tokens.adaptive_embedding": 0, "per_sensor_output": 0, "sensor.weight": 0},
    **{"geometry.goal": 1, "geometry.source": 1},
}
TIME_TABLES = ("tokens.time_of_day", "tokens.day_of_week")


def check_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless a state dict has this model's names, shapes and types, with finite numbers."""
    expected = model.state_dict()
    if differ := sorted(map(str, set(expected) ^ set(state))):
        raise ValueError(f"{len(differ)} names differ from the model's ({', '.join(differ[:3])})")
    if differ := [name for name in expected if not tensor_matches(state[name], expected[name])]:
        like = expected[differ[0]]
        raise ValueError(f"{differ[0]} is not finite or not {like.dtype} {tuple(like.shape)}")


def sensor_axis(name: str) -> int | None:
    """Return the axis that counts sensors in a weight, by name in the state dict; ``None`` for shared weights."""
    return next((axis for end, axis in SENSOR_TABLES.items() if f".{name}".endswith(f".{end}")), None)


def select_sensor_weights(state: Mapping[str, Tensor], indices: Sequence[int]) -> dict[str, Tensor]:
    """Return a state dict for a list of other sensors; indices: old row of each in the tables, -1 for zero weights."""
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
    """Build the initial state for fine-tuning. Returns the state and the number of newly initialised parameters.

    model: new model. state: of the source model. indices: row in the source model's tables per new sensor, -1 for zero
    weights; ``None`` if the sensors differ. New sensor and time tables are zero, so that both models forecast equally.
    ``source`` keeps its random draw: the adjacency is the product with ``goal``, and two zero factors have zero
    gradient. Raises ValueError as ``check_state``.
    """
    start, new = {name: tensor for name, tensor in state.items() if sensor_axis(name) is None}, 0
    for name, fresh in model.state_dict().items():
        axis = sensor_axis(name)
        if name in TIME_TABLES and name not in state:  # absent from a zero-shot model
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
    """Return whether a value is a finite tensor with the shape and type of ``like``; False on the meta device."""
    same = isinstance(value, Tensor) and value.shape == like.shape and value.dtype == like.dtype
    return same and value.layout == torch.strided and not value.is_meta and bool(value.isfinite().all())
