"""Cut examples/data out of the published files, every kept number verbatim.  Standard library only.

    python examples/cut_excerpt.py METR-LA.csv sensor_locations.csv PEMS-BAY.csv PEMS-BAY-META.csv

METR-LA: three weeks with few outages, the 28 sensors nearest to the one with the largest variation.  PEMS-BAY: two
days, the 10 sensors nearest to the first column.  The city of the tutorial: three weeks of 16 neighbouring sensors of
PEMS-BAY, and the day after them, written as a city might export them.
"""

import csv
import gzip
import io
import math
import statistics
import sys
from datetime import datetime
from pathlib import Path

HERE = Path(__file__).parent / "data"
DAY = 288  # rows
CITY = [
    "400030",
    "400057",
    "400069",
    "400084",
    "400088",
    "400096",
    "400238",
    "400253",
    "400343",
    "400971",
    "401464",
    "401816",
    "402285",
    "402287",
    "402289",
    "409529",
]
Rows = list[list[str]]


def read(path: Path, first: str, last: str) -> tuple[list[str], Rows]:
    """Header and the rows of a span of time."""
    with path.open(newline="") as source:
        reader = csv.reader(source)
        return next(reader), [row for row in reader if first <= row[0] <= last]


def most_varied(header: list[str], rows: Rows) -> str:
    """Return the sensor whose observations vary most."""
    spread = [statistics.pstdev(float(row[column]) for row in rows) for column in range(1, len(header))]
    return header[1 + spread.index(max(spread))]


def cut(header: list[str], rows: Rows, locations: Path, centre: str, sensors: int, names: tuple[str, str]) -> None:
    """Write the columns nearest to ``centre`` and their lines of the locations file."""
    with locations.open(newline="") as source:
        place = {row["sensor_id"]: row for row in csv.DictReader(source)}
    fields = list(place[centre])
    lat, lon = (next(f for f in fields if f.lower() == name) for name in ("latitude", "longitude"))

    def distance(sensor: str) -> float:
        east = float(place[sensor][lon]) - float(place[centre][lon])
        north = float(place[sensor][lat]) - float(place[centre][lat])
        return math.hypot(east * math.cos(math.radians(float(place[centre][lat]))), north)

    near = set(sorted(header[1:], key=distance)[:sensors])
    columns = [0] + [i for i, sensor in enumerate(header) if sensor in near]
    with (HERE / names[0]).open("w", newline="") as out:
        csv.writer(out, lineterminator="\n").writerows([row[i] for i in columns] for row in [header, *rows])
    with (HERE / names[1]).open("w", newline="") as out:
        writer = csv.DictWriter(out, fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(row for sensor, row in place.items() if sensor in near)


def city(header: list[str], rows: Rows, locations: Path) -> None:
    """Write the sensors of the tutorial with semicolons, decimal commas and the day first; the last day apart."""
    columns = [header.index(sensor) for sensor in CITY]
    written = [["time", *CITY]]
    for row in rows:
        time = datetime.strptime(row[0], "%Y-%m-%d %H:%M:%S").strftime("%d.%m.%Y %H:%M")
        written.append([time, *(row[i].replace(".", ",") for i in columns)])
    for name, part in (("city.csv.gz", written[:-DAY]), ("city_next_day.csv", written[:1] + written[-DAY:])):
        text = io.StringIO()
        csv.writer(text, delimiter=";", lineterminator="\n").writerows(part)
        content = text.getvalue().encode()
        (HERE / name).write_bytes(gzip.compress(content, mtime=0) if name.endswith(".gz") else content)
    with locations.open(newline="") as source:
        places = {row["sensor_id"]: (row["Latitude"], row["Longitude"]) for row in csv.DictReader(source)}
    with (HERE / "city_sensors.csv").open("w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerows([["sensor_id", "latitude", "longitude"], *([sensor, *places[sensor]] for sensor in CITY)])


if __name__ == "__main__":
    metr_la, metr_la_locations, pems_bay, pems_bay_meta = map(Path, sys.argv[1:])
    table = read(metr_la, "2012-05-03 00:00:00", "2012-05-23 23:55:00")
    names = ("METR-LA-excerpt.csv", "sensor_locations.csv")
    cut(*table, metr_la_locations, most_varied(*table), 28, names)
    table = read(pems_bay, "2017-01-03 00:00:00", "2017-01-04 23:55:00")
    names = ("PEMS-BAY-excerpt.csv", "PEMS-BAY-META-excerpt.csv")
    cut(*table, pems_bay_meta, table[0][1], 10, names)
    city(*read(pems_bay, "2017-05-01 00:00:00", "2017-05-22 23:55:00"), pems_bay_meta)
