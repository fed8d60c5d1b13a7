"""A forecast as an HDF5 file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from socialx.files.hdf5 import packed_bytes, reserve, writing
from socialx.files.store import PACKED, plain_text


def write_forecast(path: Path, forecast: Any) -> None:
    """Write the arrays of a ``Forecast`` to a path that nobody else reads before this returns.

    forecast float32 [W,P,N,G]; times, issued_at ``YYYY-MM-DD HH:MM:SS`` [W,P], [W]; sensors [N], targets and units [G];
    readings int64 [W,N]; reported bool [W,N].  With intervals: lower, upper float32 [W,P,N,G], and their level in the
    attribute ``interval``.
    """
    with writing(path, "w", "v110") as file:
        file.attrs.update(schema="socialx.forecast/1", dataset=forecast.dataset, run=plain_text(str(forecast.run)))
        file.attrs.update(step_minutes=forecast.step_minutes, history=forecast.history)
        file.attrs["timezone"] = forecast.timezone or ""
        if forecast.interval is not None:
            file.attrs["interval"] = forecast.interval
        ends = {} if forecast.interval is None else {"lower": forecast.lower, "upper": forecast.upper}
        arrays = {
            "forecast": forecast.values,
            **ends,
            "times": _text(forecast.times),
            "issued_at": _text(forecast.issued_at),
            "sensors": np.array(forecast.sensors, "S64"),
            "targets": np.array(forecast.targets, "S64"),
            "units": np.array([unit.encode() for unit in forecast.units], "S64"),
            "readings": forecast.readings,
            "reported": forecast.reported,
        }
        for name, array in arrays.items():
            reserve(file, packed_bytes(array.nbytes))
            file.create_dataset(name, data=array, chunks=True, **PACKED)


def _text(times: np.ndarray) -> np.ndarray:
    """datetime64[s] -> ``YYYY-MM-DD HH:MM:SS`` as S19, of the same shape."""
    return np.char.replace(np.datetime_as_string(times, unit="s"), "T", " ").astype("S19")
