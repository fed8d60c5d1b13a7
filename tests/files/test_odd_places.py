"""Pipes, names that are too long, and backups of files that cannot be completed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from socialx.files.older import backfill as older
from tests.commands import socialx
from tests.data_files import refusal, small_store
from tests.older_files import OLDER, meta

TOO_LONG = "n" * 300


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "words", [["backfill"], ["backfill", "--dry-run"], ["inspect"], ["convert", "auto"]], ids=" ".join
)
def test_a_pipe_is_not_waited_for(words: list[str], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "old.h5")
    done = socialx(*words, tmp_path / "old.h5")
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1
    assert "a device, a pipe or a socket" in done.stderr


@pytest.mark.parametrize(
    "words",
    [["inspect"], ["convert", "auto"], ["convert", "csv", "--output-h5", "out.h5"], ["backfill"], ["evaluate"]],
    ids=" ".join,
)
def test_a_name_that_no_file_can_have_is_one_line(words: list[str], tmp_path: Path) -> None:
    done = socialx(*words, tmp_path / TOO_LONG)
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1
    assert "cannot be read (File name too long): check" in done.stderr


def test_resuming_a_run_of_such_a_name_is_one_line(tmp_path: Path) -> None:
    done = socialx("train", "--resume", tmp_path / TOO_LONG)
    assert done.exit_code == 1
    assert "cannot be read (File name too long): check" in done.stderr


def test_a_name_too_long_for_a_backup_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = OLDER["P1"](tmp_path / f"{'n' * 250}.h5")
    before = path.read_bytes()
    refusal(
        lambda: older.backfill(path, meta(tmp_path / "meta.csv"), backup=True), "File name too long", task="backfill"
    )
    assert path.read_bytes() == before


def test_a_backup_goes_again_where_the_file_cannot_be_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, locations = OLDER["P0"](tmp_path / "old.h5"), meta(tmp_path / "meta.csv")
    backup, before = tmp_path / "old.h5.bak", path.read_bytes()

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(older, "_patch", fails)
        refusal(lambda: older.backfill(path, locations, backup=True), "No space left", task="backfill")
        assert not backup.exists()
        backup.write_bytes(b"of an earlier time")
        refusal(lambda: older.backfill(path, locations, backup=True), "No space left", task="backfill")
    assert backup.read_bytes() == b"of an earlier time"
    assert path.read_bytes() == before
    backup.unlink()
    older.backfill(path, locations, backup=True)
    assert backup.read_bytes() == before


def test_a_current_file_needs_no_backup(tmp_path: Path) -> None:
    path = small_store(tmp_path / "data.h5")
    older.backfill(path, backup=True)
    assert not (tmp_path / "data.h5.bak").exists()
