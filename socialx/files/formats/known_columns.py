"""Texts with a row per time and sensor whose columns are known beforehand; they are read as tables.

A first walk over the rows tells which sensors report.  t rows of one piece, V columns of readings, N sensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np

from socialx.errors import Argument, SocialxError, sample
from socialx.files.formats.contents import Contents
from socialx.files.formats.moments import UNKNOWN, Times
from socialx.files.formats.sheets import Sheet
from socialx.files.formats.text_cells import Piece, Signs, TextColumns, Texts
from socialx.files.hdf5_layout import Block
from socialx.files.quantities import QUANTITIES

ISO = "%Y-%m-%d %H:%M:%S"


@dataclass
class Found:
    """What a walk over rows tells of each quantity.

    reports: the sensors that have a reading.  readings: how many there are, with those that the source marks; marked:
    how many it marks.  largest: of the readings.
    """

    reports: dict[str, set[str]] = field(default_factory=dict)
    readings: Counter[str] = field(default_factory=Counter)
    marked: Counter[str] = field(default_factory=Counter)
    largest: dict[str, float] = field(default_factory=dict)

    def see(self, quantity: str, sensors: Texts, numbers: np.ndarray, read: np.ndarray, marked: np.ndarray) -> None:
        """Numbers of these sensors, float32 [t], those of them that are read, and which the source marks, bool [t]."""
        known, here = np.isfinite(numbers), np.isfinite(read)
        self.readings[quantity] += int(known.sum())
        self.marked[quantity] += int((known & marked).sum())
        reporting = np.unique(sensors.codes[here]).tolist()
        self.reports.setdefault(quantity, set()).update(sensors.words[code] for code in reporting)
        if here.any():
            self.largest[quantity] = max(self.largest.get(quantity, 0.0), float(read[here].max()))

    def share(self, quantities: Sequence[str]) -> str:
        """How many of the readings of these quantities the source marks."""
        marked, every = (sum(count[each] for each in quantities) for count in (self.marked, self.readings))
        return f"{marked:,} of {every:,} readings ({marked / max(1, every):.1%})" if marked else ""


@dataclass(frozen=True)
class Listing(Sheet):
    """A text of which each row has a time, a sensor, and readings in the columns ``measured``.

    more: columns behind those with names.  columns: those of texts and of numbers that ``meant`` takes.  drops: whether
    what the source marks is no reading.  found: gets what a walk over the rows tells; None: it is told already.
    form: of the times, as strptime takes it.
    """

    more: int = 0
    columns: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    measured: tuple[int, ...] = ()
    drops: bool = False
    found: Found | None = field(default=None, compare=False)
    form: str = ISO
    signs: Signs = field(default_factory=lambda: Signs(decimals=True), compare=False)  # points are those of decimals

    def meant(self, piece: Piece) -> tuple[Piece, np.ndarray]:
        """The times, the sensors and the numbers [t,V] of the rows that are read, and which are marked, bool [t]."""
        raise NotImplementedError

    def rows(self, texts: tuple[int, ...], numbers: tuple[int, ...] = ()) -> Generator[Piece, None, None]:
        """Times and sensors, and these of the columns of readings, piece after piece."""
        columns = TextColumns(
            self.path,
            (*self.names, *([""] * self.more)),
            *self.columns,
            begin=self.begin,
            encoding=self.encoding,
            signs=self.signs,
        )
        found = None if numbers else self.found
        with closing(columns.read("reading" if numbers else "looking at the times of")) as pieces:
            for piece in pieces:
                rows, marked = self.meant(piece)
                read = np.where(marked[:, None], np.float32(np.nan), rows.numbers) if self.drops else rows.numbers
                if found is not None:
                    self._check(rows)
                    for place, column in enumerate(self.measured):
                        pair = rows.numbers[:, place], read[:, place]
                        found.see(self.quantity(column) or "", rows.texts[1], *pair, marked)
                if len(read):
                    yield replace(rows, numbers=read[:, [self.measured.index(column) for column in numbers]])

    def _check(self, rows: Piece) -> None:
        """Refuse a row without a sensor, and one with a time that is none."""
        times, sensors = rows.texts
        unknown = Times(self.form, zoned=False).seconds(times) == UNKNOWN
        wrong = unknown | (sensors.codes == (sensors.words.index("") if "" in sensors.words else -1))
        if wrong.any():
            row = int(wrong.argmax())
            sensor, time = (texts.words[texts.codes[row]][:40] for texts in (sensors, times))
            found = f"{rows.place(row)} has the sensor {sensor!a} at {time!a}"
            raise SocialxError(self.path, found, f"correct it: an id, and a time written as {self.form}")


def reporting(contents: Contents, found: Found) -> Contents:
    """The contents without the sensors that have no reading, with a note on these; refuses what has none at all."""
    features, where, ids = (contents.feature, *contents.others), contents.paths[0], contents.ids or ()
    typed = {feature: name for name, feature in QUANTITIES.items()}
    names = " and ".join(typed[each] for each in features)
    known = set().union(*(found.reports.get(each, set()) for each in features))
    if not known:
        others = [typed[each] for each, sensors in found.reports.items() if sensors and each in typed]
        remedy = str(Argument("channel", others[0])) if others else "use a file with readings"
        raise SocialxError(where, f"no reading of {names} of its {len(ids)} sensors", remedy)
    kept = [place for place, vdid in enumerate(ids) if vdid in known]
    if len(kept) == len(ids):
        return contents
    silent = [vdid for vdid in ids if vdid not in known]
    told = f"{where}: {len(silent)} of {len(ids)} sensors have no reading of {names} ({sample(silent)}): left out"
    return replace(
        contents,
        ids=tuple(ids[place] for place in kept),
        sensors=len(kept),
        blocks=of_columns(contents.blocks, kept),
        notes=(*contents.notes, told),
    )


def of_columns(blocks: Generator[Block, None, None], columns: list[int]) -> Generator[Block, None, None]:
    """The blocks with these of the N columns."""
    with closing(blocks):
        for block in blocks:
            yield replace(block, speeds=block.speeds[:, columns])
