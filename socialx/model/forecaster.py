"""embed -> shared encoder -> social layers -> gated fusion -> direct head.  File units in, file units out.

Up to the first social layer sensor i depends on sensor i alone, and nothing but the tables of sensors grows with their
number.  The forecast starts from the latest valid reading: the head only learns the change.
"""

# Shape letters: B windows, T history steps, M = T / patch tokens, P horizon steps, N sensors, E width, F inputs,
# G targets

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from socialx.core.batch import Batch
from socialx.data.normaliser import Network, Normaliser
from socialx.model.plain import WindowMlp
from socialx.model.pooling import Social, SocialLayer, kept
from socialx.model.xlstm.encoder import CPU_CHUNK, SharedEncoder
from socialx.model.xlstm.exact import recomputed


class Tokens(nn.Module):
    """One token per window, sensor and patch of steps: their values and missing flags, plus who and when.

    Tables for time of day [slots,E] and day of week [7,E] of the last step, sensor [N,E] and token-and-sensor [N,M,E]
    are added; the two last are free of B, the two first of N.
    """

    def __init__(
        self,
        width: int,
        sensors: int,
        history: int,
        slots: int,
        inputs: int = 1,
        calendar: bool = True,
        identity: bool = True,
        patch: int = 1,
    ) -> None:
        """calendar: with the tables of time and day.  identity: with those of sensors."""
        super().__init__()
        self.patch = patch
        self.reading = nn.Linear(2 * inputs * patch, width)
        self.slot = _table(slots, width) if calendar else None
        self.weekday = _table(7, width) if calendar else None
        self.sensor = _table(sensors, 1, width) if identity else None
        self.adaptive = _table(sensors, history // patch, width) if identity else None
        self.keep: Tensor | None = None  # of which sensors a step uses the tables, bool [N]; None: of all

    def forward(
        self,
        normalised: Tensor,
        valid: Tensor,
        slot: Tensor,
        weekday: Tensor,
        more: Sequence[tuple[Tensor, nn.Linear]] = (),
    ) -> Tensor:
        """normalised (0 where missing), valid [B,T,N,F], slot and weekday [B,T] -> tokens [B,N,M,E].

        more: other numbers of each step [B,T,N,C], each with its projection [patch C -> E].
        """
        reading = torch.cat([normalised, (~valid).to(normalised.dtype)], dim=-1)  # [B,T,N,2F]
        parts = [(reading, self.reading), *more]
        folded = [part.unflatten(1, (-1, self.patch)).transpose(2, 3) for part, _ in parts]  # [B,M,N,patch,C]
        numbers = torch.cat(folded, dim=-1).flatten(3)  # [B,M,N,patch C], step after step
        # One product with few rows, stored in this order: the gradient of a transposed one takes ten times as long on a
        # CPU.  What all sensors or all windows share is summed before it meets the tokens.
        weights = [projection.weight.unflatten(1, (self.patch, -1)) for _, projection in parts]
        weight = torch.cat(weights, dim=2).flatten(1).t().contiguous()  # [patch C,E]
        shared = torch.stack([projection.bias for _, projection in parts]).sum(0)  # [E], with a calendar [B,1,M,E]
        for table, key in ((self.slot, slot), (self.weekday, weekday)):
            if table is not None:
                shared = shared + table[key[:, None, self.patch - 1 :: self.patch]]
        tokens = numbers.transpose(1, 2) @ weight + shared  # [B,N,M,E]
        own = [table for table in (self.sensor, self.adaptive) if table is not None]
        return tokens + kept(sum(own[1:], own[0]), self.keep, 2) if own else tokens


class Climatology(nn.Module):
    """What is usual at each time of the week, added to the tokens and to the state: the network learns what is not.

    targets: how many are forecast.  read: as in ``Network``.  patch: the steps of a token.
    """

    def __init__(self, width: int, horizon: int, targets: int, read: Sequence[int | None], patch: int = 1) -> None:
        super().__init__()
        self.read = tuple(read)
        self.token = nn.Linear(3 * targets * patch, width)
        self.state = nn.Linear((horizon + 3) * targets, width)

    @staticmethod
    def at(batch: Batch, normaliser: Normaliser) -> Tensor:
        """The usual readings of history and horizon in normalised units, [B,R,N,G]; 0 where nothing is known."""
        return ((batch.usual - normaliser.target_mean) / normaliser.target_std).nan_to_num(0.0)

    def of_tokens(self, usual: Tensor, trust: Tensor, normalised: Tensor, valid: Tensor) -> Tensor:
        """usual, trust [B,T,N,G], normalised and valid [B,T,N,F] -> numbers for the tokens, [B,T,N,3G]."""
        unusual = torch.zeros_like(usual)
        for target, place in enumerate(self.read):
            if place is not None:
                unusual[..., target] = (normalised[..., place] - usual[..., target]) * valid[..., place]
        return torch.cat([usual, unusual, trust], dim=-1)

    def of_state(self, usual: Tensor, trust: Tensor, history: int, carried: Tensor) -> Tensor:
        """What is usual ahead, and the latest reading, both against now, and the trust in it -> [B,N,E].

        usual, trust [B,R,N,G]; carried [B,N,G], normalised.  The trust is that of now and of the last step.
        """
        now = usual[:, history - 1]  # [B,N,G]
        ahead = (usual[:, history:] - now[:, None]).permute(0, 2, 1, 3).flatten(2)  # [B,N,P*G]
        trusted = trust[:, history - 1], trust[:, -1]
        return self.state(torch.cat([ahead, (carried - now).nan_to_num(0.0), *trusted], dim=-1))


def _table(*shape: int) -> nn.Parameter:
    """Small against the reading's projection, so that an untrained identity does not drown the value."""
    return nn.Parameter(torch.randn(*shape) * 0.1)


class Forecaster(nn.Module):
    """The shared social xLSTM.

    tokens and encoder of width E.  social: layers that act one after the other on the encoder's last step.
    sensor_heads: N sensors with a last layer each, added to the shared one and zero at first; 0: none.
    climatology: None: the model does not read it.  sensor_dropout: of which share of the sensors each step of training
    leaves out the weights of single sensors, so that the model can do without them.
    """

    def __init__(
        self,
        tokens: Tokens,
        encoder: SharedEncoder | WindowMlp,
        social: Sequence[SocialLayer],
        horizon: int,
        normaliser: Normaliser,
        sensor_heads: int = 0,
        climatology: Climatology | None = None,
        sensor_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        width = tokens.reading.out_features
        self.tokens, self.encoder, self.normaliser = tokens, encoder, normaliser
        self.climatology = climatology
        self.social = nn.ModuleList(social)
        self._drops = any(layer.dropout.p > 0 for layer in social)
        self.fusion = nn.Linear(2 * width, width) if social else None
        self.horizon, self.targets = horizon, len(normaliser.target_mean)
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, horizon * self.targets))
        self.sensor_heads = None
        if sensor_heads:
            self.sensor_heads = nn.Parameter(torch.zeros(sensor_heads, horizon * self.targets, width))
        self.sensor_dropout = sensor_dropout
        self._with_tables: tuple[Any, ...] = (tokens, *(layer.pooling.geometry for layer in social))

    def forward(self, batch: Batch) -> Tensor:
        """Batch -> forecast [B,P,N,G] in the file's units; a sensor that was never observed starts from the mean."""
        change = self.last_layer(self.states(batch))  # [B,N,P*G]
        change = change.unflatten(-1, (self.horizon, self.targets)).transpose(1, 2)  # [B,P,N,G]
        return self.normaliser.from_latest(batch, change)

    def states(self, batch: Batch) -> Tensor:
        """What is known of every sensor before the head, [B,N,E]."""
        self._leave_out(batch.last)
        history = batch.history.shape[1]
        slot, weekday = batch.slot[:, :history], batch.weekday[:, :history]
        normalised, ahead, more = self.normaliser.inputs(batch), None, []
        if self.climatology is not None:
            usual, trust = self.climatology.at(batch, self.normaliser), batch.trust  # [B,R,N,G]
            numbers = self.climatology.of_tokens(usual[:, :history], trust[:, :history], normalised, batch.valid)
            more.append((numbers, self.climatology.token))
            ahead = self.climatology.of_state(usual, trust, history, self.normaliser.carried(batch))
        tokens = self.tokens(normalised, batch.valid, slot, weekday, more)  # [B,N,M,E]
        own = self.encoder(tokens.flatten(0, 1)).unflatten(0, tokens.shape[:2])  # [B,N,E]
        own = own if ahead is None else own + ahead
        state = own
        again = self.training and getattr(self.encoder, "checkpointing", False)
        for layer in self.social:
            state = recomputed(layer, state, self._drops) if again else layer(state)
        if self.fusion is None:
            return state
        gate = self.fusion(torch.cat([own, state], dim=-1)).sigmoid()
        return gate * state + (1 - gate) * own

    def _leave_out(self, last: Tensor) -> None:
        """Draw of which sensors this step uses the tables; outside of training of all.  last [B,N,G]."""
        keep = None
        if self.training and self.sensor_dropout:
            keep = torch.rand(last.shape[1], device=last.device) >= self.sensor_dropout
        for part in self._with_tables:
            part.keep = keep

    def last_layer(self, state: Tensor) -> Tensor:
        """state [B,N,E] -> normalised change [B,N,P*G]."""
        hidden = self.head[:-1](state)
        change = self.head[-1](hidden)
        if self.sensor_heads is not None:
            heads = kept(self.sensor_heads, self.tokens.keep, 2)
            change = change + torch.einsum("bne,npe->bnp", hidden, heads)
        return change


