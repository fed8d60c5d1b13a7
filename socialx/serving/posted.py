"""Read and check the body of a request, JSON or CSV text, as the lookback of all sensors."""

# Shape letters: T rows, N sensors

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, FailFast, Field, TypeAdapter, ValidationError

from socialx.core.errors import ITEM, SocialxError, sample, shortened
from socialx.data.calendar import DAY_S, shifts
from socialx.data.series import ContextReader, WindowLayout
from socialx.data.source import Arrays
from socialx.files.store.store import Store
from socialx.files.store.time_axis import JITTER_S, Clock, known_zone, read_time
from socialx.serving.worker import Lookback
from socialx.tasks.build import Experiment

JSON, CSV = "application/json", "text/csv"
DAY_MINUTES = 1440
Times = Annotated[list[Annotated[str, Field(max_length=40)]], FailFast()]
Row = Annotated[list[Annotated[float, Field(allow_inf_nan=False)] | None], FailFast()]
TIMES, ROW = TypeAdapter(Times), TypeAdapter(Row)


class LastHour(BaseModel):
    """Observations of the last hour, or up to a day, until the forecast origin."""

    model_config = ConfigDict(extra="forbid", strict=True)

    times: Times = Field(
        description="Local times, or times with their offset from UTC, one for each row and a step apart.",
        examples=[["2012-06-27 07:10", "2012-06-27 07:15"]],
    )
    readings: dict[str, Row] = Field(
        description="For each sensor id one number for each time; null is a missing reading. "
        "A sensor that is not named has no reading.",
        examples=[{"773869": [64.4, 62.7], "767541": [67.6, None]}],
    )


