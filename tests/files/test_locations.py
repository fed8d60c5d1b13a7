"""Sensor locations and ids: the published shapes, joined by id and never by order."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from socialx.files.sources.positions.locations import index_ids, join, read_ids, read_locations
from socialx.files.store.ids import match_key
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
        "ID,Lat,Lng,District,County,Fwy,Lanes,Type,Direction,ID2\n2,34.5,-118.5,7,LA,I5-S,4,ML,S,0\n1,34,-118,7,LA,5,,,,1\n",
        "lon,station,lat\n-118.5,2,34.5\n-118,1,34\n",
        "Station_ID,Long,Latitude\n2,-118.5,34.5\n1,-118,34\n",
        "vdid,lng,lat\n2,-118.5,34.5\n1,-118,34\n",
        "lat,lon,SID\n34.5,-118.5,2\n34,-118,1\n",
        "sid,id,sensor_id,latitude,lat,lon\n8,9,2,34.5,0,-118.5\n8,9,1,34,0,-118\n",
        "sid,station,id,lat,lon\n8,9,2,34.5,-118.5\n8,9,1,34,-118\n",
    ],
)
def test_the_published_shapes(tmp_path: Path, text: str) -> None:
    path = places(tmp_path / "meta.csv", text)
    sensors = join(("1", "2"), read_locations(path), path, static=False)
    assert (sensors.ids, sensors.latitude.tolist()) == (("1", "2"), [34.0, 34.5])
    assert sensors.longitude.tolist() == [-118.0, -118.5]
    assert sensors.lanes is None
    assert sensors.direction is None


NAN = np.nan
PEMS = "ID\tFwy\tDir\tDistrict\tCity\tState_PM\tAbs_PM\tLatitude\tLongitude\tLength\tType\tLanes\tName\n"
ROW = '\t5\tS\t7\t\t.5\t1.2\t{place}\t.43\tML\t4\tPHOEBE "A"\n'
LARGEST = "ID,Lat,Lng,District,County,Fwy,Lanes,Type,Direction,ID2\n"
# A table of two sensors, 1 and 2; and their latitudes, lanes, lengths and directions.
STATIC = {
    "PEMS-BAY-META.csv": (
        "sensor_id,Fwy,Dir,Latitude,Longitude,Length,Lanes\n2,17,E,37.5,-121,1.5,3\n1,17,n,37,-121,0.5,2\n",
        ([37, 37.5], [2, 3], [0.5, 1.5], ("N", "E")),
    ),
    "the clearinghouse of PeMS": (
        PEMS
        + "".join(f"{n}{ROW.format(place=place)}" for n, place in ((1, "33.9\t-118.1"), (2, "34\t-118"), (3, "\t"))),
        ([33.9, 34], [4, 4], [0.43, 0.43], ("S", "S")),
    ),
    "LargeST": (
        LARGEST + "2,32.5,-117,11,San Diego,I5-S,4,Mainline,S,0\n1,32.6,-117.1,11,San Diego,SR9-E,2,Mainline,E,1\n",
        ([32.6, 32.5], [2, 4], [NAN, NAN], ("E", "S")),
    ),
    "UTD19": (
        "detid,length,pos,road,citycode,lanes,long,lat\n"
        '1,1,0,"A, B",GRAZ,1,15.4,47.1\n3,1,0,NA,bern,2,7.4,46.9\n2,1,0,NA,graz,3,15.5,47.2\n',
        ([47.1, 47.2], [1, 3], [NAN, NAN], ("", "")),
    ),
    "what is none": (
        "sensor_id,Dir,Latitude,Longitude,Length,Lanes\n1,X,34,-118,,two\n2,,35,-118,inf,\n",
        ([34, 35], [NAN, NAN], [NAN, NAN], ("", "")),
    ),
}


@pytest.mark.parametrize("case", STATIC)
def test_static_columns_are_joined_too(tmp_path: Path, case: str) -> None:
    text, (latitude, lanes, length, direction) = STATIC[case]
    path = places(tmp_path / "meta.csv", text)
    sensors = join(("1", "2"), read_locations(path, ("1", "2")), path, static=True)
    assert (sensors.latitude.tolist(), sensors.direction) == (latitude, direction)
    np.testing.assert_array_equal(sensors.lanes, lanes)
    np.testing.assert_array_equal(sensors.length, length)


@given(st.integers(0, 10**12), st.integers(0, 5), st.integers(0, 3), st.booleans())
def test_an_integer_has_one_key(number: int, leading: int, trailing: int, point: bool) -> None:
    text = "0" * leading + str(number) + ("." + "0" * trailing if point else "")
    assert match_key(text) == match_key(str(number)) == number


BAD = {
    "empty": ("", "empty"),
    "pointer": ("version https://git-lfs.github.com/spec/v1\n", "Git-LFS"),
    "header only": ("sensor_id,latitude,longitude\n", "no sensors"),
    "distances": ("from,to,cost\n1,2,0.5\n", "'from,to,cost'"),
    "no longitude": ("sensor_id,latitude\n1,34\n", "sensor_id, latitude"),
    "lon before lat": ("1,-118.5,34.5\n", "line 1 has latitude '-118.5'"),
    "latitude": ("sensor_id,latitude,longitude\n1,90.5,0\n", "line 2 has latitude '90.5'"),
    "unknown as nothing": ("id,lat,lon\n2,34,-118\n3,35,-118\n1,,\n", "(1)"),
    "unknown as 0, 0": ("2,34,-118\n3,35,-118\n1,0.0,0\n", "(1)"),
    "longitude": ("sensor_id,latitude,longitude\n1,9,180.5\n", "longitude '180.5'"),
    "nan": ("sensor_id,latitude,longitude\n1,nan,0\n", "line 2"),
    "infinite": ("sensor_id,latitude,longitude\n1,1,inf\n", "longitude 'inf'"),
    "no number": ("sensor_id,latitude,longitude\n1,,0\n", "latitude ''"),
    "no id": ("sensor_id,latitude,longitude\n,1,0\n", "no sensor id"),
    "two positions": ("1,34,-118\n2,34,-118\n01,34,-119\n", "line 3"),
    "short row": ("1,34,-118\n2,34\n", "line 2 has 2 cells"),
    "others": ("9,34,-118\n", "(1, 2, 3)"),
    "binary": (b"\xc3\x28\n", "without sensor_id"),
    "UTF-16": (b"\xff\xfei\x00d\x00", "line 1"),
    "a torn gzip": (b"\x1f\x8b\x08", "read"),
    "packed otherwise": (b"BZh91AY", "bunzip2"),
    "cells shifted": ("id,name,lat,lon\n1,I-5, 12,34.15,-118.3\n", "line 2 has 5 cells"),
    "only a name": ("comment,lat,lon\n1,34,-118\n", "sensor_id"),
    "short LargeST row": ("ID,Lat,Lng,Lanes\n1,34,-118\n", "line 2 has 3 cells"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_locations(tmp_path: Path, case: str) -> None:
    text, words = BAD[case]
    path = tmp_path / "meta.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    refusal(lambda: join(("1", "2", "3"), read_locations(path), path, static=False), str(path), words)


def test_sensors_without_a_location_may_stay(tmp_path: Path) -> None:
    path = write_stations(tmp_path / "meta.csv")
    ids = ("1", IDS[1], "x")
    sensors = join(ids, read_locations(path), path, static=True, allow_missing=True)
    assert (sensors.ids, sensors.direction) == (ids, ("", "E", ""))
    for column in (sensors.latitude, sensors.longitude, sensors.lanes, sensors.length):
        assert np.isnan(np.asarray(column)).tolist() == [True, False, True]
    assert join(ids, {}, path, static=False, allow_missing=True).lanes is None
    refusal(lambda: join(ids, {}, path, static=False), str(path), "3 of 3")


@pytest.mark.parametrize(
    "text",
    ["3\n1\n02\n", "\ufeff3\r\n1\r\n\r\n02", "3,1,02", "3, 1, 02\n", " 3 1\t02 \n\n", "3,1,02,\n", "3\n\n1\n  02 "],
)
def test_ids_in_column_order(tmp_path: Path, text: str) -> None:
    assert read_ids(places(tmp_path / "ids.txt", text)) == ("3", "1", "02")


BAD_IDS = {
    "empty": (b"", "empty"),
    "blank": (b" \n\n", "no sensor ids"),
    "commas": (b",,\n", "no sensor ids"),
    "twice": (b"1\n2\n01\n", "more than once (1, 01)"),
    "twice in a line": (b"1,2,2", "more than once (2, 2)"),
    "a broken zip": (b"PK\x00\x01", "table"),
    "binary": (b"1\n\x00\x01", "bytes of 0"),
    "locations": (b"1,34.0,-118.0\n2,34.5,-118.5\n", "line 1"),
    "readings": (b"time;1;2\n2012-03-01;60;61\n", "line 1"),
    "rows of ids": (b"1\n2 3\n", "line 2"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\n", "Git-LFS"),
}


@pytest.mark.parametrize("case", BAD_IDS)
def test_bad_ids(tmp_path: Path, case: str) -> None:
    content, words = BAD_IDS[case]
    path = tmp_path / "ids.txt"
    path.write_bytes(content)
    refusal(lambda: read_ids(path), str(path), words)


def test_the_index_of_metr_la(tmp_path: Path) -> None:
    assert index_ids(write_locations(tmp_path / "meta.csv")) == dict(enumerate(IDS))
    assert index_ids(places(tmp_path / "a.csv", "ID,Index,lat,lon\n7,01,1,2\n8,0,1,2\n7,1,1,2\n")) == {1: "7", 0: "8"}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("0,1,34,-118\n0,2,34,-118\n", "line 3"),
        ("a,1,34,-118\n", "line 2"),
        (",1,34,-118\n", "line 2"),
        ("0,1,34,-118\n1,01,34,-118\n", "two places (1, 01)"),
    ],
)
def test_an_index_must_be_one(tmp_path: Path, rows: str, words: str) -> None:
    path = places(tmp_path / "meta.csv", "index,sensor_id,latitude,longitude\n" + rows)
    refusal(lambda: index_ids(path), str(path), words)
