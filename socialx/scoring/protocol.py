"""The protocol: everything that a score depends on.  Scores are comparable if the protocols agree."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from socialx.core.environment import commit
from socialx.core.errors import Argument, Command, FallbackWarning, Message, SocialxError, sample, shortened
from socialx.core.version import __version__
from socialx.data.scaler import MeanStd
from socialx.dataset import Dataset
from socialx.files.sources.holidays import as_dates
from socialx.files.sources.positions.neighbours import distances_checksum
from socialx.files.store.layout import Sensors
from socialx.files.store.time_axis import Clock, as_text, is_utc, known_zone, same_clock

AVERAGING = "all valid entries of the whole part at that horizon"

OWN_DATA = "its own data"  # the source of rows that the own file of a run holds
NOWHERE = ("nan", "nan")  # the place of a sensor without one
SHOWN = 100  # characters of a difference
# Facts behind a score that a comparison skips, as they hardly tell whether the data are the training data.
NO_FACTS = (
    *("inputs", "targets", "step_minutes", "timezone", "local_zone", "distances", "holidays", "missing"),  # one by one
    *("seed", "precision", "socialx", "commit"),  # may differ
    *("scaler", "free_flow", "period", "trained"),  # of the weights and the split
    "positions",  # unknown to runs of earlier versions
)
SPLIT_FIELDS = ("split_method", "windows", "windows_across_gaps", "windows_left_out")
SPAN_FIELDS = ("first_time", "last_time")


@dataclass(frozen=True)
class Seen:
    """Rows that reached a run's weights: from its own file, a teacher, an ancestor or further data.

    source: a run or a file, in words.  network, positions: as in ScoringProtocol.  first_time, last_time: for training
    and validation, in ``timezone``; unset where an earlier version left them out.
    """

    source: str
    network: str | None = None
    positions: str | None = None
    first_time: str | None = None
    last_time: str | None = None
    timezone: str | None = None

    def within(self, data: ScoringProtocol, first: int, last: int) -> Seen | None:
        """Return these rows in the zone of a network's data, if any lie from ``first`` to ``last``, in its seconds.

        Times in an unknown zone are compared as they stand.
        """
        if None in (self.network, self.first_time, self.last_time) or not data.same_network(self):
            return None
        times = np.array([Clock().seconds(str(time), "start") for time in (self.first_time, self.last_time)])
        if None not in (known_zone(self.timezone), known_zone(data.timezone)):
            times = Clock("UTC", data.timezone).local(Clock(self.timezone).utc(times))
        begin, end = times.tolist()
        if begin > last or first > end:
            return None
        return replace(self, first_time=as_text(begin), last_time=as_text(end), timezone=data.timezone)


@dataclass(frozen=True)
class Trained:
    """Where the scored weights come from: epoch, training data and training machine.

    epoch: None for weights saved during the first epoch.  weights: fingerprint.  missing: feature -> missing-value
    code.  past_days: the model reads the climatology before the origin day in addition to the lookback.  seen: rows
    that reached the weights, of a score those that are scored.
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
    seen: tuple[Seen, ...] = ()


