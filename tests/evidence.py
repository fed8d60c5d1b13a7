"""Made-up readings in the layouts of cities and offices, and the options that a refusal advises."""

import re
import shlex
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from socialx.files.store.quantities import QUANTITIES
from tests.data_files import refusal
from tests.frames import converted


def readings(rows: int, ids: Sequence[str], freq: str, first: str = "2023-05-02", seed: int = 0) -> pd.DataFrame:
    """Speeds with one decimal, a row for each time."""
    values = np.random.default_rng(seed).uniform(20, 110, (rows, len(ids))).round(1)
    return pd.DataFrame(values, columns=list(ids), index=pd.date_range(first, periods=rows, freq=freq, name="t"))


def by_row(frame: pd.DataFrame, order: str = "time") -> pd.DataFrame:
    """A row for each time ``t`` and sensor ``s`` with the speed ``v``, sorted by one of them."""
    rows = frame.reset_index().melt("t", var_name="s", value_name="v")
    return rows.sort_values(["t", "s"] if order == "time" else ["s", "t"], kind="stable").reset_index(drop=True)


def saved(table: pd.DataFrame, path: Path, **how: Any) -> Path:
    """A table as CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False, **how)
    return path


def asked(path: Path, *words: str, **options: Any) -> str:
    """The line with which convert refuses a table."""
    return refusal(lambda: converted(path, **options), *words)


def advised(line: str, path: Path) -> list[Callable[[], pd.DataFrame]]:
    """What the ways read that the remedy of a refusal of a table gives, one of " or " or commas after the other."""
    remedy = line.removeprefix(str(path)).partition(": --")[2]
    return [_read(path, each) for each in re.split(r" or |, |; ", "--" + remedy) if each.startswith("--")]


def _read(path: Path, text: str) -> Callable[[], pd.DataFrame]:
    said: dict[str, Any] = {}
    for flag, value in pairwise(shlex.split(text)):
        if flag.startswith("--"):
            said.setdefault(flag[2:].replace("-", "_"), []).append(value)
    several = ("sensor_column", "time_column", "drop")
    options = {name: found if name in several else found[0] for name, found in said.items()}
    return lambda: converted(path, QUANTITIES[options.get("quantity", "speed")], **options)
