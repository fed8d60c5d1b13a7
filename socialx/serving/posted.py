"""What a client sends -> the history of all sensors, checked.  The body is JSON or CSV text; no file is opened."""

# Shape letters: T rows, N sensors

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from socialx.build import Problem
from socialx.data.history import Histories
from socialx.data.source import Arrays
from socialx.errors import ITEM, SocialxError, sample, shortened
from socialx.files.store import Store
from socialx.files.time_axis import wall_seconds
from socialx.serving.worker import Issue

JSON, CSV = "application/json", "text/csv"
DAY_MINUTES = 1440
SHOWN = 3  # mistakes that one answer names


class LastHour(BaseModel):
    """Readings of the last hour, or of up to a day, that end at the time from which to forecast."""

    model_config = ConfigDict(extra="forbid", strict=True)

    times: list[Annotated[str, Field(max_length=40)]] = Field(
        description="Wall times in the zone of the run, one for each row and a step apart.",
        examples=[["2012-06-27 07:10", "2012-06-27 07:15"]],
    )
    readings: dict[str, list[Annotated[float, Field(allow_inf_nan=False)] | None]] = Field(
        description="For each sensor id one number for each time; null is a missing reading. "
        "A sensor that is not named has no reading.",
        examples=[{"773869": [64.4, 62.7], "767541": [67.6, None]}],
    )


def issue_of(problem: Problem, kind: str, body: bytes) -> Issue:
    """The history that a body of a content type holds.  Raises SocialxError for whatever is wrong with it."""
    sent = _from_csv(body) if kind == CSV else _validated(body)
    data = problem.data
    if len(data.stores) > 1:
        found = f"the run reads {', '.join(data.stores)}, and a request holds readings of one feature"
        raise SocialxError("readings", found, "ask for the forecast of the server's own data")
    seconds = _seconds(problem, sent.times)
    values = _values(data.store, sent)[..., None]
    histories = Histories(Arrays(values, data.store.is_reading(values), seconds, data.store.step_minutes),
                          data.history, data.horizon, (0,), (0,))  # fmt: skip
    if not histories.read(np.arange(len(seconds) - data.history, len(seconds)))[1].any():
        found = f"no sensor has a reading in the last {data.history} rows"
        raise SocialxError("readings", found, "send at least one")
    return Issue.of(problem, histories, seconds[-1:])


def _seconds(problem: Problem, times: Sequence[str]) -> np.ndarray:
    """Wall times -> int64 [T], of whole histories and a step apart."""
    store, history = problem.data.store, problem.data.history
    most = max(history, DAY_MINUTES // store.step_minutes)
    if not history <= len(times) <= most:
        raise SocialxError("times", f"{len(times)} rows", f"send the last {history}, or up to {most}")
    seconds = np.array([wall_seconds(time, "times", store.timezone) for time in times], np.int64)
    odd = np.flatnonzero(np.diff(seconds) != 60 * store.step_minutes)
    if len(odd):
        found = f"{len(odd)} steps are not {store.step_minutes} minutes"
        pair = " -> ".join(shortened(time, ITEM) for time in times[odd[0] : odd[0] + 2])
        helps = "send every row once, in order, with null where nothing was read"
        raise SocialxError("times", found, helps, sample=[pair])
    return seconds


def _values(store: Store, sent: LastHour) -> np.ndarray:
    """Readings in the order of the run, float32 [T,N], NaN where there is none."""
    ids = store.sensors.ids
    place = {vdid: column for column, vdid in enumerate(ids)}
    if lost := [vdid for vdid in sent.readings if vdid not in place]:
        found = f"{len(lost)} of {len(sent.readings)} sensors are not in the run"
        raise SocialxError("readings", found, f"it has {sample(ids)}", sample=[sample(lost, 10)])
    rows = len(sent.times)
    if odd := [f"{vdid} has {len(row)}" for vdid, row in sent.readings.items() if len(row) != rows]:
        found = f"{len(odd)} sensors do not have a number or null for each of the {rows} times"
        raise SocialxError("readings", found, "send as many as there are times", sample=[sample(odd)])
    numbers = np.array(list(sent.readings.values()), np.float64).reshape(-1, rows)  # None is NaN
    store.check_readings("readings", list(sent.readings), numbers.T)
    values = np.full((rows, len(ids)), np.nan, np.float32)
    values[:, [place[vdid] for vdid in sent.readings]] = numbers.T
    return values


def _validated(body: bytes | dict[str, object]) -> LastHour:
    """The body of JSON, or the cells of CSV, whose numbers are texts."""
    try:
        if isinstance(body, bytes):
            return LastHour.model_validate_json(body)
        return LastHour.model_validate(body, strict=False)
    except ValidationError as error:
        mistakes = error.errors(include_url=False, include_input=False, include_context=False)
        places = [shortened(".".join(map(str, each["loc"])), ITEM) for each in mistakes[:SHOWN]]
        reasons = [": ".join(filter(None, (at, each["msg"]))) for at, each in zip(places, mistakes, strict=False)]
        more = f"; {len(mistakes) - SHOWN} more" if len(mistakes) > SHOWN else ""
        raise SocialxError("body", f"{'; '.join(reasons)}{more}", "see /openapi.json") from None


def _from_csv(body: bytes) -> LastHour:
    """A wide table with commas: a header of any name for the times and the sensor ids, then a row for each time."""
    try:
        header, *rows = csv.reader(io.StringIO(body.decode("utf-8-sig"), newline=""), strict=True)
    except UnicodeDecodeError:
        raise SocialxError("body", "not UTF-8 text", "send CSV text") from None
    except (csv.Error, ValueError) as error:  # ValueError: no line at all
        found = "no header" if isinstance(error, ValueError) else error
        raise SocialxError("body", f"not CSV text ({found})", "send a header and a row for each time") from None
    rows = [row for row in rows if row]
    ids = header[1:]
    if repeated := [vdid for vdid, count in Counter(ids).items() if count > 1]:
        raise SocialxError("header", "sensors appear twice", "send each once", sample=repeated)
    if odd := [f"row {place}" for place, row in enumerate(rows, 2) if len(row) != len(header)]:
        raise SocialxError("body", f"{len(odd)} rows do not have {len(header)} cells", "repair them", sample=odd)
    # The empty cell, and what pandas writes for no number, are missing readings.
    cells = ([None if cell.strip().lower() in ("", "nan") else cell for cell in row[1:]] for row in rows)
    columns = zip(*cells, strict=True)
    readings = {vdid: list(column) for vdid, column in zip(ids, columns, strict=False)}
    return _validated({"times": [row[0] for row in rows], "readings": readings})
