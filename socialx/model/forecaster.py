"""Forecaster: embedding -> shared encoder -> social layers -> gated fusion -> output layer.

Before the first social layer, sensor i depends on sensor i alone, and only the sensor embeddings grow with the network.
The forecast in file units starts from the last observation: the output layer learns the change.
"""

# Shape letters: B windows, T lookback steps, M = T / patch tokens, P horizon steps, N sensors, E width, F inputs,
# G targets

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from socialx.core.batch import Batch
from socialx.data.scaler import DataSpec, StandardScaler
from socialx.model.plain import WindowMlp
from socialx.model.pooling import Social, SocialLayer, mask_dropped_sensors
from socialx.model.xlstm.encoder import CPU_CHUNK, SharedEncoder
from socialx.model.xlstm.exact import recompute


class Tokens(nn.Module):
    """Token embedding: one token per window, sensor and patch, from values, missing flags, time and sensor.

    Embeddings for time of day [slots,E] and day of week [7,E] at the last step, sensor [N,E] and sensor-and-token
    [N,M,E] are added; the first two are shared by all sensors, the last two by all windows.
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
        """slots: per day. inputs: F. calendar, identity: add time, sensor embeddings. patch: steps per token."""
        super().__init__()
        self.patch = patch
        self.reading = nn.Linear(2 * inputs * patch, width)
        self.time_of_day = _table(slots, width) if calendar else None
        self.day_of_week = _table(7, width) if calendar else None
        self.sensor = _table(sensors, 1, width) if identity else None
        self.adaptive_embedding = _table(sensors, lookback // patch, width) if identity else None
        self.keep: Tensor | None = None  # sensors whose embeddings the step uses, bool [N]; None: all

    def forward(
        self,
        normalised: Tensor,
        valid: Tensor,
        time_of_day: Tensor,
        day_of_week: Tensor,
        more: Sequence[tuple[Tensor, nn.Linear]] = (),
    ) -> Tensor:
        """Embed normalised (0 where missing), valid [B,T,N,F] and time features [B,T] -> tokens [B,N,M,E].

        more: further numbers per step [B,T,N,C], each with a projection [patch C -> E].
        """
        reading = torch.cat([normalised, (~valid).to(normalised.dtype)], dim=-1)  # [B,T,N,2F]
        parts = [(reading, self.reading), *more]
        patches = [part.unflatten(1, (-1, self.patch)).transpose(2, 3) for part, _ in parts]  # [B,M,N,patch,C]
        numbers = torch.cat(patches, dim=-1).flatten(3)  # [B,M,N,patch C], step after step
        # A single product with few rows, in this storage order: a transposed weight's gradient takes ten times as long
        # on a CPU. Terms shared by all sensors or all windows are summed before they meet the tokens.
        weights = [projection.weight.unflatten(1, (self.patch, -1)) for _, projection in parts]
        weight = torch.cat(weights, dim=2).flatten(1).t().contiguous()  # [patch C,E]
        shared = torch.stack([projection.bias for _, projection in parts]).sum(0)  # [E], with a calendar [B,1,M,E]
        for table, key in ((self.time_of_day, time_of_day), (self.day_of_week, day_of_week)):
            if table is not None:
                shared = shared + table[key[:, None, self.patch - 1 :: self.patch]]
        tokens = numbers.transpose(1, 2) @ weight + shared  # [B,N,M,E]
        embeddings = [table for table in (self.sensor, self.adaptive_embedding) if table is not None]
        return tokens + mask_dropped_sensors(sum(embeddings[1:], embeddings[0]), self.keep, 2) if embeddings else tokens


class ClimatologyInputs(nn.Module):
    """Climatology inputs for tokens (``patch`` steps each) and state, so that the network learns deviations."""

    def __init__(self, width: int, horizon: int, targets: int, read: Sequence[int | None], patch: int = 1) -> None:
        super().__init__()
        self.read = tuple(read)
        self.token = nn.Linear(3 * targets * patch, width)
        self.state = nn.Linear((horizon + 3) * targets, width)

    @staticmethod
    def normalise(batch: Batch, scaler: StandardScaler) -> Tensor:
        """Return the climatology over lookback and horizon in normalised units, [B,R,N,G]; 0 without data."""
        return ((batch.climatology - scaler.target_mean) / scaler.target_std).nan_to_num(0.0)

    def token_inputs(self, climatology: Tensor, confidence: Tensor, normalised: Tensor, valid: Tensor) -> Tensor:
        """Join climatology, anomaly and confidence, [B,T,N,G] each, into token inputs [B,T,N,3G].

        The anomaly is the normalised lookback less the climatology, 0 where missing. normalised, valid [B,T,N,F].
        """
        anomaly = torch.zeros_like(climatology)
        for target, index in enumerate(self.read):
            if index is not None:
                anomaly[..., target] = (normalised[..., index] - climatology[..., target]) * valid[..., index]
        return torch.cat([climatology, anomaly, confidence], dim=-1)

    def state_input(self, climatology: Tensor, confidence: Tensor, lookback: int, last_observed: Tensor) -> Tensor:
        """Return the state input [B,N,E] from climatology ahead and last observation less the present, and confidence.

        The present is the climatology at the last lookback step. climatology, confidence [B,R,N,G]; last_observed
        [B,N,G], normalised. Confidence is taken at the origin and at the last step.
        """
        present = climatology[:, lookback - 1]  # [B,N,G]
        ahead = (climatology[:, lookback:] - present[:, None]).permute(0, 2, 1, 3).flatten(2)  # [B,N,P*G]
        trusted = confidence[:, lookback - 1], confidence[:, -1]
        return self.state(torch.cat([ahead, (last_observed - present).nan_to_num(0.0), *trusted], dim=-1))


def _table(*shape: int) -> nn.Parameter:
    """Return an embedding [*shape], small against the value projection, so that the value dominates before training."""
    return nn.Parameter(torch.randn(*shape) * 0.1)


class Forecaster(nn.Module):
    """Shared social forecaster.

    tokens, encoder: of width E. social: layers applied in turn to the encoder's last step. per_sensor_output: N for an
    added output layer per sensor, zero at first; 0 for the shared layer alone. climatology: ``None`` for a model that
    reads only observations. sensor_dropout: share of sensors whose own weights each training step drops, so that the
    model copes with new sensors.
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
        self.fusion = nn.Linear(2 * width, width) if social else None
        self.horizon, self.targets = horizon, len(scaler.target_mean)
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, horizon * self.targets))
        self.per_sensor_output = None
        if per_sensor_output:
            self.per_sensor_output = nn.Parameter(torch.zeros(per_sensor_output, horizon * self.targets, width))
        self.sensor_dropout = sensor_dropout
        self._with_tables: tuple[Any, ...] = (tokens, *(layer.pooling.geometry for layer in social))

    def forward(self, batch: Batch) -> Tensor:
        """Return the forecast [B,P,N,G] in file units; an unobserved sensor starts from the mean."""
        change = self.last_layer(self.states(batch))  # [B,N,P*G]
        change = change.unflatten(-1, (self.horizon, self.targets)).transpose(1, 2)  # [B,P,N,G]
        return self.scaler.add_change(batch, change)

    def states(self, batch: Batch) -> Tensor:
        """Return the sensor states before the output layer, [B,N,E]."""
        self._leave_out(batch.last)
        lookback = batch.inputs.shape[1]
        time_of_day, day_of_week = batch.time_of_day[:, :lookback], batch.day_of_week[:, :lookback]
        normalised, ahead, more = self.scaler.normalise_inputs(batch), None, []
        if self.climatology is not None:
            confidence = batch.climatology_confidence  # [B,R,N,G]
            climatology = self.climatology.normalise(batch, self.scaler)  # [B,R,N,G]
            numbers = self.climatology.token_inputs(
                climatology[:, :lookback], confidence[:, :lookback], normalised, batch.valid
            )
            more.append((numbers, self.climatology.token))
            ahead = self.climatology.state_input(climatology, confidence, lookback, self.scaler.scaled_last(batch))
        tokens = self.tokens(normalised, batch.valid, time_of_day, day_of_week, more)  # [B,N,M,E]
        encoded = self.encoder(tokens.flatten(0, 1)).unflatten(0, tokens.shape[:2])  # [B,N,E]
        encoded = encoded if ahead is None else encoded + ahead
        state = encoded
        again = self.training and getattr(self.encoder, "activation_checkpointing", False)
        for layer in self.social:
            state = recompute(layer, state) if again else layer(state)
        if self.fusion is None:
            return state
        gate = self.fusion(torch.cat([encoded, state], dim=-1)).sigmoid()
        return gate * state + (1 - gate) * encoded

    def _leave_out(self, last: Tensor) -> None:
        """Draw the sensors whose own weights a training step uses; last [B,N,G] gives N and the device."""
        keep = None
        if self.training and self.sensor_dropout:
            keep = torch.rand(last.shape[1], device=last.device) >= self.sensor_dropout
        for part in self._with_tables:
            part.keep = keep

    def last_layer(self, state: Tensor) -> Tensor:
        """Map state [B,N,E] to the normalised change [B,N,P*G]."""
        hidden = self.head[:-1](state)
        change = self.head[-1](hidden)
        if self.per_sensor_output is not None:
            heads = mask_dropped_sensors(self.per_sensor_output, self.tokens.keep, 2)
            change = change + torch.einsum("bne,npe->bnp", hidden, heads)
        return change


