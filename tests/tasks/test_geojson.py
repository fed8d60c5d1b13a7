"""Sensors and their neighbours as GeoJSON: every rule of RFC 7946 that a map relies on, and the numbers themselves."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import socialx
from socialx.files.store.store import open_store
from tests.commands import python, refused, small_file, works
from tests.data_files import refusal


def read(path: Path) -> list[dict[str, Any]]:
    """The features of a collection that is valid."""
    found = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda name: pytest.fail(name))
    assert found.keys() == {"type", "features"}  # no crs: RFC 7946 has one only
    assert found["type"] == "FeatureCollection"
    for feature in found["features"]:
        assert (feature.keys(), feature["type"]) == ({"type", "geometry", "properties"}, "Feature")
        places = feature["geometry"]["coordinates"]
        for longitude, latitude in [places] if feature["geometry"]["type"] == "Point" else places:
            assert -119 < longitude < -118  # Los Angeles
            assert 33 < latitude < 35
    return list(found["features"])


def without_positions(path: Path, ids: list[str]) -> None:
    with h5py.File(path, "r+") as file:
        for vdid in ids:
            del file["metadata/vd_info"][vdid].attrs["position_lat"]


def test_the_sensors_of_a_file(tmp_path: Path) -> None:
    """A sensor without readings has no mean, and one without a position is left out."""
    path, out = small_file(tmp_path), tmp_path / "sensors.geojson"
    ids = open_store(path).sensors.ids
    with h5py.File(path, "r+") as file:
        file["data/features"][:, 1, 0] = 0
    without_positions(path, [ids[2]])
    assert f"wrote {out}: 3 of 4 sensors" in works("inspect", path, "--geojson", out).stderr
    store, features = open_store(path), read(out)
    assert [feature["properties"]["id"] for feature in features] == [ids[0], ids[1], ids[3]]
    for feature, place in zip(features, (0, 1, 3), strict=True):
        where = [store.sensors.longitude[place], store.sensors.latitude[place]]
        assert feature["geometry"] == {"type": "Point", "coordinates": where}
        valid = store.valid[:, place]
        mean = pytest.approx(store.values[valid, place].astype(np.float64).mean()) if valid.any() else None
        share = pytest.approx(1 - valid.mean())
        assert feature["properties"] == {"id": ids[place], "missing_share": share, "mean": mean, "unit": "mph"}


def test_the_errors_of_a_run_and_its_strongest_neighbours(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "run.geojson"
    found, features = socialx.explain(trained, geojson=out), read(out)
    points = {f["properties"]["id"]: f for f in features if f["geometry"]["type"] == "Point"}
    lines = [f for f in features if f["geometry"]["type"] == "LineString"]
    assert (len(points) + len(lines), points.keys()) == (len(features), {sensor.id for sensor in found.sensors})
    wanted = {}
    for sensor in found.sensors:
        assert points[sensor.id]["geometry"]["coordinates"] == [sensor.longitude, sensor.latitude]
        own = {"id": sensor.id, "mae": sensor.mae, "forecasts": sensor.count, "unit": "mph"}
        assert points[sensor.id]["properties"] == own
        wanted |= {(near.id, sensor.id): (near.weight, near.km) for near in sensor.neighbours}
    assert wanted
    assert len(lines) == len(wanted)
    for line in lines:
        of = line["properties"]
        assert (of["weight"], of["km"]) == wanted[of["from"], of["to"]]
        ends = [points[of[end]]["geometry"]["coordinates"] for end in ("from", "to")]
        assert line["geometry"]["coordinates"] == ends


def test_a_file_without_positions_is_refused_in_one_line(tmp_path: Path, trained: Path) -> None:
    path, out = small_file(tmp_path), tmp_path / "sensors.geojson"
    without_positions(path, list(open_store(path).sensors.ids))
    words = (str(path), "no sensor has a position", f"socialx backfill {path} --meta-csv LOCATIONS.csv")
    refusal(lambda: socialx.inspect(path, geojson=out), *words, task="inspect")
    with pytest.warns(socialx.FallbackWarning, match="no position"):
        refusal(
            lambda: socialx.explain(trained, path, geojson=out, pooling={"require_locations": False}),
            *words,
            task="explain",
        )
    refused("inspect", tmp_path / "small.csv", "--geojson", out)
    assert not out.exists()


def test_the_sensors_of_a_file_need_no_torch(tmp_path: Path) -> None:
    path, out = small_file(tmp_path), tmp_path / "sensors.geojson"
    script = "import sys, socialx; socialx.inspect(sys.argv[1], geojson=sys.argv[2]); assert 'torch' not in sys.modules"
    python(script, path, out)
    assert len(read(out)) == 4


def test_an_input_is_not_replaced_and_an_old_map_is(tmp_path: Path) -> None:
    path, out = small_file(tmp_path), tmp_path / "sensors.geojson"
    refusal(lambda: socialx.inspect(path, geojson=path), "is an input", task="inspect")
    assert open_store(path).checksum
    out.write_text('{"type": "FeatureCollection", "features": []}')
    socialx.inspect(path, geojson=out)
    assert len(read(out)) == 4
