"""Prediction intervals by split conformal prediction, from validation errors.

An interval at level l reaches from the forecast plus a low quantile of the signed errors (target - forecast) to the
forecast plus a high quantile; each leaves a share (1 - l) / 2 outside.  With n sorted errors, both have rank k =
floor((n + 1)(1 - l) / 2), counted from below and from above.  From above, k is the rank ceil((n + 1)(1 + l) / 2) in
Angelopoulos and Bates 2021, arXiv:2107.07511, section 2.2.  Ranks fall as the level rises, so a wider level contains
every narrower level.

Bounds are stored per level, sensor, horizon step and group.  The group is the forecast as a fraction of the free-flow
speed: errors in congestion are several times larger.  Level 0.99 needs 199 errors.  A sensor with fewer errors in a
group takes the bounds over all sensors in the group, or else over all groups.

An interval is smooth over the steps of a forecast: what is added at a step is the mean over up to five steps around it.

The stored levels are 0.50, 0.55, ... 0.95, 0.98 and 0.99.  A level in between gets the next wider stored level.
Levels 0 (the median error) to 0.40 complete the quantiles from 0.5 to 99.5 %, between which the distribution function
is linear: the probability that a target falls below a threshold.
"""

# Shape letters: W windows, B of a batch, P horizon steps, N sensors, G targets, L levels, K groups, M columns

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from socialx.core.batch import Batch, Target
from socialx.core.errors import Argument, Command, SettingsError, SocialxError
from socialx.core.notebook import ResultRepr
from socialx.core.precision import Precision
from socialx.data.climatology import PastDays
from socialx.dataset import Dataset
from socialx.files.store.quantities import NOT_NEGATIVE, ratio_of_units
from socialx.scoring.adaptation import Basis, Past, free_flow_speeds, join_by
from socialx.scoring.protocol import ScoringProtocol
from socialx.scoring.scoring_pass import run_metrics

SCHEMA, TABLES = "socialx.intervals/1", ("lower", "upper", "free_flow")  # in a file
NARROW = (0, 10, 20, 30, 40)  # percent, for probabilities alone
LEVELS = (*NARROW, *range(50, 100, 5), 98, 99)  # percent
LEAST_LEVEL = 0.5
SHARES = (0.5, 0.75, 0.92)  # of the free-flow speed: borders between groups
SMOOTH = 2  # steps before and after one, over which its bounds are averaged
LEAST = 199  # errors needed for level 0.99
SCORED_LEVELS = (0.5, 0.8, 0.9)
KEPT_BYTES = 256 << 20  # of errors; a larger split keeps every k-th window
ENTRY_BYTES = 5  # an error in float32 and its group
INTERVALS_KEPT = 40  # of different days


