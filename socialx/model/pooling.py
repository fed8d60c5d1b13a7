"""Social pooling: each sensor combines its neighbours' values within a trained soft radius.

    gate_ij = sigmoid(beta (r - d_ij))                      soft; hard: 1 where d_ij <= r, else 0
    attention      sum_j a_ij v_j,   a_ij = softmax_j [0, score_ij + bias_ij + log gate_ij]
                   score_ij = q_i . k_j / sqrt(D), or u . gelu(q_i + k_j + phi(dx, dy))
    mean           sum_j gate_ij v_j / (number of neighbours)
    weighted_mean  sum_j w_ij v_j / max(1, sum_j w_ij),   w_ij = gate_ij exp(bias_ij)
    max            max_j gate_ij v_j, channel by channel
    bias_ij = offset_bias(dx, dy) + goal_i . source_j

r and beta are trained per head. The first softmax entry is the *null key* (an attention sink): its logit and value are
0. The gate is added to the logits, so that attention weights over neighbours and null key sum to 1. The pooled value is
zero for a sensor whose neighbours are far or absent.
"""

# Shape letters: B windows, N sensors, K neighbours, E width, H heads, D = E / H

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from socialx.core.precision import factor
from socialx.data.geo import Neighbours
from socialx.model.tiled_attention import attention
from socialx.settings.schema import HEADS, PoolingSettings

# Up to this many sensors per neighbour, masked N x N products beat gathering K vectors per sensor: gathering moves
# 2 K E numbers per sensor through memory, and its backward scatters them.  On a CPU, E = 64, K = 32: 8 times as fast
# at N = 207, 2.2 times at 512, 1.6 times at 640, 0.9 times at 1000 (benchmarks/layers_cpu.py).
DENSE_UP_TO = 20
# On CUDA attention keeps no N x N table of a window.  Counted, it moves a sixth to a half of what gathering moves up to
# that bound (tests/model/test_pooling.py); unmeasured on any GPU.  Its backward pass makes the gradient of the bias,
# B H N^2 numbers: no more than the keys, the values and a gradient that gathering holds, B N K E each.
CUDA_DENSE_UP_TO, GATHERED_TABLES = 40, 3
ALIGNED = 8  # keys of fused attention on CUDA come in such multiples: torch would pad others in small kernels
OFFSET_WIDTH = 32  # hidden units of the network that reads an offset
FAR_RADII = 5.0  # first radii, to which farther offsets are shortened: METR-LA and PEMS-BAY-74 have none


def mask_dropped_sensors(table: Tensor, keep: Tensor | None, trailing_dims: int) -> Tensor:
    """Zero dropped sensors in an embedding [...,N,...]; keep bool [N], ``None``: all; trailing_dims: axes after N."""
    return table if keep is None else table * keep.view(-1, *[1] * trailing_dims)


