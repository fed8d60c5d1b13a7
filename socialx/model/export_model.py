"""Trained model as a graph over plain tensors, in file units."""

# Shape letters: B windows, T lookback steps, P horizon steps, N sensors, F inputs, G targets

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional as F

from socialx.core.batch import Batch
from socialx.data.calendar import DAY_S, KINDS_OF_DAY
from socialx.data.climatology import HALF_LIFE_DAYS, DailyStats, slots_in_reach, sum_nearby_slots, weighted_mean
from socialx.data.scaler import DataSpec

INPUTS, OUTPUT = ("inputs", "last_observed", "origin"), "forecast"


@dataclass(frozen=True)
class FileFacts:
    """What the steps around a forecast know about the file.

    missing: missing-value code per input, ``None`` if only non-finite numbers are missing. not_negative: per target,
    whether a forecast below 0 becomes 0. holidays: day since 1970 -> weekday. changes: for files in UTC, each time
    from which the local clock differs from before, and the difference in seconds; the first pair has the full offset.
    """

    step_minutes: int
    missing: Sequence[float | None]
    not_negative: Sequence[bool]
    holidays: Mapping[int, int] = field(default_factory=dict)
    changes: Sequence[tuple[int, int]] = ()


class ExportModel(nn.Module):
    """Model with the steps around a forecast: missing values, calendar, climatology and the bound at 0."""

    day_stats: Tensor | None
    mean: Tensor
    missing: Tensor
    holidays: Tensor
    changes: Tensor
    since_issue: Tensor
    places: Tensor
    not_negative: Tensor

    def __init__(
        self, model: nn.Module, network: DataSpec, file: FileFacts, day_stats: DailyStats | None = None
    ) -> None:
        """day_stats: climatology statistics on the last row's day; ``None`` if the model reads only observations."""
        super().__init__()
        self.model, self.network, self.step_s = model, network, 60 * file.step_minutes
        none = len(network.inputs)  # index of a NaN column after the inputs
        steps = torch.arange(1 - network.lookback, network.horizon + 1)
        stages = [day_stats, day_stats.decay_to(day_stats.end + 1)] if day_stats else []
        tables = [sum_nearby_slots(np.stack([stage.sums, stage.counts]).swapaxes(0, 2)) for stage in stages]
        self.register_buffer("day_stats", torch.from_numpy(np.stack(tables)) if tables else None)  # [2,slots,3,2,N,G]
        self.register_buffer("mean", torch.from_numpy(np.stack([stage.mean for stage in stages])) if stages else None)
        self.as_of = day_stats.end if day_stats else 0
        self.register_buffer("missing", torch.tensor([torch.nan if value is None else value for value in file.missing]))
        self.register_buffer("holidays", torch.tensor(list(file.holidays.items()), dtype=torch.int64).view(-1, 2))
        self.register_buffer("changes", torch.tensor(list(file.changes), dtype=torch.int64).view(-1, 2))
        self.register_buffer("since_issue", self.step_s * steps)
        self.register_buffer("places", torch.tensor([none if index is None else index for index in network.read]))
        self.register_buffer("not_negative", torch.tensor(list(file.not_negative)))

    def forward(self, inputs: Tensor, last_observed: Tensor, origin: Tensor) -> Tensor:
        """Return the forecast [B,P,N,G].

        inputs float32 [B,T,N,F]: observations, oldest row first; NaN, infinity or the missing-value code mark a missing
        observation. last_observed float32 [B,N,G]: last valid observation per target; where NaN, the last one in the
        lookback counts. origin int64 [B]: time of the last row as in the data file, in seconds since 1970, read as UTC.
        """
        forecast = self.model(self.make_batch(inputs, last_observed, origin))
        return torch.where((forecast < 0) & self.not_negative, 0.0, forecast)

    def batch(self, inputs: ArrayLike, origin: ArrayLike, last_observed: ArrayLike | None = None) -> Batch:
        """Return the batch for B windows that ``model`` takes, from arrays or tensors, on the model's device.

        inputs [B,T,N,F] and last_observed [B,N,G]: see ``forward``; by default last_observed comes from the lookback.
        origin [B]: time of the last row as in the data file, as datetime64, text or seconds since 1970. Raises
        ValueError for a wrong shape.
        """
        network, device = self.network, self.missing.device
        seconds = np.asarray(origin)
        if seconds.dtype.kind != "i":
            seconds = seconds.astype("datetime64[s]").astype(np.int64)
        readings = torch.tensor(np.asarray(inputs, np.float32), device=device)
        windows = (len(seconds), network.lookback, network.sensors, len(network.inputs))
        targets = (len(seconds), network.sensors, len(network.targets))
        latest = np.full(targets, np.nan) if last_observed is None else np.asarray(last_observed)
        for name, shape, wanted in (("inputs", readings.shape, windows), ("last_observed", latest.shape, targets)):
            if tuple(shape) != wanted:
                raise ValueError(f"{name} has the shape {tuple(shape)}, and the model takes {wanted}")
        times = torch.as_tensor(seconds, device=device)
        return self.make_batch(readings, torch.as_tensor(latest.astype(np.float32), device=device), times)

    def make_batch(self, inputs: Tensor, last_observed: Tensor, origin: Tensor) -> Batch:
        """Return the model's batch for the tensors of ``forward``: valid flags, calendar and climatology are added."""
        valid = inputs.isfinite() & (inputs != self.missing)
        clean = torch.where(valid, inputs, 0.0)
        rows = origin[:, None] + self.since_issue  # [B,R]
        seconds = self.local(rows)
        time_of_day, day = seconds % DAY_S // self.step_s, seconds // DAY_S
        day_of_week = (day + 3) % 7
        if len(self.holidays):  # ONNX runtimes differ on empty holidays
            holiday = (day[..., None] == self.holidays[:, 0]).long()  # [B,R,H]
            day_of_week = torch.where(holiday.sum(-1) > 0, (holiday * self.holidays[:, 1]).sum(-1), day_of_week)
        first_issue = self.local(rows - self.network.horizon * self.step_s) // DAY_S
        climatology, confidence = self.climatology(first_issue, time_of_day, day_of_week)
        return Batch(
            inputs=clean,
            valid=valid,
            last=torch.full_like(last_observed, torch.nan),  # unused by models
            last_observed=torch.where(last_observed.isnan(), self.latest(clean, valid), last_observed),
            time_of_day=time_of_day,
            day_of_week=day_of_week,
            climatology=climatology,
            climatology_confidence=confidence,
            origin=origin,
        )

    def local(self, seconds: Tensor) -> Tensor:
        """Convert file times in seconds to the local clock, by ``changes``; if empty, the file has local times."""
        if not len(self.changes):
            return seconds
        return seconds + ((seconds[..., None] >= self.changes[:, 0]).long() * self.changes[:, 1]).sum(-1)

    def climatology(self, day: Tensor, time_of_day: Tensor, day_of_week: Tensor) -> tuple[Tensor, Tensor]:
        """Return climatology and confidence [B,R,N,G] at rows [B,R]; day [B,R]: local day of a row's first origin."""
        if self.day_stats is None:
            nothing = self.missing.new_empty(*time_of_day.shape, self.network.sensors, 0)
            return nothing, nothing
        stage = (day > self.as_of).long()
        share = 0.5 ** ((day - self.as_of - stage).clamp(min=0) / HALF_LIFE_DAYS)
        tables = self.day_stats[stage, time_of_day] * share[..., None, None, None, None]  # [B,R,3,2,N,G]
        of_kind = (day_of_week - 4).clamp(min=0)[..., None] == torch.arange(KINDS_OF_DAY, device=time_of_day.device)
        same = torch.where(of_kind[..., None, None, None], tables, 0.0).sum(2)
        others, slots = (tables.sum(2) - same).unbind(2), slots_in_reach(self.network.slots)
        readings, confidence = weighted_mean(torch, same.unbind(2), others, self.mean[stage], slots)
        return readings, confidence / 255

    def latest(self, clean: Tensor, valid: Tensor) -> Tensor:
        """Return the last valid observation per target in the lookback, [B,N,G]; NaN if all are missing."""
        steps = torch.arange(1, clean.shape[1] + 1, device=clean.device)[:, None, None]
        newest = (valid * steps).amax(1)  # [B,N,F], 0: none
        reading = clean.gather(1, (newest - 1).clamp(min=0)[:, None])[:, 0]
        reading = torch.where(newest > 0, reading, torch.nan)
        return F.pad(reading, (0, 1), value=torch.nan).index_select(-1, self.places)

    def example(self, windows: int = 2) -> tuple[Tensor, Tensor, Tensor]:
        """Return zero inputs for ``forward`` with B = ``windows``, from which ``trace_model`` records the graph."""
        network = self.network
        inputs = torch.zeros(windows, network.lookback, network.sensors, len(network.inputs))
        last_observed = torch.zeros(windows, network.sensors, len(network.targets))
        return inputs, last_observed, torch.zeros(windows, dtype=torch.int64)


def trace_model(standalone: ExportModel) -> ExportedProgram:
    """Export the model as a graph for any number of windows, without local paths. Raises RuntimeError on failure."""
    batch = Dim("batch")
    with torch.no_grad():
        program = torch.export.export(
            standalone.eval(), standalone.example(), dynamic_shapes={name: {0: batch} for name in INPUTS}, strict=False
        )
    program.example_inputs = None  # would be saved as a pickle
    for module in program.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)
    return program