@dataclass(frozen=True)
class Period:
    """A time span within the split: only windows with all forecast times in first_time .. last_time are scored.

    files: forecast files that limit the windows further.
    """

    first_time: str
    last_time: str
    windows: int
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class ScoringProtocol:
    """Data, windows, masks, scaler and machine behind a score.

    inputs, targets: feature -> unit.  missing: feature -> missing-value code.  checksum: for the observations; network:
    for the sensor ids; positions: for their places, if known; distances: for the file with road distances.
    first_time, last_time: in the data's time zone.  local_zone: the zone people live by, if times are in UTC.
    windows_across_gaps: windows kept across a time gap, as in published results; windows_left_out: windows dropped at a
    gap, by split.  free_flow: target -> network speed.  holidays: date -> similar weekday, within the data.  period:
    scored time span, None for a whole split.
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
    positions: str | None = None

    @classmethod
    def from_data(
        cls, data: Dataset, checksum: str, free_flow: Sequence[float], precision: str, seed: int, distances: Path | None
    ) -> ScoringProtocol:
        """Return the protocol for a score on the data.

        checksum: for the observations.  free_flow: network speed per target.  distances: the model's road list, if any.
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
            positions=positions_checksum(store.sensors),
            holidays=as_dates(data.file_holidays),
        )

    def same_network(self, other: ScoringProtocol | Seen) -> bool:
        """Return whether both have the same sensors at the same places, whatever the name; unknown places agree."""
        return self.network == other.network and len({self.positions, other.positions} - {None}) < 2

    def with_trained(self, trained: dict[str, Trained], period: Period | None = None) -> ScoringProtocol:
        """Return the protocol with scored weights (model name -> Trained), period, and the first model's scaler."""
        first = next(iter(trained.values()), None)
        scaler = first.scaler if first else self.scaler
        return replace(self, trained=trained, scaler=scaler, period=period)

    @property
    def clock(self) -> Clock:
        """The clock in the data, and for people, whose days and hours count."""
        return Clock(self.timezone, self.local_zone)

    def align_clock(self, data: ScoringProtocol) -> ScoringProtocol:
        """Return the protocol, without the time span if ``data`` has the network in another zone: not comparable."""
        other = self.same_network(data) and self.timezone != data.timezone
        return replace(self, first_time=None, last_time=None) if other else self

    def other_holidays(self, training: ScoringProtocol) -> list[str]:
        """Return the dates on which two protocols disagree about holidays, within the days that both have."""
        if not self.same_network(training):
            return []
        first = max(str(self.first_time), str(training.first_time))
        last = min(str(self.last_time), str(training.last_time))
        dates = sorted({**self.holidays, **training.holidays})
        differ = [date for date in dates if self.holidays.get(date) != training.holidays.get(date)]
        return differ if self.checksum == training.checksum else [date for date in differ if first[:10] <= date <= last]

    @property
    def unit(self) -> str:
        """The unit of the first target."""
        return next(iter(self.targets.values()))

    def as_dict(self) -> dict[str, Any]:
        """Return the protocol for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> ScoringProtocol:
        """Restore a protocol from ``as_dict``.  Raises ValueError for a missing field or a wrong type."""
        names = {f.name for f in fields(cls)} - {"trained"}
        try:
            text = json.dumps({name: value for name, value in content.items() if name in names}, allow_nan=False)
            return TypeAdapter(cls).validate_json(text, strict=True)
        except ValidationError as error:
            wrong = ", ".join(".".join(map(str, problem["loc"])) for problem in error.errors()[:3])
            raise ValueError(f"not a protocol ({wrong})") from None
        except (TypeError, ValueError, RecursionError) as error:  # ValueError: NaN or infinity
            raise ValueError(f"not a protocol ({error})") from None


def network_checksum(sensors: Sequence[str]) -> str:
    """Return a short checksum over the sensor ids, in order."""
    return hashlib.sha256("\n".join(sensors).encode()).hexdigest()[:12]


def sensor_places(sensors: Sensors) -> dict[str, tuple[str, str]]:
    """Return sensor places by id, in thousandths of a degree: two networks may share an id."""
    degrees = zip(sensors.latitude.tolist(), sensors.longitude.tolist(), strict=True)
    return {name: (f"{lat:.3f}", f"{lon:.3f}") for name, (lat, lon) in zip(sensors.ids, degrees, strict=True)}


def positions_checksum(sensors: Sensors) -> str | None:
    """Return a short checksum over the sensor places, in order, if any sensor has a place."""
    places = [" ".join(degrees) for degrees in sensor_places(sensors).values()]
    return None if {*places} <= {" ".join(NOWHERE)} else network_checksum(places)


def missing_rule(rules: Mapping[str, float | None]) -> str:
    """Return which values count as missing, in words, per feature if features differ; rules: feature -> code."""
    words = {name: "not finite" if value is None else f"not finite or {value:g}" for name, value in rules.items()}
    if len(set(words.values())) == 1:
        return next(iter(words.values()))
    return ", ".join(f"{name} {rule}" for name, rule in words.items())


def other_missing(data: Mapping[str, float | None], training: Mapping[str, float | None]) -> str:
    """Return how missing-value codes (feature -> code) of common features differ, in words; empty if equal."""
    here, there = (missing_rule({name: rules[name] for name in data if name in training}) for rules in (data, training))
    return "" if here == there else f"missing values are {here}, but {there} in the training"


def _other_features(role: str, data: Mapping[str, str], training: Mapping[str, str]) -> list[str]:
    """Return how features (name -> unit) differ between data and training, in words; role: inputs or targets."""
    if list(data) != list(training):
        return [f"{role} {', '.join(data)}, not {', '.join(training)}".strip()]
    return [
        f"{name} in {'an unknown unit' if unit == 'unknown' else unit}, not {training[name]}"
        for name, unit in data.items()
        if unit != training[name]
    ]


@dataclass(frozen=True)
class OtherData:
    """Data before a model that was trained under another protocol.

    run, path: model and data, for the texts.  tied: the model has weights per sensor.  same_missing: another
    missing-value code raises; False only warns.  holidays: the holiday list in a resumed run, which must be the same;
    None only warns about other days.  new: sensors outside the run.
    """

    data: ScoringProtocol
    training: ScoringProtocol
    run: Path
    path: Path
    tied: bool = False
    same_missing: bool = False
    holidays: str | None = None
    new: Sequence[str] = ()

    def check(self) -> None:
        """Raise SocialxError if the data do not fit the model, and warn about further differences."""
        for refuses, message in (row for differ in DIFFERENCES for row in differ(self)):
            if refuses:
                raise SocialxError.together([message])
            warnings.warn(FallbackWarning(message), stacklevel=2)

    @property
    def same_network(self) -> bool:
        """Whether the data are from the training's network."""
        return self.data.same_network(self.training)


