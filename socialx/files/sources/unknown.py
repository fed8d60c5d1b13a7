"""Explain files that every reader rejects, with the command that helps."""

from __future__ import annotations

import gzip
import io
import json
import re
import shlex
import tarfile
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

from socialx.core.errors import Argument, Command, SocialxError, sample, shortened
from socialx.files.sources.databases import database, suggest_query
from socialx.files.sources.request import DATED
from socialx.files.sources.tables.columns import HOUR, SINCE_1970
from socialx.files.sources.tables.json_rows import NESTED, json_objects
from socialx.files.sources.tables.matrices import two_lines
from socialx.files.sources.tables.melt import is_label
from socialx.files.sources.tables.sheets import TITLE_ROWS, cell_texts, is_json, read_frames, split_cells
from socialx.files.sources.tables.text_cells import NUMBER, pieces
from socialx.files.sources.tables.time_texts import EPOCH, MOMENT, ONLY_CLOCK, ONLY_DATE, Times
from socialx.files.store.head import (
    GZIP,
    SEPARATORS,
    UNREADABLE,
    UTF16,
    ZIP,
    FileHead,
    check_text,
    find_separator,
    member_paths,
    open_io,
    read_head,
)

LATITUDE = ("latitude", "lat")  # a column of positions, never a sensor
WANTED = "write a header line, then rows of a time and readings, or a row per time, sensor and reading"
TAR_BYTES = 1 << 16
LETTERS = {"cp932": "Japanese", "cp949": "Korean", "gb18030": "Chinese", "big5": "Chinese"}  # encodings
PICKLE = re.compile(rb"\x80[\x02-\x05]|c[a-zA-Z_.]+\n\w+\n|\([dl]p0\n")
CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x19\x7f]")  # which no text has
RUN = re.compile(rb"[\x80-\xff][\x40-\xff][\x80-\xff][\x40-\xff]")  # no text of Latin letters has many of these
DIGITS = {"%y%m%d": re.compile(r"[0-9]{6}"), "%d%m%y": re.compile(r"[0-9]{6}")}
DIGITS |= {"%Y%m%d": re.compile(r"[0-9]{8}"), "%d%m%Y": re.compile(r"[0-9]{8}")}
SOON = 1e-3  # of a number since 1970: about two weeks
DAY = re.compile(r".*(?:date|datum|day|fecha|jour|data|tag).*", re.IGNORECASE)


def refuse_bytes(head: FileHead) -> None:
    """Raise SocialxError for a known foreign format by its first bytes, with a command that converts the file."""
    path, first = head.path, head.first
    name = shlex.quote(str(path))
    kinds = {
        b"MATLAB 5.0": ("a file of MATLAB", "read it with scipy.io.loadmat, and convert a frame with socialx.convert"),
        b"\xd0\xcf\x11\xe0": ("an old Excel workbook (.xls)", "save it as .xlsx"),
        b"\x28\xb5\x2f\xfd": ("a file packed by zstd", f"unpack it with unzstd {name}"),
        b"7z\xbc\xaf": ("a file packed by 7-Zip", f"unpack it with 7z x {name}"),
        b"Rar!": ("a file packed by RAR", f"unpack it with unrar x {name}"),
        b"%PDF": ("a PDF", "save its table as CSV, or ask for the data that it was made from"),
        b"ARROW1": ("a Feather file", "make a table in Python: pandas.read_feather(FILE).to_csv(FILE.csv)"),
    }
    for magic, (kind, remedy) in kinds.items():
        if first.startswith(magic):
            raise SocialxError(path, f"this is {kind}", remedy)
    if first.startswith(b"SQLite format 3"):
        base = database(f"sqlite:///{path}")
        has, query = suggest_query(base)
        raise SocialxError(path, f"this is a database of SQLite{has}", f"name {base.shown} {Argument('query', query)}")
    if first.startswith((b"PRAGMA ", b"BEGIN TRANSACTION")):
        code = f'import sqlite3; sqlite3.connect("dump.db").executescript(open({json.dumps(str(path))}).read())'
        loads = f"load it into dump.db with python -c {shlex.quote(code)}, and name sqlite:///dump.db"
        raise SocialxError(path, "this is a dump of SQLite", loads)
    if any(line.startswith(("CREATE TABLE", "INSERT INTO")) for _, line in head.lines):
        raise SocialxError(
            path, "this is a dump of a database", "load it, and name the database, or save a query as CSV"
        )
    for member in member_paths(path)[:1] if first.startswith(ZIP) else ():
        refuse_bytes(read_head(member))
    if PICKLE.match(first):
        trusted = "make a table in Python if you trust the source: pandas.read_pickle(FILE).to_csv(FILE.csv)"
        raise SocialxError(path, "this is a pickle, which can run programs and is never opened", trusted)
    if head.kind == "text" and _is_tar(path):
        packed = "xzf" if first.startswith(GZIP) else "xf"
        raise SocialxError(path, "this is a tar archive", f"unpack it with tar {packed} {name}, and name its files")
    if first.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"<?xml", b"<")):
        helps = "make a table in Python: pandas.read_xml(FILE).to_csv(FILE.csv)"
        raise SocialxError(path, "this is XML, or a page of the web downloaded in place of the data", helps)
    refuse_encoding(head)


