"""Social pooling: every sensor combines values of its neighbours, within a soft radius that is trained.

    gate_ij = sigmoid(beta (r - d_ij))                      soft; hard: 1 where d_ij <= r, else 0
    attention      sum_j a_ij v_j,   a_ij = softmax_j [0, score_ij + bias_ij + log gate_ij]
                   score_ij = q_i . k_j / sqrt(D), or u . gelu(q_i + k_j + phi(dx, dy))
    mean           sum_j gate_ij v_j / (number of neighbours)
    weighted_mean  sum_j w_ij v_j / max(1, sum_j w_ij),   w_ij = gate_ij exp(bias_ij)
    max            max_j gate_ij v_j, channel by channel
    bias_ij = offset_bias(dx, dy) + goal_i . source_j

r and beta are trained per head.  The first entry of the softmax is the *null key*: its logit and its value are 0.  The
gate is added to the logits, not multiplied onto the weights, so that the attention weights of the neighbours and of the
null key sum to 1.  The pooled value of a sensor whose neighbours are all far, or that has none, is zero.
"""

# Shape letters: B windows, N sensors, K neighbours, E width, H heads, D = E / H

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from socialx.data.geo import Neighbours
from socialx.model.tiled_attention import attention

# Up to this many sensors per neighbour, masked N x N products beat gathering K vectors per sensor: gathering moves
# 2 K E numbers per sensor through memory, and its backward scatters them.  On a CPU, E = 64, K = 32: 8 times as fast
# at N = 207, 2.2 times at 512, 1.6 times at 640, 0.9 times at 1000 (benchmarks/pooling_cpu.py).
DENSE_UP_TO = 20
# On CUDA attention keeps no N x N table of a window.  Counted, it moves a sixth to a half of what gathering moves up to
# so many (tests/model/test_pooling.py); no card has measured it.  Its backward pass makes the gradient of the bias,
# B H N^2 numbers: no more than the keys, the values and a gradient that gathering holds, B N K E each.
CUDA_DENSE_UP_TO, GATHERED_TABLES = 40, 3
OFFSET_WIDTH = 32  # hidden units of the network that reads an offset


def mask_dropped_sensors(table: Tensor, keep: Tensor | None, trailing_dims: int) -> Tensor:
    """A table of single sensors, zero for those that a step leaves out.

    keep: of which the step uses it, bool [N]; None: of all.  trailing_dims: how many axes are behind that of the sensors.
    """
    return table if keep is None else table * keep.view(-1, *[1] * trailing_dims)


