"""What a client sends -> the history of all sensors, checked.  The body is JSON or CSV text; no file is opened."""

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
from socialx.data.series import ContextReader
from socialx.data.source import Arrays
from socialx.files.store.store import Store
from socialx.files.store.time_axis import JITTER_S, skips, wall_seconds
from socialx.serving.worker import Issue
from socialx.tasks.build import Experiment

JSON, CSV = "application/json", "text/csv"
DAY_MINUTES = 1440
Times = Annotated[list[Annotated[str, Field(max_length=40)]], FailFast()]
Row = Annotated[list[Annotated[float, Field(allow_inf_nan=False)] | None], FailFast()]
TIMES, ROW = TypeAdapter(Times), TypeAdapter(Row)


class LastHour(BaseModel):
    """Readings of the last hour, or of up to a day, that end at the time from which to forecast."""

    model_config = ConfigDict(extra="forbid", strict=True)

    times: Times = Field(
        description="Wall times in the zone of the run, one for each row and a step apart.",
        examples=[["2012-06-27 07:10", "2012-06-27 07:15"]],
    )
    readings: dict[str, Row] = Field(
        description="For each sensor id one number for each time; null is a missing reading. "
        "A sensor that is not named has no reading.",
        examples=[{"773869": [64.4, 62.7], "767541": [67.6, None]}],
    )


