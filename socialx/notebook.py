"""How a result shows itself in a notebook: one line as text, a table as HTML."""

from __future__ import annotations

from typing import Any

ROWS = 12  # of a longer table, its first and last ones


class Shown:
    """A result that names itself in one line; its class says which line and which table."""

    def headline(self) -> str:
        """What it is, in one line."""
        raise NotImplementedError

    def table(self) -> list[dict[str, Any]]:
        """Its most important numbers, a row each."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.headline()}>"

    def _repr_html_(self) -> str:
        from html import escape

        import pandas as pd

        rows = pd.DataFrame(self.table())
        table = rows.to_html(index=False, max_rows=ROWS, na_rep="-", border=0, float_format="{:.3f}".format)
        return f"<p>{escape(self.headline())}</p>{table}"