@dataclass(frozen=True, eq=False, repr=False)
class ConformalIntervals(ResultRepr):
    """The offsets from a forecast to the two ends of each prediction interval.

    lower, upper float32 [L,K,P,N+1,G] (levels, congestion groups, lead times, sensors, targets), in target units; the
    last sensor column is for uncalibrated sensors, and a level with too few errors is infinite. free_flow float32
    [N+1,G]: speeds that the groups are fractions of. weights: fingerprint of the model weights. protocol: for the
    calibration data. errors: how many validation errors.
    """

    sensors: tuple[str, ...]
    free_flow: Tensor
    lower: Tensor
    upper: Tensor
    weights: str
    protocol: ScoringProtocol
    errors: int

    def headline(self) -> str:
        """Return a line for display: the levels, and the counts of sensors and errors."""
        levels = f"levels {100 * LEAST_LEVEL:g} to {LEVELS[-1]:g}"
        return f"{levels} of {len(self.sensors)} sensors from {self.errors:,} errors of the validation split"

    def __post_init__(self) -> None:
        """Raise ValueError for tables with a wrong shape, type or order."""
        columns = len(self.sensors) + 1, len(self.protocol.targets)
        shape = len(self._levels), len(SHARES) + 1, self.protocol.horizon, *columns
        for name, expected in (("lower", shape), ("upper", shape), ("free_flow", columns)):
            table = getattr(self, name)
            if table.dtype != torch.float32 or tuple(table.shape) != expected:
                raise ValueError(f"{name} is {table.dtype} {tuple(table.shape)}, not float32 {expected}")
        nested = [(outer[1:] >= outer[:-1]).all() for outer in (-self.lower, self.upper)]  # False for NaN
        if not all(nested) or not (self.lower[0] <= self.upper[0]).all():
            raise ValueError("the levels must be nested")
        if not self.free_flow.isfinite().all():
            raise ValueError("the free-flow speeds must be finite")

    @property
    def as_sealed(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Tensors and texts by name, to be stored in a file; ``from_sealed`` restores the intervals."""
        described = {
            "schema": SCHEMA,
            "sensors": json.dumps(self.sensors),
            "protocol": json.dumps(asdict(self.protocol)),
            "weights": self.weights,
            "errors": str(self.errors),
        }
        return {name: getattr(self, name) for name in TABLES}, described

    @classmethod
    def from_sealed(cls, tables: Mapping[str, Tensor], described: Mapping[str, str]) -> ConformalIntervals:
        """Restore intervals from ``as_sealed``.  Raises ValueError, KeyError or TypeError for any other content."""
        if described["schema"] != SCHEMA or set(tables) != set(TABLES):
            raise ValueError(f"the schema must be {SCHEMA}, with the tables {', '.join(TABLES)}")
        return cls(
            sensors=tuple(map(str, json.loads(described["sensors"]))),
            protocol=ScoringProtocol.from_dict(json.loads(described["protocol"])),
            weights=described["weights"],
            errors=int(described["errors"]),
            **tables,
        )

    @property
    def _levels(self) -> tuple[int, ...]:
        """The stored levels in percent: a file of an earlier version lacks ``NARROW``."""
        return LEVELS if self.lower.shape[:1] == (len(LEVELS),) else LEVELS[len(NARROW) :]

    @cached_property
    def _finite(self) -> tuple[int, ...]:
        """The levels with finite bounds, in percent."""
        finite = (self.lower.isfinite() & self.upper.isfinite()).flatten(1).all(1)
        return tuple(percent for percent, ok in zip(self._levels, finite.tolist(), strict=True) if ok)

    def check_quantiles(self) -> None:
        """Raise SocialxError for a file from an earlier version, which lacks quantiles inside the middle half."""
        if self._levels != LEVELS:
            lacks = f"the intervals of this run are too old for {Argument('below')}"
            raise SocialxError("below.older", "", lacks, f"calibrate again: {Command('calibrate', 'RUN')}")

    @property
    def widest_level(self) -> float:
        """The highest level with finite bounds, or 0."""
        return max(self._finite, default=0) / 100

    def level_index(self, level: float) -> int:
        """Return the index of the narrowest stored level >= level.

        Raises SettingsError for a level below 0.5 or above ``widest_level``.
        """
        least, most, level = LEAST_LEVEL, self.widest_level, level if isinstance(level, int | float) else np.nan
        if not least <= level <= most:
            problem = f"the levels of {Argument('interval')} go from {least:g} to {most:g}"
            problem = problem if most >= least else f"{self.errors} errors are too few for {Argument('interval')}"
            remedy = "calibrate with a longer file" if most < level <= LEVELS[-1] / 100 else Argument("interval", 0.9)
            raise SettingsError("intervals.level", "", problem, remedy)
        return next(i for i, percent in enumerate(self._levels) if percent >= 100 * level - 1e-6)

    def apply(self, forecast: Tensor, level: float, origin: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return lower and upper ends [B,P,N,G] for a forecast [B,P,N,G] (P lead times, G targets) in file units.

        level: share of observations to cover, such as 0.9. origin: as in ``DailyIntervals``, without effect here.
        Ends for a nonnegative quantity are at least 0. Only the first call waits for the device.
        """
        index, forecast = self.level_index(level), forecast.float()
        groups = congestion_groups(forecast, self.free_flow[:-1])
        bounds = (table[index, :, :, :-1].gather(0, groups) for table in (self.lower, self.upper))
        ends = [forecast + mean_over_steps(part) for part in bounds]
        floor = [0.0 if name in NOT_NEGATIVE else -torch.inf for name in self.protocol.targets]
        low, high = (end.clamp(min=torch.tensor(floor, device=end.device)) for end in ends)
        return low, high

    def probability_below(self, forecast: Tensor, threshold: float, origin: Tensor | None = None) -> Tensor:
        """Return the probability float32 [B,P,N,G] that targets fall below a threshold, from a forecast [B,P,N,G].

        threshold: in file units, as the forecast. origin: as in ``apply``.  The distribution function is linear between
        the quantiles that ``apply`` returns for the finite levels, and constant beyond them.
        """
        self.check_quantiles()
        groups, count = congestion_groups(forecast.float(), self.free_flow[:-1]), len(self._finite)
        tables = (*self.lower[:count].flip(0), *self.upper[:count])
        ends = (forecast.float() + mean_over_steps(table[:, :, :-1].gather(0, groups)) for table in tables)
        signed = [*(-percent for percent in reversed(self._finite)), *self._finite]
        below = torch.full_like(forecast, (1 - self.widest_level) / 2, dtype=torch.float32)
        for (left, right), (low, high) in zip(pairwise(signed), pairwise(ends), strict=True):
            share = ((threshold - low) / (high - low)).clamp(0, 1)
            below += (right - left) / 200 * torch.where(low < high, share, (high < threshold).float())
        return below

    def rescale(self, ratios: Sequence[float]) -> ConformalIntervals:
        """Return the intervals for observations times ``ratios``, a factor per target, such as 1.6 from mph to km/h."""
        ratio = torch.tensor(ratios)
        return replace(self, free_flow=self.free_flow * ratio, lower=self.lower * ratio, upper=self.upper * ratio)

    def for_network(
        self, sensors: Sequence[str], free_flow: np.ndarray, paces: Sequence[float], protocol: ScoringProtocol
    ) -> ConformalIntervals:
        """Return the intervals for another network or a multiple of the time step.

        sensors: ids in the other network. free_flow float32 [N,G] (G targets): speeds of uncalibrated sensors, to group
        forecasts. paces: factor per target, the ratio of free-flow speeds. protocol: of the other network.
        """
        intervals = self.for_sensors(sensors, torch.device("cpu"), protocol.targets).rescale(paces)
        steps = self.protocol.horizon // protocol.horizon
        calibrated = torch.tensor([name in self.sensors for name in (*sensors, None)])[:, None]
        flow = torch.where(calibrated, intervals.free_flow, append_median(torch.from_numpy(free_flow)))
        lower, upper = (part[:, :, steps - 1 :: steps].contiguous() for part in (intervals.lower, intervals.upper))
        return replace(intervals, free_flow=flow, lower=lower, upper=upper, protocol=replace(protocol, period=None))

    def for_sensors(
        self, sensors: Sequence[str], device: torch.device, units: Mapping[str, str] | None = None
    ) -> ConformalIntervals:
        """Return the intervals for sensor ids, on a device; an uncalibrated sensor gets the bounds over all sensors.

        units: target -> unit in the data, where speeds may differ in unit from the calibration.
        """
        pairs = [(unit, (units or {}).get(name, unit)) for name, unit in self.protocol.targets.items()]
        columns_by_id, last = {name: column for column, name in enumerate(self.sensors)}, len(self.sensors)
        columns = torch.tensor([*(columns_by_id.get(name, last) for name in sensors), last])
        rescaled = self.rescale([ratio_of_units(*pair) for pair in pairs])
        tables = (rescaled.free_flow, rescaled.lower, rescaled.upper)
        free_flow, lower, upper = (table.index_select(-2, columns).to(device) for table in tables)
        return replace(self, sensors=tuple(sensors), free_flow=free_flow, lower=lower, upper=upper)


def check_threshold(below: float | None, targets: Sequence[str] | Mapping[str, str] = (), name: str = "below") -> None:
    """Raise SettingsError for a threshold that is infinite, NaN or at most 0, and for several targets."""
    if below is None:
        return
    if not (isinstance(below, int | float) and 0 < below < np.inf):
        wrong = f"{Argument(name, below)} must be a number above 0"
        raise SettingsError("below.threshold", "", wrong, f"use for example {Argument(name, 30)}")
    if len(targets) > 1:
        several = f"a threshold needs a run with a single target, and the run has {', '.join(targets)}"
        raise SettingsError("below.targets", "", several, "name a run with a single target")


def mean_over_steps(bounds: Tensor) -> Tensor:
    """Return bounds [B,P,N,G] averaged over P lead times: up to two steps on either side, the same number on both."""
    steps = torch.arange(bounds.shape[1], device=bounds.device)
    reach = torch.minimum(steps, steps.flip(0)).clamp(max=SMOOTH)
    near = ((steps - steps[:, None]).abs() <= reach[:, None]).to(bounds.dtype)
    return torch.einsum("pq,bqng->bpng", near / near.sum(dim=1, keepdim=True), bounds)


def congestion_groups(forecast: Tensor, free_flow: Tensor) -> Tensor:
    """Return each forecast's group int64 [B,P,N,G]: how many of 0.5, 0.75, 0.92 of the free_flow [N,G] are reached."""
    return torch.stack([forecast >= share * free_flow for share in SHARES]).sum(0)


def append_median(free_flow: Tensor) -> Tensor:
    """Return free-flow speeds [N+1,G]: the speeds [N,G], and the median over sensors for uncalibrated sensors."""
    return torch.cat([free_flow, free_flow.median(dim=0, keepdim=True).values])


class SignedErrors:
    """Target - forecast for the kept windows (every k-th of a large split), in host memory, and each forecast's group.

    errors float32, groups uint8 [W,P,N,G] (windows, steps, sensors, targets); NaN for a missing value. The validation
    split takes 43 MB for METR-LA, 102 MB for PEMS-BAY, and any split at most 268 MB.
    """

    def __init__(self, free_flow: Tensor, windows: int, horizon: int) -> None:
        """Allocate the errors.  free_flow float32 [N,G] on the device; windows: number of windows in the split."""
        self.free_flow = free_flow
        self.every = -(-windows * horizon * free_flow.numel() * ENTRY_BYTES // KEPT_BYTES)
        self.errors = np.full((-(-windows // self.every), horizon, *free_flow.shape), np.nan, np.float32)
        self.groups = np.zeros(self.errors.shape, np.uint8)
        self.seen = self.kept = 0

    def update(self, forecast: Tensor, batch: object, target: Target) -> None:
        """Add errors of the next forecast [B,P,N,G] (P steps, G targets).  Raises SocialxError for infinity or NaN."""
        first, most = -self.seen % self.every, len(self.errors) - self.kept  # the rest is padding
        forecast, observed, valid = (
            table[first :: self.every][:most] for table in (forecast.float(), target.values, target.valid)
        )
        if not forecast.isfinite().all():
            problem = "the weights overflow: a forecast of the calibration is not finite"
            raise SocialxError("score.overflow", "", problem, "train again")
        rows = slice(self.kept, self.kept + len(forecast))
        self.errors[rows] = torch.where(valid, observed - forecast, torch.nan).cpu().numpy()
        self.groups[rows] = congestion_groups(forecast, self.free_flow).cpu().numpy()
        self.seen, self.kept = self.seen + len(target.values), rows.stop

    def compute(self) -> tuple[np.ndarray, int]:
        """Return lower, upper bounds [2,L,K,P,N+1,G] by level, group, step, sensor, target, and number of errors."""
        _, steps, sensors, targets = self.errors.shape
        bounds = np.empty((2, len(LEVELS), len(SHARES) + 1, steps, sensors + 1, targets), np.float32)
        for step, target in np.ndindex(steps, targets):
            here = (slice(None), step, slice(None), target)
            bounds[..., step, :, target] = bounds_by_group(self.errors[here], self.groups[here])
        return bounds, int(np.isfinite(self.errors).sum())


def bounds_by_group(errors: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return bounds [2,L,K,N+1] (levels, groups; last: all sensors) from errors, NaN if missing, and groups [W,N]."""
    columns = []
    all_bounds, _ = bounds(errors.reshape(-1, 1))
    for group in range(len(SHARES) + 1):
        group_errors = np.where(groups == group, errors, np.float32(np.nan))
        group_bounds, count = bounds(group_errors.reshape(-1, 1))
        group_bounds = np.where(count >= LEAST, group_bounds, all_bounds)  # [2,L,1]
        sensor_bounds, count = bounds(group_errors)
        columns.append(np.concatenate([np.where(count >= LEAST, sensor_bounds, group_bounds), group_bounds], axis=-1))
    return np.stack(columns, axis=2)


def bounds(errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return lower and upper quantiles [2,L,M] per column of errors [W,M], NaN left out, and the counts [M].

    L: levels in ``LEVELS``. Bounds are infinite for a level with too few errors.
    """
    errors = np.sort(errors, axis=0)  # NaN last
    count = np.isfinite(errors).sum(axis=0)
    rank = (count + 1) * (100 - np.array(LEVELS)[:, None]) // 200  # [L,M], from below and from above
    indices = np.stack([rank - 1, count - rank]).clip(min=0, max=len(errors) - 1)
    quantiles = np.take_along_axis(errors[None], indices, axis=1)
    infinite = np.array([-np.inf, np.inf], np.float32).reshape(2, 1, 1)
    return np.where(rank > 0, quantiles, infinite), count


def fit_intervals(
    model: nn.Module,
    data: Dataset,
    batch_size: int,
    precision: Precision,
    protocol: ScoringProtocol,
    weights: str,
    days: PastDays | None = None,
) -> ConformalIntervals:
    """Return the intervals for a model on the device, from a single pass over the validation split.

    protocol, weights: stored with the intervals. days: behind the climatology, None for all days.
    """
    loader = data.loader("validation", batch_size, days=days)
    flow = torch.from_numpy(free_flow_speeds(data))
    errors = SignedErrors(flow.to(precision.device), loader.num_windows, data.horizon)
    run_metrics(model, loader, precision, errors, name="calibrate")
    return _intervals_from(errors, data, protocol, weights)


class DailyIntervals:
    """Intervals measured in a file by a zero-shot run: for a local day from the mixed forecasts in the week before.

    guess: by basis, the run's stored intervals for this network, where the week has too few observations.
    """

    def __init__(
        self, past: Past, weights: str, guess: Callable[[Basis], ConformalIntervals], device: torch.device, first: int
    ) -> None:
        """weights: fingerprint of the model.  first: the first forecast origin, in seconds."""
        self.past, self.weights, self.guess, self.device = past, weights, guess, device
        self.sensors, self.protocol = past.data.sensors.ids, past.file
        self.first = past.bases([first])[0]

    @property
    def widest_level(self) -> float:
        """The highest level with finite bounds at the first origin, or 0."""
        return self.on(self.first).widest_level

    def measured(self, basis: Basis) -> ConformalIntervals | None:
        """Return the intervals from the week before a day; None below a day of rows, or too few errors."""
        return self.past.keep("measured", basis, INTERVALS_KEPT, partial(self._measure, basis))

    def on(self, basis: Basis) -> ConformalIntervals:
        """Return the intervals for forecasts with a basis."""
        intervals = self.measured(basis) or self.past.keep("guess", basis, INTERVALS_KEPT, partial(self.guess, basis))
        return intervals.for_sensors(self.sensors, self.device, self.protocol.targets)

    def apply(self, forecast: Tensor, level: float, origin: Tensor) -> tuple[Tensor, Tensor]:
        """Return lower and upper ends [B,P,N,G] for a forecast [B,P,N,G]; origin int64 [B]: its seconds."""
        ends = self._by_day(forecast, origin, lambda day, part: torch.stack(day.apply(part, level), dim=1))
        return ends[:, 0], ends[:, 1]

    def probability_below(self, forecast: Tensor, threshold: float, origin: Tensor) -> Tensor:
        """Return the probability [B,P,N,G] as ``ConformalIntervals`` does; origin int64 [B]: its seconds."""
        return self._by_day(forecast, origin, lambda day, part: day.probability_below(part, threshold))

    def _by_day(self, forecast: Tensor, origin: Tensor, compute: Callable[..., Tensor]) -> Tensor:
        """Return what is computed with the intervals of each day from its forecasts, in order along the first axis."""
        days, here = self.past.bases(origin.tolist()), forecast.to(self.device)
        if len({*days}) < 2:
            return compute(self.on(days[0] if days else self.first), here).to(forecast.device)
        joined = join_by(days, lambda basis, index: compute(self.on(basis), here[index.to(self.device)]))
        return joined.to(forecast.device)

    def _measure(self, basis: Basis) -> ConformalIntervals | None:
        if basis.day is None or (anchor := self.past.anchor(basis)) is None:
            return None
        week = [part for between in (False, True) for part in self.past.past_week(basis.day, between)]
        flow, leaning = torch.from_numpy(self.past.pace(basis).speeds), self.past.leaning(basis)
        errors = SignedErrors(flow, max(1, sum(len(part.last) for part in week)), self.protocol.horizon)
        for past in week:
            forecast, usual = past.anchored(anchor, self.protocol.step_minutes)
            mixed = forecast if leaning is None else leaning.apply(forecast, past.last, usual)
            errors.update(mixed, None, Target(past.truth, past.valid))
        enough = (np.isfinite(errors.errors).sum(axis=(0, 2)) >= LEAST).all()
        return _intervals_from(errors, self.past.data, self.protocol, self.weights) if enough else None


Intervals = ConformalIntervals | DailyIntervals


def _intervals_from(errors: SignedErrors, data: Dataset, protocol: ScoringProtocol, weights: str) -> ConformalIntervals:
    (lower, upper), count = errors.compute()
    flow = append_median(errors.free_flow.cpu())
    ends = torch.from_numpy(lower), torch.from_numpy(upper)
    return ConformalIntervals(data.sensors.ids, flow, *ends, weights, protocol, count)


@dataclass(frozen=True)
class Coverage:
    """The share of observations inside the intervals, the mean interval width, and the number of observations.

    minutes: lead time, None for all steps.  share and width are None for 0 observations.
    """

    level: float
    minutes: int | None
    share: float | None
    width: float | None
    count: int


class RunningCoverage:
    """Running sums of coverage and interval width, on the device."""

    def __init__(self, intervals: Intervals, device: torch.device) -> None:
        """Start at 0.  intervals: for these sensors, on the device; levels 0.5, 0.8 and 0.9 are scored if bounded."""
        self.intervals = intervals
        self.levels = [level for level in SCORED_LEVELS if level <= intervals.widest_level]
        sizes = len(self.levels), intervals.protocol.horizon, len(intervals.protocol.targets)
        self.sums = torch.zeros(3, *sizes, dtype=torch.float64, device=device)

    def update(self, forecast: Tensor, batch: Batch, target: Target) -> None:
        """Add coverage and interval width for the forecast [B,P,N,G] (P steps, G targets) of a batch."""
        for number, level in enumerate(self.levels):
            low, high = self.intervals.apply(forecast, level, batch.origin)
            inside = target.valid & (low <= target.values) & (target.values <= high)
            width = torch.where(target.valid, high - low, 0.0)
            sums = [values.sum(dim=(0, 2), dtype=torch.float64) for values in (inside, width, target.valid)]
            self.sums[:, number] += torch.stack(sums)

    def compute(self, step_minutes: int) -> list[tuple[Coverage, ...]]:
        """Return rows per target, each level at each step and over all steps; step_minutes: minutes between steps."""
        table = torch.cat([self.sums, self.sums.sum(dim=2, keepdim=True)], dim=2)  # [3,levels,P+1,G]
        steps = self.sums.shape[2]
        ahead = [*(step_minutes * (step + 1) for step in range(steps)), None]
        return [
            tuple(
                Coverage(level, minutes, inside / n if n else None, width / n if n else None, int(n))
                for level, rows in zip(self.levels, target_rows, strict=True)
                for minutes, (inside, width, n) in zip(ahead, rows, strict=True)
            )
            for target_rows in table.permute(3, 1, 2, 0).tolist()
        ]


@dataclass(frozen=True)
class BrierScore:
    """The mean of (probability below a threshold - outcome)^2: for the forecast (score), and the past frequency (past).

    outcome: 1 below the threshold, else 0. minutes: lead time, None for all steps. Without observations both are None.
    """

    below: float
    minutes: int | None
    score: float | None
    past: float | None
    count: int


class RunningBrier:
    """Running sums for the Brier scores of a run and the past frequency, on the device."""

    def __init__(self, intervals: Intervals, past: nn.Module, below: float, device: torch.device) -> None:
        """Start at 0.  intervals, past: for these sensors.  below: in file units; SettingsError if it is wrong."""
        check_threshold(below, intervals.protocol.targets)
        self.intervals, self.past, self.below = intervals, past, below
        self.sums = torch.zeros(3, intervals.protocol.horizon, dtype=torch.float64, device=device)

    def update(self, forecast: Tensor, batch: Batch, target: Target) -> None:
        """Add the squared errors of the probabilities for a batch, from its forecast [B,P,N,G]."""
        fell = (target.values < self.below).double()
        shares = self.intervals.probability_below(forecast, self.below, batch.origin), self.past(batch)
        errors = [torch.where(target.valid, (share - fell).square(), 0.0) for share in shares]
        self.sums += torch.stack([part.sum(dim=(0, 2, 3), dtype=torch.float64) for part in (*errors, target.valid)])

    def compute(self) -> tuple[BrierScore, ...]:
        """Return a row for each step, and over all steps."""
        table = torch.cat([self.sums, self.sums.sum(dim=1, keepdim=True)], dim=1)  # [3,P+1]
        minutes = self.intervals.protocol.step_minutes
        ahead = [*range(minutes, minutes * table.shape[1], minutes), None]
        return tuple(
            BrierScore(self.below, at, score / n if n else None, past / n if n else None, int(n))
            for at, score, past, n in zip(ahead, *table.tolist(), strict=True)
        )
