"""The CSV in which METR-LA and PEMS-BAY are published: an empty header cell, sensor ids, then one row per time."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np

from socialx.data.files import first_bytes
from socialx.data.sources.locations import match_key
from socialx.data.store import Block
from socialx.errors import SocialxError, sample
from socialx.progress import progress_bar

PIECE_BYTES = 1 << 22  # about 2,000 rows of METR-LA: small beside pandas itself, large beside the cost of a call
HEADER_BYTES = 1 << 24
ABSENT = ["", "nan", "NaN", "NAN"]  # cells that mean "no reading"; any other text is refused
ADVICE = "use the CSV as published: an empty header cell, then sensor ids"
NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")
STAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}")


def read_table(path: Path) -> tuple[tuple[str, ...], Generator[Block, None, None]]:
    """Sensor ids in column order, and the rows in blocks.

    A stored float32 is the float64 nearest to the text, rounded once.
    """
    first_bytes(path, ADVICE)
    with path.open("rb") as file:
        line = file.readline(HEADER_BYTES)
    try:
        cells = next(csv.reader([line.decode("utf-8-sig")]), [])
    except (UnicodeDecodeError, csv.Error):
        raise SocialxError(f"{path}: neither a CSV text nor an HDF5 file: unpack it, or {ADVICE}") from None
    ids = tuple(cell.strip() for cell in cells[1:])
    if "latitude" in [text.lower() for text in ids]:
        raise SocialxError(f"{path}: line 1 is that of a table of positions: swap --data-csv and --meta-csv")
    wrong = [ascii(text[:40]) for text in ids if not isinstance(match_key(text), int)]
    if not ids or cells[0].strip() or wrong:
        found = f"sensor ids like {sample(wrong)}" if wrong else f"a header that begins {','.join(cells)[:40]!a}"
        raise SocialxError(f"{path}: line 1 has {found}: {ADVICE}")
    counts = Counter(match_key(text) for text in ids)
    twice = [text for text in ids if counts[match_key(text)] > 1]
    if twice:
        raise SocialxError(f"{path}: line 1 names sensors more than once ({sample(twice)}): remove the repeated ones")
    return ids, _blocks(path, len(ids), len(line))


def _blocks(path: Path, sensors: int, header: int) -> Generator[Block, None, None]:
    size = path.stat().st_size - header
    with path.open("rb") as file, progress_bar(f"reading {path.name}", size, "B") as bar:
        file.seek(header)
        line = 2
        while piece := file.read(PIECE_BYTES):
            piece += file.readline()
            if not piece.isspace():
                yield _parse(path, piece, line, sensors)
            line += piece.count(b"\n")
            bar.advance(len(piece))


def _parse(path: Path, piece: bytes, line: int, sensors: int) -> Block:
    """Whole lines -> a block; the fast parser decides, the slow walk over the cells only words the refusal."""
    import pandas as pd

    # pandas reads a column of True and False as 1 and 0, and takes the length of all rows from a long first one.
    first = piece.lstrip(b"\r\n")[: 1 << 20].partition(b"\n")[0]
    if first.count(b",") != sensors or any(letter in piece for letter in (b"T", b"t", b"F", b"f")):
        _refuse_faults(path, piece, line, sensors)
    # Since 3.1 every float is rounded correctly and the option is deprecated.
    old = tuple(int(part) for part in pd.__version__.split(".")[:2]) < (3, 1)
    exact: Any = {"float_precision": "round_trip"} if old else {}
    try:
        with np.errstate(over="ignore"):
            frame: pd.DataFrame = pd.read_csv(
                io.BytesIO(piece),
                header=None,
                names=range(sensors + 1),
                index_col=False,
                dtype={0: str, **dict.fromkeys(range(1, sensors + 1), np.float32)},
                keep_default_na=False,
                na_values=ABSENT,
                low_memory=False,
                **exact,
            )
    except ValueError as error:  # ParserError is one
        _refuse_faults(path, piece, line, sensors)
        reason = " ".join(str(error).split())[:160]
        raise SocialxError(f"{path}: from line {line} on: {reason}: correct it") from error
    stamps = frame[0].fillna("").tolist()
    if piece.count(b",") != sensors * len(frame) or not all(map(STAMP.fullmatch, stamps)):
        _refuse_faults(path, piece, line, sensors)
        raise SocialxError(f"{path}: from line {line} on: rows of different length or without a time: correct it")
    return Block(np.array(stamps, "S19"), frame.iloc[:, 1:].to_numpy(np.float32))


def _refuse_faults(path: Path, piece: bytes, line: int, sensors: int) -> None:
    """Raise for the first row or cell that is not as published; return when there is none."""
    for number, text in enumerate(piece.decode("utf-8", "replace").splitlines(), line):
        try:
            cells = next(csv.reader([text]), [])
        except csv.Error as error:
            raise SocialxError(f"{path}: line {number}: {error}: correct it") from None
        if not cells:
            continue
        if len(cells) != sensors + 1:
            raise SocialxError(f"{path}: line {number} has {len(cells)} cells, not {sensors + 1}: correct it")
        if not STAMP.fullmatch(cells[0]):
            found = f"has the time {cells[0][:40]!a}"
            raise SocialxError(f"{path}: line {number} {found}, not YYYY-MM-DD HH:MM:SS: correct it")
        for column, cell in enumerate(cells[1:], 1):
            if cell not in ABSENT and not NUMBER.fullmatch(cell):
                found = f"column {column} is {cell[:40]!a}, not a number"
                raise SocialxError(f"{path}: line {number}, {found}: correct it, or leave it empty if missing")
