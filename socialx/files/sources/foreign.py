"""Explain files that no format reads, with the command or the recipe that helps."""

from __future__ import annotations

import gzip
import io
import re
import shlex
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from socialx.core.errors import Argument, SocialxError, sample
from socialx.files.sources.arrays import array_names
from socialx.files.store.head import UNREADABLE, FileHead, check_text, member_paths, open_io, read_head

RECIPES = "docs/how-to/recipes.md"
TAR_BYTES = 1 << 16
PICKLE = re.compile(rb"\x80[\x02-\x05]|c[a-zA-Z_.]+\n\w+\n|\([dl]p0\n")
DUMP = re.compile(rb"PRAGMA |BEGIN TRANSACTION|CREATE TABLE|INSERT INTO|-- ?(?:MySQL|PostgreSQL|MariaDB)")
CSV = "and convert the frame with socialx.convert, or write it with to_csv"
# What a file is by its first bytes, and what helps; {} is its name.
KINDS = {
    rb"\xd0\xcf\x11\xe0": ("an old Excel workbook", "save it as .xlsx"),
    rb"MATLAB 5\.0": ("a file of MATLAB", f"read it with scipy.io.loadmat, {CSV}"),
    rb"\(\xb5/\xfd": ("a file packed by zstd", "unpack it with unzstd {}"),
    b"7z\xbc\xaf": ("a file packed by 7-Zip", "unpack it with 7z x {}"),
    b"Rar!": ("a file packed by RAR", "unpack it with unrar x {}"),
    b"%PDF": ("a PDF", "save its table as CSV, or ask for the data that it was made from"),
    b"ARROW1": ("a Feather file", f"read it with pandas.read_feather, {CSV}"),
    b"SQLite format 3": ("a database of SQLite", "name sqlite:///{} and {query}"),
    rb"(?:\xef\xbb\xbf)?\s*<": (
        "XML, or a page of the web in place of the data",
        f"read it with pandas.read_xml, {CSV}",
    ),
    PICKLE.pattern: ("a pickle, which can run programs and is never opened", "write it with to_csv if you trust it"),
    DUMP.pattern: ("a dump of a database", "load it, and name the database, or save a query as CSV"),
}
# Files of benchmarks, by the names in one folder, and the recipe that reads them.
BENCHMARKS = {
    ("data.dat", "desc.json"): ("a folder of BasicTS", "basicts-up-to-05"),
    ("train_data.npy", "train_timestamps.npy"): ("a folder of BasicTS", "basicts-from-10-on"),
    ("train.npz", "val.npz", "test.npz"): ("windows of DCRNN", "windows-of-dcrnn-and-graph-wavenet"),
}
# Former names of formats: tables now, or the recipe that reads them.
FORMER = dict.fromkeys(("export", "published-csv", "libcity", "pems-station", "utd19", "t-gcn", "matrix-csv"), "") | {
    "basicts": "basicts-up-to-05",
    "windows-npz": "windows-of-dcrnn-and-graph-wavenet",
    "largest-npz": "largest",
    "pyg-t": "torch-mts-and-pytorch-geometric-temporal",
    "torch-mts": "torch-mts-and-pytorch-geometric-temporal",
}


def by_recipe(anchor: str) -> str:
    """Return what helps where a recipe makes a frame of a file."""
    return f"make a frame with the recipe {RECIPES}#{anchor}, and convert that"


def refuse_benchmark(path: Path) -> None:
    """Raise SocialxError for a folder of BasicTS or windows of DCRNN, and for a file in one."""
    folder = path if path.is_dir() else path.parent
    for names, (kind, anchor) in BENCHMARKS.items():
        parts = folder == path or path.name in names
        with suppress(OSError):  # a folder that may not be entered
            if not (parts and all((folder / name).is_file() for name in names)):
                continue
            if names[0].endswith(".npz") and not {"x", "y"} <= {*array_names(folder / names[0])}:
                continue
            raise SocialxError("foreign.benchmark", path, f"this is {kind} ({', '.join(names)})", by_recipe(anchor))


def refuse_bytes(head: FileHead) -> None:
    """Raise SocialxError for a foreign kind of file by its first bytes; return for other files."""
    path, name = head.path, shlex.quote(str(head.path))
    for begin, (kind, remedy) in KINDS.items():
        if re.match(begin, head.first):
            remedy = remedy.replace("{}", name).replace("{query}", str(Argument("query", "SELECT ...")))
            raise SocialxError("foreign.kind", path, f"this is {kind}", remedy)
    for member in member_paths(path)[:1] if head.kind == "zip" else ():
        refuse_bytes(read_head(member))
    with suppress(*UNREADABLE, tarfile.TarError), open_io(path) as file:
        begin = file.read(TAR_BYTES)
        begin = gzip.GzipFile(fileobj=io.BytesIO(begin)).read(TAR_BYTES // 2) if begin[:2] == b"\x1f\x8b" else begin
        tarfile.open(fileobj=io.BytesIO(begin), mode="r:").close()
        raise SocialxError("foreign.tar", path, "this is a tar archive", f"run tar xf {name}, and name its files")


def refuse(head: FileHead, names: list[str]) -> NoReturn:
    """Raise SocialxError for a file or folder of no known format; names: the formats to choose from."""
    path = head.path
    refuse_benchmark(path)
    if head.kind == "folder":
        members = sorted(member.name for member in path.iterdir())
        problem = f"there is no table in this folder ({sample(members) or 'it is empty'})"
        raise SocialxError("foreign.folder", path, problem, "name the file itself")
    refuse_bytes(head)
    check_text(path, head.first)
    text = head.first[:40].decode("utf-8-sig", "replace")
    begin = f"begins {text!a}" if text.isprintable() else "holds no text"
    problem = f"the file has no known format, and {begin}"
    raise SocialxError("foreign.unknown", path, problem, f"choose from the formats {', '.join(names)}")
