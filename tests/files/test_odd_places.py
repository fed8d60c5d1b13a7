"""Names that are too long, and backups of files that cannot be completed."""

from pathlib import Path

import pytest

from tests.commands import refused
from tests.data_files import backfill, refusal
from tests.older_files import OLDER, meta

TOO_LONG = "n" * 300


@pytest.mark.parametrize(
    "words", ["inspect", "convert auto", "convert csv --output-h5 out.h5", "backfill", "evaluate", "train --resume"]
)
def test_a_name_that_no_file_can_have_is_one_line(words: str, tmp_path: Path) -> None:
    assert "name too long)" in refused(*words.split(), tmp_path / TOO_LONG)


def test_a_name_too_long_for_a_backup_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = OLDER["P1"](tmp_path / f"{'n' * 250}.h5")
    before = path.read_bytes()
    refusal(lambda: backfill(path, meta(tmp_path / "meta.csv"), backup=True), "name", task="backfill")
    assert path.read_bytes() == before


def test_a_backup_goes_again_where_the_file_is_not_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, locations = OLDER["P0"](tmp_path / "old.h5"), meta(tmp_path / "meta.csv")
    backup, before = tmp_path / "old.h5.bak", path.read_bytes()

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("socialx.files.sources.backfill._patch", fails)
        refusal(lambda: backfill(path, locations, backup=True), "No space left", task="backfill")
        assert not backup.exists()
        backup.write_bytes(b"of an earlier time")
        refusal(lambda: backfill(path, locations, backup=True), "No space left", task="backfill")
    assert (backup.read_bytes(), path.read_bytes()) == (b"of an earlier time", before)
    backup.unlink()
    backfill(path, locations, backup=True)
    assert backup.read_bytes() == before
