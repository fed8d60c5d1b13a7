"""Published tables, recognised by their columns: an entry in ``TABLES`` for each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from socialx.files.sources.tables.spec import EVERY, TableSpec
from socialx.files.store.quantities import SPEED


@dataclass(frozen=True)
class Known:
    """A published table.

    spec: the description, with every quantity that may exist.  columns: all must exist.  others: a pattern for all
    further columns.  row: a pattern for the first row, where a header lacks; lanes: the number of columns per lane.
    first: a column from which only the first text is read.  asks: whether the columns leave the quantity open.
    """

    name: str
    spec: TableSpec
    columns: frozenset[str]
    others: str = ".*"
    row: str = ""
    lanes: int = 0
    first: str = ""
    asks: bool = False


def match(names: Sequence[str], row: Sequence[str]) -> tuple[Known, TableSpec] | None:
    """Return the published table with these columns, and the description for the quantities in the table; ``row``: the
    cells in the first row.  Returns None for any unpublished table.
    """
    there = {*names}
    for table in TABLES:
        if table.row:
            count, left = divmod(len(names) - len(table.spec.names), table.lanes)
            if count > 0 and not left and re.fullmatch(table.row, ",".join(names)):
                more = (f"lane {at // table.lanes + 1}.{at % table.lanes}" for at in range(count * table.lanes))
                return table, replace(table.spec, names=(*table.spec.names, *more))
            continue
        rest = there - table.columns
        if not table.columns <= there or not all(re.fullmatch(table.others, name) for name in rest):
            continue
        values = {name: form for name, form in table.spec.values.items() if form in there or "(?P<" in form}
        only = {table.first: row[names.index(table.first)]} if table.first and row else {}
        if values and (rest or table.others == ".*"):
            return table, replace(table.spec, values=values, only={**table.spec.only, **only})
    return None


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split("|")) if text else ()


def _known(name: str, values: str, time: str, sensor: str, columns: str, **more: Any) -> Known:
    """Return a table with the columns in ``values`` (speed, flow and occupancy, empty where absent), ``time`` and
    ``sensor``, joined by "|"; ``columns``: further columns.  more: fields for Known and TableSpec.
    """
    ours = {key: more.pop(key) for key in ("others", "row", "lanes", "first", "asks") if key in more}
    forms = zip((SPEED, "flow", "occupancy"), values.split("|"), strict=False)
    times = (time,) if time == "" else _names(time)  # a header may begin with an empty cell
    spec = TableSpec({quantity: form for quantity, form in forms if form}, times, _names(sensor), **more)
    return Known(name, spec, frozenset({*times, *_names(sensor), *_names(columns)}), **ours)


PEMS = _names(
    "Timestamp|Station|district|Freeway #|Direction|Lane Type|Station Length|Samples|% Observed|Total Flow [veh/5min]"
    "|Avg Occupancy [share]|Avg Speed [mph]"
)
PEMS_ROW = r"\d{2}/\d{2}/\d{4} \d{2}:\d{2}:\d{2},\d+,\d{1,2},[^,]*,[NSEW]?,[A-Z]{2},.*"
QUARTERS, HOURS, HALVES = ({"flow": f"veh/{step}"} for step in ("15min", "h", "30s"))
PEMS_UNITS = {SPEED: "mph", "flow": "veh/5min", "occupancy": "share"}
PEMS_AS = {"form": "%m/%d/%Y %H:%M:%S", "zone": "America/Los_Angeles", "names": PEMS, "row": PEMS_ROW, "lanes": 5}
UTD19 = {"seconds": "interval", "never": {"error": "1"}, "units": {SPEED: "km/h", **HOURS}, "first": "city"}
LIBCITY = "traffic_speed|traffic_flow|traffic_occupancy"
VDLIVE = {"lane": ("LinkID", "LaneID"), "weights": "Volume", "below": 0.0}
# WebTRIS names the last minute of a quarter hour: 00:14.
WEBTRIS = {"form": "%Y-%m-%dT00:00:00 %H:%M:%S", "shift_s": -840, "units": {SPEED: "mph", **QUARTERS}}
SCATS = {"slot_s": 900, "below": 0.0, "units": QUARTERS}
MNDOT = {"form": "%Y-%m-%d %H:%M:%S", "units": HALVES}
NORWAY = {"only": {"Felt": "Totalt"}, "units": HOURS, "zone": "Europe/Oslo"}
DFT = {"form": "%Y-%m-%d %H", "units": HOURS}
TABLES = (
    # https://zenodo.org/records/5146275
    _known("METR-LA or PEMS-BAY", EVERY, "", "", "", others=r"\d{6}"),
    # https://pems.dot.ca.gov/?dnode=Clearinghouse
    _known("PeMS", "|".join((PEMS[11], *PEMS[9:11])), PEMS[0], PEMS[1], "", units=PEMS_UNITS, **PEMS_AS),
    # https://utd19.ethz.ch/
    _known("UTD19", "speed|flow|occ", "day", "detid", "interval|error|city", **UTD19),
    # https://bigscity-libcity-docs.readthedocs.io/en/latest/user_guide/data/atomic_files.html
    _known("LibCity", LIBCITY, "time", "entity_id", "dyna_id|type", form="%Y-%m-%dT%H:%M:%SZ"),
    # https://tdx.transportdata.tw/api-service/swagger/basic
    _known("VDLive", "Speed", "DataCollectTime", "VDID", "LinkID|LaneID|Volume", **VDLIVE),
    # https://nixtlaverse.nixtla.io/statsforecast/docs/getting-started/getting_started_short.html
    _known("Nixtla", "y", "ds", "unique_id", "y", asks=True),
    # https://github.com/amazon-science/chronos-forecasting
    _known("Chronos", "target", "timestamp", "item_id", "target", asks=True),
    # https://npmrds.ritis.org/analytics/help/
    _known("NPMRDS", "speed", "measurement_tstamp", "tmc_code", "speed|travel_time_seconds"),
    # https://webtris.nationalhighways.co.uk/api/swagger/ui/index
    _known("WebTRIS", "Avg mph|Total Volume", "Report Date|Time Period Ending", "SiteId", "Time Interval", **WEBTRIS),
    # https://discover.data.vic.gov.au/dataset/traffic-signal-volume-data
    _known("SCATS", r"|V(?P<time>\d\d)", "QT_INTERVAL_COUNT", "NB_SCATS_SITE|NB_DETECTOR", "V00|V95", **SCATS),
    # https://github.com/adus/portal-documentation
    _known("PORTAL", "speed|volume|occupancy", "starttime", "detector_id", "resolution|countreadings"),
    # https://github.com/Metropolitan-Council/tc.sensors
    _known("MnDOT", "speed|volume|occupancy", "date|time", "sensor", "volume|occupancy", **MNDOT),
    # https://www.vegvesen.no/trafikkdata/
    _known("trafikkdata.no", "|Trafikkmengde", "Dato|Fra tidspunkt", "Trafikkregistreringspunkt", "Felt", **NORWAY),
    # https://roadtraffic.dft.gov.uk/downloads
    _known("DfT", "|all_motor_vehicles", "count_date|hour", "count_point_id|direction_of_travel", "", **DFT),
    # https://opendata.transport.nsw.gov.au/dataset/nsw-roads-traffic-volume-counts-api
    _known("NSW", r"|hour_(?P<time>\d\d)", "date", "station_key", "hour_00|hour_23", slot_s=3600, units=HOURS),
)
