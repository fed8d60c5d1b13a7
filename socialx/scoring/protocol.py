"""The protocol: everything that a score depends on.  Two scores may be compared where their protocols agree."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from socialx import __version__
from socialx.core.environment import commit
from socialx.core.errors import Argument, Command, SocialxError, fall_back, sample, shortened
from socialx.data.scaler import MeanStd
from socialx.dataset import Dataset
from socialx.files.sources.holidays import as_dates
from socialx.files.sources.positions.neighbours import distances_checksum
from socialx.files.store.time_axis import is_utc, same_clock

AVERAGING = "all valid entries of the whole part at that horizon"

SHOWN = 100  # letters of what differs
# What a score depends on, but what does not tell whether data are those of a training: ``compare_rest`` has no line.
NO_FACTS = (
    *("inputs", "targets", "step_minutes", "timezone", "local_zone", "distances", "holidays", "missing"),  # one by one
    *("seed", "precision", "socialx", "commit"),  # other weights, machines and versions are sound
    *("scaler", "free_flow", "period", "trained"),  # of the weights, and of the part that is read
)
OF_SPLITS = ("split_method", "windows", "windows_across_gaps", "windows_left_out")
OF_ZONE = ("first_time", "last_time")


@dataclass(frozen=True)
class Trained:
    """Where the weights of a scored model come from: their epoch, and the data and machine that trained them.

    epoch None: no epoch had ended, the weights are those of the last saved step.  weights: their fingerprint.  missing:
    feature -> the value that stood for no reading.  past_days: it reads the climatology of the days before the day of
    issue, beside the history.
    """

    epoch: int | None
    parameters: int
    weights: str
    checksum: str
    distances: str | None
    windows: dict[str, int]
    scaler: dict[str, MeanStd]
    seed: int
    precision: str
    socialx: str
    commit: str | None
    first_time: str | None = None
    last_time: str | None = None
    missing: dict[str, float | None] = field(default_factory=dict)
    past_days: bool = False


@dataclass(frozen=True)
class Period:
    """A part is scored only where its forecasts lie from first_time to last_time, both included: so many windows.

    files: of forecasts, which have only these windows.
    """

    first_time: str
    last_time: str
    windows: int
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class ScoringProtocol:
    """Data, windows, masks, scaler and machine of a score.

    inputs, targets: feature -> unit.  missing: feature -> the value that stands for no reading.  checksum: of the
    readings; network: of the sensors' ids; distances: of the file of road distances.  first_time, last_time: of the
    data, in its own time zone.  local_zone: by whose clock people live, beside times in UTC.  windows_across_gaps:
    windows over a time gap that are kept, as published results do; windows_left_out: the others, by part.  free_flow:
    target -> that of the network.  holidays: date -> the weekday that it resembles, of the days of the data.  period:
    what of a part is scored, None: all of it.
    """

    dataset: str
    checksum: str
    network: str
    sensors: int
    inputs: dict[str, str]
    targets: dict[str, str]
    step_minutes: int
    lookback: int
    horizon: int
    split_method: str
    windows: dict[str, int]
    windows_across_gaps: int
    missing: dict[str, float | None]
    imputed: bool | None
    distances: str | None
    scaler: dict[str, MeanStd]
    seed: int
    precision: str
    socialx: str
    commit: str | None
    first_time: str | None = None
    last_time: str | None = None
    timezone: str | None = None
    local_zone: str | None = None
    free_flow: dict[str, float] = field(default_factory=dict)
    averaging: str = AVERAGING
    windows_left_out: dict[str, int] = field(default_factory=dict)
    holidays: dict[str, str] = field(default_factory=dict)
    period: Period | None = None
    trained: dict[str, Trained] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        data: Dataset,
        checksum: str,
        free_flow: Sequence[float],
        precision: str,
        seed: int,
        distances: Path | None,
    ) -> ScoringProtocol:
        """The protocol of a score on this data.

        checksum: of its readings.  free_flow: of the network, for each target.  distances: the list of roads that the
        model uses, None: no list.
        """
        store, w = data.store, data.windows
        return cls(
            dataset=store.dataset_name,
            checksum=checksum,
            network=network_of(store.sensors.ids),
            sensors=len(store.sensors.ids),
            inputs={name: data.stores[name].unit for name in data.inputs},
            targets={name: data.stores[name].unit for name in data.targets},
            step_minutes=store.step_minutes,
            lookback=data.lookback,
            horizon=data.horizon,
            split_method=w.rule if w else "none",
            windows=w.counts if w else {},
            windows_across_gaps=w.across_gaps if w else 0,
            windows_left_out=w.left_out if w else {},
            missing={name: store.missing for name, store in data.stores.items()},
            imputed=store.imputed,
            distances=None if distances is None else distances_checksum(distances),
            scaler=dict(data.moments),
            seed=seed,
            precision=precision,
            socialx=__version__,
            commit=commit(),
            first_time=store.timestamps[0].decode(),
            last_time=store.timestamps[-1].decode(),
            timezone=store.timezone,
            local_zone=store.local_zone,
            free_flow=dict(zip(data.targets, free_flow, strict=True)),
            holidays=as_dates(data.file_holidays),
        )

    def with_trained(self, trained: dict[str, Trained], period: Period | None = None) -> ScoringProtocol:
        """The same with the weights that are scored, and of which period.

        The scaler is the one that the first of them uses.
        """
        first = next(iter(trained.values()), None)
        scaler = first.scaler if first else self.scaler
        return replace(self, trained=trained, scaler=scaler, period=period)

    def refuse_other(
        self,
        then: ScoringProtocol,
        run: Path,
        path: Path,
        sensor_tables: bool,
        same_missing: bool = False,
        holidays: str | None = None,
        new: Sequence[str] = (),
    ) -> None:
        """Raise SocialxError where a model that was trained under ``then`` does not fit the data of this protocol.

        sensor_tables: the model has weights per sensor.  same_missing: as in ``compare_rest``.  holidays: the
        list of a run that goes on, which must be the same; without it a line says which days differ.  new: sensors that
        the run lacks.  Warns where neighbours are found in another way, and where the clocks of another network may be
        other ones.
        """
        differ = _other_features("inputs", self.inputs, then.inputs)
        differ += _other_features("targets", self.targets, then.targets)
        if self.step_minutes != then.step_minutes:
            differ.append(f"a step of {self.step_minutes} min, not {then.step_minutes}")
        if sensor_tables and self.network != then.network:
            unknown = f", {sample(new)} new to it" if new else ""
            differ.append(f"network {self.network}, not {then.network}{unknown}")
        if differ:
            sizes = f"{self.dataset} with {self.sensors} sensors, not {then.dataset} with {then.sensors}"
            other = f"not what {run} was trained for ({'; '.join([sizes, *dict.fromkeys(differ)])})"
            lost = "unknown" in self.inputs.values() and "unknown" not in then.inputs.values()
            remedy = f"convert it again with {Argument('units', 'mph|km/h')}"
            if not lost:
                those = f"a file of exactly its {then.sensors} sensors" if self.network != then.network else "its data"
                remedy = f"name {those} with {Argument('data.path')}"
                if not sensor_tables:
                    own = Command("train", **{"data.path": "FILE.h5", "model.zero_shot": True})
                    remedy = f"train a run on such data: {own}"
            raise SocialxError(path, other, remedy)
        same: bool | None = True
        if self.clock != then.clock:
            times = [datetime.fromisoformat(time) for time in (self.first_time, self.last_time) if time]
            seconds = [int(time.replace(tzinfo=UTC).timestamp()) for time in times]
            same = same_clock(self.clock, then.clock, seconds[0], seconds[-1]) if times else None
        if not same:  # a model knows the usual reading of a time of day: in another zone it would be of another hour
            now, before = (zone or "an unknown zone" for zone in (self.clock, then.clock))
            clocks = f"its times are of {now}, those that {run} was trained on of {before}"
            if same is False and self.network == then.network:
                remedy = "convert the readings again, with the times as they were for the training"
                if is_utc(self.timezone) and self.local_zone is None:
                    remedy += f", or where they are in UTC {Command('backfill', path, local_zone=before)}"
                raise SocialxError(path, f"{clocks}: every reading would stand at another time of day", remedy)
            fall_back(path, clocks, "its forecasts are right if both are local times")
        if dates := self.other_holidays(then):
            what = f"{run} was trained with other holidays"
            if holidays is not None:
                raise SocialxError(holidays, what, "write these days as they were", sample=dates)
            fall_back(path, what, sample=dates)
        if self.network == then.network and self.distances != then.distances:
            along = "other roads" if self.distances else "straight lines"
            fall_back(run, f"neighbours are found along {along}, not as in its training")
        self.compare_rest(then, run, path, same_missing)

    @property
    def clock(self) -> str | None:
        """The zone of the clock whose days and hours the data has; None: it is not known."""
        return self.local_zone or self.timezone

    def beside(self, now: ScoringProtocol) -> ScoringProtocol:
        """The same without its first and last time, where those of the same network are of another clock now."""
        other = self.network == now.network and self.timezone != now.timezone
        return replace(self, first_time=None, last_time=None) if other else self

    def other_holidays(self, then: ScoringProtocol) -> list[str]:
        """The dates of which this and another protocol say something else, of the days that both have."""
        if self.network != then.network:
            return []
        first, last = max(str(self.first_time), str(then.first_time)), min(str(self.last_time), str(then.last_time))
        dates = sorted({**self.holidays, **then.holidays})
        differ = [date for date in dates if self.holidays.get(date) != then.holidays.get(date)]
        return differ if self.checksum == then.checksum else [date for date in differ if first[:10] <= date <= last]

    def compare_rest(self, then: ScoringProtocol, run: Path, path: Path, same: bool = True) -> None:
        """Raise SocialxError where data and training have other rules for missing readings; warn without ``same``.

        The rule of the file is the one that is applied: whether it or the run's is wrong, nobody but the user knows.
        Warns where the same readings have something else that a score depends on.
        """
        other_zone = OF_ZONE if self.timezone != then.timezone else ()
        same_readings = self.checksum == then.checksum
        crossed = same_readings and bool(self.windows) and then.windows_across_gaps > self.windows_across_gaps
        if crossed:
            across = f"{then.windows_across_gaps:,} windows across a time gap"
            fall_back(run, f"it was trained with {across}, which are left out now", "a new training knows none of them")
        of_parts = OF_SPLITS if crossed or not self.windows else ()
        rest = {f.name for f in fields(self)}.difference(NO_FACTS, of_parts, other_zone)
        other = [name for name in sorted(rest) if getattr(self, name) != getattr(then, name)]
        if other and same_readings:
            now, before = (", ".join(f"{name} {getattr(each, name)}" for name in other) for each in (self, then))
            fall_back(run, f"its training had {shortened(before, SHOWN)}, here {shortened(now, SHOWN)}")
        if not (differ := other_missing(self.missing, then.missing)):
            return
        rule = next(then.missing[name] for name, now in self.missing.items() if now != then.missing.get(name, now))
        codes = "none" if rule is None else f"{rule:g}"
        remedy = f"if {run} is right, convert it again with {Argument('missing', codes)}"
        if same:
            raise SocialxError(path, f"{differ} of {run}", remedy)
        fall_back(path, f"{differ} of {run}", remedy)

    @property
    def unit(self) -> str:
        """Of the first target."""
        return next(iter(self.targets.values()))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> ScoringProtocol:
        """What ``as_dict`` gave; ValueError where something is lacking or of another type."""
        known = {f.name for f in fields(cls)} - {"trained"}
        try:
            text = json.dumps({name: value for name, value in content.items() if name in known}, allow_nan=False)
            return TypeAdapter(cls).validate_json(text, strict=True)
        except ValidationError as error:
            wrong = ", ".join(".".join(map(str, each["loc"])) for each in error.errors()[:3])
            raise ValueError(f"not a protocol ({wrong})") from None
        except (TypeError, ValueError, RecursionError) as error:  # ValueError: a number that is not finite
            raise ValueError(f"not a protocol ({error})") from None


def network_of(sensors: Sequence[str]) -> str:
    """What tells a network by the ids of its sensors, in their order."""
    return hashlib.sha256("\n".join(sensors).encode()).hexdigest()[:12]


def missing_rule(rules: Mapping[str, float | None]) -> str:
    """Which values are no readings, for every feature, once where all agree."""
    words = {name: "not finite" if value is None else f"not finite or {value:g}" for name, value in rules.items()}
    if len(set(words.values())) == 1:
        return next(iter(words.values()))
    return ", ".join(f"{name} {rule}" for name, rule in words.items())


def other_missing(now: Mapping[str, float | None], then: Mapping[str, float | None]) -> str:
    """How the rules of data and of a training differ in the features that both have, in words; empty: they agree."""
    mine, theirs = (missing_rule({name: rules[name] for name in now if name in then}) for rules in (now, then))
    return "" if mine == theirs else f"its missing readings are those {mine}, and {theirs} in the training"


def _other_features(which: str, now: Mapping[str, str], then: Mapping[str, str]) -> list[str]:
    """What differs between two sets of features and their units, in words."""
    if list(now) != list(then):
        return [f"{which} {', '.join(now)}, not {', '.join(then)}".strip()]
    return [
        f"{name} in {'an unknown unit' if unit == 'unknown' else unit}, not {then[name]}"
        for name, unit in now.items()
        if unit != then[name]
    ]
