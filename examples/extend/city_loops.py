# city_loops.py
"""loops.csv of the city: a row for each time and loop."""

from socialx.files.sources.tables.known_tables import KnownTable

LOOPS = KnownTable(
    "city-loops",
    "loops.csv of the city, a row for each time and loop",
    "use loops.csv as published",
    time="Zeit",
    form="%d.%m.%Y %H:%M",
    zone="Europe/Berlin",
    sensor="Loop",
    readings={"Volume": "veh/h", "Velocity": "km/h"},
    mark="Closed",
    may_be=(0, 1),
    marked="of closed roads: no readings",
    drops=True,
)
FORMATS = (LOOPS.format(),)
