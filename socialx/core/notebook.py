"""What a notebook's user types and sees: one name or several, a result as one line of text and a table as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from socialx.core.errors import Command, SettingsError

ROWS = 12  # of a longer table, its first and last ones


def names_in(names: str | Iterable[str]) -> list[str]:
    """A text is one name, or several with commas between them."""
    return [name.strip() for name in names.split(",") if name.strip()] if isinstance(names, str) else list(names)


def is_frame(value: object) -> bool:
    """Whether it is a table of pandas or pyarrow, which need not be loaded to tell."""
    return hasattr(value, "to_csv") or hasattr(value, "to_pandas")


def files_in(files: Any, argument: str = "data") -> list[Path]:
    """One path or several as a list.  SettingsError for what is none, such as a frame, with the way to a file."""
    paths = list(files) if isinstance(files, Sequence) and not isinstance(files, str) else [files]
    for path in paths:
        if not isinstance(path, str | PathLike):
            way = "name a file"
            if is_frame(path):
                reading = Command("convert", "auto", "FILE.csv", meta_csv="LOCATIONS.csv", output="OUT.h5")
                way = f"write it with frame.to_csv('FILE.csv'), then {reading}"
            raise SettingsError(argument, f"{type(path).__name__} is no file", way)
    return [Path(path) for path in paths]


class ResultRepr:
    """A result that names itself in one line; its class says which line and which table."""

    def headline(self) -> str:
        """What it is, in one line."""
        raise NotImplementedError

    def table(self) -> list[dict[str, Any]]:
        """Its most important numbers, a row each; none where the line says all."""
        return []

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.headline()}>"

    def _repr_html_(self) -> str:
        from html import escape

        import pandas as pd

        rows = pd.DataFrame(self.table())
        table = rows.to_html(index=False, max_rows=ROWS, na_rep="-", border=0, float_format="{:.3f}".format)
        return f"<p>{escape(self.headline())}</p>{table if len(rows) else ''}"