class Geometry(nn.Module):
    """Bias for each sensor pair, per head: the pooling part that is independent from the state.

    Reads the settings ``gate_radius_km``, ``learnable_radius``, ``mask_mode``,
    ``use_positional`` and ``adaptive_adjacency_rank``. The learned adjacency over directed sensor pairs is the product
    ``goal`` and ``source``, with vectors per head for the pooling sensor and for its neighbour, as in Graph WaveNet (Wu
    et al. 2019, arXiv:1906.00121).
    """

    index: Tensor
    column: Tensor
    exists: Tensor
    distance: Tensor
    offsets: Tensor

    def __init__(self, neighbours: Neighbours, pooling: PoolingSettings, heads: int = HEADS) -> None:
        super().__init__()
        shape = neighbours.index.shape
        if not shape == neighbours.exists.shape == neighbours.distance.shape == neighbours.offsets.shape[:-1]:
            raise ValueError(f"index {shape} and the exists, distance or offsets of these neighbours do not match")
        radius_km, self.heads, self.soft = pooling.gate_radius_km, heads, pooling.mask_mode == "soft"
        exists = neighbours.exists if self.soft else neighbours.exists & (neighbours.distance <= radius_km)
        # The graph belongs to the network that is forecast, not to the weights: it is not in the state dict.
        self.register_buffer("index", torch.from_numpy(neighbours.index), persistent=False)
        column = F.pad(torch.from_numpy(neighbours.index), (0, 1), value=len(neighbours.index))  # with the null key's
        self.register_buffer("column", column, persistent=False)
        self.register_buffer("exists", torch.from_numpy(exists), persistent=False)
        self.register_buffer("distance", torch.from_numpy(neighbours.distance).float(), persistent=False)
        # In units of the first radius, so that the weights that read them start at a sensible size.  But at least of
        # 1 km, over which the gate falls: in smaller units what is far would count more by its offset than it fades.
        # A far offset is shortened: a trained bias can grow faster with the distance than the gate falls.
        offsets = neighbours.offsets / max(radius_km, 1.0)
        offsets = offsets / np.maximum(np.linalg.norm(offsets, axis=-1, keepdims=True) / FAR_RADII, 1.0)
        self.register_buffer("offsets", torch.from_numpy(offsets).float(), persistent=False)
        # Logarithms keep both positive.  beta starts at 1/km: the gate falls from 0.73 to 0.27 within 1 km of r.
        trained = pooling.learnable_radius and self.soft
        self.log_radius = nn.Parameter(torch.full((heads,), math.log(radius_km)), requires_grad=trained)
        self.log_beta = nn.Parameter(torch.zeros(heads), requires_grad=trained)
        self.offset_bias = None
        if pooling.use_positional:
            self.offset_bias = nn.Sequential(nn.Linear(2, OFFSET_WIDTH), nn.GELU(), nn.Linear(OFFSET_WIDTH, heads))
        self.goal = self.source = None
        if pooling.adaptive_adjacency_rank:
            vectors = heads, len(neighbours.index), pooling.adaptive_adjacency_rank
            self.goal, self.source = (nn.Parameter(0.1 * torch.randn(*vectors)) for _ in range(2))
        self.keep: Tensor | None = None  # sensors whose vectors the step uses, bool [N]; None: all

    @property
    def gate_radius_km(self) -> Tensor:
        """Distance at which each head's gate is one half, [H]."""
        return self.log_radius.exp()

    def log_gate(self) -> Tensor:
        """Return the log gate [H,N,K], -inf for absent neighbours; fp32 under any autocast."""
        with torch.autocast(self.offsets.device.type, enabled=False):
            distance = self.distance.to(self.log_radius.dtype)
            if self.soft:
                beta, radius = self.log_beta.exp()[:, None, None], self.gate_radius_km[:, None, None]
                gate = F.logsigmoid(beta * (radius - distance))
            else:
                gate = distance.new_zeros(self.heads, *distance.shape)
            return gate.masked_fill(~self.exists, -math.inf)

    def forward(self, shared: bool = True) -> Tensor:
        """Return the logit bias [H,N,K]: log gate plus offset bias plus adjacency bias; shared: with ``constant``."""
        bias = self.log_gate()
        with torch.autocast(self.offsets.device.type, enabled=False):
            if self.offset_bias is not None:
                offsets = self.offset_bias[:-1](self.offsets.to(bias.dtype)) @ self.offset_bias[-1].weight.mT
                bias = bias + (offsets + self.constant() if shared else offsets).permute(2, 0, 1)
            if self.goal is not None and self.source is not None:
                goal, source = (mask_dropped_sensors(table, self.keep, 1) for table in (self.goal, self.source))
                bias = bias + self.pair_bias(goal, source)
        return bias

    def constant(self) -> Tensor:
        """Return the offset bias shared by all neighbours, [H], which ``table`` moves to the null key."""
        if self.offset_bias is None:
            return self.log_radius.new_zeros(self.heads)
        return self.offset_bias[-1].bias  # type: ignore[return-value]

    def pair_bias(self, goal: Tensor, source: Tensor) -> Tensor:
        """Return goal_i . source_j for sensor i and its neighbours j, [H,N,K]; goal, source [H,N,rank]."""
        if self.prefers_dense():
            return (goal @ source.mT).gather(2, self.index.expand(self.heads, -1, -1))
        return torch.einsum("hnr,hnkr->hnk", goal, source[:, self.index])

    def table(self, columns: int) -> Tensor:
        """Return the logit bias of all pairs [H,N,columns]: -inf but for neighbours and the null key, column N.

        A constant in the bias would collect a gradient sum that nearly cancels: it is subtracted from the null key's.
        """
        null_key = -self.constant()[:, None, None].expand(-1, len(self.index), 1)
        return self.dense(torch.cat([self(shared=False), null_key], -1), columns, -math.inf)

    def dense(self, pairs: Tensor, columns: int, empty: float) -> Tensor:
        """Scatter pairs [H,N,K], or with the null key [H,N,K+1], to a table [H,N,columns], ``empty`` elsewhere.

        An absent neighbour has the index of the sensor itself, or of one out of reach, and its value is ``empty`` too.
        """
        table = pairs.new_full((*pairs.shape[:2], columns), empty)
        return table.scatter_(2, self.column[:, : pairs.shape[-1]].expand_as(pairs), pairs)

    def prefers_dense(self) -> bool:
        """Return whether N x N products beat gathering neighbours: for at most DENSE_UP_TO sensors per neighbour."""
        sensors, neighbours = self.index.shape
        return sensors <= DENSE_UP_TO * neighbours

    def gather(self, state: Tensor) -> Tensor:
        """Gather each sensor's neighbours from state [B,N,...] -> [B,N,K,...]."""
        return state.index_select(1, self.index.flatten()).unflatten(1, self.index.shape)


