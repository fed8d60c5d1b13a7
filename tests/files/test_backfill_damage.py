"""A file whose readings cannot be unpacked is not completed, and says which part of it is damaged."""

from __future__ import annotations

import hashlib
from pathlib import Path

import h5py
import pytest

from socialx.files.older.backfill import backfill
from tests.commands import socialx
from tests.data_files import refusal
from tests.older_files import OLDER, meta


def damage(path: Path, number: int) -> None:
    """Overwrite the middle of a packed chunk of the readings."""
    with h5py.File(path) as file:
        chunk = file["data/features"].id.get_chunk_info(number)
    with path.open("r+b") as file:
        file.seek(chunk.byte_offset + chunk.size // 2)
        file.write(b"\xff" * 16)


@pytest.mark.parametrize("name", ["P0", "P1", "P2"])
@pytest.mark.parametrize("number", [0, 2])
def test_damaged_readings_are_named_and_nothing_is_written(tmp_path: Path, name: str, number: int) -> None:
    path, locations = OLDER[name](tmp_path / "old.h5"), meta(tmp_path / "meta.csv")
    damage(path, number)
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    for dry_run in (True, False):
        refusal(
            lambda dry_run=dry_run: backfill(path, locations, dry_run=dry_run),
            f"data/features cannot be read from row {8 * number + 1} on (",
            task="backfill",
        )
    done = socialx("backfill", path, "--meta", locations)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: {path}: data/features cannot be read")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
    assert sorted(tmp_path.iterdir()) == sorted((path, locations))
