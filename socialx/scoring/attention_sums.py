"""Attention weights of the social layers, summed while a model forecasts.

Sums are float64 on the device; nothing waits for it until ``compute``.
"""

# Shape letters: B windows, N sensors, K neighbours, E width, H heads

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from socialx.batch import Batch
from socialx.files.hdf5_layout import Sensors
from socialx.model.coarser import Coarser
from socialx.model.forecaster import Forecaster
from socialx.model.pooling import SocialLayer, SocialPooling
from socialx.scoring.results import ErrorOf, Head, Layer, Neighbour, SensorErrors, finite

# Numbers that the gathered states of the neighbours may take at a time, B N K E: 64 MiB in fp32.
AT_A_TIME = 2**24
BATCHES = 8  # of a pass that are asked for weights: each has hundreds of windows x sensors of its own
NAMED = 5  # neighbours that are named of every sensor


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """The attention weights of one social layer; what needs weights is None where its pooling has none (max).

    radius_km [H]: where each head's gate is one half; softness_km [H]: within so much more or less than the radius the
    gate falls from 0.73 to 0.27, 0 where it is hard; trained: whether they are learned.  Of the weights, means over
    windows and sensors: null_key [H], the weight of the null key; entropy [H] in nats, over the null key and the K
    neighbours; distance_km [H], the mean over all weight given to a neighbour, NaN where none was.  weights [N,K], mean
    over windows and heads, with index int64 [N,K] and apart_km [N,K] of the neighbours.
    """

    name: str
    trained: bool
    radius_km: np.ndarray
    softness_km: np.ndarray
    null_key: np.ndarray | None
    entropy: np.ndarray | None
    distance_km: np.ndarray | None
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

    def add(self, state: Tensor) -> None:
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
        null_key = entropy = distance = weights = None
        if self.windows:
            used, entropy, km = self.per_head.cpu().numpy() / (self.windows * len(self.links))
            null_key = 1 - used
            distance = np.divide(km, used, out=np.full_like(km, np.nan), where=used > 0)
            weights = self.links.cpu().numpy() / (self.windows * self.pooling.heads)
        return LayerWeights(
            name=name,
            trained=geometry.log_radius.requires_grad,
            radius_km=geometry.radius_km.detach().double().cpu().numpy(),
            softness_km=softness.double().cpu().numpy(),
            null_key=null_key,
            entropy=entropy,
            distance_km=distance,
            weights=weights,
            index=geometry.index.cpu().numpy(),
            apart_km=geometry.distance.double().cpu().numpy(),
        )


class AttentionWeights:
    """The weights of all social layers of a model; a model without any has an empty result."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._sums = {name: RunningWeights(layer.pooling) for name, layer in social_layers(model).items()}

    @contextmanager
    def hooked(self, batches: Container[int] | None = None) -> Iterator[None]:
        """The weights of what the model forecasts inside are added.

        batches: only those of these batches, by their number from 0 on.
        """
        sums = {each.pooling: each for each in self._sums.values()}
        numbers, adding = itertools.count(), True

        def begin(model: nn.Module, inputs: tuple[Batch]) -> None:
            nonlocal adding
            adding = batches is None or next(numbers) in batches

        def add(pooling: SocialPooling, inputs: tuple[Tensor, ...]) -> None:
            if adding:
                sums[pooling].add(inputs[0])

        with ExitStack() as hooks:
            hooks.callback(self._model.register_forward_pre_hook(begin).remove)
            for pooling in sums:
                hooks.callback(pooling.register_forward_pre_hook(add).remove)
            yield

    def in_some_of(self, batches: int) -> AbstractContextManager[None]:
        """``hooked`` for a pass of so many batches, of which eight are spread over the pass.

        The last batch may be padded with windows that were seen before: it is left out where there is another.
        """
        return self.hooked(set(np.linspace(0, max(0, batches - 2), BATCHES).round().astype(int).tolist()))

    def compute(self) -> list[LayerWeights]:
        """Layer by layer, in the order in which they act."""
        return [sums.compute(name) for name, sums in self._sums.items()]


def social_layers(model: nn.Module) -> dict[str, SocialLayer]:
    """Those of a model by name: by their number."""
    model = model.model if isinstance(model, Coarser) else model
    if not isinstance(model, Forecaster):
        return {}
    return {f"layer {number}": layer for number, layer in enumerate(model.social, start=1)}  # type: ignore[misc]


def sensor_errors(
    sensors: Sensors, rows: tuple[ErrorOf[int], ...], layers: list[LayerWeights]
) -> tuple[SensorErrors, ...]:
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
        received = [float(each) for each in np.bincount(index.ravel(), mean.ravel(), count)]
    listed = [
        SensorErrors(
            sensors.ids[i],
            row.mae,
            row.count,
            finite(sensors.latitude[i]),
            finite(sensors.longitude[i]),
            neighbours[i],
            received[i],
        )
        for i, row in enumerate(rows)
    ]
    listed.sort(key=lambda sensor: -math.inf if sensor.mae is None else sensor.mae)
    return tuple(reversed(listed))


def layer_summary(layer: LayerWeights) -> Layer:
    """The means of one social layer."""
    columns = (layer.radius_km, layer.softness_km, layer.null_key, layer.entropy, layer.distance_km)
    heads = tuple(
        Head(*(None if column is None else finite(column[head]) for column in columns))
        for head in range(len(layer.radius_km))
    )
    mean = Head(*(None if column is None else finite(column.mean()) for column in columns))
    if layer.null_key is not None and layer.distance_km is not None and (1 - layer.null_key).any():
        distance = float(np.average(np.nan_to_num(layer.distance_km), weights=1 - layer.null_key))
        mean = replace(mean, distance_km=distance)
    return Layer(layer.name, layer.trained, layer.index.shape[1], mean, heads)
