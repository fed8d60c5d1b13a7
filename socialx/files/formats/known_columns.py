"""Texts with a row per time and sensor whose columns are known beforehand; they are read as tables.

A first walk over the rows tells which sensors report.  t rows of one piece, V columns of readings, N sensors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from socialx.errors import Argument, SocialxError, sample
from socialx.files.formats.contents import Contents
from socialx.files.formats.moments import UNKNOWN, Times
from socialx.files.formats.sheets import Sheet
from socialx.files.formats.text_cells import Piece, Signs, TextColumns
from socialx.files.hdf5_layout import Block
from socialx.files.quantities import QUANTITIES

ISO = "%Y-%m-%d %H:%M:%S"


@dataclass(frozen=True)
class Listing(Sheet):
    """A text of which each row has a time, a sensor, and readings in the columns ``values``.

    columns: those of texts and of numbers that ``meant`` takes.  drops: whether what the source marks is no reading.
    form: of the times, as strptime takes it.
    """

    columns: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    drops: bool = False
    form: str = ISO
    signs: Signs = field(default_factory=lambda: Signs(decimals=True), compare=False)  # points are those of decimals

    def meant(self, piece: Piece) -> tuple[Piece, np.ndarray]:
        """The times, the sensors and the readings [t,V] of the rows that are read, and which are marked, bool [t]."""
        raise NotImplementedError

    def marked(self, what: str) -> Generator[tuple[Piece, np.ndarray], None, None]:
        """What is ``meant``, piece after piece; refuses a row without a sensor, and one with a time that is none."""
        columns = TextColumns(
            self.path, self.names, *self.columns, begin=self.begin, encoding=self.encoding, signs=self.signs
        )
        with closing(columns.read(what)) as pieces:
            for piece in pieces:
                rows, marked = self.meant(piece)
                times, sensors = rows.texts
                nameless = np.array([not word for word in sensors.words], bool)[sensors.codes]
                wrong = nameless | (Times(self.form, zoned=False).seconds(times) == UNKNOWN)
                if wrong.any():
                    row = int(wrong.argmax())
                    sensor, time = (texts.words[texts.codes[row]][:40] for texts in (sensors, times))
                    found = f"{rows.place(row)} has the sensor {sensor!a} at {time!a}"
                    raise SocialxError(self.path, found, f"correct it: an id, and a time written as {self.form}")
                if len(marked):
                    yield rows, marked

    def rows(self, texts: tuple[int, ...], numbers: tuple[int, ...] = ()) -> Generator[Piece, None, None]:
        """Times and sensors, and these of the columns of readings, piece after piece."""
        order = [self.values.index(column) for column in numbers]
        with closing(self.marked("reading" if numbers else "looking at the times of")) as pieces:
            for rows, marked in pieces:
                readings = rows.numbers[:, order]
                if self.drops:
                    readings[marked] = np.nan
                yield replace(rows, numbers=readings)


@dataclass
class Told:
    """What all rows tell of a quantity.

    sensors: those that have a reading.  largest: of the readings.  readings: how many there are, with those that the
    source marks; marked: how many it marks.
    """

    sensors: set[str] = field(default_factory=set)
    largest: float = 0.0
    readings: int = 0
    marked: int = 0


def walked(sheets: Sequence[Listing]) -> defaultdict[str, Told]:
    """What all rows of some files tell of each quantity."""
    told = defaultdict[str, Told](Told)
    for sheet in sheets:
        with closing(sheet.marked("looking at the readings of")) as pieces:
            for rows, marked in pieces:
                for column, numbers in zip(sheet.values, rows.numbers.T, strict=True):
                    known, each = np.isfinite(numbers), told[sheet.quantity(column) or ""]
                    read = known & ~marked if sheet.drops else known
                    each.sensors.update(rows.texts[1][read].words)
                    each.largest = max(each.largest, float(numbers.max(initial=0.0, where=read)))
                    each.readings += int(known.sum())
                    each.marked += int((known & marked).sum())
    return told


def reporting(contents: Contents, told: defaultdict[str, Told], where: Path, what: str) -> Contents:
    """The contents without the sensors that have no reading, with a note on these; refuses what has none at all.

    where: what the user named.  what: is true of the readings that the source marks, which a note counts.
    """
    features, ids = (contents.feature, *contents.others), contents.ids or ()
    typed = {feature: name for name, feature in QUANTITIES.items()}
    names, read = " and ".join(typed[each] for each in features), [told[each] for each in features]
    known = set().union(*(each.sensors for each in read))
    if not known:
        others = [typed[feature] for feature, each in told.items() if each.sensors and feature in typed]
        remedy = str(Argument("channel", others[0])) if others else "use a file with readings"
        raise SocialxError(where, f"no reading of {names} of its {len(ids)} sensors", remedy)
    notes = list(contents.notes)
    if count := sum(each.marked for each in read):
        every = sum(each.readings for each in read)
        notes.append(f"{where}: {count:,} of {every:,} readings ({count / every:.1%}) are {what}")
    if silent := [vdid for vdid in ids if vdid not in known]:
        found = f"{len(silent)} of {len(ids)} sensors have no reading of {names} ({sample(silent)})"
        notes.append(f"{where}: {found}: left out")
    return of_sensors(replace(contents, notes=tuple(notes)), [vdid for vdid in ids if vdid in known])


def of_sensors(contents: Contents, kept: Sequence[str]) -> Contents:
    """The contents of these sensors alone, in this order."""
    place = {vdid: column for column, vdid in enumerate(contents.ids or ())}
    columns = [place[vdid] for vdid in kept]

    def blocks() -> Generator[Block, None, None]:
        with closing(contents.blocks) as every:
            for block in every:
                yield replace(block, speeds=block.speeds[:, columns])

    return replace(contents, ids=tuple(kept), sensors=len(kept), blocks=blocks())