class CoarserStepAdapter(nn.Module):
    """Adapter from a file's P coarse steps to a model with k P finer steps."""

    def __init__(self, model: nn.Module, steps: int) -> None:
        """Wrap a model. steps: k, model steps per file step."""
        super().__init__()
        self.model, self.steps = model, steps

    def forward(self, batch: Batch) -> Tensor:
        """Return the forecast [B,P,N,G] in file units for a batch at the file's time step."""
        finer = {
            name: getattr(batch, name).repeat_interleave(self.steps, dim=1)
            for name in ("inputs", "valid", "time_of_day", "day_of_week", "climatology", "climatology_confidence")
        }
        within = torch.arange(self.steps, device=batch.time_of_day.device).repeat(batch.time_of_day.shape[1])
        finer["time_of_day"] = finer["time_of_day"] * self.steps + within
        forecast = self.model(batch._replace(**finer))  # [B,k P,N,G]
        return forecast.unflatten(1, (-1, self.steps)).mean(2)


def with_scaler(model: nn.Module, scaler: StandardScaler) -> nn.Module:
    """Return a copy of a model that shares all but the scaler; a model without a standard scaler as it is."""
    inner = model.model if isinstance(model, CoarserStepAdapter) else model
    if not isinstance(getattr(inner, "scaler", None), StandardScaler):
        return model
    other = copy.copy(inner)
    other._modules = {**inner._modules, "scaler": scaler}
    return CoarserStepAdapter(other, model.steps) if isinstance(model, CoarserStepAdapter) else other


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
    """Build the shared social forecaster with fresh weights; arguments are settings by the same names.

    social: social layers, ``None`` for encoder and output layer alone. zero_shot: leave out weights per sensor and per
    time. patch must divide the lookback. Raises ValueError for impossible sizes. Weights depend on the draw order.
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
    sensor_outputs = network.sensors if per_sensor_output and not zero_shot else 0
    scaler = network.scaler()
    return Forecaster(tokens, shared, layers, network.horizon, scaler, sensor_outputs, read, sensor_dropout)
