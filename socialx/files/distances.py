"""Road distances between sensors as published beside the data: a CSV of from, to, cost."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from socialx.errors import SocialxError, sample

COLUMNS = ("from", "to", "cost")
ADVICE = "a CSV with the columns from,to,cost is needed"
# Half of the listed pairs of a real network are farther apart than this; a smaller median is one in km or miles.
SMALLEST_MEDIAN_METRES = 20.0


def distances_checksum(path: Path) -> str:
    """12 hex digits that tell this file from others.  Raises SocialxError where it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except OSError as error:
        raise SocialxError(path, error.strerror or error, ADVICE) from None


def read_distances(path: Path, ids: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The listed pairs of these sensors: start, end int64 [pairs] as places in ids, and km float64 [pairs].

    DCRNN's ``distances_la_2012.csv``: a header from,to,cost, costs in metres, and many sensors that are not in the
    data, which are left out; its ``distances_bay_2017.csv`` is the same without the header.  Raises SocialxError where
    the columns, the unit or every sensor are others.
    """
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
            "name the distances of this network",
        )
    metres = cost[known]
    if np.median(metres) < SMALLEST_MEDIAN_METRES:
        raise SocialxError(
            path,
            f"half of its costs are no more than {np.median(metres):.3g}, which are no metres",
            "multiply kilometres by 1000",
        )
    return start[known].to_numpy(np.int64), end[known].to_numpy(np.int64), metres / 1000


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
    if header is None:
        table.columns = pd.Index(COLUMNS)
    table.index += 1 if header is None else 2
    return table.fillna("").loc[lambda cells: (cells != "").any(axis=1)]


def _is_a_pair(line: str) -> bool:
    """Whether a line is ``from,to,cost`` of two sensors, not the names of these columns."""
    try:
        _, _, cost = line.split(",")
        float(cost)
    except ValueError:
        return False
    return True
