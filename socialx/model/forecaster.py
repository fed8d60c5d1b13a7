"""embed -> shared encoder -> social layers -> gated fusion -> direct head.  File units in, file units out.

Up to the first social layer sensor i depends on sensor i alone, and nothing but the tables of sensors grows with their
number.  The forecast starts from the latest valid reading: the head only learns the change.
"""

# Shape letters: B windows, T lookback steps, M = T / patch tokens, P horizon steps, N sensors, E width, F inputs,
# G targets

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from socialx.core.batch import Batch
from socialx.data.scaler import DataSpec, StandardScaler
from socialx.model.plain import WindowMlp
from socialx.model.pooling import Social, SocialLayer, mask_dropped_sensors
from socialx.model.xlstm.encoder import CPU_CHUNK, SharedEncoder
from socialx.model.xlstm.exact import recompute_in_backward


class Tokens(nn.Module):
    """One token per window, sensor and patch of steps: their values and missing flags, plus who and when.

    Tables for time of day [slots,E] and day of week [7,E] of the last step, sensor [N,E] and token-and-sensor [N,M,E]
    are added; the two last are free of B, the two first of N.
    """

    def __init__(
        self,
        width: int,
        sensors: int,
        lookback: int,
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
        self.time_of_day = _table(slots, width) if calendar else None
        self.day_of_week = _table(7, width) if calendar else None
        self.sensor = _table(sensors, 1, width) if identity else None
        self.adaptive_embedding = _table(sensors, lookback // patch, width) if identity else None
        self.keep: Tensor | None = None  # of which sensors a step uses the tables, bool [N]; None: of all

    def forward(
        self,
        normalised: Tensor,
        valid: Tensor,
        time_of_day: Tensor,
        day_of_week: Tensor,
        more: Sequence[tuple[Tensor, nn.Linear]] = (),
    ) -> Tensor:
        """normalised (0 where missing), valid [B,T,N,F], slot and weekday [B,T] -> tokens [B,N,M,E].

        more: other numbers of each step [B,T,N,C], each with its projection [patch C -> E].
        """
        reading = torch.cat([normalised, (~valid).to(normalised.dtype)], dim=-1)  # [B,T,N,2F]
        parts = [(reading, self.reading), *more]
        fold_weights = [part.unflatten(1, (-1, self.patch)).transpose(2, 3) for part, _ in parts]  # [B,M,N,patch,C]
        numbers = torch.cat(fold_weights, dim=-1).flatten(3)  # [B,M,N,patch C], step after step
        # One product with few rows, stored in this order: the gradient of a transposed one takes ten times as long on a
        # CPU.  What all sensors or all windows share is summed before it meets the tokens.
        weights = [projection.weight.unflatten(1, (self.patch, -1)) for _, projection in parts]
        weight = torch.cat(weights, dim=2).flatten(1).t().contiguous()  # [patch C,E]
        shared = torch.stack([projection.bias for _, projection in parts]).sum(0)  # [E], with a calendar [B,1,M,E]
        for table, key in ((self.time_of_day, time_of_day), (self.day_of_week, day_of_week)):
            if table is not None:
                shared = shared + table[key[:, None, self.patch - 1 :: self.patch]]
        tokens = numbers.transpose(1, 2) @ weight + shared  # [B,N,M,E]
        own_ = [table for table in (self.sensor, self.adaptive_embedding) if table is not None]
        return tokens + mask_dropped_sensors(sum(own_[1:], own_[0]), self.keep, 2) if own_ else tokens


class ClimatologyInputs(nn.Module):
    """What is usual at each time of the week, added to the tokens and to the state: the network learns what is not.

    targets: how many are forecast.  read: as in ``DataSpec``.  patch: the steps of a token.
    """

    def __init__(self, width: int, horizon: int, targets: int, read: Sequence[int | None], patch: int = 1) -> None:
        super().__init__()
        self.read = tuple(read)
        self.token = nn.Linear(3 * targets * patch, width)
        self.state = nn.Linear((horizon + 3) * targets, width)

    @staticmethod
    def normalise(batch: Batch, scaler: StandardScaler) -> Tensor:
        """The usual readings of history and horizon in normalised units, [B,R,N,G]; 0 where nothing is known."""
        return ((batch.climatology - scaler.target_mean) / scaler.target_std).nan_to_num(0.0)

    def token_inputs(self, climatology: Tensor, confidence: Tensor, normalised: Tensor, valid: Tensor) -> Tensor:
        """usual, trust [B,T,N,G], normalised and valid [B,T,N,F] -> numbers for the tokens, [B,T,N,3G]."""
        anomaly = torch.zeros_like(climatology)
        for target, place in enumerate(self.read):
            if place is not None:
                anomaly[..., target] = (normalised[..., place] - climatology[..., target]) * valid[..., place]
        return torch.cat([climatology, anomaly, confidence], dim=-1)

    def state_input(self, climatology: Tensor, confidence: Tensor, lookback: int, last_observed: Tensor) -> Tensor:
        """What is usual ahead, and the latest reading, both against now, and the trust in it -> [B,N,E].

        usual, trust [B,R,N,G]; carried [B,N,G], normalised.  The trust is that of now and of the last step.
        """
        now = climatology[:, lookback - 1]  # [B,N,G]
        ahead = (climatology[:, lookback:] - now[:, None]).permute(0, 2, 1, 3).flatten(2)  # [B,N,P*G]
        trusted = confidence[:, lookback - 1], confidence[:, -1]
        return self.state(torch.cat([ahead, (last_observed - now).nan_to_num(0.0), *trusted], dim=-1))


def _table(*shape: int) -> nn.Parameter:
    """Small against the reading's projection, so that an untrained identity does not drown the value."""
    return nn.Parameter(torch.randn(*shape) * 0.1)


class Forecaster(nn.Module):
    """The shared social xLSTM.

    tokens and encoder of width E.  social: layers that act one after the other on the encoder's last step.
    per_sensor_output: N sensors with a last layer each, added to the shared one and zero at first; 0: none.
    climatology: None: the model does not read it.  sensor_dropout: of which share of the sensors each step of training
    leaves out the weights of single sensors, so that the model can do without them.
    """

    def __init__(
        self,
        tokens: Tokens,
        encoder: SharedEncoder | WindowMlp,
        social: Sequence[SocialLayer],
        horizon: int,
        scaler: StandardScaler,
        per_sensor_output: int = 0,
        climatology: ClimatologyInputs | None = None,
        sensor_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        width = tokens.reading.out_features
        self.tokens, self.encoder, self.scaler = tokens, encoder, scaler
        self.climatology = climatology
        self.social = nn.ModuleList(social)
        self._drops = any(layer.dropout.p > 0 for layer in social)
        self.fusion = nn.Linear(2 * width, width) if social else None
        self.horizon, self.targets = horizon, len(scaler.target_mean)
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, horizon * self.targets))
        self.per_sensor_output = None
        if per_sensor_output:
            self.per_sensor_output = nn.Parameter(torch.zeros(per_sensor_output, horizon * self.targets, width))
        self.sensor_dropout = sensor_dropout
        self._with_tables: tuple[Any, ...] = (tokens, *(layer.pooling.geometry for layer in social))

    def forward(self, batch: Batch) -> Tensor:
        """Batch -> forecast [B,P,N,G] in the file's units; a sensor that was never observed starts from the mean."""
        change = self.last_layer(self.states(batch))  # [B,N,P*G]
        change = change.unflatten(-1, (self.horizon, self.targets)).transpose(1, 2)  # [B,P,N,G]
        return self.scaler.add_change(batch, change)

    def states(self, batch: Batch) -> Tensor:
        """What is known of every sensor before the head, [B,N,E]."""
        self._leave_out(batch.last)
        lookback = batch.inputs.shape[1]
        time_of_day, day_of_week = batch.time_of_day[:, :lookback], batch.day_of_week[:, :lookback]
        normalised, ahead, more = self.scaler.normalise_inputs(batch), None, []
        if self.climatology is not None:
            climatology, confidence = (
                self.climatology.normalise(batch, self.scaler),
                batch.climatology_confidence,
            )  # [B,R,N,G]
            numbers = self.climatology.token_inputs(
                climatology[:, :lookback], confidence[:, :lookback], normalised, batch.valid
            )
            more.append((numbers, self.climatology.token))
            ahead = self.climatology.state_input(
                climatology, confidence, lookback, self.scaler.normalise_last_observed(batch)
            )
        tokens = self.tokens(normalised, batch.valid, time_of_day, day_of_week, more)  # [B,N,M,E]
        own_ = self.encoder(tokens.flatten(0, 1)).unflatten(0, tokens.shape[:2])  # [B,N,E]
        own_ = own_ if ahead is None else own_ + ahead
        state = own_
        again = self.training and getattr(self.encoder, "activation_checkpointing", False)
        for layer in self.social:
            state = recompute_in_backward(layer, state, self._drops) if again else layer(state)
        if self.fusion is None:
            return state
        gate = self.fusion(torch.cat([own_, state], dim=-1)).sigmoid()
        return gate * state + (1 - gate) * own_

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
        if self.per_sensor_output is not None:
            heads = mask_dropped_sensors(self.per_sensor_output, self.tokens.keep, 2)
            change = change + torch.einsum("bne,npe->bnp", hidden, heads)
        return change


class CoarserStepAdapter(nn.Module):
    """Reads T and forecasts P steps of a file with a model that reads k T and forecasts k P shorter ones."""

    def __init__(self, model: nn.Module, steps: int) -> None:
        """steps: k, how many of the model are one of the file."""
        super().__init__()
        self.model, self.steps = model, steps

    def forward(self, batch: Batch) -> Tensor:
        """Batch of the file's step -> forecast [B,P,N,G] in the file's units."""
        finer = {
            name: getattr(batch, name).repeat_interleave(self.steps, dim=1)
            for name in ("inputs", "valid", "time_of_day", "day_of_week", "climatology", "climatology_confidence")
        }
        within = torch.arange(self.steps, device=batch.time_of_day.device).repeat(batch.time_of_day.shape[1])
        finer["time_of_day"] = finer["time_of_day"] * self.steps + within
        forecast = self.model(batch._replace(**finer))  # [B,k P,N,G]
        return forecast.unflatten(1, (-1, self.steps)).mean(2)


def social_forecaster(
    network: DataSpec,
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
    backend: str = "auto",
    encoder_batch: int | None = None,
    activation_checkpointing: bool = False,
    sensor_embedding: bool = True,
    per_sensor_output: bool = False,
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
        network.lookback,
        network.slots,
        inputs=len(network.inputs),
        calendar=not zero_shot,
        identity=sensor_embedding and not zero_shot,
        patch=patch,
    )
    length = network.lookback // patch
    shared: SharedEncoder | WindowMlp
    if encoder == "mlp":
        shared = WindowMlp(width, length, mlp_width, dropout)
    else:
        cpu_chunk = CPU_CHUNK * patch  # as many steps
        shared = SharedEncoder(
            width, blocks, slstm_at, heads, length, dropout, backend, encoder_batch, activation_checkpointing, cpu_chunk
        )
    layers = social.make(width, dropout) if social else []
    read = ClimatologyInputs(width, network.horizon, len(network.targets), network.read, patch) if climatology else None
    heads_of_sensors = network.sensors if per_sensor_output and not zero_shot else 0
    scaler = network.scaler()
    return Forecaster(tokens, shared, layers, network.horizon, scaler, heads_of_sensors, read, sensor_dropout)
