"""Notebook input and output: names and files as lists, results as text and HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from socialx.core.errors import Argument, Command, SettingsError

ROWS = 12  # shown from a longer table, half from each end


def names_in(names: str | Iterable[str]) -> list[str]:
    """Split comma-separated text into names; an iterable becomes a list."""
    return [name.strip() for name in names.split(",") if name.strip()] if isinstance(names, str) else list(names)


def is_frame(value: object) -> bool:
    """Return whether a value is a pandas or pyarrow table, by its methods: both packages stay unloaded."""
    return hasattr(value, "to_csv") or hasattr(value, "to_pandas")


def files_in(files: Any, argument: str = "data") -> list[Path]:
    """Return a path or several as a list. Raises SettingsError, naming ``argument``, for a wrong type (a frame)."""
    paths = list(files) if isinstance(files, Sequence) and not isinstance(files, str) else [files]
    for path in paths:
        if not isinstance(path, str | PathLike):
            remedy = "name a file"
            if is_frame(path):
                convert = Command("convert", "auto", "FILE.csv", meta_csv="LOCATIONS.csv", output="OUT.h5")
                remedy = f"write the frame with frame.to_csv('FILE.csv'), then run {convert}"
            raise SettingsError(
                "call.no-path", "", f"{Argument(argument)} must be a path, not {type(path).__name__}", remedy
            )
    return [Path(path) for path in paths]


class ResultRepr:
    """Base for results that display themselves in a notebook: a headline and a table, both from the subclass."""

    def headline(self) -> str:
        """Return the result in a line."""
        raise NotImplementedError

    def table(self) -> list[dict[str, Any]]:
        """Return the figures below the headline as rows (column -> value) for a notebook; empty if there are none."""
        return []

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.headline()}>"

    def _repr_html_(self) -> str:
        from html import escape

        import pandas as pd

        rows = pd.DataFrame(self.table())
        table = rows.to_html(index=False, max_rows=ROWS, na_rep="-", border=0, float_format="{:.3f}".format)
        return f"<p>{escape(self.headline())}</p>{table if len(rows) else ''}"
