"""Prediction intervals by split conformal prediction, from the errors of the validation split.

An interval of level l reaches from the forecast plus a low quantile of the signed errors (truth - forecast) to the
forecast plus a high one, each of which leaves (1 - l) / 2 of the errors outside.  Of n errors in order these are the
ones of rank k from below and from above, with k the floor of (n + 1)(1 - l) / 2; from above that is the rank
ceil((n + 1)(1 + l) / 2) of Angelopoulos and Bates 2021, arXiv:2107.07511, section 2.2.  The ranks fall as the level
rises, so that a wider level contains every narrower one.

There is one pair of bounds per level, sensor, horizon step and group.  The group is the share of the sensor's free-flow
speed that is forecast: errors in congestion are several times larger.  With fewer than 199 errors in a group, which
the level 0.99 needs, a sensor has the bounds of all sensors in that group; where these are too few as well, those of
all groups.

An interval is smooth over the steps of a forecast: what is added at a step is the mean over up to five steps around it.

The stored levels are 0.50, 0.55, ... 0.95, 0.98 and 0.99.  A level between two of them gets the wider one.
"""

# Shape letters: W windows, B of a batch, P horizon steps, N sensors, G targets, L levels, K groups, M columns

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from socialx.core.batch import Batch, Target
from socialx.core.errors import Argument, SettingsError, SocialxError
from socialx.core.notebook import ResultRepr
from socialx.core.precision import Precision
from socialx.core.progress import work
from socialx.data.calendar import DAY_S
from socialx.dataset import Dataset
from socialx.files.store.quantities import NOT_NEGATIVE, ratio_of_units
from socialx.files.store.time_axis import JITTER_S
from socialx.scoring.free_flow import free_flow_of
from socialx.scoring.protocol import ScoringProtocol
from socialx.scoring.scoring_pass import run_metrics

SCHEMA, TABLES = "socialx.intervals/1", ("lower", "upper", "free_flow")  # of a file of them
LEVELS = (*range(50, 100, 5), 98, 99)  # percent
SHARES = (0.5, 0.75, 0.92)  # of the free-flow speed: where a group ends and the next one begins
SMOOTH = 2  # steps before and after one, over which its bounds are averaged
LEAST = 199  # errors: with fewer of them the level 0.99 has no bounds
SCORED_LEVELS = (0.5, 0.8, 0.9)
KEPT_BYTES = 256 << 20  # of errors; a part that has more keeps those of every second, third ... window
ENTRY_BYTES = 5  # an error in float32 and its group
PAST_DAYS, PAST_EVERY_S = 7, 1800  # of what is forecast of a file that a run was not trained on