def issue_of(experiment: Experiment, kind: str, body: bytes) -> Issue:
    """The history that a body of a content type holds.

    Raises SocialxError for the first thing that is wrong with it.  Sizes are compared before anything is parsed, and
    rows are counted before a number is looked at: what is wrong a million times costs what one mistake costs.  A sensor
    without a reading in the body goes on from its latest one in the data of the problem, as in a file that ends with
    these rows.
    """
    data = experiment.data
    if len(data.stores) > 1:
        found = f"the run reads {', '.join(data.stores)}, and a request holds readings of one feature"
        raise SocialxError("readings", found, "ask for the forecast of the server's own data")
    ids, most = data.store.sensors.ids, max(data.lookback, DAY_MINUTES // data.store.step_minutes)
    if body.count(b",") > (most + 1) * (len(ids) + 1) + sum(vdid.count(",") for vdid in ids):
        found = f"more values than {most} rows of {len(ids)} sensors"
        raise SocialxError("body", found, f"send the last {data.lookback} rows")
    content = _from_csv(body, most) if kind == CSV else _from_json(body)
    times, rows = _shape(experiment, content, most)
    strict = kind == JSON  # the numbers of a table are texts
    _checked(TIMES, times, True, "times")
    columns = [_checked(ROW, row, strict, f"readings.{shortened(vdid, ITEM)}") for vdid, row in rows.items()]
    seconds = _seconds(data.store, times)
    numbers = np.array(columns, np.float64).reshape(-1, len(times)).T  # None is NaN
    data.store.check_readings(numbers, seconds, list(rows), "readings")
    place = {vdid: column for column, vdid in enumerate(ids)}
    values = np.full((1 + len(times), len(ids), 1), np.nan, np.float32)
    values[1:, [place[vdid] for vdid in rows], 0] = numbers
    values[0] = data.context(JITTER_S, data.server_climatology).latest_before(int(seconds[0]))
    seconds = np.concatenate([seconds[:1] - 60 * data.store.step_minutes, seconds])
    source = Arrays(values, data.store.is_reading(values), seconds, data.store.step_minutes, data.calendar)
    context = ContextReader(source, data.lookback, data.horizon, (0,), (0,), rolling=data.server_climatology)
    if not context.read(np.arange(len(seconds) - data.lookback, len(seconds)))[1].any():
        found = f"no sensor has a reading in the last {data.lookback} rows"
        raise SocialxError("readings", found, "send at least one")
    return Issue.of(experiment, context, seconds[-1:])


def _shape(experiment: Experiment, content: Any, most: int) -> tuple[list[Any], dict[str, list[Any]]]:
    """Times and readings of a body in which all lists have the right length; what stands in them is not looked at."""
    lookback, ids = experiment.data.lookback, set(experiment.data.store.sensors.ids)
    parts = ("times", "readings")
    if not isinstance(content, dict) or set(content) != set(parts):
        found = sample(list(content)) if isinstance(content, dict) else type(content).__name__
        raise SocialxError("body", "not an object with times and readings alone", "see /openapi.json", sample=[found])
    times, readings = (content[part] for part in parts)
    if not isinstance(times, list) or not isinstance(readings, dict):
        raise SocialxError("body", "times is a list, and readings an object of lists", "see /openapi.json")
    if not lookback <= len(times) <= most:
        raise SocialxError("times", f"{len(times)} rows", f"send the last {lookback}, or up to {most}")
    if lost := [vdid for vdid in readings if vdid not in ids]:
        found = f"{len(lost)} of {len(readings)} sensors are not in the run"
        helps = f"it has {sample(experiment.data.store.sensors.ids)}"
        raise SocialxError("readings", found, helps, sample=[sample(lost, 10)])
    lengths = {vdid: len(row) if isinstance(row, list) else "no list" for vdid, row in readings.items()}
    if odd := [f"{vdid} has {length}" for vdid, length in lengths.items() if length != len(times)]:
        found = f"{len(odd)} sensors do not have a number or null for each of the {len(times)} times"
        raise SocialxError("readings", found, "send as many as there are times", sample=[sample(odd)])
    return times, readings


def _checked(kind: TypeAdapter[Any], values: list[Any], strict: bool, where: str) -> list[Any]:
    """The values, each of the right kind.  Raises SocialxError for the first one that is not."""
    try:
        return kind.validate_python(values, strict=strict)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise SocialxError(f"{where}.{first['loc'][0]}", first["msg"], "see /openapi.json") from None


def _seconds(store: Store, times: Sequence[str]) -> np.ndarray:
    """Wall times -> int64 [T], a step apart, all of them on the clocks of the zone of the file."""
    seconds = np.array([wall_seconds(time, "times", store.timezone) for time in times], np.int64)
    odd = np.flatnonzero(np.diff(seconds) != 60 * store.step_minutes)
    if len(odd):
        found = f"{len(odd)} steps are not {store.step_minutes} minutes"
        pair = " -> ".join(shortened(time, ITEM) for time in times[odd[0] : odd[0] + 2])
        helps = "send every row once, in order, with null where nothing was read"
        raise SocialxError("times", found, helps, sample=[pair])
    if len(skipped := np.flatnonzero(skips(seconds, store.timezone))):
        found = f"{len(skipped)} of {len(times)} times do not exist in {store.timezone}, where the clock skips them"
        raise SocialxError("times", found, "send times with their zone", sample=[times[skipped[0]]])
    return seconds


def _from_json(body: bytes) -> Any:
    """The content of JSON, in which every key stands once in its object."""
    try:
        return json.loads(body.decode(), object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise SocialxError("body", f"not JSON ({shortened(str(error), ITEM)})", "see /openapi.json") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object from its keys and values.  Raises SocialxError for a key that stands twice."""
    made = dict(pairs)
    if len(made) < len(pairs):
        repeated = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
        raise SocialxError("body", f"{len(repeated)} keys appear twice", "send each once", sample=repeated)
    return made


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")


def _from_csv(body: bytes, most: int) -> dict[str, Any]:
    """A wide table with commas: a header of any name for the times and the sensor ids, then a row for each time."""
    try:
        lines = csv.reader(io.StringIO(body.decode("utf-8-sig"), newline=""), strict=True)
        header, rows = next(lines), list(islice(filter(None, lines), most + 1))
    except UnicodeDecodeError:
        raise SocialxError("body", "not UTF-8 text", "send CSV text") from None
    except (csv.Error, StopIteration) as error:
        found = "no header" if isinstance(error, StopIteration) else error
        raise SocialxError("body", f"not CSV text ({found})", "send a header and a row for each time") from None
    if repeated := [vdid for vdid, count in Counter(header[1:]).items() if count > 1]:
        raise SocialxError("header", "sensors appear twice", "send each once", sample=repeated)
    if odd := [f"row {place}" for place, row in enumerate(rows, 2) if len(row) != len(header)]:
        raise SocialxError("body", f"{len(odd)} rows do not have {len(header)} cells", "repair them", sample=odd)
    if odd := [cell for row in rows for cell in row if "_" in cell]:  # Python would read 1_0 as 10
        raise SocialxError("body", f"{len(odd)} cells are not numbers", "write plain numbers", sample=odd)
    # The empty cell, and what pandas writes for no number, are missing readings.
    cells = ([None if cell.strip().lower() in ("", "nan") else cell for cell in row[1:]] for row in rows)
    columns = zip(*cells, strict=True)
    readings = {vdid: list(column) for vdid, column in zip(header[1:], columns, strict=False)}
    return {"times": [row[0] for row in rows], "readings": readings}
