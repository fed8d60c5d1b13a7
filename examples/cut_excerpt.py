"""Cut examples/data out of the published METR-LA files, every kept cell verbatim.

    python examples/cut_excerpt.py METR-LA.csv sensor_locations.csv

Three weeks with few outages (2012-05-03 .. 2012-05-23) of the 28 sensors nearest to the one with the largest
variation, in the order of the published columns.  Standard library only.
"""

import csv
import math
import statistics
import sys
from pathlib import Path

FIRST, LAST, SENSORS = "2012-05-03 00:00:00", "2012-05-23 23:55:00", 28
HERE = Path(__file__).parent / "data"


def main(data: Path, locations: Path) -> None:
    """Write METR-LA-excerpt.csv and sensor_locations.csv."""
    with data.open(newline="") as source:
        reader = csv.reader(source)
        header = next(reader)
        rows = [row for row in reader if FIRST <= row[0] <= LAST]
    with locations.open(newline="") as source:
        place = {row["sensor_id"]: row for row in csv.DictReader(source)}
    spread = [statistics.pstdev(float(row[column]) for row in rows) for column in range(1, len(header))]
    centre = place[header[1 + spread.index(max(spread))]]

    def distance(sensor: str) -> float:
        east = float(place[sensor]["longitude"]) - float(centre["longitude"])
        north = float(place[sensor]["latitude"]) - float(centre["latitude"])
        return math.hypot(east * math.cos(math.radians(float(centre["latitude"]))), north)

    near = set(sorted(header[1:], key=distance)[:SENSORS])
    columns = [0] + [i for i, sensor in enumerate(header) if sensor in near]
    with (HERE / "METR-LA-excerpt.csv").open("w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerows([row[i] for i in columns] for row in [header, *rows])
    with (HERE / "sensor_locations.csv").open("w", newline="") as out:
        writer = csv.DictWriter(out, list(centre), lineterminator="\n")
        writer.writeheader()
        writer.writerows(place[header[i]] for i in columns[1:])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
