"""backfill stores the unit and the time zone that a file lacks, and refuses others than it has."""

from pathlib import Path
from typing import Any

import pytest

import socialx
from socialx.core.errors import SettingsError
from socialx.files.store.store import open_store
from tests import frames
from tests.commands import refused, works
from tests.commands import socialx as run
from tests.data_files import unchanged
from tests.older_files import OLDER, meta


def file_of(folder: Path, **options: Any) -> Path:
    """What convert writes without a unit and a zone."""
    frames.network().to_csv(folder / "city.csv")
    told = {"meta_csv": frames.places_of(frames.IDS, folder / "places.csv")} | options
    socialx.convert("csv", folder / "city.csv", folder / "city.h5", overwrite=True, **told)
    return folder / "city.h5"


def test_unit_and_zone_are_added_and_the_rest_stays(tmp_path: Path) -> None:
    path = file_of(tmp_path)
    before = open_store(path)
    assert (before.unit, before.timezone, len(before.checksum)) == ("unknown", None, 64)
    with unchanged(path):
        assert "avg_speed: mph" in works("backfill", path, "--units", "mph", "--dry-run").stdout
    said = works("backfill", path, "--units", "kmh", "--timezone", "Europe/Berlin").stdout
    assert "Europe/Berlin" in said
    assert "avg_speed: km/h" in said
    after = open_store(path)
    assert (after.unit, after.timezone, after.checksum) == ("km/h", "Europe/Berlin", before.checksum)
    assert "unchanged" in works("backfill", path, "--units", "km/h", "--timezone", "Europe/Berlin").stdout


@pytest.mark.parametrize("words", [("--units", "mph"), ("--timezone", "Europe/Paris")])
def test_what_contradicts_the_file_is_refused(tmp_path: Path, words: tuple[str, str]) -> None:
    path = file_of(tmp_path, units="km/h", timezone="Europe/Berlin")
    with unchanged(path):
        assert words[0] in refused("backfill", path, *words)
        assert words[0] in run("backfill", path, *words, "--dry-run").stderr


def test_a_wrong_unit_or_zone_is_an_error_of_usage(tmp_path: Path) -> None:
    path = file_of(tmp_path)
    with unchanged(path):
        assert refused("backfill", path, "--units", "knots", code=2).code == "units.no-speed"
        assert refused("backfill", path, "--timezone", "Europe/Berln", code=2).code == "option.zone"
        with pytest.raises(SettingsError):
            socialx.backfill(path, units="")


def test_a_file_without_positions_takes_them_too(tmp_path: Path) -> None:
    path = file_of(tmp_path, meta_csv=None, without_positions=True, channel="{sensor}")
    works("backfill", path, "--units", "mph")
    assert open_store(path).unit == "mph"
    assert "position" in refused("backfill", path)


def test_the_unit_of_flow_is_free(tmp_path: Path) -> None:
    path = file_of(tmp_path, quantity="flow")
    works("backfill", path, "--units", "veh/5min")
    assert open_store(path).unit == "veh/5min"


def test_an_older_file_takes_its_zone(tmp_path: Path) -> None:
    path = OLDER["TW1"](tmp_path / "old.h5")
    line = works("backfill", path, "--timezone", "Asia/Taipei", "--meta-csv", meta(tmp_path / "meta.csv")).stdout
    assert "zone Asia/Taipei" in line
    assert open_store(path).timezone == "Asia/Taipei"
    path = OLDER["V0"](tmp_path / "flat.h5")
    with unchanged(path):
        assert "avg_speed" in refused("backfill", path, "--rewrite", "--units", "km/h")
