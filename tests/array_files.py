"""What the tests of arrays share: times as channels, and the rows that a reader yields."""

import numpy as np

from socialx.files.sources.contents import Contents
from socialx.files.store.time_axis import as_text


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


def joined(found: Contents) -> tuple[list[str], np.ndarray]:
    """All timestamps and all speeds [T,N]."""
    blocks = list(found.blocks)
    assert all(block.seconds.dtype == np.int64 and block.values.dtype == np.float32 for block in blocks)
    assert all(block.values.shape == (len(block.seconds), found.sensors, 1) for block in blocks)
    timestamps = [as_text(second) for block in blocks for second in block.seconds.tolist()]
    return timestamps, np.concatenate([block.values[..., 0] for block in blocks])
