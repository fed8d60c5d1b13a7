"""Attention weights in the social layers, summed while a model forecasts.

Sums are float64 on the device; the host first waits for the device in ``compute``.
"""

# Shape letters: B windows, N sensors, K neighbours, E width, H heads

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor, nn

from socialx.core.batch import Batch
from socialx.files.store.layout import Sensors
from socialx.model.forecaster import CoarserStepAdapter, Forecaster
from socialx.model.pooling import SocialLayer, SocialPooling
from socialx.scoring.metrics import ErrorRow, finite_or_none
from socialx.scoring.results import Head, Layer, Neighbour, SensorErrors

# Largest size of the gathered neighbour states, B N K E: 64 MiB in fp32.
AT_A_TIME = 2**24
BATCHES = 8  # sampled in a pass: each has hundreds of windows x sensors
NAMED = 5  # neighbours listed per sensor


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """Mean attention weights in one social layer: per head in ``layer``, per pair of sensors in ``weights``.

    weights [N,K] (N sensors, K neighbours): mean over windows and heads, None for max pooling. index int64 [N,K]:
    sensor number of each neighbour. apart_km [N,K]: distance.
    """

    layer: Layer
    weights: np.ndarray | None
    index: np.ndarray
    apart_km: np.ndarray


class RunningWeights:
    """Running sums over the attention weights in one pooling module."""

    def __init__(self, pooling: SocialPooling) -> None:
        self.pooling = pooling
        distance = pooling.geometry.distance
        self.windows = 0
        self.per_head = torch.zeros(3, pooling.heads, dtype=torch.float64, device=distance.device)
        self.links = torch.zeros(distance.shape, dtype=torch.float64, device=distance.device)

    def update(self, state: Tensor) -> None:
        """Add the weights for a state [B,N,E] (E width) that enters the pooling; the host continues at once."""
        size = max(1, AT_A_TIME // (self.links.numel() * state.shape[-1]))
        for part in state.split(size):
            part_weights = self.pooling.weights(part)
            if part_weights is None:
                return
            weights = part_weights.double()  # [B,H,N,K]
            given = weights.sum(-1)  # [B,H,N]
            all_weights = torch.cat([(1 - given).clamp(min=0)[..., None], weights], dim=-1)
            entropy = torch.special.entr(all_weights).sum(-1)
            km = (weights * self.pooling.geometry.distance.double()).sum(-1)
            self.per_head += torch.stack([given, entropy, km]).sum(dim=(1, 3))
            self.links += weights.sum(dim=(0, 1))
            self.windows += len(part)

    def compute(self, name: str) -> LayerWeights:
        """Return the means over all windows, in a single transfer from the device; name: the layer's name."""
        geometry = self.pooling.geometry
        beta = geometry.log_beta.detach().exp()
        softness = 1 / beta if geometry.soft else torch.zeros_like(beta)
        columns = [column.double().cpu().numpy() for column in (geometry.gate_radius_km.detach(), softness)]  # [H] each
        mean_km = weights = None
        if self.windows:
            given, entropy, km = self.per_head.cpu().numpy() / (self.windows * len(self.links))
            distance = np.divide(km, given, out=np.full_like(km, np.nan), where=given > 0)
            null_key = 1 - given
            columns += [null_key, entropy, distance]
            if (to_neighbours := 1 - null_key).any():
                mean_km = float(np.average(np.nan_to_num(distance), weights=to_neighbours))
            weights = self.links.cpu().numpy() / (self.windows * self.pooling.heads)
        missing = [None] * (len(fields(Head)) - len(columns))
        heads = tuple(Head(*map(finite_or_none, numbers), *missing) for numbers in zip(*columns, strict=True))
        mean = replace(Head(*(finite_or_none(column.mean()) for column in columns), *missing), distance_km=mean_km)
        index = geometry.index.cpu().numpy()
        layer = Layer(name, geometry.log_radius.requires_grad, index.shape[1], mean, heads)
        return LayerWeights(layer, weights, index, geometry.distance.double().cpu().numpy())


class AttentionWeights:
    """The attention weights in all social layers, if the model has any."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._sums = {name: RunningWeights(layer.pooling) for name, layer in social_layers(model).items()}

    @contextmanager
    def sample_batches(self, batches: int) -> Iterator[None]:
        """Sum the weights in eight batches, spread evenly over a pass of ``batches`` batches that runs in the block.

        The last batch may be padded with repeated windows, and is used only in a pass with a single batch.
        """
        sums = {running.pooling: running for running in self._sums.values()}
        sampled = set(np.linspace(0, max(0, batches - 2), BATCHES).round().astype(int).tolist())
        numbers, adding = itertools.count(), False

        def begin(model: nn.Module, inputs: tuple[Batch]) -> None:
            nonlocal adding
            adding = next(numbers) in sampled

        def update(pooling: SocialPooling, inputs: tuple[Tensor, ...]) -> None:
            if adding:
                sums[pooling].update(inputs[0])

        with ExitStack() as hooks:
            hooks.callback(self._model.register_forward_pre_hook(begin).remove)
            for pooling in sums:
                hooks.callback(pooling.register_forward_pre_hook(update).remove)
            yield

    def compute(self) -> list[LayerWeights]:
        """Return the mean weights per layer, from the first layer to the last."""
        return [sums.compute(name) for name, sums in self._sums.items()]


def social_layers(model: nn.Module) -> dict[str, SocialLayer]:
    """Return a model's social layers by name: ``layer 1``, ``layer 2`` ...; empty for a model without them."""
    model = model.model if isinstance(model, CoarserStepAdapter) else model
    if not isinstance(model, Forecaster):
        return {}
    return {f"layer {number}": layer for number, layer in enumerate(model.social, start=1)}  # type: ignore[misc]


def sensor_errors(sensors: Sensors, rows: tuple[ErrorRow, ...], layers: list[LayerWeights]) -> tuple[SensorErrors, ...]:
    """Return each sensor's MAE and strongest neighbours, largest MAE first, unscored sensors last.

    rows: MAE per sensor. layers: neighbour weights, which are averaged over all layers, as layers share neighbours.
    """
    count = len(sensors.ids)
    neighbours: list[tuple[Neighbour, ...]] = [()] * count
    received: list[float | None] = [None] * count
    if weights := [layer.weights for layer in layers if layer.weights is not None]:
        mean, index, apart = np.mean(weights, axis=0), layers[0].index, layers[0].apart_km  # [N,K] each
        order = np.argsort(-mean, axis=1, kind="stable")[:, :NAMED]
        neighbours = [
            tuple(
                Neighbour(sensors.ids[index[i, k]], float(mean[i, k]), float(apart[i, k]))
                for k in order[i]
                if mean[i, k] > 0
            )
            for i in range(count)
        ]
        received = np.bincount(index.ravel(), mean.ravel(), count).tolist()
    locations = zip(map(finite_or_none, sensors.latitude), map(finite_or_none, sensors.longitude), strict=True)
    errors = [
        SensorErrors(row.key, row.mae, row.count, *location, near, weight_received)
        for row, location, near, weight_received in zip(rows, locations, neighbours, received, strict=True)
    ]
    errors.sort(key=lambda sensor: -math.inf if sensor.mae is None else sensor.mae)
    return tuple(reversed(errors))
