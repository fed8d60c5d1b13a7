"""A sign before three digits: of thousands or of decimals; a refusal shows both readings, ``--decimal`` decides."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import socialx
from socialx.core.errors import SettingsError, SocialxError
from socialx.files.store.store import open_store
from tests import frames
from tests.commands import socialx as run
from tests.data_files import refusal
from tests.frames import IDS, long, same

ROWS = 60


def converted(path: Path, quantity: str = "speed", **options: Any) -> pd.DataFrame:
    return frames.converted(path, "avg_speed" if quantity == "speed" else quantity, quantity=quantity, **options)


def flows(rows: int = ROWS, first: int = 0) -> pd.DataFrame:
    """Whole numbers from 600 to 1500; up to row ``first`` below 1000."""
    values = np.random.default_rng(1).integers(600, 1500, (rows, len(IDS)))
    values[:first] = values[:first] % 400 + 500
    values[-1] = [743, 1025, 988, 1310]
    return pd.DataFrame(values, pd.date_range("2024-01-30", periods=rows, freq="5min", name="time"), list(IDS))


def group_thousands(frame: pd.DataFrame, sign: str) -> pd.DataFrame:
    return frame.map(lambda value: f"{value:,}".replace(",", sign))


def flow_rows(frame: pd.DataFrame) -> pd.DataFrame:
    return long(frame).drop(columns="volume").set_index("time").rename(columns={"speed": "flow"})


def sheet(frame: pd.DataFrame, path: Path) -> Path:
    frame.to_excel(path)
    return path


def text(frame: pd.DataFrame, path: Path, separator: str) -> Path:
    frame.to_csv(path, sep=separator)
    return path


WAYS = {
    "tabs": ("tsv", ",", lambda frame, path: text(frame, path, "\t")),
    "semicolons": ("csv", ",", lambda frame, path: text(frame, path, ";")),
    "bars": ("csv", ",", lambda frame, path: text(frame, path, "|")),
    "German": ("csv", ".", lambda frame, path: text(frame, path, ";")),
    "commas, quoted": ("csv", ",", lambda frame, path: text(frame, path, ",")),
    "points between commas": ("csv", ".", lambda frame, path: text(frame, path, ",")),
    "a row per reading": ("csv", ".", lambda frame, path: text(flow_rows(frame), path, ";")),
    "Excel": ("xlsx", ".", sheet),
}


@pytest.mark.parametrize("first", [0, 50])
@pytest.mark.parametrize("way", WAYS)
def test_thousands_are_refused_and_the_option_reads_them(way: str, first: int, tmp_path: Path) -> None:
    suffix, sign, write = WAYS[way]
    frame = flows(first=first)
    path = write(group_thousands(frame, sign), tmp_path / f"flows.{suffix}")
    line = refusal(lambda: converted(path, quantity="flow"), "--decimal . reads", "--decimal , reads")
    assert not (tmp_path / "out.h5").exists(), line
    same(converted(path, quantity="flow", decimal="." if sign == "," else ","), frame.astype(float))


def test_the_command_has_the_option(tmp_path: Path) -> None:
    path = text(group_thousands(flows(), ","), tmp_path / "flows.tsv", "\t")
    options = ("--quantity", "flow", "--without-positions", "--output-h5", tmp_path / "out.h5")
    assert run("convert", "auto", path, *options).exit_code == 1
    assert run("convert", "auto", path, *options, "--decimal", ".").exit_code == 0
    with pytest.raises(SettingsError, match="decimal"):
        socialx.convert("auto", path, tmp_path / "o.h5", without_positions=True, decimal=";")


def test_append_refuses_and_reads_them(tmp_path: Path) -> None:
    frame, city = flows(), tmp_path / "city.h5"
    first = text(frame[:30], tmp_path / "a.csv", ",")
    socialx.convert("csv", first, city, without_positions=True, quantity="flow")
    path = text(group_thousands(frame[30:], "."), tmp_path / "b.csv", ";")
    refusal(lambda: socialx.append(city, path), "--decimal", task="append")
    assert len(open_store(city).rows) == 30
    socialx.append(city, path, decimal=",")
    np.testing.assert_array_equal(open_store(city).read(slice(0, ROWS))[0], frame.to_numpy())


def test_files_of_one_network_are_asked_together(tmp_path: Path) -> None:
    frame, folder = flows(), tmp_path / "months"
    folder.mkdir()
    text((frame[:30] + 1000).map(lambda value: f"{value:,}"), folder / "a.csv", "\t")
    text(frame[30:] % 1000, folder / "b.csv", "\t")
    refusal(lambda: converted(folder, quantity="flow"), "--decimal .", "--decimal ,")


@pytest.mark.parametrize(
    "cells",
    [
        ["61.375", "62.125", "63.875", "60.625"],  # no number without the sign
        ["61.375", "62.5", "63", "60.625"],  # one digit after the sign
        ["1.375", "0.125", "63", "60.625"],  # 0.125 has no thousands
        ["61.375", "0", "1", "-1"],
        ["1025.375", "743", "988", "1.025"],  # four digits before the sign
    ],
)
@pytest.mark.parametrize("sign", [".", ","])
def test_decimals_are_no_question(cells: list[str], sign: str, tmp_path: Path) -> None:
    rows = np.array([cells[shift:] + cells[:shift] for shift in (0, 1, 2, 3)] * 15)
    frame = pd.DataFrame(rows, flows().index, list(IDS))
    path = text(frame.map(lambda cell: cell.replace(".", sign)), tmp_path / "speeds.csv", ";")
    same(converted(path), frame.astype(float))
    same(converted(path, decimal=sign), frame.astype(float))


def test_thousands_and_decimals_in_one_cell(tmp_path: Path) -> None:
    frame = flows() + 0.5
    path = text(frame.map(lambda value: f"{value:,}"), tmp_path / "flows.tsv", "\t")
    refusal(lambda: converted(path, quantity="flow"), "--decimal .")
    same(converted(path, quantity="flow", decimal="."), frame)


@pytest.mark.parametrize("cell", ["1,02", "1,0255", ",025", "1,,025", "1025,743", "1,025,", "01,025x"])
def test_a_wrong_group_is_no_number(cell: str, tmp_path: Path) -> None:
    frame = group_thousands(flows(), ",")
    frame.iloc[45, 2] = cell
    path = text(frame, tmp_path / "flows.tsv", "\t")
    refusal(lambda: converted(path, quantity="flow", decimal="."), f"'{cell}', not a number")


@given(
    rows=st.lists(st.lists(st.integers(0, 10_000_000), min_size=3, max_size=3), min_size=3, max_size=60),
    sign=st.sampled_from([",", "."]),
    separator=st.sampled_from(["\t", ";", "|"]),
    packed=st.booleans(),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_read_is_never_a_thousandth(
    rows: list[list[int]], sign: str, separator: str, packed: bool, tmp_path: Path
) -> None:
    """Grouped whole numbers are read as they are, or refused; with the option they are always read."""
    index = pd.date_range("2024-01-30", periods=len(rows), freq="5min", name="time")
    frame = pd.DataFrame(rows, index, list(IDS)[:3])
    path = tmp_path / "flows.csv"
    content = group_thousands(frame, sign).to_csv(sep=separator).encode()
    path.write_bytes(gzip.compress(content) if packed else content)
    other = "." if sign == "," else ","
    same(converted(path, quantity="flow", decimal=other), frame.astype(float))
    signed = [value for row in rows for value in row if 1000 <= value < 1_000_000]
    plain = [value for row in rows for value in row if 1 < value < 1000]
    if signed and plain:
        with pytest.raises(SocialxError, match="decimal"):
            converted(path, quantity="flow")
