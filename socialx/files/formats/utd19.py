"""utd19_u.csv of UTD19 (ETH Zurich): a row per day, interval and detector, of one city or of many."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from socialx.data.calendar import DAY_S
from socialx.errors import Argument, SettingsError, SocialxError, counted, sample
from socialx.files.convert_options import Request
from socialx.files.file_head import GZIP, ZIP, FileHead, read_head
from socialx.files.formats.contents import Contents, Format
from socialx.files.formats.known_columns import ISO, Listing, reporting, walked
from socialx.files.formats.sheets import cells_of
from socialx.files.formats.tables import read_tables
from socialx.files.formats.text_cells import Piece, TextColumns, Texts
from socialx.files.quantities import SPEED
from socialx.files.time_axis import as_text

TEXTS, MEASURED = ("day", "detid", "city"), ("flow", "occ", "speed")
NUMBERS = ("interval", "error", *MEASURED)
UNITS = {"flow": "veh/h", "speed": "km/h", "occ": "share"}
ADVICE = f"use utd19_u.csv as published, with the columns {', '.join((*TEXTS, *NUMBERS))}"
FEW = 6  # cities that an error names
END_BYTES = 1 << 12


@dataclass(frozen=True)
class Detectors(Listing):
    """The rows of one city."""

    city: str = ""

    def meant(self, piece: Piece) -> tuple[Piece, np.ndarray]:
        """The rows of the city; erroneous readings are marked."""
        days, detectors, cities = piece.texts
        kept = np.flatnonzero(cities.codes == (cities.words.index(self.city) if self.city in cities.words else -1))
        rows = replace(piece, numbers=piece.numbers[kept, 2:], kept=kept)
        seconds, errors = piece.numbers[kept, :2].T
        whole = (seconds >= 0) & (seconds < DAY_S) & (seconds == np.floor(seconds))
        known = np.isin(errors, (0, 1)) | np.isnan(errors)
        refused = ("interval", seconds, whole, "whole seconds of a day"), ("error", errors, known, "0, 1 or empty")
        for name, column, right, wanted in refused:
            if not right.all():
                row = int(right.argmin())
                found = f"{rows.place(row)} has the {name} {column[row]:g}, not {wanted}"
                raise SocialxError(self.path, found, "correct it")
        different, codes = np.unique(seconds, return_inverse=True)
        clocks = Texts([as_text(int(second)).split()[1] for second in different], codes)
        times = Texts.joined([days[kept], clocks], " ".join)
        return replace(rows, texts=[times, detectors[kept]]), errors == 1


def _header(head: FileHead) -> tuple[str, ...]:
    """The names of the columns; empty for another file."""
    names = tuple(cells_of(head.lines[0][1], ",")) if head.lines else ()
    return names if {*TEXTS, *NUMBERS} <= {*names} and len({*names}) == len(names) else ()


def _recognise(head: FileHead) -> str | None:
    return "the columns day, interval, detid, flow, occ, error, city and speed" if _header(head) else None


def _needs(path: Path) -> tuple[str, ...]:
    """The city, where the first row and the last are of two; a packed file does not say it."""
    head = read_head(path)
    if head.first.startswith((GZIP, ZIP)):
        return ()
    with path.open("rb") as file:
        file.seek(-min(END_BYTES, path.stat().st_size), os.SEEK_END)
        last = file.read().decode("utf-8", "replace").rstrip().rpartition("\n")[2]
    rows = [cells_of(line, ",") for line in (*[line for _, line in head.lines[1:2]], last)]
    place = _header(head).index("city")
    return ("city",) if len({cells[place] for cells in rows if len(cells) > place}) > 1 else ()


def _cities(sheets: list[Detectors]) -> list[str]:
    """The cities of all rows, each once."""
    cities = dict[str, None]()
    for sheet in sheets:
        column = TextColumns(sheet.path, sheet.names, (sheet.names.index("city"),), (), begin=sheet.begin)
        with closing(column.read("looking at the cities of")) as found:
            for piece in found:
                cities.update(dict.fromkeys(piece.texts[0].words))
    return list(cities)


def _of_city(cities: list[str], request: Request) -> str:
    """The city that is read: the only one, or the one that the user names."""
    if not cities:
        raise SocialxError(request.data, "no row after line 1", "use a file with rows")
    wanted, choose = request.city, Argument("city", cities[0])
    known = [city for city in cities if wanted is None or city.lower() == wanted.lower()]
    listed = f"{len(cities)} cities ({sample(cities, FEW)})"
    if wanted is not None and not known:
        raise SettingsError(Argument("city", wanted), f"no city of {request.data}, which has {listed}", choose)
    if len(known) > 1:
        raise SocialxError(request.data, f"it has the detectors of {listed}", f"choose one of them: {choose}")
    return known[0]


def _read(request: Request) -> Contents:
    sheets = [_sheet(head) for head in (request.head, *map(read_head, request.more))]
    city = _of_city(_cities(sheets), request)
    sheets = [replace(sheet, city=city) for sheet in sheets]
    told, notes = walked(sheets), [f"{request.data}: the detectors of {city} are read"]
    request = replace(request, city=city, time_format=ISO)
    if request.channel is None and not told[SPEED].sensors:
        request = replace(request, channel="flow")
        notes.append(f"{request.data}: {city} has no speeds: its flows are read")
    largest = told["occupancy"].largest
    units = UNITS if largest <= 1 else UNITS | {"occ": ""}
    known = {each.path: replace(each, units=tuple(units.get(name, "") for name in each.names)) for each in sheets}
    contents = read_tables(request, lambda head, _: [known[head.path]])
    if largest > 1 and "occupancy" in (contents.feature, *contents.others):
        notes.append(f"{request.data}: occupancies up to {largest:g}, which are no parts of 1: their unit is left open")
    if odd := [vdid for vdid in contents.ids or () if _stored(vdid) != vdid]:
        notes.append(f"{request.data}: {counted(len(odd), 'id')} with a space or / ({sample(odd)}): written with _")
    contents = replace(contents, notes=(*notes, *contents.notes), stored=_stored)
    return reporting(contents, told, request.data, "marked as errors: no readings")


def _stored(vdid: str) -> str:
    """An id without the signs that no file of ours has in one."""
    return vdid.replace(" ", "_").replace("/", "_")


def _sheet(head: FileHead) -> Detectors:
    """A file with the columns of UTD19; refuses any other."""
    names = _header(head)
    if not names:
        first = f"line {head.lines[0][0]} is {head.lines[0][1][:60]!a}" if head.lines else f"a {head.kind}"
        raise SocialxError(head.path, f"no columns of UTD19, {first}", ADVICE)
    texts, numbers = (tuple(map(names.index, part)) for part in (TEXTS, NUMBERS))
    sensors, values = (names.index("detid"),), tuple(map(names.index, MEASURED))
    sheet = Detectors(head.path, "text", names, texts[:1], values, sensors, head.encoding, begin=head.lines[0][0])
    return replace(sheet, columns=(texts, numbers), drops=True)


FORMATS = (
    Format(
        "utd19",
        "utd19_u.csv of UTD19 by ETH Zurich, the detectors of one city",
        _recognise,
        _read,
        takes=frozenset({"channel", "more", "city"}),
        needs=_needs,
    ),
)