Row = tuple[bool, Message]  # whether a difference refuses, or only warns, and the message


def _places(case: OtherData) -> Iterator[Row]:
    if case.tied and case.data.network == case.training.network and not case.same_network:
        remedy = "convert the file again with the places of the training"
        remedy += f", or train a run of this network: {Command('train', **{'data.path': case.path})}"
        yield (
            True,
            Message("fit.other-places", case.path, f"the sensors have the ids of {case.run}, at other places", remedy),
        )


def _kind(case: OtherData) -> Iterator[Row]:
    """Refuse other features, another step or, for a tied model, another network."""
    data, training = case.data, case.training
    differ = _other_features("inputs", data.inputs, training.inputs)
    differ += _other_features("targets", data.targets, training.targets)
    if data.step_minutes != training.step_minutes:
        differ.append(f"a step of {data.step_minutes} min, not {training.step_minutes}")
    if case.tied and data.network != training.network:
        unknown = f", {sample(case.new)} new to it" if case.new else ""
        differ.append(f"network {data.network}, not {training.network}{unknown}")
    if differ:
        yield True, _told_kind(case, differ)


def _told_kind(case: OtherData, differ: list[str]) -> Message:
    data, training = case.data, case.training
    sizes = f"{data.dataset} with {data.sensors} sensors, not {training.dataset} with {training.sensors}"
    problem = f"the data do not fit {case.run} ({'; '.join([sizes, *dict.fromkeys(differ)])})"
    source = f"the same {training.sensors} sensors" if data.network != training.network else "the training"
    remedy = f"name a file of {source} with {Argument('data.path')}"
    if "unknown" in data.inputs.values() and "unknown" not in training.inputs.values():
        problem = f"the unit of the speeds is unknown, and {case.run} was trained on {training.unit}"
        remedy = f"add {Argument('units', 'km/h')} or {Argument('units', 'mph')} where the file is converted"
    elif not case.tied:
        command = Command("train", **{"data.path": "FILE.h5", "model.zero_shot": True})
        remedy = f"train a run on such data: {command}"
    return Message("fit.other-data", case.path, problem, remedy)


