"""Road distances between sensors as published beside the data: a CSV of from, to, cost, or a square matrix.

N sensors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from socialx.disk import check_regular
from socialx.errors import SocialxError, fall_back, sample
from socialx.files.hdf5 import LINE_BYTES

COLUMNS = ("from", "to", "cost")
ADVICE = "a CSV with the columns from,to,cost is needed"
OF_NETWORK = "name the distances of this network"
# Half of the listed pairs of a real network are farther apart than this; a smaller median is one in km or miles.
SMALLEST_MEDIAN_METRES = 20.0


def distances_checksum(path: Path) -> str:
    """12 hex digits that tell this file from others.  Raises SocialxError where it cannot be read."""
    try:
        check_regular(path)
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except OSError as error:
        raise SocialxError(path, error.strerror or error, ADVICE) from None


def read_distances(path: Path, ids: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The listed pairs of these sensors: start, end int64 [pairs] as places in ids, and km float64 [pairs].

    Three columns are a list, any other rows of numbers are a matrix N x N in the order of the sensors: STGCN's
    ``W_228.csv``, with metres from the sensor of the row to that of the column.

    DCRNN's ``distances_la_2012.csv``: a header from,to,cost, costs in metres, and many sensors that are not in the
    data, which are left out; its ``distances_bay_2017.csv`` is the same without the header.  Raises SocialxError where
    the columns, the unit or every sensor are others.
    """
    if _is_matrix(path):
        return _read_matrix(path, ids)
    table = _read_table(path)
    names = [str(name).strip().lower() for name in table.columns]
    if any(names.count(name) != 1 for name in COLUMNS):
        raise SocialxError(path, f"its columns are {sample(names, 8)}", "from,to,cost are needed, cost in metres")
    table.columns = pd.Index(names)
    cost = pd.to_numeric(table["cost"], errors="coerce").to_numpy(np.float64)
    wrong = np.flatnonzero(~(np.isfinite(cost) & (cost >= 0)))
    if len(wrong):
        cell = table["cost"].iloc[wrong[0]]
        raise SocialxError(path, f"line {table.index[wrong[0]]}: cost {cell[:40]!r} is no distance", "correct it")
    place = {vdid: number for number, vdid in enumerate(ids)}
    start, end = (table[name].str.strip().map(place) for name in COLUMNS[:2])
    known = (start.notna() & end.notna() & (start != end)).to_numpy()
    if not known.any():
        listed = sample(list(dict.fromkeys(table["from"]))) or "no rows"
        raise SocialxError(
            path,
            f"no pair of it is in the data (it has {listed}; the data {sample(list(ids))})",
            OF_NETWORK,
        )
    return start[known].to_numpy(np.int64), end[known].to_numpy(np.int64), _km(path, "costs", cost[known])


def _km(path: Path, what: str, metres: np.ndarray) -> np.ndarray:
    """Metres float64 [pairs] -> km; refuses what is in another unit."""
    if np.median(metres) < SMALLEST_MEDIAN_METRES:
        raise SocialxError(
            path,
            f"half of its {what} are no more than {np.median(metres):.3g}, which are no metres",
            "multiply kilometres by 1000",
        )
    return metres / 1000


def _is_matrix(path: Path) -> bool:
    """Whether line 1 holds only numbers, and not three of them, which are a pair with its cost."""
    try:
        check_regular(path)
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            cells = file.readline(LINE_BYTES).split(",")
    except OSError as error:
        raise SocialxError(path, error.strerror or error, ADVICE) from None
    return len(cells) != len(COLUMNS) and len(cells) > 1 and all(map(_is_number, cells))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _read_matrix(path: Path, ids: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pairs of a matrix [N,N] of metres without a header, as ``read_distances`` gives them.

    Its diagonal is not read.  inf is no road.  So is 0 elsewhere, with a warning: it stands for "not connected" more
    often than for two sensors at one place, and then all unconnected sensors would be the nearest ones.
    """
    try:
        table = pd.read_csv(path, header=None, dtype=str, keep_default_na=False, skipinitialspace=True)
    except (OSError, ValueError) as error:
        raise SocialxError(path, " ".join(str(error).split())[:120], ADVICE) from None
    if table.shape != (len(ids), len(ids)):
        found = "{} x {} numbers without a header, not {} x {} for the sensors of the data"
        raise SocialxError(
            path, found.format(*table.shape, len(ids), len(ids)), f"{OF_NETWORK}, or a list from,to,cost of it"
        )
    metres = np.stack([pd.to_numeric(table[column], errors="coerce") for column in table], axis=1).astype(np.float64)
    off = ~np.eye(len(ids), dtype=bool)
    wrong = np.argwhere(off & ~(metres >= 0))
    if len(wrong):
        row, column = wrong[0]
        found = f"row {row + 1}, column {column + 1} is {str(table.iat[row, column])[:40]!a}, no distance"
        raise SocialxError(path, found, "correct it")
    listed = off & (metres > 0) & np.isfinite(metres)
    if not listed.any():
        raise SocialxError(path, "no distance above 0 in it", OF_NETWORK)
    if zeros := int((off & (metres == 0)).sum()):
        fall_back(path, f"{zeros} of its distances between two sensors are 0", "these pairs are no neighbours")
    start, end = np.nonzero(listed)
    return start.astype(np.int64), end.astype(np.int64), _km(path, "distances", metres[listed])


def _read_table(path: Path) -> pd.DataFrame:
    """The cells as text, by the number of their line; blank lines are left out."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            header = None if _is_a_pair(file.readline()) else 0
        table = pd.read_csv(
            path, header=header, dtype=str, keep_default_na=False, skipinitialspace=True, skip_blank_lines=False
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:120]
        raise SocialxError(path, reason, ADVICE) from None
    if not isinstance(table.index, pd.RangeIndex):  # pandas takes what is too much for names of rows
        raise SocialxError(path, f"its rows have more cells than the {len(table.columns)} of line 1", ADVICE)
    if header is None:
        table.columns = pd.Index(COLUMNS)
    table.index += 1 if header is None else 2
    return table.fillna("").loc[lambda cells: (cells != "").any(axis=1)]


def _is_a_pair(line: str) -> bool:
    """Whether a line is ``from,to,cost`` of two sensors, not the names of these columns."""
    cells = line.split(",")
    return len(cells) == len(COLUMNS) and _is_number(cells[-1])
