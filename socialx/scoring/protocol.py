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
SPLIT_FIELDS = ("split_method", "windows", "windows_across_gaps", "windows_left_out")
SPAN_FIELDS = ("first_time", "last_time")


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
    def from_data(
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
            network=network_checksum(store.sensors.ids),
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
            holidays=as_dates(data.holidays_in_it),
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
        training: ScoringProtocol,
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
        differ = _other_features("inputs", self.inputs, training.inputs)
        differ += _other_features("targets", self.targets, training.targets)
        if self.step_minutes != training.step_minutes:
            differ.append(f"a step of {self.step_minutes} min, not {training.step_minutes}")
        if sensor_tables and self.network != training.network:
            unknown = f", {sample(new)} new to it" if new else ""
            differ.append(f"network {self.network}, not {training.network}{unknown}")
        if differ:
            sizes = f"{self.dataset} with {self.sensors} sensors, not {training.dataset} with {training.sensors}"
            problem = f"the data do not fit {run} ({'; '.join([sizes, *dict.fromkeys(differ)])})"
            lost = "unknown" in self.inputs.values() and "unknown" not in training.inputs.values()
            remedy = f"convert the file again with {Argument('units', 'mph|km/h')}"
            if not lost:
                source = f"the same {training.sensors} sensors" if self.network != training.network else "the training"
                remedy = f"name a file of {source} with {Argument('data.path')}"
                if not sensor_tables:
                    command = Command("train", **{"data.path": "FILE.h5", "model.zero_shot": True})
                    remedy = f"train a run on such data: {command}"
            raise SocialxError(path, problem, remedy)
        same: bool | None = True
        if self.clock != training.clock:
            times = [datetime.fromisoformat(time) for time in (self.first_time, self.last_time) if time]
            seconds = [int(time.replace(tzinfo=UTC).timestamp()) for time in times]
            same = same_clock(self.clock, training.clock, seconds[0], seconds[-1]) if times else None
        if not same:  # the climatology is by time of day: in another zone each hour would get that of another hour
            data_clock, training_clock = (zone or "an unknown zone" for zone in (self.clock, training.clock))
            clocks = f"the times are of {data_clock}, and {run} was trained on times of {training_clock}"
            if same is False and self.network == training.network:
                remedy = "convert the file again with times of the same clock as in the training"
                if is_utc(self.timezone) and self.local_zone is None:
                    remedy += f", or for times in UTC run {Command('backfill', path, local_zone=training_clock)}"
                raise SocialxError(path, f"{clocks}, so every observation would be at another time of day", remedy)
            fall_back(path, f"{clocks}: the forecasts are right if both are local times")
        if dates := self.other_holidays(training):
            problem = f"{run} was trained with other holidays"
            if holidays is not None:
                raise SocialxError(holidays, problem, "write these days as in the training", sample=dates)
            fall_back(path, problem, sample=dates)
        if self.network == training.network and self.distances != training.distances:
            along = "other roads" if self.distances else "straight lines"
            fall_back(run, f"neighbours are chosen along {along}, unlike in the training")
        self.compare_rest(training, run, path, same_missing)

    @property
    def clock(self) -> str | None:
        """The zone of the clock whose days and hours the data has; None: it is not known."""
        return self.local_zone or self.timezone

    def align_clock(self, data: ScoringProtocol) -> ScoringProtocol:
        """The same without its first and last time, where those of the same network are of another clock now."""
        other = self.network == data.network and self.timezone != data.timezone
        return replace(self, first_time=None, last_time=None) if other else self

    def other_holidays(self, training: ScoringProtocol) -> list[str]:
        """The dates of which this and another protocol say something else, of the days that both have."""
        if self.network != training.network:
            return []
        first = max(str(self.first_time), str(training.first_time))
        last = min(str(self.last_time), str(training.last_time))
        dates = sorted({**self.holidays, **training.holidays})
        differ = [date for date in dates if self.holidays.get(date) != training.holidays.get(date)]
        return differ if self.checksum == training.checksum else [date for date in differ if first[:10] <= date <= last]

    def compare_rest(self, training: ScoringProtocol, run: Path, path: Path, same: bool = True) -> None:
        """Raise SocialxError where data and training have other rules for missing readings; warn without ``same``.

        The rule of the file is the one that is applied: whether it or the run's is wrong, nobody but the user knows.
        Warns where the same readings have something else that a score depends on.
        """
        other_zone = SPAN_FIELDS if self.timezone != training.timezone else ()
        same_readings = self.checksum == training.checksum
        crossed = same_readings and bool(self.windows) and training.windows_across_gaps > self.windows_across_gaps
        if crossed:
            across = f"{training.windows_across_gaps:,} windows across a time gap"
            fall_back(run, f"the training used {across}, which are left out here and in any new training")
        split_fields = SPLIT_FIELDS if crossed or not self.windows else ()
        rest = {f.name for f in fields(self)}.difference(NO_FACTS, split_fields, other_zone)
        other = [name for name in sorted(rest) if getattr(self, name) != getattr(training, name)]
        if other and same_readings:
            here, there = (", ".join(f"{name} {getattr(facts, name)}" for name in other) for facts in (self, training))
            fall_back(run, f"the training had {shortened(there, SHOWN)}, and the data have {shortened(here, SHOWN)}")
        if not (differ := other_missing(self.missing, training.missing)):
            return
        rules = training.missing
        rule = next(rules[name] for name, code in self.missing.items() if code != rules.get(name, code))
        codes = "none" if rule is None else f"{rule:g}"
        remedy = f"convert the file again with {Argument('missing', codes)} if {run} is right"
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
        names = {f.name for f in fields(cls)} - {"trained"}
        try:
            text = json.dumps({name: value for name, value in content.items() if name in names}, allow_nan=False)
            return TypeAdapter(cls).validate_json(text, strict=True)
        except ValidationError as error:
            wrong = ", ".join(".".join(map(str, problem["loc"])) for problem in error.errors()[:3])
            raise ValueError(f"not a protocol ({wrong})") from None
        except (TypeError, ValueError, RecursionError) as error:  # ValueError: a number that is not finite
            raise ValueError(f"not a protocol ({error})") from None


def network_checksum(sensors: Sequence[str]) -> str:
    """What tells a network by the ids of its sensors, in their order."""
    return hashlib.sha256("\n".join(sensors).encode()).hexdigest()[:12]


def missing_rule(rules: Mapping[str, float | None]) -> str:
    """Which values are no readings, for every feature, once where all agree."""
    words = {name: "not finite" if value is None else f"not finite or {value:g}" for name, value in rules.items()}
    if len(set(words.values())) == 1:
        return next(iter(words.values()))
    return ", ".join(f"{name} {rule}" for name, rule in words.items())


def other_missing(data: Mapping[str, float | None], training: Mapping[str, float | None]) -> str:
    """How the rules of data and of a training differ in the features that both have, in words; empty: they agree."""
    here, there = (missing_rule({name: rules[name] for name in data if name in training}) for rules in (data, training))
    return "" if here == there else f"missing values are {here}, but {there} in the training"


def _other_features(role: str, data: Mapping[str, str], training: Mapping[str, str]) -> list[str]:
    """What differs between two sets of features and their units, in words."""
    if list(data) != list(training):
        return [f"{role} {', '.join(data)}, not {', '.join(training)}".strip()]
    return [
        f"{name} in {'an unknown unit' if unit == 'unknown' else unit}, not {training[name]}"
        for name, unit in data.items()
        if unit != training[name]
    ]
