"""Sensor locations: three published shapes, joined by id and never by order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from socialx.data.sources.locations import join, match_key, read_locations
from tests.data_files import IDS, refusal, write_locations, write_stations


def places(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "text",
    [
        "index,sensor_id,latitude,longitude\n0,2,34.5,-118.5\n1,1,34.0,-118.0\n",
        "sensor_id,Fwy,Dir,Latitude,Longitude,Length,Lanes\n2,17,s,34.5,-118.5,0.5,3\n1,17,W,34.0,-118.0,,\n",
        "2,34.5,-118.5\n1,34.0,-118.0\n",
        "\ufeffSENSOR_ID, LATITUDE ,Longitude\r\n2,34.5,-118.5\r\n\r\n 1 , 34.0,-118.0",
        '"2","34.5","-118.5"\n"1.0",34.0,-118.0\n001,34,-118\n3,0,0\n',
    ],
)
def test_the_published_shapes(tmp_path: Path, text: str) -> None:
    path = places(tmp_path / "meta.csv", text)
    sensors = join(("1", "2"), read_locations(path), path, static=False)
    assert sensors.ids == ("1", "2")
    assert sensors.latitude.tolist() == [34.0, 34.5]
    assert sensors.longitude.tolist() == [-118.0, -118.5]
    assert sensors.lanes is None
    assert sensors.direction is None


def test_static_columns_are_joined_too(tmp_path: Path) -> None:
    path = write_stations(tmp_path / "meta.csv")
    sensors = join(IDS, read_locations(path), path, static=True)
    assert sensors.direction == ("N", "E", "S")
    assert (np.asarray(sensors.lanes).tolist(), np.asarray(sensors.length).tolist()) == ([2, 3, 4], [0.5, 1.5, 2.5])


def test_what_a_station_does_not_say_is_unknown(tmp_path: Path) -> None:
    path = places(tmp_path / "meta.csv", "sensor_id,Dir,Latitude,Longitude,Length,Lanes\n1,X,34,-118,,two\n")
    sensors = join(("1",), read_locations(path), path, static=True)
    assert sensors.direction == ("",)
    assert np.isnan([sensors.lanes, sensors.length]).all()


@pytest.mark.parametrize("spelling", ["400001", "0400001", "400001.0", "400001.", " 400001 "])
def test_spellings_of_one_id(tmp_path: Path, spelling: str) -> None:
    path = places(tmp_path / "meta.csv", f"{spelling},34,-118\n")
    assert join(("400001",), read_locations(path), path, static=False).latitude.tolist() == [34]


def test_texts_are_matched_as_text(tmp_path: Path) -> None:
    path = places(tmp_path / "meta.csv", "VD-01,34,-118\nVD-1,35,-119\n1e3,36,-119\n")
    assert join(("VD-1", "VD-01", "1e3"), read_locations(path), path, static=False).latitude.tolist() == [35, 34, 36]


@given(st.integers(0, 10**12), st.integers(0, 5), st.integers(0, 3), st.booleans())
def test_an_integer_has_one_key(number: int, leading: int, trailing: int, point: bool) -> None:
    text = "0" * leading + str(number) + ("." + "0" * trailing if point else "")
    assert match_key(text) == match_key(str(number)) == number


@given(st.text(max_size=8), st.text(max_size=8))
def test_different_ids_have_different_keys(one: str, other: str) -> None:
    if match_key(one) == match_key(other) and one.strip() != other.strip():
        assert float(one) == float(other)


BAD = {
    "empty": ("", "empty"),
    "pointer": ("version https://git-lfs.github.com/spec/v1\n", "Git-LFS"),
    "header only": ("sensor_id,latitude,longitude\n", "no sensors"),
    "distances": ("from,to,cost\n1,2,0.5\n", "'from,to,cost'"),
    "no longitude": ("sensor_id,latitude\n1,34\n", "without sensor_id, latitude, longitude"),
    "lon before lat": ("1,-118.5,34.5\n", "line 1 has latitude '-118.5'"),
    "latitude": ("sensor_id,latitude,longitude\n1,90.5,0\n", "line 2 has latitude '90.5'"),
    "longitude": ("sensor_id,latitude,longitude\n1,9,180.5\n", "longitude '180.5'"),
    "nan": ("sensor_id,latitude,longitude\n1,nan,0\n", "line 2 has latitude 'nan'"),
    "infinite": ("sensor_id,latitude,longitude\n1,1,inf\n", "longitude 'inf'"),
    "no number": ("sensor_id,latitude,longitude\n1,,0\n", "latitude ''"),
    "no id": ("sensor_id,latitude,longitude\n,1,0\n", "no sensor id"),
    "two positions": ("1,34,-118\n2,34,-118\n01,34,-119\n", "line 3 gives sensor 01 two positions"),
    "short row": ("1,34,-118\n2,34\n", "line 2 has 2 cells, not 3"),
    "others": ("9,34,-118\n", "no position for 3 of 3 sensors of the data (1, 2, 3)"),
    "binary": (b"\xff\xfe\x00\x01\n", "not a CSV"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_locations(tmp_path: Path, case: str) -> None:
    text, words = BAD[case]
    path = tmp_path / "meta.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    refusal(lambda: join(("1", "2", "3"), read_locations(path), path, static=False), str(path), words)


def test_unknown_sensors_are_counted_and_sampled(tmp_path: Path) -> None:
    path = write_locations(tmp_path / "meta.csv")
    ids = (*IDS, *map(str, range(1, 6)))
    refusal(lambda: join(ids, read_locations(path), path, static=False), "5 of 8", "(1, 2, 3, ...)")
