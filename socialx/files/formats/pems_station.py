"""The files "Station 5-Minute" of the clearinghouse of Caltrans PeMS: a row per time and station, no header.

Each file is a day of a district, text or gzip.  Behind the twelve columns are five for each lane.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from socialx.errors import Argument, SettingsError, SocialxError
from socialx.files.convert_options import Request
from socialx.files.file_head import FileHead, read_head
from socialx.files.formats.contents import Contents, Format
from socialx.files.formats.known_columns import Listing, reporting, walked
from socialx.files.formats.sheets import Sheet, cells_of
from socialx.files.formats.tables import are_locations, files_of, read_tables
from socialx.files.formats.text_cells import Piece
from socialx.files.time_axis import common_step

COLUMNS = (
    *("Timestamp", "Station", "District", "Freeway #", "Direction", "Lane Type", "Station Length", "Samples"),
    *("% Observed", "Total Flow [veh/5min]", "Avg Occupancy [share]", "Avg Speed [mph]"),
)
TIME, STATION, DISTRICT, OBSERVED = 0, 1, 2, 8
MEASURED = (11, 9, 10)  # speeds first
PARSED = ((TIME, STATION, DISTRICT), (OBSERVED, *MEASURED))
LANE_COLUMNS = 5  # samples, flow, occupancy, speed, observed
FORM, STEP_S, ZONE = "%m/%d/%Y %H:%M:%S", 300, "America/Los_Angeles"
FIRST = re.compile(r"[0-9]{2}/[0-9]{2}/[0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2},[0-9]+,[0-9]{1,2},[^,]*,[NSEW]?,[A-Z]{2},.*")
ADVICE = "name files such as d07_text_station_5min_2024_01_31.txt.gz"


@dataclass(frozen=True)
class Stations(Listing):
    """A day of the stations of one district."""

    district: str = ""

    def meant(self, piece: Piece) -> tuple[Piece, np.ndarray]:
        """All rows; those that were imputed are marked."""
        times, stations, districts = piece.texts
        if other := [district for district in districts.words if district != self.district]:
            place = piece.place(districts.first(other[0]) or 0)
            found = f"{place} has the district {other[0][:40]!a}, and the first row {self.district}"
            raise SocialxError(self.path, found, "use the file of one district")
        imputed = piece.numbers[:, 0] == 0
        return replace(piece, texts=[times, stations], numbers=piece.numbers[:, 1:]), imputed


def _lanes(head: FileHead) -> int | None:
    """How many lanes the rows have room for; None where they are not those of stations."""
    if not head.lines or not FIRST.fullmatch(head.lines[0][1].strip()):
        return None
    lanes, rest = divmod(len(cells_of(head.lines[0][1], ",")) - len(COLUMNS), LANE_COLUMNS)
    return lanes if lanes > 0 and rest == 0 else None


def _recognise(head: FileHead) -> str | None:
    found = []
    for path in files_of(head) if head.kind in ("folder", "zip") else ():
        with suppress(SocialxError, OSError):
            found += [each for each in [read_head(path)] if _lanes(each)]
    several = f", {len(found)} files" if found else ""
    first = found[0] if found else head
    lanes = _lanes(first)
    return f"rows of stations without a header, {lanes} lanes{several}" if lanes else None


def _read(request: Request) -> Contents:
    if request.timezone not in (None, ZONE):
        raise SettingsError(Argument("timezone", request.timezone), f"PeMS writes times of {ZONE}", "drop it")
    sheets = list[Stations]()

    def look_at(head: FileHead, _: Request) -> list[Sheet]:
        lanes = _lanes(head)
        if lanes is None and are_locations(head.path):
            return []
        if lanes is None:
            first = f"line {head.lines[0][0]} is {head.lines[0][1][:60]!a}" if head.lines else "it holds no text"
            raise SocialxError(head.path, f"no rows of stations, {first}", ADVICE)
        names, district = (*COLUMNS, *[""] * LANE_COLUMNS * lanes), cells_of(head.lines[0][1], ",")[DISTRICT]
        columns = Stations(head.path, "text", names, (TIME,), MEASURED, (STATION,), head.encoding, begin=0)
        sheets.append(replace(columns, columns=PARSED, form=FORM, district=district))
        if district != sheets[0].district:
            districts = f"stations of district {district}, and {sheets[0].path} has those of {sheets[0].district}"
            raise SocialxError(head.path, districts, "convert the files of each district alone")
        return [sheets[-1]]

    contents = read_tables(replace(request, time_format=FORM), look_at)
    times = contents.times() if contents.times else np.empty(0, np.int64)
    if len(times) > 1 and (step := common_step(times)) != STEP_S:
        raise SocialxError(request.data, f"its rows are {step // 60} min apart, not {STEP_S // 60}", ADVICE)
    imputed = "imputed by PeMS, as no lane was observed: they are kept"
    return reporting(replace(contents, timezone=ZONE), walked(sheets), request.data, imputed)


FORMATS = (
    Format(
        "pems-station",
        "Station 5-Minute files of Caltrans PeMS, a day each: d07_text_station_5min_2024_01_31.txt.gz",
        _recognise,
        _read,
        takes=frozenset({"channel", "more"}),
    ),
)
