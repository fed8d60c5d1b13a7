"""What the tests of NumPy-based data sets share: times as channels, and whole contents."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from socialx.files.sources.contents import Contents
from socialx.files.sources.recognition import FORMATS
from socialx.files.sources.request import ConvertOptions
from socialx.files.store.time_axis import as_text
from tests.data_files import reason


def npy_bytes(array: np.ndarray) -> bytes:
    """What numpy.save writes."""
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def fractions(times: list[str]) -> np.ndarray:
    """Times of day as fractions, float64 [T], by the arithmetic of DCRNN's script."""
    moments = np.array(times, "datetime64[s]")
    return (moments - moments.astype("datetime64[D]")) / np.timedelta64(1, "D")


def weekdays(times: list[str]) -> np.ndarray:
    """0 = Monday, int [T]."""
    return np.array([np.datetime64(time, "D").item().weekday() for time in times])


def tiled(*channels: np.ndarray) -> np.ndarray:
    """[T,N] and any [T] -> [T,N,C]."""
    sensors = channels[0].shape[1]
    return np.stack([c if c.ndim == 2 else np.tile(c[:, None], (1, sensors)) for c in channels], axis=-1)


def contents(kind: str, data: Path, **request: object) -> Contents:
    """What the reader of a format makes of a file."""
    return FORMATS[kind].read(ConvertOptions(data, **request))


def joined(found: Contents) -> tuple[list[str], np.ndarray]:
    """All timestamps and all speeds [T,N]."""
    blocks = list(found.blocks)
    assert all(block.seconds.dtype == np.int64 and block.speeds.dtype == np.float32 for block in blocks)
    assert all(block.speeds.shape == (len(block.seconds), found.sensors) for block in blocks)
    timestamps = [as_text(second) for block in blocks for second in block.seconds.tolist()]
    return timestamps, np.concatenate([block.speeds for block in blocks])


def check(found: Contents, times: list[str], values: np.ndarray, feature: str, units: str | None) -> None:
    """Every field but the notes."""
    assert (found.ids, found.sensors, found.locations) == (None, values.shape[1], None)
    assert (found.feature, found.units) == (feature, units)
    timestamps, speeds = joined(found)
    assert timestamps == times
    assert speeds.tobytes() == values.astype(np.float32).tobytes()


def recognised(path: Path) -> list[str]:
    """The formats of NumPy files that claim a path."""
    names = ("pyg-t", "largest-npz", "torch-mts", "pems-npz", "npy")
    return [name for name in names if reason(FORMATS[name], path)]
