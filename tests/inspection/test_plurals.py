"""One row is a row, and two are rows: messages about files count in words."""

import re
from pathlib import Path

import numpy as np
import pytest

from socialx.files.store.writer import create
from socialx.inspection.checks import CHECKS, failed_checks
from socialx.inspection.report import Report, inspect
from tests.data_files import altered, block, made_up, timestamps

WRONG = re.compile(r"(?<![\d.,:-])1 [a-z]+s\b(?! of)|\b1 of [\d,]+ [a-z]+s (?:are|have)\b|\b1 of 1 [a-z]+s\b")


def report_of(path: Path, rows: int, sensors: int) -> Report:
    values = np.random.default_rng(0).uniform(20, 90, (rows, sensors))
    create(path, made_up([block(timestamps(rows), values)], tuple(map(str, range(sensors)))), overwrite=True)
    return inspect(path)


@pytest.mark.parametrize("sensors", [1, 3])
def test_every_check_counts_one_in_the_singular(tmp_path: Path, sensors: int) -> None:
    report = altered(
        report_of(tmp_path / "a.h5", 30, sensors),
        **{"declared_rows": 7, "failed_rows": 0, "rows": 1, "duplicates": 1, "without_position": ["0"]},
        **{"without_info": ["0"], "unknown_info": ["x"], "backward_steps": 1, "wrong_epochs": 1},
        **{"duplicate_positions": [["0", "1"]], "outlier_sensors": ["0"], "gaps": 1, "largest_gap_minutes": 15.0},
        **{"gap_list": [{"from": "x", "to": "y", "missing_rows": 2}], "irregular_steps": 1, "dead_sensors": ["0"]},
        **{"stuck_sensors": {"0": 7.0}, "fast_readings": 1, "fast_sensors": ["0"], "negative_readings": 1},
        **{"most_negative": -1.0, "odd_values": {"0": {"value": 999.0, "readings": 1, "share": 0.1}}},
    )
    lines = failed_checks(report, ["all"])
    assert len(lines) > len(CHECKS) / 2
    assert not [line for line in lines if WRONG.search(line)]
