"""Tables of positions are read by what their columns hold: the ids of the data, and degrees in any writing."""

import gzip
import json
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from socialx.files.sources.positions.locations import join, match_ids, read_locations
from socialx.files.sources.positions.neighbours import read_distances
from tests import frames
from tests.commands import socialx as run
from tests.data_files import refusal

PLACES = {"101": (52.51, 13.41), "102": (52.52, 13.42), "103": (52.53, 13.43)}
IDS = tuple(PLACES)


def table(header: str, row: str, mark: str = ",", ids: Iterable[str] = IDS) -> str:
    """A header and a row for each sensor, in which lat, lon and vdid are filled in; ; stands for the separator."""
    rows = [
        row.format(vdid=vdid, lat=lat, lon=lon, end=lat + 0.01, n=n)
        for n, (vdid, (lat, lon)) in enumerate(zip(ids, PLACES.values(), strict=True), 1)
    ]
    return "\n".join(line.replace(";", mark) for line in [header, *rows]) + "\n"


def found(path: Path, ids: Iterable[str] = IDS, **more: object) -> dict[str, tuple[float, float]]:
    """The positions of some sensors, rounded to 1e-9 degrees."""
    known = read_locations(path, tuple(ids), **more).values()  # type: ignore[arg-type]
    return {each.sensor_id: (round(each.latitude, 9), round(each.longitude, 9)) for each in known}


def write_places(folder: Path, content: str, name: str = "at.csv") -> Path:
    (folder / name).write_text(content, encoding="utf-8")
    return folder / name


# Header, row, and whether the name of the column of the ids says what it is.
HEADERS = {
    "chicago": (
        "segment_id;street;start_latitude;start_longitude;end_latitude;end_longitude",
        "{vdid};Halsted;{lat};{lon};{end};{lon}",
        True,
    ),
    "ends first": ("id;to_lat;to_lon;from_lat;from_lon", "{vdid};{end};{lon};{lat};{lon}", True),
    "numbered ends": ("id;lat2;lon2;lat1;lon1", "{vdid};{end};{lon};{lat};{lon}", True),
    "taiwan": ("VDID;RoadID;PositionLon;PositionLat;LaneNum", "{vdid};300020;{lon};{lat};{n}", True),
    "ancestor": ("VDID;position_lat;position_lon", "{vdid};{lat};{lon}", True),
    "scats": ("site_no;site_desc;lat;lon", "{vdid};North Tce;{lat};{lon}", True),
    "finland": ("tmsNumber;name;latitude;longitude", "{vdid};vt1_Espoo_{n};{lat};{lon}", True),
    "node": ("NODE_ID;LAT;LNG", "{vdid};{lat};{lon}", True),
    "utd19": ("detid;length;pos;long;lat", "{vdid};0.{n};0.1;{lon};{lat}", True),
    "wkt": ("id;name;wkt_geom", "{vdid};A;POINT ({lon} {lat})", True),
    "osm": ("node_id;osm_id;y;x", "{vdid};9{vdid};{lat};{lon}", True),
    "german": ("Zählstelle;Straße;Breite (WGS84);Länge (WGS84)", "{vdid};Ring;{lat};{lon}", True),
    "spanish": ("name;Latitud;Longitud", "{vdid};{lat};{lon}", True),
    "japanese": ("観測点コード;緯度;経度", "{vdid};{lat};{lon}", False),
    "unknown id": ("Kreuzung;gps_lat;gps_lon", "{vdid};{lat};{lon}", False),
    "both kinds": ("id;x;y;lat;lon", "{vdid};385000.5;5820000.1;{lat};{lon}", True),
    "words of two kinds": ("id;site_lat;longitude", "{vdid};{lat};{lon}", True),
    "no number before the sensor": ("nr;sensor;lat;lon", "{n};{vdid};{lat};{lon}", True),
}


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
@pytest.mark.parametrize("case", HEADERS)
def test_columns_are_told_by_their_values(case: str, mark: str, tmp_path: Path) -> None:
    header, row, says = HEADERS[case]
    path = write_places(tmp_path, table(header, row, mark))
    assert found(path) == PLACES
    if says:
        assert found(path, ()) == PLACES
    else:
        refusal(lambda: found(path, ()), "sensor_id")


