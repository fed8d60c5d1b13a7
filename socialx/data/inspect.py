"""What is in a canonical file, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from socialx.data.files import open_hdf5
from socialx.data.store import EPOCHS, ROWS_ATTR, SENSOR_INFO, open_store
from socialx.errors import sample

WORST = 5  # sensors listed with their share of missing readings


@dataclass(frozen=True)
class Report:
    """Findings as plain numbers and texts, ready for JSON; None where the file does not say."""

    path: str
    dataset: str
    feature: str
    unit: str
    timezone: str | None
    missing: float | None
    imputed: bool
    checksum: str
    rows: int
    declared_rows: int | None
    sensors: int
    first_stamp: str
    last_stamp: str
    step_minutes: int
    gaps: int
    largest_gap_minutes: float  # between the two rows around it; 0 without a gap
    duplicates: int  # rows whose time an earlier row has
    missing_share: float
    zero_share: float
    worst_sensors: dict[str, float]  # id -> share of missing readings, the worst first
    all_missing_rows: int
    longest_outage_steps: int  # the longest run of rows in which no sensor has a reading
    without_position: list[str]  # ids whose latitude or longitude is absent, not finite or out of range
    without_info: list[str]  # ids of the data that vd_info does not have
    unknown_info: list[str]  # ids of vd_info that the data does not have
    backward_steps: int  # rows that are not later than the row before, by the stored epochs where there are some
    wrong_epochs: int | None  # stored epochs that are not their row's time read as UTC; None = none are stored


def inspect(path: Path) -> Report:
    """Load the speeds of a canonical file and look at times, readings and sensors."""
    store = open_store(path)
    with open_hdf5(path, "convert it again") as file:
        declared = file.attrs.get(ROWS_ATTR)
        info, epochs = file.get(SENSOR_INFO), file.get(EPOCHS)
        described = set(info) if isinstance(info, h5py.Group) else set()
        stored = epochs[()].ravel() if isinstance(epochs, h5py.Dataset) else None
    ids, steps = store.sensors.ids, np.diff(store.epochs)
    gaps = steps[steps > store.step_minutes * 60]
    dark = np.logical_not(store.valid.any(axis=1))
    missing = 1.0 - store.valid.mean(axis=0)
    worst = np.argsort(-missing, kind="stable")[:WORST]
    return Report(
        path=str(path),
        dataset=store.dataset_name,
        feature=store.feature,
        unit=store.unit,
        timezone=store.timezone,
        missing=store.missing,
        imputed=store.imputed,
        checksum=store.checksum,
        rows=len(store.stamps),
        declared_rows=None if declared is None else int(declared),
        sensors=len(ids),
        first_stamp=store.stamps[0].decode(),
        last_stamp=store.stamps[-1].decode(),
        step_minutes=store.step_minutes,
        gaps=len(gaps),
        largest_gap_minutes=float(gaps.max(initial=0)) / 60,
        duplicates=len(store.epochs) - len(np.unique(store.epochs)),
        missing_share=float(1.0 - store.valid.mean()),
        zero_share=float((store.values == 0).mean()),
        worst_sensors={ids[place]: float(missing[place]) for place in worst},
        all_missing_rows=int(dark.sum()),
        longest_outage_steps=_longest_run(dark),
        without_position=[ids[place] for place in np.flatnonzero(np.isnan(store.sensors.latitude))],
        without_info=[vdid for vdid in ids if vdid not in described],
        unknown_info=sorted(described - set(ids)),
        backward_steps=int((np.diff(store.epochs if stored is None else stored) <= 0).sum()),
        wrong_epochs=None if stored is None else _differences(stored, store.epochs),
    )


def _differences(stored: np.ndarray, epochs: np.ndarray) -> int:
    """How many entries differ; all of them where the lengths do."""
    return int(np.count_nonzero(stored != epochs)) if stored.shape == epochs.shape else stored.size


def _longest_run(flags: np.ndarray) -> int:
    """The most neighbouring True values in a bool [T]."""
    edges = np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8))
    return int((np.flatnonzero(edges == -1) - np.flatnonzero(edges == 1)).max(initial=0))


def problems(report: Report) -> list[str]:
    """What a file must not have to pass ``convert --validate``, one line each; empty when it passes."""
    found = []
    if report.declared_rows is not None and report.declared_rows != report.rows:
        found.append(f"it has {report.rows} rows, its attribute {ROWS_ATTR} says {report.declared_rows}")
    if report.duplicates:
        found.append(f"{report.duplicates} rows have the time of an earlier row")
    for ids, what in (
        (report.without_position, f"of {report.sensors} sensors have no position"),
        (report.without_info, f"of {report.sensors} sensors are not in vd_info"),
        (report.unknown_info, "sensors of vd_info are not in vdids"),
    ):
        if ids:
            found.append(f"{len(ids)} {what} ({sample(ids)})")
    if report.backward_steps:
        found.append(f"{report.backward_steps} rows are not later than the row before")
    if report.wrong_epochs:
        found.append(f"{report.wrong_epochs} of its timestamps_epoch are not the wall time of their row read as UTC")
    return found