def _is_tar(path: Path) -> bool:
    """Return whether a file, plain or gzipped, is a tar archive."""
    with suppress(*UNREADABLE, tarfile.TarError), open_io(path) as file:
        begin = file.read(TAR_BYTES)
        if begin.startswith(GZIP):
            file.seek(0)
            begin = gzip.GzipFile(fileobj=file).read(TAR_BYTES)
        with tarfile.open(fileobj=io.BytesIO(begin), mode="r:") as archive:
            return archive.next() is not None
    return False


def refuse_encoding(head: FileHead) -> None:
    """Raise SocialxError for East Asian text encodings, and name the likely encodings; return for other files."""
    with suppress(*UNREADABLE), open_io(head.path) as file:
        raw = file.read(TAR_BYTES).rpartition(b"\n")[0]
        packed = head.kind != "text" or head.first.startswith((GZIP, *UTF16))
        if packed or CONTROLS.search(raw) or not RUN.search(raw):
            return
        with suppress(UnicodeDecodeError):
            raw.decode("utf-8-sig")
            return
        may_be = []
        for encoding, language in LETTERS.items():
            with suppress(UnicodeDecodeError):
                text = raw.decode(encoding)
                letters = [letter for letter in text if letter > "\x7f"]
                if sum(map(str.isalpha, letters)) > 0.8 * len(letters):
                    may_be.append((encoding, language))
        if may_be:
            listed = ", ".join(f"{encoding}, {language}" for encoding, language in may_be)
            rewrite = f"rewrite it: iconv -f {may_be[0][0]} -t utf-8 {shlex.quote(str(head.path))} > UTF8.csv"
            raise SocialxError(head.path, f"this is a text in another encoding than UTF-8 (perhaps {listed})", rewrite)


def refuse_headless(head: FileHead) -> None:
    """Raise SocialxError for a table with a column of times and no header line; return for other files."""
    rows = [split_cells(line, find_separator(line)) for _, line in head.lines]
    if len(rows) > 1 and len({*map(len, rows)}) == 1 and len(rows[0]) > 1:
        called = {"time": MOMENT, "date": ONLY_DATE, "clock": ONLY_CLOCK}
        columns = [*zip(*rows, strict=True)]
        kinds = [next((kind for kind in called if all(map(called[kind].fullmatch, column))), "") for column in columns]
        kinds[0] = "time" if all(map(EPOCH.fullmatch, columns[0])) else kinds[0]
        if {"time", "date"} & {*kinds}:
            problem = f"the file has rows without a header line; the first begins {','.join(rows[0])[:60]!a}"
            named = [kind or f"NAME{number}" for number, kind in enumerate(kinds, 1)]
            raise SocialxError(head.path, problem, f"write one in front of them: {','.join(named)}")


def refuse_table(head: FileHead) -> NoReturn:
    """Raise SocialxError for a table that lacks times, with the reason."""
    path, lines = head.path, [line for _, line in head.lines]
    header, row = two_lines(head)
    for where, cells in json_objects(path, head.encoding) if is_json(head) else ():  # which says what is wrong with it
        nested = [key for key, cell in cells.items() if cell == NESTED]
        if nested and len(cells) - len(nested) < 2:
            raise SocialxError(
                path, f"{where}, {sample(nested)} holds an object", "write each reading by a key of its own"
            )
    if not head.first.startswith((GZIP, *UTF16)):  # those are read
        check_text(path, head.first)
    if head.kind in ("text", "zip") and not lines:
        next(pieces(path, encoding=head.encoding), None)  # which says what is wrong with it
    if head.kind in ("parquet", "excel"):
        frame = next(iter(read_frames(head).values())).head(TITLE_ROWS)
        lines = [" ".join(cells) for cells in zip(*(cell_texts(frame[name]) for name in frame), strict=True)]
        lines = [line for line in lines if line.strip()]
    if any(name.lower() in LATITUDE for name in header):
        remedy = f"swap {Argument('data')} and {Argument('meta_csv')}"
        raise SocialxError(path, "line 1 is that of a table of positions", remedy)
    refuse_headless(head)
    if header and MOMENT.fullmatch(header[0]):
        raise SocialxError(path, f"line 1 has a header that begins {','.join(header)[:40]!a}", WANTED)
    if row and (MOMENT.fullmatch(row[0]) or sum(map(is_label, header)) > 1):
        separator = find_separator(lines[0])
        for number, line in head.lines[1:]:
            if (count := len(split_cells(line, separator))) not in (0, len(header)):  # 0 of one with too long a cell
                raise SocialxError(path, f"line {number} has {count} cells, not {len(header)}", "correct the line")
    if len(lines) == 1:
        raise SocialxError(path, f"there is no row after the header ({shortened(lines[0], 60)})", "add rows")
    refuse_undated(path, row)
    _refuse_digits(path, header, row)
    begin = f"; line 1 is {lines[0][:60]!a}, line 2 {lines[1][:60]!a}" if lines else ""
    raise SocialxError(path, f"this is no table with a column of times{begin}", WANTED)