def _clock(case: OtherData) -> Iterator[Row]:
    """Report another clock, which would give each hour another hour's climatology."""
    data, (here, there), same = case.data, (case.data.clock.name, case.training.clock.name), None
    if here != there and data.first_time and data.last_time:
        times = (datetime.fromisoformat(time).replace(tzinfo=UTC) for time in (data.first_time, data.last_time))
        same = same_clock(here, there, *(int(time.timestamp()) for time in times))
    if here != there and not same:
        here, there = (zone or "an unknown zone" for zone in (here, there))
        clocks = f"the times are of {here}, and {case.run} was trained on times of {there}"
        remedy = "convert the file again with times of the same clock as in the training"
        if is_utc(data.timezone) and data.local_zone is None:
            remedy += f", or for times in UTC run {Command('backfill', case.path, local_zone=there)}"
        if same is False and case.same_network:
            problem = f"{clocks}, so every observation would be at another time of day"
            yield True, Message("fit.other-clock", case.path, problem, remedy)
        if same is None or is_utc(data.clock.name) or is_utc(case.training.clock.name):  # else both are local times
            yield (
                False,
                Message("fit.zone-unknown", case.path, f"{clocks}: the forecasts are right if both are local times"),
            )


def _holidays(case: OtherData) -> Iterator[Row]:
    if dates := case.data.other_holidays(case.training):
        problem, remedy = f"{case.run} was trained with other holidays", "write these days as in the training"
        resumed = case.holidays is not None
        yield (
            resumed,
            Message("fit.other-holidays", case.holidays or case.path, problem, remedy if resumed else "", dates),
        )


def _roads(case: OtherData) -> Iterator[Row]:
    if case.same_network and case.data.distances != case.training.distances:
        along = "other roads" if case.data.distances else "straight lines"
        yield (
            False,
            Message("fit.other-roads", case.run, f"neighbours are chosen along {along}, unlike in the training"),
        )


def _facts(case: OtherData) -> Iterator[Row]:
    """Tell of whatever else differs although the observations are equal, such as windows across a time gap."""
    data, training = case.data, case.training
    if data.checksum != training.checksum:
        return
    crossed = bool(data.windows) and training.windows_across_gaps > data.windows_across_gaps
    if crossed:
        across = f"the training used {training.windows_across_gaps:,} windows across a time gap"
        left_out = f"{across}, which are left out here and in any new training"
        yield False, Message("fit.across-gaps", case.run, left_out)
    skipped = {*NO_FACTS, *(SPLIT_FIELDS if crossed or not data.windows else ())}
    skipped |= {*SPAN_FIELDS} if data.timezone != training.timezone else set()
    rest = sorted({f.name for f in fields(data)} - skipped)
    if other := [name for name in rest if getattr(data, name) != getattr(training, name)]:
        here, there = (", ".join(f"{name} {getattr(facts, name)}" for name in other) for facts in (data, training))
        problem = f"the training had {shortened(there, SHOWN)}, and the data have {shortened(here, SHOWN)}"
        yield False, Message("fit.other-value", case.run, problem)


def _missing(case: OtherData) -> Iterator[Row]:
    """Tell of another missing-value code: the code in the file is applied, and only the user knows which is wrong."""
    codes, rules = case.data.missing, case.training.missing
    if differ := other_missing(codes, rules):
        rule = next(rules[name] for name, code in codes.items() if code != rules.get(name, code))
        remedy = f"convert the file again with {Argument('missing', 'none' if rule is None else f'{rule:g}')}"
        yield (
            case.same_missing,
            Message("fit.missing-values", case.path, f"{differ} of {case.run}", f"{remedy} if {case.run} is right"),
        )


DIFFERENCES = (_places, _kind, _clock, _holidays, _roads, _facts, _missing)  # what refuses at once comes first