class Geometry(nn.Module):
    """The bias of each pair of sensors, per head: the part of pooling that needs no state.

    gate_radius_km is the distance at which the gate starts at one half.  soft: the gate falls there, and radius and
    softness are trained if ``learnable``.  hard: a sensor that is farther is no neighbour, and nothing is trained.
    positional: the offset (east, north) of a neighbour adds to its logit.  adaptive_adjacency_rank: the rank of a
    trained bias of every directed pair of sensors, 0: there is none.  It is the product of ``goal`` and ``source``: a
    vector per head of the sensor that pools, and one of its neighbour.  The adaptive graph of Graph WaveNet has such
    vectors (Wu et al. 2019, arXiv:1906.00121).
    """

    index: Tensor
    exists: Tensor
    distance: Tensor
    offsets: Tensor

    def __init__(
        self,
        heads: int,
        neighbours: Neighbours,
        gate_radius_km: float = 5.0,
        learnable: bool = True,
        positional: bool = True,
        mask_mode: str = "soft",
        adaptive_adjacency_rank: int = 0,
    ) -> None:
        super().__init__()
        shape = neighbours.index.shape
        if not shape == neighbours.exists.shape == neighbours.distance.shape == neighbours.offsets.shape[:-1]:
            raise ValueError(f"index {shape} and the exists, distance or offsets of these neighbours do not match")
        if mask_mode not in ("soft", "hard"):
            raise ValueError(f"mask_mode {mask_mode!r}: soft or hard")
        self.heads, self.soft = heads, mask_mode == "soft"
        exists = neighbours.exists if self.soft else neighbours.exists & (neighbours.distance <= gate_radius_km)
        # The graph belongs to the network that is forecast, not to the weights: it is not in the state dict.
        self.register_buffer("index", torch.from_numpy(neighbours.index), persistent=False)
        self.register_buffer("exists", torch.from_numpy(exists), persistent=False)
        self.register_buffer("distance", torch.from_numpy(neighbours.distance).float(), persistent=False)
        # In units of the first radius, so that the weights that read them start at a sensible size.  But at least of
        # 1 km, over which the gate falls: in smaller units what is far would count more by its offset than it fades.
        offsets = neighbours.offsets / max(gate_radius_km, 1.0)
        self.register_buffer("offsets", torch.from_numpy(offsets).float(), persistent=False)
        # Logarithms keep both positive.  beta starts at 1/km: the gate falls from 0.73 to 0.27 within 1 km of r.
        trained = learnable and self.soft
        self.log_radius = nn.Parameter(torch.full((heads,), math.log(gate_radius_km)), requires_grad=trained)
        self.log_beta = nn.Parameter(torch.zeros(heads), requires_grad=trained)
        self.offset_bias = None
        if positional:
            self.offset_bias = nn.Sequential(nn.Linear(2, OFFSET_WIDTH), nn.GELU(), nn.Linear(OFFSET_WIDTH, heads))
        self.goal = self.source = None
        if adaptive_adjacency_rank:
            vectors = heads, len(neighbours.index), adaptive_adjacency_rank
            self.goal, self.source = (nn.Parameter(0.1 * torch.randn(*vectors)) for _ in range(2))
        self.keep: Tensor | None = None  # of which sensors a step uses these vectors, bool [N]; None: of all

    @property
    def gate_radius_km(self) -> Tensor:
        """Where each head's gate is one half, [H]."""
        return self.log_radius.exp()

    def log_gate(self) -> Tensor:
        """log gate [H,N,K], -inf where there is no neighbour; fp32 whatever the autocast."""
        with torch.autocast(self.offsets.device.type, enabled=False):
            distance = self.distance.to(self.log_radius.dtype)
            if self.soft:
                gate = F.logsigmoid(
                    self.log_beta.exp()[:, None, None] * (self.gate_radius_km[:, None, None] - distance)
                )
            else:
                gate = distance.new_zeros(self.heads, *distance.shape)
            return gate.masked_fill(~self.exists, -math.inf)

    def forward(self) -> Tensor:
        """The bias of the logits, [H,N,K]: the logarithm of the gate plus the biases of offset and pair."""
        bias = self.log_gate()
        if self.offset_bias is not None:
            with torch.autocast(self.offsets.device.type, enabled=False):
                bias = bias + self.offset_bias(self.offsets.to(bias.dtype)).permute(2, 0, 1)
        if self.goal is not None and self.source is not None:
            with torch.autocast(self.offsets.device.type, enabled=False):
                goal, source = (mask_dropped_sensors(table, self.keep, 1) for table in (self.goal, self.source))
                bias = bias + self.pair_bias(goal, source)
        return bias

    def constant(self) -> Tensor:
        """The part of the offset's bias that is the same for every neighbour, [H]."""
        if self.offset_bias is None:
            return self.log_radius.new_zeros(self.heads)
        return self.offset_bias[-1].bias  # type: ignore[return-value]

    def pair_bias(self, goal: Tensor, source: Tensor) -> Tensor:
        """goal_i . source_j of each sensor i and its neighbours j, [H,N,K]; goal, source [H,N,rank]."""
        if self.prefers_dense():
            return (goal @ source.mT).gather(2, self.index.expand(self.heads, -1, -1))
        return torch.einsum("hnr,hnkr->hnk", goal, source[:, self.index])

    def dense(self, pairs: Tensor, empty: float) -> Tensor:
        """pairs [H,N,K] at their neighbours' columns, ``empty`` elsewhere, [H,N,N].

        A dead entry is routed to one more column that is cut off again: it must not overwrite a living one.
        """
        sensors = self.index.shape[0]
        column = torch.where(self.exists, self.index, sensors).expand_as(pairs)
        table = pairs.new_full((len(pairs), sensors, sensors + 1), empty)
        return table.scatter(2, column, pairs)[..., :sensors]

    def prefers_dense(self) -> bool:
        """Whether N x N products compute the sums faster than gathering the neighbours does."""
        sensors, neighbours = self.index.shape
        return sensors <= DENSE_UP_TO * neighbours

    def gather(self, state: Tensor) -> Tensor:
        """state [B,N,...] -> [B,N,K,...]: each sensor's neighbours."""
        return state.index_select(1, self.index.flatten()).unflatten(1, self.index.shape)


