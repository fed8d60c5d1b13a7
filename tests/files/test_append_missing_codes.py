"""All numbers that stood for no reading when a file was made stand for none in the rows that append adds."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest

import socialx
from socialx.files.store import open_store
from tests import frames
from tests.commands import socialx as run
from tests.data_files import changed

CODES = "missing_codes"


def coded(rows: int = 60, seed: int = 0) -> pd.DataFrame:
    """Speeds of which some are -1, some 0 and some 255."""
    frame = frames.network(rows, seed=seed).fillna(50.0).round(1)
    chance = np.random.default_rng(seed + 1).random(frame.shape)
    return frame.mask(chance < 0.3, 255.0).mask(chance < 0.2, 0.0).mask(chance < 0.1, -1.0)


def file_of(frame: pd.DataFrame, folder: Path, missing: str | None, name: str = "city") -> Path:
    frame.to_csv(folder / f"{name}.csv")
    output = folder / f"{name}.h5"
    socialx.convert("csv", folder / f"{name}.csv", output, units="km/h", missing=missing, without_positions=True)
    return output


def grown(path: Path, frame: pd.DataFrame, *options: str) -> str:
    """The notes of append."""
    frame.to_csv(path.parent / "new.csv")
    done = run("append", path, path.parent / "new.csv", *options)
    assert done.exit_code == 0, done.stderr
    return done.stderr


def content(path: Path) -> tuple[bytes, list[float]]:
    with h5py.File(path) as file:
        return file["data/features"][:].tobytes(), list(file["metadata"].attrs.get(CODES, []))


@pytest.mark.parametrize("missing", ["-1,0", "-1,0,255", "0,-1,255", "255,-1"])
def test_append_applies_all_codes_of_the_conversion(tmp_path: Path, missing: str) -> None:
    frame = coded()
    whole = file_of(frame, tmp_path, missing, "whole")
    path = file_of(frame[:20], tmp_path, missing)
    grown(path, frame[18:40])
    grown(path, frame[40:])
    assert content(path) == content(whole)
    codes = [float(code) for code in missing.split(",")]
    assert open_store(path).valid.sum() == np.isin(frame, codes, invert=True).sum()


def test_append_keeps_the_codes_that_it_is_given(tmp_path: Path) -> None:
    frame = coded().replace({0.0: 50.0})
    path = file_of(frame[:20].replace(255.0, 50.0), tmp_path, "-1")
    grown(path, frame[20:40], "--missing", "-1,255")
    grown(path, frame[40:])
    assert content(path)[1] == [255.0]
    assert not (open_store(path).values == 255).any()


def test_a_file_of_one_code_has_no_further_ones(tmp_path: Path) -> None:
    assert content(file_of(coded(), tmp_path, "0"))[1] == []


def test_zeros_that_the_file_never_had_are_noted(tmp_path: Path) -> None:
    frame = coded()
    path = file_of(frame[:30].replace(0.0, 50.0), tmp_path, "-1")
    note = grown(path, frame[30:])
    zeros = int((frame[30:] == 0).to_numpy().sum())
    assert f"{zeros} zeros count as readings, and {path} had none: --missing 0 if they stand for none" in note
    assert "zeros count" not in grown(path, coded(80)[60:])  # it has some now


@pytest.mark.parametrize("missing", ["0", "-1,0"])
def test_zeros_that_are_missing_anyway_are_not_noted(tmp_path: Path, missing: str) -> None:
    path = file_of(coded()[:30].replace(0.0, 50.0), tmp_path, missing)
    assert "zeros count" not in grown(path, coded()[30:])


def test_codes_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    path = file_of(coded()[:30], tmp_path, "-1,0")
    changed(path, lambda file: file["metadata"].attrs.__setitem__(CODES, "none"))
    coded()[30:].to_csv(tmp_path / "new.csv")
    done = run("append", path, tmp_path / "new.csv")
    assert done.exit_code == 1
    assert "missing_codes" in done.stderr