class SocialPooling(nn.Module):
    """Pooling over neighbour values per head, and a linear map over all heads.

    width E must be a multiple of the heads. The map has no bias, so that sensors without neighbours get exactly zero.
    """

    def __init__(self, width: int, geometry: Geometry) -> None:
        super().__init__()
        if width % geometry.heads:
            raise ValueError(f"width {width} is not a multiple of {geometry.heads} heads")
        self.heads = geometry.heads
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.geometry = geometry

    def forward(self, state: Tensor) -> Tensor:
        """Pool neighbour values and map all heads: state [B,N,E] -> [B,N,E]; exactly 0 without neighbours."""
        state = factor(state)
        value = self.value(state).unflatten(-1, (self.heads, -1))  # [B,N,H,D]
        return self.out(self.pool(state, value).flatten(-2))

    def pool(self, state: Tensor, value: Tensor) -> Tensor:
        """Pool value [B,N,H,D] over neighbours, given state [B,N,E] -> [B,N,H,D]."""
        raise NotImplementedError

    def weights(self, state: Tensor) -> Tensor | None:
        """Return neighbour weights [B,H,N,K] for state [B,N,E] (``None`` for max); the null key has the remainder."""
        return None


class Attention(SocialPooling):
    """Weights from both sensors' states, by ``neighbour_weights``. Takes O(B N K E)."""

    def __init__(self, width: int, geometry: Geometry) -> None:
        super().__init__(width, geometry)
        self.query_key = nn.Linear(width, 2 * width)

    def query_and_key(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Map state [B,N,E] -> query and key, [B,N,H,D] each."""
        query, key = self.query_key(state).unflatten(-1, (2, self.heads, -1)).unbind(2)
        return query, key

    def neighbour_weights(self, query: Tensor, key: Tensor) -> Tensor:
        """Return neighbour weights [B,H,N,K] from query, key [B,N,H,D]; the null key has the remainder."""
        raise NotImplementedError

    def weights(self, state: Tensor) -> Tensor:
        """Return neighbour attention weights [B,H,N,K] for state [B,N,E]; the null key has the remainder to 1."""
        return self.neighbour_weights(*self.query_and_key(state))

    def attend_gathered(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend by gathering K keys and values per sensor, as defined. query, key, value [B,N,H,D] -> [B,N,H,D]."""
        weights = self.neighbour_weights(query, key).to(value.dtype)
        return torch.einsum("bhnk,bnkhd->bnhd", weights, self.geometry.gather(value))

    def pool(self, state: Tensor, value: Tensor) -> Tensor:
        """Pool value [B,N,H,D] over neighbours by ``attend_gathered``, weights from state [B,N,E] -> [B,N,H,D]."""
        return self.attend_gathered(*self.query_and_key(state), value)


class DotAttention(Attention):
    """Attention by scaled dot products (Vaswani et al. 2017, arXiv:1706.03762, section 3.2)."""

    def query_and_key(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Map state [B,N,E] -> query, divided by sqrt(D), and key, [B,N,H,D] each."""
        query, key = super().query_and_key(state)
        return query / math.sqrt(query.shape[-1]), key  # before the product: fp16 ends at 65,504

    def neighbour_weights(self, query: Tensor, key: Tensor) -> Tensor:
        """Return weights [B,H,N,K] from query, key [B,N,H,D] by dot products; the null key has the remainder."""
        logits = torch.einsum("bnhd,bnkhd->bhnk", query, self.geometry.gather(key))
        return _softmax_with_null_key(logits + self.geometry())

    def attend_dense(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend by masked N x N products, equal to ``attend_gathered``: O(B N^2 E) time, O(B H N^2) memory."""
        key, value, bias = self._with_null_key(key, value, 1)
        return attention(query.transpose(1, 2), key, value, bias).transpose(1, 2)

    def attend_fused(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend by torch's fused operation, equal to ``attend_dense``; on CUDA the N x N tables stay on chip.

        Bias and bias gradient per pair have the products' type.
        """
        key, value, bias = self._with_null_key(key, value, ALIGNED)
        bias = bias.to(query.dtype)
        # In three dimensions, or evaluation would run cuDNN's kernel and training, whose bias has a gradient, another.
        return F.scaled_dot_product_attention(query.transpose(1, 2), key, value, bias, scale=1.0).transpose(1, 2)

    def _with_null_key(self, key: Tensor, value: Tensor, multiple: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return key, value [B,H,M,D] and bias [H,N,M], M a multiple of ``multiple``, from key, value [B,N,H,D].

        An extra sensor with key and value 0 is the null key, which saves joins and cuts; later ones get no weight.
        """
        columns = -(-(key.shape[1] + 1) // multiple) * multiple
        key, value = (F.pad(t, (0, 0, 0, 0, 0, columns - t.shape[1])).transpose(1, 2) for t in (key, value))
        return key, value, self.geometry.table(columns)

    def fastest(self, device: torch.device) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """Return the fastest of the three attend functions on a device, for this number of sensors and neighbours."""
        if device.type != "cuda":
            return self.attend_dense if self.geometry.prefers_dense() else self.attend_gathered
        sensors, neighbours = self.geometry.index.shape
        fits = self.heads * sensors <= GATHERED_TABLES * neighbours * self.value.out_features
        return self.attend_fused if fits and sensors <= CUDA_DENSE_UP_TO * neighbours else self.attend_gathered

    def pool(self, state: Tensor, value: Tensor) -> Tensor:
        """Pool value [B,N,H,D] over neighbours by the fastest function, weights from state [B,N,E] -> [B,N,H,D]."""
        return self.fastest(state.device)(*self.query_and_key(state), value)


class MlpAttention(Attention):
    """Attention by an MLP per head, u . gelu(W [h_i, h_j, phi(dx, dy)]): O(B N E^2 + B N K E), W before the gather."""

    def __init__(self, width: int, geometry: Geometry) -> None:
        super().__init__(width, geometry)
        self.score = nn.Parameter(torch.randn(self.heads, width // self.heads) / math.sqrt(width // self.heads))
        self.offset = None
        if geometry.offset_bias is not None:
            to_width = nn.Linear(OFFSET_WIDTH, width, bias=False)
            self.offset = nn.Sequential(nn.Linear(2, OFFSET_WIDTH), nn.GELU(), to_width)

    def neighbour_weights(self, query: Tensor, key: Tensor) -> Tensor:
        """Return weights [B,H,N,K] from query, key [B,N,H,D] by the MLP; the null key has the remainder."""
        pair = query[:, :, None] + self.geometry.gather(key)  # [B,N,K,H,D]
        if self.offset is not None:
            offsets = self.geometry.offsets.to(self.score.dtype)
            pair = pair + self.offset(offsets).unflatten(-1, (self.heads, -1))
        logits = torch.einsum("bnkhd,hd->bhnk", F.gelu(pair), self.score.to(pair.dtype))
        return _softmax_with_null_key(logits + self.geometry())


class Mean(SocialPooling):
    """Mean over all neighbours, each times its gate."""

    def pool(self, state: Tensor, value: Tensor) -> Tensor:
        """Average value [B,N,H,D] over neighbours by ``fixed_weights`` -> [B,N,H,D]; state is ignored."""
        weights = self.fixed_weights()
        if self.geometry.prefers_dense():
            table = self.geometry.dense(weights, len(self.geometry.index), 0.0).to(value.dtype)
            return torch.einsum("hnm,bmhd->bnhd", table, value)
        return torch.einsum("hnk,bnkhd->bnhd", weights.to(value.dtype), self.geometry.gather(value))

    def weights(self, state: Tensor) -> Tensor:
        """Return weights [B,H,N,K], the same for each window: they depend on distances, not on state [B,N,E]."""
        return self.fixed_weights().expand(len(state), -1, -1, -1)

    def fixed_weights(self) -> Tensor:
        """Return each neighbour's gate over the number of neighbours, [H,N,K]; 0 for an absent neighbour."""
        count = self.geometry.exists.sum(-1, keepdim=True).clamp(min=1)
        return self.geometry.log_gate().exp() / count


class WeightedMean(Mean):
    """Mean weighted by distance and offset; a weight sum below 1 leaves the remainder to the null key."""

    def fixed_weights(self) -> Tensor:
        """Return each neighbour's weight, [H,N,K], with a sum of at most 1 over K; 0 for an absent neighbour."""
        logits = self.geometry()
        # exp(peak) is taken out of both sides of the fraction, so that exp stays finite.
        peak = logits.detach().amax(-1, keepdim=True).clamp(min=0)
        weights = (logits - peak).exp()
        return weights / torch.maximum(weights.sum(-1, keepdim=True), (-peak).exp())


class Max(SocialPooling):
    """Largest value times gate over neighbours, per channel; 0 without neighbours."""

    def pool(self, state: Tensor, value: Tensor) -> Tensor:
        """Return the largest gated neighbour value per channel, from value [B,N,H,D] -> [B,N,H,D]; state is ignored."""
        gate = self.geometry.log_gate().exp().permute(1, 2, 0)[..., None]  # [N,K,H,1]
        faded = self.geometry.gather(value) * gate.to(value.dtype)  # [B,N,K,H,D]
        exists = self.geometry.exists
        largest = faded.masked_fill(~exists[..., None, None], -math.inf).amax(dim=2)
        return torch.where(exists.any(-1)[:, None, None], largest, 0.0)


def _softmax_with_null_key(logits: Tensor) -> Tensor:
    """Softmax over the last axis and the null key's logit 0, which takes the remainder.

    Equals softmax over [null key, neighbours] with the first column cut off; finite under any -inf.
    """
    null_key = logits.new_zeros(*logits.shape[:-1], 1)
    return torch.cat([null_key, logits], dim=-1).softmax(dim=-1)[..., 1:]


class SocialLayer(nn.Module):
    """Pre-norm pooling and feed-forward, each with a residual. [B,N,E] -> [B,N,E]."""

    def __init__(self, width: int, pooling: SocialPooling, dropout: float) -> None:
        super().__init__()
        self.pool_norm, self.pooling = nn.LayerNorm(width), pooling
        self.feed_norm = nn.LayerNorm(width)
        wider, narrower = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.feed = nn.Sequential(wider, nn.GELU(), nn.Dropout(dropout), narrower)
        self.dropout = nn.Dropout(dropout)

    def forward(self, state: Tensor) -> Tensor:
        """Add pooled neighbours and a feed-forward part to state [B,N,E] -> [B,N,E]."""
        state = state + self.dropout(self.pooling(self.pool_norm(state)))
        return state + self.dropout(self.feed(self.feed_norm(state)))