# What stands in the row, and the header of the column.
POINTS = {
    "latitude first": ("geo_point_2d", "{lat}, {lon}"),
    "in parentheses": ("Location", "({lat}, {lon})"),
    "as WKT": ("the_geom", "POINT ({lon} {lat})"),
    "as EWKT": ("geom", "SRID=4326;POINT({lon} {lat})"),
    "longitude first": ("coords", "{lon} {lat}"),
    "as the name says": ("lonlat", "{lon}, {lat}"),
    "a list of JSON": ("coordinates", "[{lon}, {lat}]"),
    "the first point of a line": ("wkt", "LINESTRING ({lon} {lat}, 13.9 52.9)"),
    "the first point of lines": ("wkt", "MULTILINESTRING (({lon} {lat}, 13.9 52.9), (13.1 52.1, 13.2 52.2))"),
}


@pytest.mark.parametrize("case", POINTS)
def test_a_cell_may_be_a_point(case: str, tmp_path: Path) -> None:
    name, cell = POINTS[case]
    rows = [cell.format(lat=lat, lon=lon) for lat, lon in PLACES.values()]
    frame = pd.DataFrame({"iu_ac": IDS, "libelle": "AV, d'Italie", name: rows})
    frame.to_csv(tmp_path / "at.csv", sep="|", index=False)
    notes: list[str] = []
    assert found(tmp_path / "at.csv", notes=notes) == PLACES
    [note] = notes
    assert "iu_ac" in note


def test_the_only_order_that_is_on_earth(tmp_path: Path) -> None:
    path = write_places(tmp_path, "id;at\n1;-118.31, 34.15\n2;-118.32, 34.16\n")
    assert found(path, ("1", "2")) == {"1": (34.15, -118.31), "2": (34.16, -118.32)}


