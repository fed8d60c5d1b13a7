"""Attention weights of the social layers, summed while a model forecasts.

Sums are float64 on the device; nothing waits for it until ``compute``.
"""

# Shape letters: B windows, N sensors, K neighbours, E width, H heads

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from socialx.model.forecaster import Forecaster
from socialx.model.pooling import SocialLayer, SocialPooling

# Numbers that the gathered states of the neighbours may take at a time, B N K E: 64 MiB in fp32.
AT_A_TIME = 2**24


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
        for part in state.split(size):  # an interleaved layer is given T times as many windows
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

    def hook(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """``add`` as a hook before the pooling's forward."""
        self.add(inputs[0])

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
        self._sums = {name: RunningWeights(layer.pooling) for name, layer in social_layers(model).items()}

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """The weights of what the model forecasts inside are added."""
        with ExitStack() as hooks:
            for sums in self._sums.values():
                hooks.callback(sums.pooling.register_forward_pre_hook(sums.hook).remove)
            yield

    def compute(self) -> list[LayerWeights]:
        """Layer by layer, in the order in which they act."""
        return [sums.compute(name) for name, sums in self._sums.items()]


def social_layers(model: nn.Module) -> dict[str, SocialLayer]:
    """Those of a model by name: by their number, or by the block after which they act."""
    if not isinstance(model, Forecaster):
        return {}
    stacked = {f"layer {number}": layer for number, layer in enumerate(model.social, start=1)}
    between = {f"after block {int(block) + 1}": layer for block, layer in model.interleaved.items()}
    return {**stacked, **between}  # type: ignore[dict-item]
