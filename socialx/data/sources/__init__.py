"""Readers of the files that users have: one table of datasets, one function per file format."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from socialx.data.files import HDF5_SIGNATURE, first_bytes
from socialx.data.sources.hdfstore import read_frame
from socialx.data.sources.locations import join, read_locations
from socialx.data.sources.tables import read_table
from socialx.data.store import Readings
from socialx.errors import SettingsError

DOWNLOAD = "download it again"


@dataclass(frozen=True)
class Source:
    """A published dataset: how users name it and what its files leave unsaid."""

    name: str  # as in ``socialx convert NAME``
    aliases: tuple[str, ...]
    dataset_name: str
    feature_set: str
    units: str
    missing: float | None
    timezone: str
    static: bool  # the canonical file has lanes, length and direction
    key: str  # the frame in the HDFStore that DCRNN published


SOURCES = {
    source.name: source
    for source in (
        Source(
            name="metr-la",
            aliases=("metrla", "la"),
            dataset_name="metr_la",
            feature_set="metr_la_v1",
            units="mph",
            missing=0.0,
            timezone="America/Los_Angeles",
            static=False,
            key="df",
        ),
        Source(
            name="pems-bay",
            aliases=("pemsbay", "bay"),
            dataset_name="pems_bay",
            feature_set="pems_bay_v1",
            units="mph",
            missing=0.0,
            timezone="America/Los_Angeles",
            static=True,
            key="speed",
        ),
    )
}


def find(kind: str) -> Source:
    """The source of a name or alias, whatever its case and with ``_`` or ``-``."""
    name = kind.strip().lower().replace("_", "-")
    for source in SOURCES.values():
        if name in (source.name, *source.aliases):
            return source
    near = difflib.get_close_matches(name, SOURCES, 1)
    hint = f"did you mean {near[0]}?" if near else f"choose {' or '.join(SOURCES)}"
    raise SettingsError(f"{kind}: unknown dataset: {hint}")


def read(kind: str, data: Path, meta: Path) -> Readings:
    """The readings of a published CSV or DCRNN HDFStore, told apart by content, with positions joined by id.

    A locations file without lanes, length and direction gives PEMS-BAY these columns as unknown (NaN), not a refusal:
    DCRNN's own locations have only positions, and nothing but those is needed to forecast.
    """
    source = find(kind)
    if first_bytes(data, DOWNLOAD).startswith(HDF5_SIGNATURE):
        ids, blocks = read_frame(data, source.key)
    else:
        ids, blocks = read_table(data)
    return Readings(
        dataset_name=source.dataset_name,
        feature_set=source.feature_set,
        sensors=join(ids, read_locations(meta), meta, static=source.static),
        blocks=blocks,
        units=source.units,
        missing=source.missing,
        timezone=source.timezone,
        source_data=str(data),
        source_meta=str(meta),
    )
