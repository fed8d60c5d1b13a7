"""Social pooling: every sensor listens to its K nearest neighbours, by attention with a learned soft radius.

    logit_ij = q_i . k_j / sqrt(D)  +  offset_bias(dx, dy)  +  log sigmoid(beta (r - d_ij));   nobody: logit 0, value 0

r and beta are trained per head.  The radius is added to the logits, not multiplied onto the weights: then the weights
of the neighbours and of *nobody* sum to 1, and a sensor whose neighbours are all far, or that has none, hears zeros.
"""

# Shape letters: B windows, N sensors, K neighbours, E width, H heads, D = E / H

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Up to this many sensors per neighbour, masked N x N products beat gathering K vectors per sensor: gathering moves
# 2 K E numbers per sensor through memory, and its backward scatters them.  On a CPU, E = 64, K = 32: 4.9 times as fast
# at N = 207, 1.6 times at 512, 0.6 times at 1000 (benchmarks/pooling_cpu.py).
DENSE_UP_TO = 16


class SocialPooling(nn.Module):
    """Attention of each sensor over its neighbours.

    width E, heads H with E % H == 0.  index int64 [N,K], exists bool [N,K] as ``geo.nearest`` gives them, offsets
    float [N,K,2] in km, east and north from the sensor to its neighbour.  radius_km is where the weight starts at one
    half.  Dead entries (exists False) never get weight.
    """

    index: Tensor
    exists: Tensor
    offsets: Tensor
    offset_unit: Tensor

    def __init__(
        self,
        width: int,
        heads: int,
        index: Tensor,
        exists: Tensor,
        offsets: Tensor,
        radius_km: float = 5.0,
        learnable_radius: bool = True,
        use_positional: bool = True,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} is not a multiple of {heads} heads")
        if index.shape != exists.shape or offsets.shape != (*index.shape, 2):
            raise ValueError(f"index {index.shape}, exists {exists.shape} and offsets {offsets.shape} do not match")
        self.heads = heads
        # The graph belongs to the network that is forecast, not to the weights: it is not in the state dict.
        self.register_buffer("index", index, persistent=False)
        self.register_buffer("exists", exists, persistent=False)
        self.register_buffer("offsets", torch.where(exists[..., None], offsets, 0.0).float(), persistent=False)
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width, bias=False)  # nobody heard: exactly zero
        # Logarithms keep both positive.  beta starts at 1/km: weights fall from 0.73 to 0.27 within 1 km of the radius.
        self.log_radius = nn.Parameter(torch.full((heads,), math.log(radius_km)), requires_grad=learnable_radius)
        self.log_beta = nn.Parameter(torch.zeros(heads), requires_grad=learnable_radius)
        self.register_buffer("offset_unit", torch.tensor(float(radius_km)))
        self.offset_bias = None
        if use_positional:
            self.offset_bias = nn.Sequential(nn.Linear(2, 32), nn.GELU(), nn.Linear(32, heads))

    @property
    def radius_km(self) -> Tensor:
        """Where each head's weight is one half, [H]."""
        return self.log_radius.exp()

    def bias(self) -> Tensor:
        """What geometry adds to the logits, [H,N,K], -inf where there is no neighbour; fp32 whatever the autocast."""
        with torch.autocast(self.offsets.device.type, enabled=False):
            offsets = self.offsets.to(self.log_radius.dtype)
            distance = offsets.square().sum(-1).clamp(min=1e-12).sqrt()  # [N,K]; two sensors at one place: finite slope
            inside = self.log_beta.exp()[:, None, None] * (self.radius_km[:, None, None] - distance)
            bias = F.logsigmoid(inside)  # [H,N,K]
            if self.offset_bias is not None:
                bias = bias + self.offset_bias(offsets / self.offset_unit).permute(2, 0, 1)
            return bias.masked_fill(~self.exists, -math.inf)

    def forward(self, state: Tensor) -> Tensor:
        """What each sensor hears.  state [B,N,E] -> [B,N,E]; exactly 0 where nobody can be heard."""
        sensors, neighbours = self.index.shape
        attend = self.attend_dense if sensors <= DENSE_UP_TO * neighbours else self.attend_gathered
        query = self.query(state).unflatten(-1, (self.heads, -1))  # [B,N,H,D]
        query = query / math.sqrt(query.shape[-1])  # before the product: fp16 ends at 65,504
        key, value = self.key_value(state).unflatten(-1, (2, self.heads, -1)).unbind(2)  # [B,N,H,D] each
        return self.out(attend(query, key, value).flatten(-2))

    def attend_gathered(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The definition: gather K keys and values per sensor.  Scaled query, key, value [B,N,H,D] -> [B,N,H,D].

        O(B N K E) time and memory.
        """
        chosen = self.index.flatten()
        key = key.index_select(1, chosen).unflatten(1, self.index.shape)  # [B,N,K,H,D]
        value = value.index_select(1, chosen).unflatten(1, self.index.shape)
        logits = torch.einsum("bnhd,bnkhd->bnhk", query, key)
        weights = _softmax_with_nobody(logits + self.bias().transpose(0, 1))
        return torch.einsum("bnhk,bnkhd->bnhd", weights.to(value.dtype), value)

    def attend_dense(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The same by masked N x N products: O(B N^2 E) time, O(B H N^2) memory, and no gather."""
        query, key, value = (t.transpose(1, 2) for t in (query, key, value))  # [B,H,N,D]
        logits = query @ key.transpose(-2, -1)  # [B,H,N,N]
        weights = _softmax_with_nobody(logits + self._dense_bias())
        return (weights.to(value.dtype) @ value).transpose(1, 2)

    def _dense_bias(self) -> Tensor:
        """``bias`` at its neighbours' columns, -inf elsewhere, [H,N,N].

        A dead entry is routed to one more column that is cut off again: it must not overwrite a living one.
        """
        bias, sensors = self.bias(), self.index.shape[0]
        column = torch.where(self.exists, self.index, sensors).expand_as(bias)
        table = bias.new_full((self.heads, sensors, sensors + 1), -math.inf)
        return table.scatter(2, column, bias)[..., :sensors]


def _softmax_with_nobody(logits: Tensor) -> Tensor:
    """Softmax over the last axis beside one more logit of 0, which keeps the rest of the weight.

    The same as softmax over [nobody, neighbours] with nobody's column cut off; finite whatever is -inf.
    """
    nobody = logits.new_zeros(*logits.shape[:-1], 1)
    return torch.cat([nobody, logits], dim=-1).softmax(dim=-1)[..., 1:]


class SocialLayer(nn.Module):
    """Pre-norm pooling and feed-forward, each with a residual: one round of listening.  [B,N,E] -> [B,N,E]."""

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
