"""Attention weights of the social layers, summed while a model forecasts.

Sums are float64 on the device; nothing waits for it until ``compute``.
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
from socialx.scoring.metrics import ErrorOf, finite
from socialx.scoring.results import Head, Layer, Neighbour, SensorErrors

# Numbers that the gathered states of the neighbours may take at a time, B N K E: 64 MiB in fp32.
AT_A_TIME = 2**24
BATCHES = 8  # of a pass that are asked for weights: each has hundreds of windows x sensors of its own
NAMED = 5  # neighbours that are named of every sensor


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """The attention weights of one social layer: what its heads do, and the weights between sensors.

    weights [N,K]: mean over windows and heads, None where its pooling has none (max), with index int64 [N,K] and
    apart_km [N,K] of the neighbours.
    """

    layer: Layer
    weights: np.ndarray | None
    index: np.ndarray
    apart_km: np.ndarray


class RunningWeights:
    """Add the states that enter one pooling, then compute."""

    def __init__(self, pooling: SocialPooling) -> None:
        self.pooling = pooling
        distance = pooling.geometry.distance
        self.windows = 0
        self.per_head = torch.zeros(3, pooling.heads, dtype=torch.float64, device=distance.device)
        self.links = torch.zeros(distance.shape, dtype=torch.float64, device=distance.device)

    def update(self, state: Tensor) -> None:
        """state [B,N,E] as the pooling gets it.  The device is not waited for."""
        size = max(1, AT_A_TIME // (self.links.numel() * state.shape[-1]))
        for part in state.split(size):
            found = self.pooling.weights(part)
            if found is None:
                return
            weights = found.double()  # [B,H,N,K]
            used = weights.sum(-1)  # [B,H,N]
            shares = torch.cat([(1 - used).clamp(min=0)[..., None], weights], dim=-1)
            entropy = torch.special.entr(shares).sum(-1)
            km = (weights * self.pooling.geometry.distance.double()).sum(-1)
            self.per_head += torch.stack([used, entropy, km]).sum(dim=(1, 3))
            self.links += weights.sum(dim=(0, 1))
            self.windows += len(part)

    def compute(self, name: str) -> LayerWeights:
        """The means over all windows that were added; the only transfer from the device."""
        geometry = self.pooling.geometry
        beta = geometry.log_beta.detach().exp()
        softness = 1 / beta if geometry.soft else torch.zeros_like(beta)
        columns = [each.double().cpu().numpy() for each in (geometry.gate_radius_km.detach(), softness)]  # [H] each
        mean_km = weights = None
        if self.windows:
            used, entropy, km = self.per_head.cpu().numpy() / (self.windows * len(self.links))
            distance = np.divide(km, used, out=np.full_like(km, np.nan), where=used > 0)
            null_key = 1 - used
            columns += [null_key, entropy, distance]
            if (given := 1 - null_key).any():
                mean_km = float(np.average(np.nan_to_num(distance), weights=given))
            weights = self.links.cpu().numpy() / (self.windows * self.pooling.heads)
        nothing = [None] * (len(fields(Head)) - len(columns))
        heads = tuple(Head(*map(finite, numbers), *nothing) for numbers in zip(*columns, strict=True))
        mean = replace(Head(*(finite(column.mean()) for column in columns), *nothing), distance_km=mean_km)
        index = geometry.index.cpu().numpy()
        layer = Layer(name, geometry.log_radius.requires_grad, index.shape[1], mean, heads)
        return LayerWeights(layer, weights, index, geometry.distance.double().cpu().numpy())


class AttentionWeights:
    """The weights of all social layers of a model; a model without any has an empty result."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._sums = {name: RunningWeights(layer.pooling) for name, layer in social_layers(model).items()}

    @contextmanager
    def in_some_of(self, batches: int) -> Iterator[None]:
        """The weights of what the model forecasts inside are added: of eight batches spread over a pass of so many.

        The last batch may be padded with windows that were seen before: it is left out where there is another.
        """
        sums = {each.pooling: each for each in self._sums.values()}
        asked = set(np.linspace(0, max(0, batches - 2), BATCHES).round().astype(int).tolist())
        numbers, adding = itertools.count(), False

        def begin(model: nn.Module, inputs: tuple[Batch]) -> None:
            nonlocal adding
            adding = next(numbers) in asked

        def update(pooling: SocialPooling, inputs: tuple[Tensor, ...]) -> None:
            if adding:
                sums[pooling].update(inputs[0])

        with ExitStack() as hooks:
            hooks.callback(self._model.register_forward_pre_hook(begin).remove)
            for pooling in sums:
                hooks.callback(pooling.register_forward_pre_hook(update).remove)
            yield

    def compute(self) -> list[LayerWeights]:
        """Layer by layer, in the order in which they act."""
        return [sums.compute(name) for name, sums in self._sums.items()]


def social_layers(model: nn.Module) -> dict[str, SocialLayer]:
    """Those of a model by name: by their number."""
    model = model.model if isinstance(model, CoarserStepAdapter) else model
    if not isinstance(model, Forecaster):
        return {}
    return {f"layer {number}": layer for number, layer in enumerate(model.social, start=1)}  # type: ignore[misc]


def sensor_errors(sensors: Sensors, rows: tuple[ErrorOf, ...], layers: list[LayerWeights]) -> tuple[SensorErrors, ...]:
    """The sensors with their errors and strongest neighbours, the worst first, those without a target last.

    The weights of a neighbour are means over the layers, which share their neighbours.
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
    places = zip(map(finite, sensors.latitude), map(finite, sensors.longitude), strict=True)
    listed = [
        SensorErrors(row.key, row.mae, row.count, *place, near, got)
        for row, place, near, got in zip(rows, places, neighbours, received, strict=True)
    ]
    listed.sort(key=lambda sensor: -math.inf if sensor.mae is None else sensor.mae)
    return tuple(reversed(listed))