class Coarser(nn.Module):
    """Reads T and forecasts P steps of a file with a model that reads k T and forecasts k P shorter ones."""

    def __init__(self, model: nn.Module, steps: int) -> None:
        """steps: k, how many of the model are one of the file."""
        super().__init__()
        self.model, self.steps = model, steps

    def forward(self, batch: Batch) -> Tensor:
        """Batch of the file's step -> forecast [B,P,N,G] in the file's units."""
        finer = {
            name: getattr(batch, name).repeat_interleave(self.steps, dim=1)
            for name in ("history", "valid", "slot", "weekday", "usual", "trust")
        }
        within = torch.arange(self.steps, device=batch.slot.device).repeat(batch.slot.shape[1])
        finer["slot"] = finer["slot"] * self.steps + within
        forecast = self.model(batch._replace(**finer))  # [B,k P,N,G]
        return forecast.unflatten(1, (-1, self.steps)).mean(2)


def social_forecaster(
    network: Network,
    social: Social | None = None,
    *,
    encoder: str = "xlstm",
    patch: int = 1,
    width: int = 64,
    mlp_width: int = 76,
    blocks: int = 2,
    slstm_at: Sequence[int] = (1,),
    heads: int = 4,
    dropout: float = 0.0,
    impl: str = "auto",
    chunk: int | None = None,
    checkpointing: bool = False,
    sensor_identity: bool = True,
    sensor_heads: bool = False,
    sensor_dropout: float = 0.0,
    zero_shot: bool = False,
    climatology: bool = False,
) -> Forecaster:
    """The shared social xLSTM for a network, with fresh weights; the arguments are the settings of these names.

    social: its social layers, None: it has none.  zero_shot: no weights of single sensors or times of the week.
    patch divides the history.  ValueError for sizes that cannot be built.  The order of the draws decides the weights
    of a seed.
    """
    tokens = Tokens(
        width,
        network.sensors,
        network.history,
        network.slots,
        inputs=len(network.inputs),
        calendar=not zero_shot,
        identity=sensor_identity and not zero_shot,
        patch=patch,
    )
    length = network.history // patch
    shared: SharedEncoder | WindowMlp
    if encoder == "mlp":
        shared = WindowMlp(width, length, mlp_width, dropout)
    else:
        cpu_chunk = CPU_CHUNK * patch  # as many steps
        shared = SharedEncoder(width, blocks, slstm_at, heads, length, dropout, impl, chunk, checkpointing, cpu_chunk)
    layers = social.make(width, dropout) if social else []
    usual = Climatology(width, network.horizon, len(network.targets), network.read, patch) if climatology else None
    heads_of_sensors = network.sensors if sensor_heads and not zero_shot else 0
    normaliser = network.normaliser()
    return Forecaster(tokens, shared, layers, network.horizon, normaliser, heads_of_sensors, usual, sensor_dropout)
