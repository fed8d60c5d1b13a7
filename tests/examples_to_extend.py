"""The examples of docs/how-to: a file format, a row of a published table, and the changes that add something."""

from __future__ import annotations

from tests.commands import ROOT

FOLDER = ROOT / "examples/extend"


def example(name: str) -> str:
    """The text of one example."""
    return (FOLDER / name).read_text("utf-8")