def _refuse_digits(path: Path, header: list[str], row: list[str]) -> None:
    """Raise SocialxError for ambiguous times in ``row``, by column name: 170101, or seconds from an unknown start."""
    pairs = list(zip(header, row, strict=False))
    hours = [name for name, cell in pairs if HOUR.fullmatch(name) and cell.isdigit() and len(cell) <= 2]
    for name, cell in pairs:
        forms = [key for key, form in DIGITS.items() if form.fullmatch(cell) and Times.from_format(key).fit([cell])]
        if DAY.fullmatch(name) and forms:
            either = " or ".join(str(Argument("time_format", f"{form}{' %H' if hours else ''}")) for form in forms)
            problem = f"there is a column of dates without signs ({name!r} is {cell})"
            raise SocialxError(path, problem, f"say how they are written: {either}")
    for name, cell in pairs:
        if (SINCE_1970.fullmatch(name) or "begin" in name.lower()) and NUMBER.fullmatch(cell) and float(cell) < 1e8:
            problem = f"the column {name!r} holds numbers such as {cell}, which may be seconds of a simulation"
            start = f"count from a time: {Argument('time_column', name)} {Argument('first_time', 'YYYY-MM-DD HH:MM')}"
            raise SocialxError(path, problem, start)


def refuse_undated(where: object, cells: list[str]) -> None:
    """Raise SocialxError, which names ``where``, if a cell is a clock time without a date."""
    if clock := next(filter(ONLY_CLOCK.fullmatch, cells), None):
        raise SocialxError(where, f"there is a time of day without a date ({clock})", DATED)


def refuse_untimed(head: FileHead) -> None:
    """Raise SocialxError, with the reason, for a text table without readable times; return for other files."""
    lines = [line for _, line in head.lines]
    if is_json(head):
        refuse_table(head)
    refuse_headless(head)
    refuse_undated(head.path, split_cells(lines[-1], find_separator(lines[-1])) if lines else [])
    if lines and lines[0].lstrip().startswith("["):
        raise SocialxError(head.path, "this is an array of JSON that holds no objects", "write an object for each row")
    _refuse_digits(head.path, *two_lines(head))
    readable = bool(lines) and all(line.replace("\t", " ").isprintable() for line in lines)
    counts = {len(split_cells(line, find_separator(lines[0]))) for line in lines}
    if readable and (len(counts) == 1 or "," not in lines[0]) and any(mark in lines[0] for mark in SEPARATORS):
        refuse_table(head)


def refuse_folder(head: FileHead) -> NoReturn:
    """Raise SocialxError for an unknown folder; a fault in the first file takes precedence."""
    if not (members := sorted(member for member in head.path.iterdir())):
        raise SocialxError(head.path, "this is an empty folder", "name a folder of tables, or a file")
    for path in [member for member in members if member.is_file()][:1]:
        first = read_head(path)
        refuse_bytes(first)
        refuse_headless(first)
    listed = sample([member.name for member in members])
    raise SocialxError(head.path, f"socialx knows nothing in this folder ({listed})", "name the file itself")


def refuse_transposed(head: FileHead) -> None:
    """Raise SocialxError for a table with a column per time; return for any other file."""
    names, _ = two_lines(head)
    if len(names) > 2 and all(map(is_label, names[1:4])) and not _are_ids(names[1:4]):
        problem = f"line 1 has a time in each column ({sample(names[1:4])}): rows and columns have changed places"
        conversion = Command("convert", "auto", head.path, transposed=True, meta_csv="LOCATIONS.csv", output="OUT.h5")
        raise SocialxError(head.path, problem, conversion)


def _are_ids(names: list[str]) -> bool:
    """Return whether whole numbers are ids; epoch times rise by a minute or more and by less than 0.1 percent."""
    if not all(name.isdigit() for name in names):
        return False
    minute = 60 * 1000 ** ((len(names[0]) - 9) // 3)  # in seconds, milliseconds, ...
    return any(not minute <= later - number < SOON * number for number, later in pairwise(map(int, names)))