def read_issue(experiment: Experiment, kind: str, body: bytes) -> Lookback:
    """Return the lookback in a body; ``kind`` is the content type, JSON or CSV.

    The reader compares sizes before parsing, and counts rows before reading numbers: a million mistakes cost as much
    time as a single mistake. A sensor without an observation in the body continues from the last observation in the
    data file. Raises SocialxError at the first mistake.
    """
    data = experiment.data
    if len(data.stores) > 1:
        features = f"the run reads {', '.join(data.stores)}, and a request holds readings of a single feature"
        raise SocialxError("posted.features", "readings", features, "ask for /forecast/latest")
    ids, most = data.store.sensors.ids, max(data.lookback, DAY_MINUTES // data.store.step_minutes)
    if body.count(b",") > (most + 1) * (len(ids) + 1) + sum(vdid.count(",") for vdid in ids):
        longer = f"the body has more values than {most} rows of {len(ids)} sensors"
        raise SocialxError("posted.too-long", "body", longer, f"send the last {data.lookback} rows")
    content = _from_csv(body, most) if kind == CSV else _from_json(body)
    times, rows = _shape(experiment, content, most)
    strict = kind == JSON  # the numbers of a table are texts
    _validate(TIMES, times, True, "times")
    columns = [_validate(ROW, row, strict, f"readings.{shortened(vdid, ITEM)}") for vdid, row in rows.items()]
    seconds = _seconds(data.store, times)
    numbers = np.array(columns, np.float64).reshape(-1, len(times)).T  # None is NaN
    data.store.check_readings(numbers, seconds, list(rows), "readings")
    columns_by_id = {vdid: column for column, vdid in enumerate(ids)}
    values = np.full((1 + len(times), len(ids), 1), np.nan, np.float32)
    values[1:, [columns_by_id[vdid] for vdid in rows], 0] = numbers
    recent = seconds[0] >= int(data.store.seconds[-1]) - DAY_S  # older days would have the climatology begin anew
    of_file = data.context(JITTER_S, shared=recent)
    values[0] = of_file.latest_before(int(seconds[0]))
    seconds = np.concatenate([seconds[:1] - 60 * data.store.step_minutes, seconds])
    source = Arrays(values, data.store.is_reading(values), seconds, data.store.step_minutes, data.calendar)
    context = ContextReader(source, WindowLayout(data.lookback, data.horizon), rolling=of_file.rolling)
    if not context.read(np.arange(len(seconds) - data.lookback, len(seconds)))[1].any():
        empty = f"all sensors lack a reading in the last {data.lookback} rows"
        raise SocialxError("posted.all-missing", "readings", empty, "send at least one reading")
    return Lookback.until(experiment, context, seconds[-1:])


def _shape(experiment: Experiment, content: Any, most: int) -> tuple[list[Any], dict[str, list[Any]]]:
    """Return times and readings of parsed content, ``most`` rows at most, after checks of sensors and lengths alone."""
    lookback, ids = experiment.data.lookback, set(experiment.data.store.sensors.ids)
    parts = ("times", "readings")
    if not isinstance(content, dict) or set(content) != set(parts):
        keys = sample(list(content)) if isinstance(content, dict) else type(content).__name__
        problem = "the object must have times and readings"
        raise SocialxError("posted.keys", "body", problem, "see /openapi.json", sample=[keys])
    times, readings = (content[part] for part in parts)
    if not isinstance(times, list) or not isinstance(readings, dict):
        problem = "times must be a list, and readings an object with lists"
        raise SocialxError("posted.types", "body", problem, "see /openapi.json")
    if not lookback <= len(times) <= most:
        problem = f"the body has {len(times)} rows"
        raise SocialxError("posted.rows", "times", problem, f"send the last {lookback}, or up to {most}")
    if lost := [vdid for vdid in readings if vdid not in ids]:
        unknown = f"the run lacks {len(lost)} of {len(readings)} sensors"
        helps = f"send sensors of the run, such as {sample(experiment.data.store.sensors.ids)}"
        raise SocialxError("posted.foreign", "readings", unknown, helps, sample=[sample(lost, 10)])
    lengths = {vdid: len(row) if isinstance(row, list) else "no list" for vdid, row in readings.items()}
    if odd := [f"{vdid} has {length}" for vdid, length in lengths.items() if length != len(times)]:
        unequal = f"{len(odd)} sensors lack a number or null for each of the {len(times)} times"
        raise SocialxError("posted.sizes", "readings", unequal, "send as many as there are times", sample=[sample(odd)])
    return times, readings


def _validate(kind: TypeAdapter[Any], values: list[Any], strict: bool, where: str) -> list[Any]:
    """Return values as type ``kind``, from text too if not strict. Raise SocialxError for field ``where`` if unfit."""
    try:
        return kind.validate_python(values, strict=strict)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise SocialxError("posted.form", f"{where}.{first['loc'][0]}", first["msg"], "see /openapi.json") from None


def _seconds(store: Store, times: Sequence[str]) -> np.ndarray:
    """Return times as file seconds, int64 [T].  Raise SocialxError for uneven steps, and times skipped or repeated."""
    zone, stored = known_zone(store.clock.name), known_zone(store.timezone)
    step_s, clock = 60 * store.step_minutes, store.clock if zone is None else Clock("UTC", store.clock.name)
    moments, ways = [read_time(time, "times", zone) for time in times], []
    if zone is not None and not any(moment.tzinfo for moment in moments):
        # The steps tell which of two equal wall times is meant.
        wall = np.array([Clock().seconds(moment, "times") for moment in moments], np.int64)
        ends = {int(wall[-1] - shifts(zone, wall[-1], fold)) for fold in (0, 1)}
        ways = [end - step_s * np.arange(len(wall))[::-1] for end in ends]
        ways = [way for way in ways if np.array_equal(way + shifts(zone, way), wall)]
    if len(ways) != 1:
        ways = [np.array([clock.seconds(moment, "times") for moment in moments], np.int64)]
    (utc,) = ways
    odd = np.flatnonzero(np.diff(utc) != step_s)
    if len(odd):
        uneven = f"{len(odd)} steps differ from {store.step_minutes} minutes"
        pair = " -> ".join(shortened(time, ITEM) for time in times[odd[0] : odd[0] + 2])
        helps = "send every row once, in order, with null where nothing was read"
        raise SocialxError("posted.step", "times", uneven, helps, sample=[pair])
    if zone is None or stored is None:
        return utc
    seconds = utc + shifts(stored, utc)
    back = np.minimum(np.diff(seconds) - step_s, 0)
    return seconds + np.append(np.cumsum(back[::-1])[::-1], 0)


def _from_json(body: bytes) -> Any:
    """Parse JSON.  Raise SocialxError for other text, and for a key that stands twice in an object."""
    try:
        return json.loads(body.decode(), object_pairs_hook=_unique, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        problem = f"the text is not JSON ({shortened(str(error), ITEM)})"
        raise SocialxError("posted.json", "body", problem, "see /openapi.json") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return key-value pairs as a dict, for ``json.loads``.  Raise SocialxError for a key that stands twice."""
    made = dict(pairs)
    if len(made) < len(pairs):
        repeated = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
        problem = f"{len(repeated)} keys appear twice"
        raise SocialxError("posted.twice", "body", problem, "send each once", sample=repeated)
    return made


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a number in JSON")


def _from_csv(body: bytes, most: int) -> dict[str, Any]:
    """Parse CSV text, up to ``most`` + 1 rows: a header with any name and sensor ids, then a row per time."""
    try:
        lines = csv.reader(io.StringIO(body.decode("utf-8-sig"), newline=""), strict=True)
        header, rows = next(lines), list(islice(filter(None, lines), most + 1))
    except UnicodeDecodeError:
        raise SocialxError("posted.text", "body", "the text is not UTF-8", "send CSV text") from None
    except (csv.Error, StopIteration) as error:
        reason = "the header is missing" if isinstance(error, StopIteration) else error
        problem = f"the text is not CSV ({reason})"
        raise SocialxError("posted.csv", "body", problem, "send a header and a row per time") from None
    if repeated := [vdid for vdid, count in Counter(header[1:]).items() if count > 1]:
        raise SocialxError("posted.sensor-twice", "header", "sensors appear twice", "send each once", sample=repeated)
    if odd := [f"row {number}" for number, row in enumerate(rows, 2) if len(row) != len(header)]:
        problem = f"{len(odd)} rows differ from {len(header)} cells"
        raise SocialxError("posted.cells", "body", problem, "repair these rows", sample=odd)
    if odd := [cell for row in rows for cell in row if "_" in cell]:  # Python would read 1_0 as 10
        problem = f"{len(odd)} cells are not numbers"
        raise SocialxError("posted.no-numbers", "body", problem, "write plain numbers", sample=odd)
    # The empty cell, and what pandas writes for no number, are missing readings.
    cells = ([None if cell.strip().lower() in ("", "nan") else cell for cell in row[1:]] for row in rows)
    columns = zip(*cells, strict=True)
    readings = {vdid: list(column) for vdid, column in zip(header[1:], columns, strict=False)}
    return {"times": [row[0] for row in rows], "readings": readings}