BAD = {
    "minutes": ("id,lat,lon\n1,52°31'12\"N,13°24'36\"E\n", "line 2 has latitude", "docs/how-to/recipes.md"),
    "two numbers as one": ("id,lat,lon\n1,52 31,13 24\n", "line 2 has latitude '52 31'"),
    "metres": ("id,x,y\n1,385000,5820000\n", "reproject them", "EPSG:4326"),
    "metres in names of degrees": ("id,lat,lon\n1,5820000.5,385000.5\n", "reproject"),
    "a point of metres": ("id;geom\n1;POINT (385000 5820000)\n", "position 'POINT (385000 5820000)'", "reproject"),
    "an exchange": ("id,lat,lon\n1,-118.3,34.1\n", "look exchanged"),
    "an exchange in WKT": ("id;geom\n1;POINT (34.1 -118.3)\n", "look exchanged"),
    "a plane of no degrees": ("id,x,y\n1,12.5,80.1\n2,75.5,3.2\n", "77 degrees apart"),
    "two pairs": (
        "id,gps_lat,gps_lon,map_lat,map_lon\n1,48.1,11.5,48.2,11.6\n",
        "gps_lat and gps_lon, ",
        "map_lat and map_lon",
        "longitude",
    ),
    "two points": ("id;a;b\n1;48.1, 11.5;48.2, 11.6\n", "positions"),
    "no point": ("id;a\n1;48, 11\n", "sensor_id, latitude"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_position_is_refused(case: str, tmp_path: Path) -> None:
    content, *words = BAD[case]
    path = tmp_path / "at.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    refusal(lambda: read_locations(path, ("1", "2")), *words)


def test_two_columns_with_all_sensors_are_asked(tmp_path: Path) -> None:
    rows = "1,3,52.1,13.1\n2,1,52.2,13.2\n3,2,52.3,13.3\n"
    path = write_places(tmp_path, "id,station,lat,lon\n" + rows)
    assert refusal(lambda: found(path, ("1", "2", "3")), "id, station ", "sensor_id").code == "places.id-columns"
    write_places(tmp_path, "id,sensor_id,lat,lon\n" + rows)
    assert found(path, ("1", "2", "3"))["3"] == (52.1, 13.1)
    write_places(tmp_path, "id,station,lat,lon\n1,1.0,52.1,13.1\n2,02,52.2,13.2\n")
    assert found(path, ("1", "2"))["2"] == (52.2, 13.2)


def test_a_column_with_nearly_as_many_sensors_is_asked(tmp_path: Path) -> None:
    """Row numbers are among the ids too, and one of the sensors is not listed."""
    ids = tuple(map(str, range(1, 31)))
    rows = [f"{n},{31 - n if n > 1 else 'new'},{48 + n / 100},{11 + n / 100}" for n in range(1, 31)]
    path = write_places(tmp_path, "\n".join(["id,station,lat,lon", *rows]))
    refusal(lambda: found(path, ids), "station")
    write_places(tmp_path, "\n".join(["id,sensor_id,lat,lon", *rows]))
    assert found(path, ids)["29"] == (48.02, 11.02)


@pytest.mark.parametrize("first", [0, 1])
def test_a_row_number_is_no_sensor(first: int, tmp_path: Path) -> None:
    rows = [f"{first + n},a{n},{48 + n / 10},{11 + n / 10}" for n in range(4)]
    path = write_places(tmp_path, "\n".join(["OBJECTID,label,lat,lon", *rows]))
    ids = tuple(str(first + n) for n in range(4))
    refusal(lambda: found(path, ids), "OBJECTID", "rename the column")
    assert found(path, ("a0", "a3"))["a3"] == (48.3, 11.3)


@pytest.mark.parametrize("header", ["site,arm,lat,lon", "arm,site,lat,lon", "site,lat,lon"])
def test_sensors_of_two_columns_are_joined_by_each_part(header: str, tmp_path: Path) -> None:
    """A sensor has the place of its row, else that of its station."""
    ids = tuple(f"{site}-{arm}" for site in (2000, 2001) for arm in "NS")
    places = {vdid: (50 + n / 100 * ("arm" in header), 10.0) for n, vdid in enumerate(ids)}
    rows = [(*vdid.split("-"), *place) for vdid, place in places.items()]
    pd.DataFrame(rows, columns=["site", "arm", "lat", "lon"])[header.split(",")].drop_duplicates().to_csv(
        tmp_path / "at.csv", index=False
    )
    located, told = match_ids(ids, read_locations(tmp_path / "at.csv", ids))
    assert join(ids, located, tmp_path, static=False).latitude.tolist() == [lat for lat, _ in places.values()]
    assert any("stations" in line for line in told) == ("arm" not in header)


@pytest.mark.parametrize("vdid", ["VD-N1-N-198-O-SE-21-北上出口-彰化", "Šibenik 1", "№ 7", "μ/3"])
def test_ids_are_of_any_letters(vdid: str, tmp_path: Path) -> None:
    path = write_places(tmp_path, f"VDID,PositionLat,PositionLon\n{vdid},25.17,121.48\n")
    assert found(path, (vdid,)) == {vdid: (25.17, 121.48)}


def test_objects_of_json(tmp_path: Path) -> None:
    flat = [{"site": vdid, "LAT": lat, "LON": lon, "n": 7, "tags": ["a"]} for vdid, (lat, lon) in PLACES.items()]
    nested = [{"VDID": vdid, "P": {"PositionLon": lon, "PositionLat": lat}} for vdid, (lat, lon) in PLACES.items()]
    for objects in (flat, nested):
        for content in (json.dumps(objects), json.dumps(objects, indent=1), "\n".join(map(json.dumps, objects))):
            assert found(write_places(tmp_path, content, "at.json")) == PLACES


FRAME = pd.DataFrame({"Messstelle": IDS, "Länge": [13.41, 13.42, 13.43], "Breite": [52.51, 52.52, 52.53], "ü": "ß"})


@pytest.mark.parametrize("way", ["utf-8", "utf-8-sig", "utf-16", "cp1252", "gzip", "zip", "xlsx", "parquet", "blanks"])
def test_a_table_of_any_form(way: str, tmp_path: Path) -> None:
    path, text = tmp_path / "at.csv", FRAME.to_csv(index=False, sep=";", decimal=",")
    if way == "gzip":
        path.write_bytes(gzip.compress(text.encode()))
    elif way == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("at.csv", text)
    elif way == "xlsx":
        path = tmp_path / "at.xlsx"
        FRAME.to_excel(path, index=False)
    elif way == "parquet":
        path = tmp_path / "at.parquet"
        FRAME.assign(Messstelle=FRAME["Messstelle"].astype(int)).to_parquet(path)
    elif way == "blanks":
        path.write_text(FRAME.to_string(index=False))
    else:
        path.write_bytes(text.encode(way))
    assert found(path) == PLACES


def test_a_point_may_be_empty(tmp_path: Path) -> None:
    path = write_places(tmp_path, "id;geom\n1;POINT EMPTY\n2;POINT (11.5 48.1)\n3;\n")
    assert found(path) == {"2": (48.1, 11.5)}
    write_places(tmp_path, "id;geom\n2;POINT (11.5 48.1)\n3;somewhere\n")
    refusal(lambda: found(path), "line 3")


def test_convert_tells_which_columns_it_took(tmp_path: Path) -> None:
    frames.network().to_csv(tmp_path / "city.csv")
    rows = [f"{vdid},{n},48.1{n},11.5{n}" for n, vdid in enumerate(frames.IDS)]
    words = ("convert", "auto", tmp_path / "city.csv", "--meta-csv", tmp_path / "at.csv", "--output-h5")
    write_places(tmp_path, "\n".join(["Querschnitt,Spur,start_lat,start_lon", *rows]))
    done = run(*words, tmp_path / "a.h5")
    assert "Querschnitt" in done.stderr
    assert "start_lat and " in done.stderr
    write_places(tmp_path, "\n".join(["sensor_id,Spur,latitude,longitude", *rows]))
    done = run(*words, tmp_path / "b.h5")
    assert done.exit_code == 0
    assert "positions those of" not in done.stderr


def test_readings_may_be_their_own_positions(tmp_path: Path) -> None:
    """A row per reading with the degrees of its segment, as Chicago publishes it."""
    rows = [
        f"03/05/2012 {hour:02d}:00,{vdid},{60 + hour},{lat},{lon},{lat + 1},{lon},POINT ({lon} {lat})"
        for hour in range(20)
        for vdid, (lat, lon) in PLACES.items()
    ]
    header = "TIME,SEGMENT_ID,SPEED,START_LATITUDE,START_LONGITUDE,END_LATITUDE,END_LONGITUDE,START_LOCATION"
    path = write_places(tmp_path, "\n".join([header, *rows]))
    assert found(path) == PLACES
    refusal(lambda: found(path, ()), "SEGMENT_ID")


@pytest.mark.parametrize("spelt", ["{:03}", "{}.0", "{}"])
def test_distances_name_sensors_as_positions_do(spelt: str, tmp_path: Path) -> None:
    pairs = [(1, 2, 900), (2, 3, 800), (3, 4, 700), (10, 1, 600)]
    rows = [f"{spelt.format(start)},{spelt.format(end)},{cost}" for start, end, cost in pairs]
    (tmp_path / "roads.csv").write_text("\n".join(["from,to,cost", *rows]))
    for ids in (("1", "2", "3", "10"), ("01", "02", "03", "10")):
        start, end, km = read_distances(tmp_path / "roads.csv", ids)
        assert (start.tolist(), end.tolist(), km.tolist()) == ([0, 1, 3], [1, 2, 0], [0.9, 0.8, 0.6])


@pytest.mark.parametrize(
    ("encoding", "mark"), [("utf-16", ";"), ("utf-8-sig", "\t"), ("cp1252", ";"), ("utf-8", ","), ("utf-8", " ")]
)
def test_distances_are_written_as_positions_are(encoding: str, mark: str, tmp_path: Path) -> None:
    rows = ["from,to,cost", "ä,b,900", "b,ä,1000"]
    (tmp_path / "roads.csv").write_bytes("\n".join(rows).replace(",", mark).encode(encoding))
    start, end, km = read_distances(tmp_path / "roads.csv", ("ä", "b"))
    assert (start.tolist(), end.tolist(), km.tolist()) == ([0, 1], [1, 0], [0.9, 1.0])
    pd.DataFrame({"from": ["ä"], "to": ["b"], "cost": [900]}).to_excel(tmp_path / "roads.xlsx", index=False)
    assert read_distances(tmp_path / "roads.xlsx", ("ä", "b"))[2].tolist() == [0.9]
    np.savetxt(tmp_path / "W.txt", [[0, 900], [800, 0]], delimiter=mark)
    assert read_distances(tmp_path / "W.txt", "ab")[2].tolist() == [0.9, 0.8]