class SocialPooling(nn.Module):
    """A value of every neighbour, pooled per head, and one linear map of all heads.

    width E, a multiple of the heads of its geometry.  The map has no bias: without neighbours it gives exactly zero.
    """

    def __init__(self, width: int, geometry: Geometry) -> None:
        super().__init__()
        if width % geometry.heads:
            raise ValueError(f"width {width} is not a multiple of {geometry.heads} heads")
        self.heads = geometry.heads
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.geometry = geometry

    def forward(self, state: Tensor) -> Tensor:
        """state [B,N,E] -> [B,N,E]; exactly 0 for a sensor without neighbours."""
        value = self.value(state).unflatten(-1, (self.heads, -1))  # [B,N,H,D]
        return self.out(self.pool(state, value).flatten(-2))

    def pool(self, state: Tensor, value: Tensor) -> Tensor:
        """state [B,N,E], value [B,N,H,D] of every sensor -> the pooled values of its neighbours [B,N,H,D]."""
        raise NotImplementedError

    def weights(self, state: Tensor) -> Tensor | None:
        """state [B,N,E] -> attention weight of each neighbour [B,H,N,K]; the rest is the null key's.

        None for a kind that takes no weighted sum (max).
        """
        return None


class Attention(SocialPooling):
    """Weights from the states of both sensors, by ``neighbour_weights``.  O(B N K E)."""

    def __init__(self, width: int, geometry: Geometry) -> None:
        super().__init__(width, geometry)
        self.query_key = nn.Linear(width, 2 * width)

    def query_and_key(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """state [B,N,E] -> query and key [B,N,H,D] each."""
        query, key = self.query_key(state).unflatten(-1, (2, self.heads, -1)).unbind(2)
        return query, key

    def neighbour_weights(self, query: Tensor, key: Tensor) -> Tensor:
        """query, key [B,N,H,D] -> attention weight of each neighbour [B,H,N,K]; the rest is the null key's."""
        raise NotImplementedError

    def weights(self, state: Tensor) -> Tensor:
        """As ``SocialPooling.weights``."""
        return self.neighbour_weights(*self.query_and_key(state))

    def attend_gathered(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The definition: gather K keys and values per sensor.  query, key, value [B,N,H,D] -> [B,N,H,D]."""
        weights = self.neighbour_weights(query, key).to(value.dtype)
        return torch.einsum("bhnk,bnkhd->bnhd", weights, self.geometry.gather(value))

    def pool(self, state: Tensor, value: Tensor) -> Tensor:
        """As ``SocialPooling.pool``."""
        return self.attend_gathered(*self.query_and_key(state), value)


class DotAttention(Attention):
    """Attention by scaled dot products (Vaswani et al. 2017, arXiv:1706.03762, section 3.2)."""

    def query_and_key(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """As ``Attention.query_and_key``, the query scaled."""
        query, key = super().query_and_key(state)
        return query / math.sqrt(query.shape[-1]), key  # before the product: fp16 ends at 65,504

    def neighbour_weights(self, query: Tensor, key: Tensor) -> Tensor:
        """As ``Attention.neighbour_weights``."""
        logits = torch.einsum("bnhd,bnkhd->bhnk", query, self.geometry.gather(key))
        return _softmax_with_null_key(logits + self.geometry())

    def attend_dense(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """As ``attend_gathered`` by masked N x N products: O(B N^2 E) time, O(B H N^2) memory, and no gather."""
        # One more sensor with a key and a value of 0 is the null key: nothing is joined or cut.
        key, value = (F.pad(t, (0, 0, 0, 0, 0, 1)).transpose(1, 2) for t in (key, value))  # [B,H,N+1,D]
        bias = F.pad(self.geometry.dense(self.geometry(), -math.inf), (0, 1))  # [H,N,N+1]
        return attention(query.transpose(1, 2), key, value, bias).transpose(1, 2)

    def attend_fused(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """As ``attend_dense`` by one operation of torch, which on CUDA keeps no N x N table per window and head.

        The bias and its gradient per pair have the type of the products.  A constant would have the sum of all of them
        as its gradient, which nearly cancels: it is taken off the null key's logit, which is the same attention.
        """
        constant = self.geometry.constant()[:, None, None]
        pairs = self.geometry.dense(self.geometry() - constant, -math.inf)  # [H,N,N]
        bias = torch.cat([pairs, -constant.expand(-1, len(self.geometry.index), 1)], -1).to(query.dtype)  # [H,N,N+1]
        key, value = (F.pad(t, (0, 0, 0, 0, 0, 1)).transpose(1, 2) for t in (key, value))  # [B,H,N+1,D]
        # In three dimensions, or evaluation would run cuDNN's kernel and training, whose bias has a gradient, another.
        return F.scaled_dot_product_attention(query.transpose(1, 2), key, value, bias, scale=1.0).transpose(1, 2)

    def fastest(self, device: torch.device) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """The fastest of the three functions above on a device, for this number of sensors and neighbours."""
        if device.type != "cuda":
            return self.attend_dense if self.geometry.prefers_dense() else self.attend_gathered
        sensors, neighbours = self.geometry.index.shape
        fits = self.heads * sensors <= GATHERED_TABLES * neighbours * self.value.out_features
        return self.attend_fused if fits and sensors <= CUDA_DENSE_UP_TO * neighbours else self.attend_gathered

    def pool(self, state: Tensor, value: Tensor) -> Tensor:
        """As ``SocialPooling.pool``."""
        return self.fastest(state.device)(*self.query_and_key(state), value)


class MlpAttention(Attention):
    """Attention by a small network over both states and the offset, u . gelu(W [h_i, h_j, phi(dx, dy)]), per head.

    W is applied to the states before they are gathered: O(B N E^2 + B N K E).
    """

    def __init__(self, width: int, geometry: Geometry) -> None:
        super().__init__(width, geometry)
        self.score = nn.Parameter(torch.randn(self.heads, width // self.heads) / math.sqrt(width // self.heads))
        self.offset = None
        if geometry.offset_bias is not None:
            to_width = nn.Linear(OFFSET_WIDTH, width, bias=False)
            self.offset = nn.Sequential(nn.Linear(2, OFFSET_WIDTH), nn.GELU(), to_width)

    def neighbour_weights(self, query: Tensor, key: Tensor) -> Tensor:
        """As ``Attention.neighbour_weights``."""
        pair = query[:, :, None] + self.geometry.gather(key)  # [B,N,K,H,D]
        if self.offset is not None:
            offsets = self.geometry.offsets.to(self.score.dtype)
            pair = pair + self.offset(offsets).unflatten(-1, (self.heads, -1))
        logits = torch.einsum("bnkhd,hd->bhnk", F.gelu(pair), self.score.to(pair.dtype))
        return _softmax_with_null_key(logits + self.geometry())


class Mean(SocialPooling):
    """The mean over all neighbours, each times its gate."""

    def pool(self, state: Tensor, value: Tensor) -> Tensor:
        """As ``SocialPooling.pool``."""
        weights = self.fixed_weights()
        if self.geometry.prefers_dense():
            table = self.geometry.dense(weights, 0.0).to(value.dtype)
            return torch.einsum("hnm,bmhd->bnhd", table, value)
        return torch.einsum("hnk,bnkhd->bnhd", weights.to(value.dtype), self.geometry.gather(value))

    def weights(self, state: Tensor) -> Tensor:
        """As ``SocialPooling.weights``; they do not depend on the state."""
        return self.fixed_weights().expand(len(state), -1, -1, -1)

    def fixed_weights(self) -> Tensor:
        """Weight of each neighbour, [H,N,K]."""
        count = self.geometry.exists.sum(-1, keepdim=True).clamp(min=1)
        return self.geometry.log_gate().exp() / count


class WeightedMean(Mean):
    """A mean whose weights distance and offset decide; where they sum to less than 1 the rest is the null key's."""

    def fixed_weights(self) -> Tensor:
        """As ``Mean.fixed_weights``."""
        logits = self.geometry()
        # exp(peak) is taken out of both sides of the fraction, so that exp stays finite.
        peak = logits.detach().amax(-1, keepdim=True).clamp(min=0)
        weights = (logits - peak).exp()
        return weights / torch.maximum(weights.sum(-1, keepdim=True), (-peak).exp())


class Max(SocialPooling):
    """The largest value times gate of any neighbour, channel by channel; 0 without neighbours."""

    def pool(self, state: Tensor, value: Tensor) -> Tensor:
        """As ``SocialPooling.pool``."""
        gate = self.geometry.log_gate().exp().permute(1, 2, 0)[..., None]  # [N,K,H,1]
        faded = self.geometry.gather(value) * gate.to(value.dtype)  # [B,N,K,H,D]
        exists = self.geometry.exists
        largest = faded.masked_fill(~exists[..., None, None], -math.inf).amax(dim=2)
        return torch.where(exists.any(-1)[:, None, None], largest, 0.0)


def _softmax_with_null_key(logits: Tensor) -> Tensor:
    """Softmax over the last axis beside one more logit of 0, the null key's, which keeps the rest of the weight.

    The same as softmax over [null key, neighbours] with the first column cut off; finite whatever is -inf.
    """
    null_key = logits.new_zeros(*logits.shape[:-1], 1)
    return torch.cat([null_key, logits], dim=-1).softmax(dim=-1)[..., 1:]


class SocialLayer(nn.Module):
    """Pre-norm pooling and feed-forward, each with a residual.  [B,N,E] -> [B,N,E]."""

    def __init__(self, width: int, pooling: SocialPooling, dropout: float) -> None:
        super().__init__()
        self.pool_norm, self.pooling = nn.LayerNorm(width), pooling
        self.feed_norm = nn.LayerNorm(width)
        self.feed = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * width, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, state: Tensor) -> Tensor:
        """state [B,N,E] -> [B,N,E]."""
        state = state + self.dropout(self.pooling(self.pool_norm(state)))
        return state + self.dropout(self.feed(self.feed_norm(state)))


@dataclass(frozen=True)
class Social:
    """The social layers of a model before they are made.

    pool: the kind of pooling.  geometry: makes the geometry of one layer.
    """

    pool: type[SocialPooling]
    geometry: Callable[[], Geometry]
    layers: int = 2

    def make(self, width: int, dropout: float) -> list[SocialLayer]:
        """The layers, with fresh weights."""
        geometries = (self.geometry() for _ in range(self.layers))
        return [SocialLayer(width, self.pool(width, geometry), dropout) for geometry in geometries]
