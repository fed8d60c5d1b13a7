"""Where sensors are: points of GeoJSON, names of columns in other languages, ids in another case, exchanges."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import socialx
from socialx.files.sources.positions.locations import read_locations
from socialx.files.store.store import open_store
from socialx.inspection.checks import zone_mismatch
from tests import frames
from tests.commands import socialx as run
from tests.data_files import refusal

PLACES = {"4001": (48.11, 11.51), "4002": (48.12, 11.52), "4003": (48.13, 11.53), "4004": (48.14, 11.54)}


def features(ids: str = "properties") -> list[dict[str, Any]]:
    def one(vdid: str, degrees: tuple[float, float]) -> dict[str, Any]:
        known = {"Name": vdid, "road": "A9", "id": 7} if ids == "Name" else {"id": vdid} if ids == "properties" else {}
        geometry = {"type": "Point", "coordinates": [degrees[1], degrees[0], 500.0]}
        return {"type": "Feature", "properties": known, "geometry": geometry} | ({"id": vdid} if ids == "id" else {})

    return [one(vdid, degrees) for vdid, degrees in PLACES.items()]


def geojson(ids: str = "properties") -> str:
    line = {
        "type": "Feature",
        "properties": {},
        "geometry": {"type": "LineString", "coordinates": [[11, 48], [12, 48]]},
    }
    return json.dumps({"type": "FeatureCollection", "features": [*features(ids), line]})


WAYS = {
    "at.geojson": geojson(),
    "by_id.geojson": geojson("id"),
    "by_name.json": geojson("Name"),
}


def right(path: Path) -> None:
    sensors = open_store(path).sensors
    places = list(zip(sensors.latitude.tolist(), sensors.longitude.tolist(), strict=True))
    assert dict(zip(sensors.ids, places, strict=True)) == PLACES


@pytest.mark.parametrize("name", WAYS)
def test_positions_are_read_as_they_are_kept(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(WAYS[name])
    frames.network().to_csv(tmp_path / "city.csv")
    socialx.convert("auto", tmp_path / "city.csv", tmp_path / "city.h5", meta_csv=path)
    right(tmp_path / "city.h5")


def test_backfill_and_a_folder_take_points(tmp_path: Path) -> None:
    (tmp_path / "at.geojson").write_text(geojson())
    folder = tmp_path / "city"
    folder.mkdir()
    frames.network().to_csv(folder / "may.csv")
    socialx.convert("auto", folder, tmp_path / "a.h5", without_positions=True, channel="{sensor}")
    socialx.backfill(tmp_path / "a.h5", tmp_path / "at.geojson")
    right(tmp_path / "a.h5")
    shutil.copy(tmp_path / "at.geojson", folder)
    done = run("convert", "auto", folder, "--channel", "{sensor}", "--output-h5", tmp_path / "b.h5")
    assert "positions" in done.stderr
    right(tmp_path / "b.h5")


def test_ids_in_another_case(tmp_path: Path) -> None:
    names = dict(zip(frames.IDS, ("S1", "S2", "S3", "Ä4"), strict=True))
    frame = frames.network().rename(columns=names).drop(columns="Ä4")
    frame.to_csv(tmp_path / "city.csv")
    places = frames.places_of(["s1", "s2", "S3"], tmp_path / "at.csv")
    done = run("convert", "auto", tmp_path / "city.csv", "--meta-csv", places, "--output-h5", tmp_path / "city.h5")
    assert "(S1, S2)" in done.stderr
    both = frames.places_of(["s1", "S2", "S3", "s2"], tmp_path / "both.csv")
    socialx.convert("auto", tmp_path / "city.csv", tmp_path / "city.h5", meta_csv=both, overwrite=True)
    assert open_store(tmp_path / "city.h5").sensors.latitude[1] == pytest.approx(48.2)
    frame.rename(columns={"S3": "s2"}).to_csv(tmp_path / "c.csv")
    twice = frames.places_of(["S1", "S2"], tmp_path / "twice.csv")
    refusal(lambda: socialx.convert("auto", tmp_path / "c.csv", tmp_path / "d.h5", meta_csv=twice), "1 of")
    socialx.convert("auto", tmp_path / "city.csv", tmp_path / "e.h5", without_positions=True, channel="{sensor}")
    socialx.backfill(tmp_path / "e.h5", places)
    assert open_store(tmp_path / "e.h5").sensors.latitude[0] == pytest.approx(48.1)


BAD = {
    "DATEX II": ('<?xml version="1.0"?><d2LogicalModel/>', "recipes.md for DATEX"),
    "no JSON": ('{"type": "FeatureCollection", "features": [', "GeoJSON"),
    "no list": ('{"type": "FeatureCollection", "features": 7}', "GeoJSON"),
    "no points": ('{"type": "FeatureCollection", "features": []}', "without sensor_id"),
    "metres": (geojson().replace("11.51, 48.11", "691608.0, 5329000.0"), "look like metres"),
    "another system": (
        geojson().replace('"features"', '"crs": {"properties": {"name": "EPSG:25832"}}, "features"'),
        "EPSG:25832",
    ),
    "exchanged": (geojson().replace("48.11", "-118.0"), "exchange them"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_points(case: str, tmp_path: Path) -> None:
    text, words = BAD[case]
    path = tmp_path / "at"
    path.write_text(text, encoding="utf-8")
    refusal(lambda: read_locations(path), str(path), words)


# Latitude, longitude and zone of cities; those near their own meridian cannot be told.
CITIES = {
    "Munich": (48.1, 11.5, "Europe/Berlin", True),
    "Madrid": (40.4, -3.7, "Europe/Madrid", True),
    "New York": (40.7, -74.0, "America/New_York", True),
    "Sydney": (-33.9, 151.2, "Australia/Sydney", None),
    "Istanbul": (41.0, 29.0, "Europe/Istanbul", None),
}


@pytest.mark.parametrize("month", ["01", "07"])
@pytest.mark.parametrize("city", CITIES)
def test_an_exchange_within_range_is_remarked(city: str, month: str) -> None:
    latitude, longitude, zone, seen = CITIES[city]
    moment = f"2024-{month}-15 00:00:00"
    assert zone_mismatch((latitude, longitude), zone, moment, "a.h5") is None
    if seen:
        line = zone_mismatch((longitude, latitude), zone, moment, "a.h5")
        assert line is not None
        assert "coordinates" in line
        assert "time" in line


def test_convert_and_inspect_name_the_exchange(tmp_path: Path) -> None:
    frames.network().to_csv(tmp_path / "city.csv")
    rows = [f"{vdid},{lon},{lat}" for vdid, (lat, lon) in PLACES.items()]
    (tmp_path / "at.csv").write_text("\n".join(["id,lat,lon", *rows]))
    words = ("--meta-csv", tmp_path / "at.csv", "--timezone", "Europe/Berlin", "--output-h5", tmp_path / "a.h5")
    done = run("convert", "auto", tmp_path / "city.csv", *words)
    wanted = f"socialx backfill {tmp_path / 'a.h5'} --meta-csv LOCATIONS.csv"
    assert "near 48.1 N, 11.5 E" in done.stderr
    assert wanted in done.stderr
    assert "near 11.5 N, 48.1 E" in done.stdout
    assert wanted in run("inspect", tmp_path / "a.h5").stdout
    (tmp_path / "at.csv").write_text("\n".join(["id,lon,lat", *rows]))
    assert run("backfill", tmp_path / "a.h5", "--meta-csv", tmp_path / "at.csv").exit_code == 0
    right(tmp_path / "a.h5")
    assert "exchange" not in run("inspect", tmp_path / "a.h5").stdout
