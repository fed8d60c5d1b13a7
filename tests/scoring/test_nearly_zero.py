"""MAPE is of readings that one can divide by, and says what it leaves out."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

import socialx as api
from socialx.files.hdf5_layout import UNITS
from tests.commands import edited, works

NEARLY = (1e-30, 1e-14, 1e-3, 0.02)


@pytest.mark.parametrize("unit", ["mph", "km/h"])
@pytest.mark.parametrize("zero", NEARLY)
def test_readings_of_nearly_zero_are_left_out_of_mape_alone(data: Path, tmp_path: Path, zero: float, unit: str) -> None:
    path, clean = tmp_path / "nearly.h5", tmp_path / "clean.h5"
    scale = {"mph": 1.0, "km/h": 1.609344}[unit]
    for each, put in ((path, zero * scale), (clean, 0.0)):  # 0: no reading
        with edited(data, each) as file:
            file["data/features"][:] *= np.float32(scale)
            del file[UNITS]
            file[UNITS] = json.dumps({"avg_speed": unit})
            file["data/features"][330:360:7, 1, 0] = np.float32(put)
    found, without = (
        json.loads(works("evaluate", "--baselines", "--data", each, "--json").stdout) for each in (path, clean)
    )
    assert found["protocol"]["targets"] == {"avg_speed": unit}
    for name, of_targets in found["scores"].items():
        if name == "copy-last, last valid":  # what it copies differs
            continue
        whole, plain = (each["all"] for each in (of_targets["avg_speed"], without["scores"][name]["avg_speed"]))
        assert whole["undivided"] == whole["count"] - plain["count"] > 0
        if name == "historical average":
            assert whole["mape"] == pytest.approx(plain["mape"], rel=1e-6)
        assert whole["mae"] > plain["mae"]
        assert whole["mape"] < 100
    said = works("evaluate", "--baselines", "--data", path).stdout
    many = rf"{whole['undivided']} of {whole['count']:,} readings \(\S+ %\)"
    line = rf"MAPE of avg_speed leaves out {many}, which are 0 or below 0.001 of the mean"
    assert re.search(line, said)
    assert "MAPE of avg_speed leaves out" not in works("evaluate", "--baselines", "--data", clean).stdout
    table = tmp_path / "scores.csv"
    api.evaluate(baselines=True, data=path).to_csv(table)
    assert next(csv.reader(table.open()))[-1] == "count"
    assert list(api.evaluate(baselines=True, data=path).to_frame().columns)[-2:] == ["count", "unit"]


def test_zeros_that_are_readings_are_said(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "zeros.h5"
    with edited(data, path) as file:
        file["metadata"].attrs["missing_value"] = np.nan
        file["data/features"][340:350, 2, 0] = 0
    found = api.evaluate(baselines=True, data=path)
    zeros = found["historical average"].overall().undivided
    assert zeros > 0
    assert f"MAPE of avg_speed leaves out {zeros:,} of" in works("evaluate", "--baselines", "--data", path).stdout
