"""MAPE is of readings that one can divide by, and says what it leaves out."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import socialx as api
from socialx.files.store.layout import UNITS
from socialx.scoring.tables import mape_notes
from tests.commands import edited, works


@pytest.mark.parametrize(("zero", "unit"), [(1e-30, "mph"), (1e-3, "km/h"), (0.02, "mph"), (0.02, "km/h")])
def test_readings_of_nearly_zero_are_left_out_of_mape_alone(data: Path, tmp_path: Path, zero: float, unit: str) -> None:
    path, clean = tmp_path / "nearly.h5", tmp_path / "clean.h5"
    scale = {"mph": 1.0, "km/h": 1.609344}[unit]
    for each, put in ((path, zero * scale), (clean, 0.0)):  # 0: no reading
        with edited(data, each) as file:
            file["data/features"][:] *= np.float32(scale)
            del file[UNITS]
            file[UNITS] = json.dumps({"avg_speed": unit})
            file["data/features"][330:360:7, 1, 0] = np.float32(put)
    plain = api.evaluate(baselines=True, data=clean)
    found, without = api.evaluate(baselines=True, data=path).as_dict(), plain.as_dict()
    assert found["protocol"]["targets"] == {"avg_speed": unit}
    for name, of_targets in found["scores"].items():
        if name == "naive":  # what it copies differs
            continue
        whole, clear = (each["avg_speed"]["all"] for each in (of_targets, without["scores"][name]))
        assert whole["undivided"] == whole["count"] - clear["count"] > 0
        if name == "historical average":
            assert whole["mape"] == pytest.approx(clear["mape"], rel=1e-6)
        assert whole["mae"] > clear["mae"]
        assert whole["mape"] < 100
    said = works("evaluate", "--baselines", "--data", path).stdout
    many = rf"{whole['undivided']} of {whole['count']:,} readings \(\S+ %\)"
    assert re.search(rf"MAPE of avg_speed .* {many}, .* 0\.001 ", said)
    assert mape_notes(plain) == []
