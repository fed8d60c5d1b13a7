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
from socialx.data.geo import self_neighbours
from socialx.data.scaler import DataSpec, StandardScaler
from socialx.model.plain import WindowMlp
from socialx.model.pooling import Geometry, SocialLayer, mask_dropped_sensors
from socialx.model.xlstm.encoder import SharedEncoder
from socialx.model.xlstm.exact import recompute
from socialx.settings.kinds import POOLINGS
from socialx.settings.schema import LAYERS, ModelSettings, PoolingSettings


class Tokens(nn.Module):
    """Token embedding: one token per window, sensor and patch, from values, missing flags, time and sensor.

    Embeddings for time of day [slots,E] and day of week [7,E] at the last step, sensor [N,E] and sensor-and-token
    [N,M,E] are added; the first two are shared by all sensors, the last two by all windows.
    """

    def __init__(self, network: DataSpec, model: ModelSettings) -> None:
        super().__init__()
        width, self.patch, sensors = model.width, model.patch, network.sensors
        identity = model.sensor_embedding and not model.zero_shot
        self.reading = nn.Linear(2 * len(network.inputs) * self.patch, width)
        self.time_of_day = None if model.zero_shot else _table(network.slots, width)
        self.day_of_week = None if model.zero_shot else _table(7, width)
        self.sensor = _table(sensors, 1, width) if identity else None
        self.adaptive_embedding = _table(sensors, network.lookback // self.patch, width) if identity else None
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

    def __init__(self, network: DataSpec, model: ModelSettings) -> None:
        super().__init__()
        self.read, targets = network.read, len(network.targets)
        self.token = nn.Linear(3 * targets * model.patch, model.width)
        self.state = nn.Linear((network.horizon + 3) * targets, model.width)

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
    """Shared social forecaster, with fresh weights by the settings sections ``model`` and ``pooling``.

    The social layers are applied in turn to the encoder's last step. ``per_sensor_output`` adds an output layer per
    sensor, zero at first. In training, ``sensor_dropout`` drops the own weights of that share of the sensors in each
    step, so that the model copes with new sensors. The patch must divide the lookback.
    """

    def __init__(self, network: DataSpec, model: ModelSettings, pooling: PoolingSettings) -> None:
        """Build the parts in this order, on which the drawn weights depend. Raises ValueError for impossible sizes."""
        super().__init__()
        width, length = model.width, network.lookback // model.patch
        self.horizon, self.targets, self.sensor_dropout = network.horizon, len(network.targets), model.sensor_dropout
        outputs = self.horizon * self.targets
        self.tokens = Tokens(network, model)
        self.encoder = WindowMlp(model, length) if model.encoder == "mlp" else SharedEncoder(model, length)
        self.scaler = network.scaler()
        social = _social_layers(network, model, pooling)
        self.climatology = ClimatologyInputs(network, model) if model.climatology else None
        self.social = nn.ModuleList(social)
        self.fusion = nn.Linear(2 * width, width) if social else None
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, outputs))
        self.per_sensor_output = None
        if model.per_sensor_output and not model.zero_shot:
            self.per_sensor_output = nn.Parameter(torch.zeros(network.sensors, outputs, width))
        self._with_tables: tuple[Any, ...] = (self.tokens, *(layer.pooling.geometry for layer in social))

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
            so_far = climatology[:, :lookback], confidence[:, :lookback]
            numbers = self.climatology.token_inputs(*so_far, normalised, batch.valid)
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


class MeanModel(nn.ModuleList):
    """Models of the same targets as one, which forecasts their mean."""

    def forward(self, batch: Batch) -> Tensor:
        """Return the mean forecast float32 [B,P,N,G] in file units."""
        return torch.stack([model(batch).float() for model in self]).mean(0)


def with_scaler(model: nn.Module, scaler: StandardScaler) -> nn.Module:
    """Return a copy of a model that shares all but the scaler; a model without a standard scaler as it is."""
    inner = model.model if isinstance(model, CoarserStepAdapter) else model
    if not isinstance(getattr(inner, "scaler", None), StandardScaler):
        return model
    other = copy.copy(inner)
    other._modules = {**inner._modules, "scaler": scaler}
    return CoarserStepAdapter(other, model.steps) if isinstance(model, CoarserStepAdapter) else other


def _social_layers(network: DataSpec, model: ModelSettings, pooling: PoolingSettings) -> list[SocialLayer]:
    """Build the social layers with fresh weights; none for pooling kind ``none``."""
    kind = POOLINGS[pooling.kind]
    if kind.path is None:
        return []
    near = self_neighbours(network.sensors) if pooling.kind == "self_only" else network.neighbours
    pool = kind.load()
    return [SocialLayer(model.width, pool(model.width, Geometry(near, pooling)), model.dropout) for _ in range(LAYERS)]