@dataclass(frozen=True, eq=False, repr=False)
class ConformalIntervals(ResultRepr):
    """What is added to a forecast for the two ends of its interval.

    lower, upper float32 [L,K,P,N+1,G] in the unit of each target; the last column is for sensors that were not
    calibrated.  A level that has too few errors is infinite.  free_flow float32 [N+1,G].  weights: fingerprint of the
    model's weights.  protocol: of the data whose validation split was used.  errors: how many errors that are.
    """

    sensors: tuple[str, ...]
    free_flow: Tensor
    lower: Tensor
    upper: Tensor
    weights: str
    protocol: ScoringProtocol
    errors: int

    def headline(self) -> str:
        """Of how many sensors, errors and levels they are."""
        levels = f"levels {LEVELS[0]:g} to {LEVELS[-1]:g}"
        return f"{levels} of {len(self.sensors)} sensors from {self.errors:,} errors of the validation split"

    def __post_init__(self) -> None:
        """ValueError for tables that no calibration makes."""
        columns = len(self.sensors) + 1, len(self.protocol.targets)
        shape = len(LEVELS), len(SHARES) + 1, self.protocol.horizon, *columns
        for name, wanted in (("lower", shape), ("upper", shape), ("free_flow", columns)):
            found = getattr(self, name)
            if found.dtype != torch.float32 or tuple(found.shape) != wanted:
                raise ValueError(f"{name} is {found.dtype} {tuple(found.shape)}, not float32 {wanted}")
        nested = [(outer[1:] >= outer[:-1]).all() for outer in (-self.lower, self.upper)]  # NaN is not
        if not all(nested) or not (self.lower[0] <= self.upper[0]).all():
            raise ValueError("its levels are not nested")
        if not self.free_flow.isfinite().all():
            raise ValueError("a free-flow speed is not finite")

    @property
    def as_sealed(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Tables, and texts that describe them, of which ``from_sealed`` makes the same again."""
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
        """What ``as_sealed`` made of intervals.  Raises ValueError, KeyError or TypeError where nobody did."""
        if described["schema"] != SCHEMA or set(tables) != set(TABLES):
            raise ValueError("they are of another version")
        return cls(
            sensors=tuple(map(str, json.loads(described["sensors"]))),
            protocol=ScoringProtocol.from_dict(json.loads(described["protocol"])),
            weights=described["weights"],
            errors=int(described["errors"]),
            **tables,
        )

    @cached_property
    def widest(self) -> float:
        """The highest level that has bounds; 0 where none has."""
        finite = (self.lower.isfinite() & self.upper.isfinite()).flatten(1).all(1)
        return max((percent / 100 for percent, there in zip(LEVELS, finite.tolist(), strict=True) if there), default=0)

    def place(self, level: float) -> int:
        """The place in ``LEVELS`` of the narrowest stored level that is not below this one.

        Raises SettingsError for a level below 0.5, or above the widest one that the errors suffice for.
        """
        least, most = LEVELS[0] / 100, self.widest
        if not least <= level <= most:
            found = f"the levels go from {least:g} to {most:g}" if most else f"{self.errors} errors give no interval"
            remedy = "calibrate with a longer file" if most < level <= LEVELS[-1] / 100 else "for example 0.9"
            raise SettingsError(Argument("interval", level), found, remedy)
        return next(i for i, percent in enumerate(LEVELS) if percent >= 100 * level - 1e-6)

    def around(self, forecast: Tensor, level: float) -> tuple[Tensor, Tensor]:
        """Lower and upper end [B,P,N,G] of the intervals of a forecast [B,P,N,G] in file units.

        A quantity that cannot be below 0 has no end below 0.  The device is not waited for, except by the first call.
        """
        place, forecast = self.place(level), forecast.float()
        groups = groups_of(forecast, self.free_flow[:-1])
        bounds = (table[place, :, :, :-1].gather(0, groups) for table in (self.lower, self.upper))
        ends = [forecast + mean_over_steps(part) for part in bounds]
        floor = [0.0 if name in NOT_NEGATIVE else -torch.inf for name in self.protocol.targets]
        low, high = (end.clamp(min=torch.tensor(floor, device=end.device)) for end in ends)
        return low, high

    def times(self, ratios: Sequence[float]) -> ConformalIntervals:
        """The same for readings that are so many times larger; a ratio for each target."""
        ratio = torch.tensor(ratios)
        return replace(self, free_flow=self.free_flow * ratio, lower=self.lower * ratio, upper=self.upper * ratio)

    def elsewhere(
        self, sensors: Sequence[str], free_flow: np.ndarray, paces: Sequence[float], now: ScoringProtocol
    ) -> ConformalIntervals:
        """The same for another network or a longer step, with groups of new sensors by their free flow there.

        free_flow float32 [N,G], paces of the targets and protocol: of that network, whose step may be a multiple.
        """
        found, steps = self.of(sensors, torch.device("cpu"), now.targets), self.protocol.horizon // now.horizon
        found = found.times(paces)
        known = torch.tensor([name in self.sensors for name in (*sensors, None)])[:, None]
        flow = torch.where(known, found.free_flow, with_median(torch.from_numpy(free_flow)))
        lower, upper = (part[:, :, steps - 1 :: steps].contiguous() for part in (found.lower, found.upper))
        return replace(found, free_flow=flow, lower=lower, upper=upper, protocol=replace(now, period=None))

    def of(
        self, sensors: Sequence[str], device: torch.device, units: Mapping[str, str] | None = None
    ) -> ConformalIntervals:
        """The same for these sensors, by id, on a device; one that was not calibrated has the bounds of all sensors.

        units: of the targets in the data, where speeds may have another one than in the calibration.
        """
        pairs = [(unit, (units or {}).get(name, unit)) for name, unit in self.protocol.targets.items()]
        known, of_all = {name: place for place, name in enumerate(self.sensors)}, len(self.sensors)
        columns = torch.tensor([*(known.get(name, of_all) for name in sensors), of_all])
        whole = self.times([ratio_of_units(*pair) for pair in pairs])
        tables = (whole.free_flow, whole.lower, whole.upper)
        free_flow, lower, upper = (table.index_select(-2, columns).to(device) for table in tables)
        return replace(self, sensors=tuple(sensors), free_flow=free_flow, lower=lower, upper=upper)


def mean_over_steps(bounds: Tensor) -> Tensor:
    """Return bounds [B,P,N,G] as means over as many steps before as after each, so that the first and the last stay."""
    steps = torch.arange(bounds.shape[1], device=bounds.device)
    reach = torch.minimum(steps, steps.flip(0)).clamp(max=SMOOTH)
    near = ((steps - steps[:, None]).abs() <= reach[:, None]).to(bounds.dtype)
    return torch.einsum("pq,bqng->bpng", near / near.sum(dim=1, keepdim=True), bounds)


def groups_of(forecast: Tensor, free_flow: Tensor) -> Tensor:
    """forecast [B,P,N,G] and free-flow speed [N,G] -> int64 [B,P,N,G]: how many of ``SHARES`` the forecast reaches."""
    return torch.stack([forecast >= share * free_flow for share in SHARES]).sum(0)


def with_median(free_flow: Tensor) -> Tensor:
    """free flow [N,G] -> [N+1,G]: the median of the sensors comes behind them."""
    return torch.cat([free_flow, free_flow.median(dim=0, keepdim=True).values])


class SignedErrors:
    """Truth - forecast of every window that is kept, in the host's memory, and the group of each forecast.

    errors float32, groups uint8 [W,P,N,G]; NaN where there is no reading.  METR-LA's validation split takes 43 MB,
    PEMS-BAY's 102 MB, and no part more than 268 MB.
    """

    def __init__(self, free_flow: Tensor, windows: int, horizon: int) -> None:
        """free_flow float32 [N,G] on the device; windows: of the part."""
        self.free_flow = free_flow
        self.every = -(-windows * horizon * free_flow.numel() * ENTRY_BYTES // KEPT_BYTES)
        self.errors = np.full((-(-windows // self.every), horizon, *free_flow.shape), np.nan, np.float32)
        self.groups = np.zeros(self.errors.shape, np.uint8)
        self.seen = self.kept = 0

    def update(self, forecast: Tensor, batch: Batch, target: Target) -> None:
        """forecast [B,P,N,G] of the next batch.  Raises SocialxError where a forecast is not finite."""
        first, most = -self.seen % self.every, len(self.errors) - self.kept  # what is more pads the last batch
        forecast, values, valid = (
            each[first :: self.every][:most] for each in (forecast.float(), target.values, target.valid)
        )
        if not forecast.isfinite().all():
            raise SocialxError("calibration", "the weights overflow: a forecast is not a finite number", "train again")
        rows = slice(self.kept, self.kept + len(forecast))
        self.errors[rows] = torch.where(valid, values - forecast, torch.nan).cpu().numpy()
        self.groups[rows] = groups_of(forecast, self.free_flow).cpu().numpy()
        self.seen, self.kept = self.seen + len(target.values), rows.stop

    def compute(self) -> tuple[np.ndarray, int]:
        """Bounds float32 [2,L,K,P,N+1,G], lower and upper ones, and how many errors they are of."""
        _, steps, sensors, targets = self.errors.shape
        found = np.empty((2, len(LEVELS), len(SHARES) + 1, steps, sensors + 1, targets), np.float32)
        for step, target in np.ndindex(steps, targets):
            here = (slice(None), step, slice(None), target)
            found[..., step, :, target] = bounds_by_group(self.errors[here], self.groups[here])
        return found, int(np.isfinite(self.errors).sum())


def bounds_by_group(errors: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Signed errors [W,N], NaN where there is none, and their groups [W,N] -> bounds [2,L,K,N+1]; the last: of all."""
    columns = []
    everything, _ = bounds(errors.reshape(-1, 1))
    for group in range(len(SHARES) + 1):
        of_group = np.where(groups == group, errors, np.float32(np.nan))
        together, count = bounds(of_group.reshape(-1, 1))
        together = np.where(count >= LEAST, together, everything)  # [2,L,1]
        own, count = bounds(of_group)
        columns.append(np.concatenate([np.where(count >= LEAST, own, together), together], axis=-1))
    return np.stack(columns, axis=2)


def bounds(errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper quantiles [2,L,M] of each column of errors [W,M], NaN where there is none, and the counts [M].

    They are infinite where there are too few errors for a level.
    """
    errors = np.sort(errors, axis=0)  # NaN goes to the end
    count = np.isfinite(errors).sum(axis=0)
    rank = (count + 1) * (100 - np.array(LEVELS)[:, None]) // 200  # [L,M], from below and from above
    places = np.stack([rank - 1, count - rank]).clip(min=0, max=len(errors) - 1)
    found = np.take_along_axis(errors[None], places, axis=1)
    none = np.array([-np.inf, np.inf], np.float32).reshape(2, 1, 1)
    return np.where(rank > 0, found, none), count


def calibrated(
    model: nn.Module,
    data: Dataset,
    batch_size: int,
    precision: Precision,
    protocol: ScoringProtocol,
    weights: str,
    days: tuple[int, ...] | None = None,
) -> ConformalIntervals:
    """The intervals of a model, which is on the device, from one pass over the validation split of the data.

    days: how many before the day of issue are known; None: all.
    """
    loader = data.loader("validation", batch_size, days=days)
    flow = torch.from_numpy(free_flow_of(data))
    errors = SignedErrors(flow.to(precision.device), loader.num_windows, data.horizon)
    run_metrics(model, loader, precision, errors, name="calibrate")
    return _intervals_from(errors, data, protocol, weights)


def calibrated_before(
    issued: int,
    model: nn.Module,
    data: Dataset,
    batch_size: int,
    precision: Precision,
    protocol: ScoringProtocol,
    weights: str,
) -> ConformalIntervals | None:
    """The intervals of a model that was not trained on the data, from its forecasts of the last week before a second.

    One forecast is issued every half hour, and every horizon ends until then.  None where the data begin less than a
    day before, or where there are too few errors.
    """
    step_s, begin = 60 * data.store.step_minutes, int(data.store.seconds.min())
    if issued - begin < DAY_S:
        return None
    first, last = max(begin + (data.lookback - 1) * step_s, issued - PAST_DAYS * DAY_S), issued - data.horizon * step_s
    context = data.context(JITTER_S)
    times = np.arange(last, first - 1, -PAST_EVERY_S)[::-1]
    times = times[context.rows_at(times) >= 0]
    flow = free_flow_of(data, slice(0, data.rows_until(issued)))
    errors = SignedErrors(torch.from_numpy(flow).to(precision.device), len(times), data.horizon)
    model.eval()
    with work("calibrate", len(times), "forecasts") as bar:
        for places, batch in context.batches(times, batch_size):
            rows = context.rows_at(times[places, None] + step_s * np.arange(1, data.horizon + 1))
            truth = (torch.from_numpy(part[..., list(context.targets)]) for part in context.read(rows))
            forecast = torch.from_numpy(precision.infer(model, batch)).to(precision.device)
            errors.update(forecast, batch, Target(*truth).to(precision.device))
            bar.advance(len(batch.last))
    enough = (np.isfinite(errors.errors).sum(axis=(0, 2)) >= LEAST).all()
    return _intervals_from(errors, data, protocol, weights) if enough else None


def _intervals_from(errors: SignedErrors, data: Dataset, protocol: ScoringProtocol, weights: str) -> ConformalIntervals:
    (lower, upper), count = errors.compute()
    flow = with_median(errors.free_flow.cpu())
    return ConformalIntervals(
        data.sensors.ids, flow, torch.from_numpy(lower), torch.from_numpy(upper), weights, protocol, count
    )


@dataclass(frozen=True)
class Coverage:
    """Of the readings that were forecast: the share inside the interval, its mean width, and how many they are.

    minutes: how far ahead; None: all steps.  Numbers that do not exist are None.
    """

    level: float
    minutes: int | None
    share: float | None
    width: float | None
    count: int


class RunningCoverage:
    """How often the truth is inside the intervals, and how wide they are, as running sums on the device."""

    def __init__(self, intervals: ConformalIntervals, device: torch.device) -> None:
        """intervals: of the sensors that are forecast, on the device.  Levels that it does not have are left out."""
        self.intervals = intervals
        self.levels = [level for level in SCORED_LEVELS if level <= intervals.widest]
        sizes = len(self.levels), intervals.protocol.horizon, len(intervals.protocol.targets)
        self.sums = torch.zeros(3, *sizes, dtype=torch.float64, device=device)

    def update(self, forecast: Tensor, batch: Batch, target: Target) -> None:
        """forecast [B,P,N,G] of a batch."""
        for number, level in enumerate(self.levels):
            low, high = self.intervals.around(forecast, level)
            inside = target.valid & (low <= target.values) & (target.values <= high)
            width = torch.where(target.valid, high - low, 0.0)
            sums = [each.sum(dim=(0, 2), dtype=torch.float64) for each in (inside, width, target.valid)]
            self.sums[:, number] += torch.stack(sums)

    def compute(self, step_minutes: int) -> list[tuple[Coverage, ...]]:
        """Of each target: a row per level and step, and per level one over all steps; one transfer from the device."""
        table = torch.cat([self.sums, self.sums.sum(dim=2, keepdim=True)], dim=2)  # [3,levels,P+1,G]
        steps = self.sums.shape[2]
        ahead = [*(step_minutes * (step + 1) for step in range(steps)), None]
        return [
            tuple(
                Coverage(level, minutes, inside / n if n else None, width / n if n else None, int(n))
                for level, rows in zip(self.levels, of_target, strict=True)
                for minutes, (inside, width, n) in zip(ahead, rows, strict=True)
            )
            for of_target in table.permute(3, 1, 2, 0).tolist()
        ]
