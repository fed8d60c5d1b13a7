"""The beginning of a user file, read once for every recogniser."""

from __future__ import annotations

import gzip
import lzma
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from socialx.core.disk import check_name, check_regular, unreadable
from socialx.core.errors import SocialxError, sample

HDF5, NPY, PARQUET, GZIP, ZIP = b"\x89HDF\r\n\x1a\n", b"\x93NUMPY", b"PAR1", b"\x1f\x8b", b"PK"
UTF16 = (b"\xff\xfe", b"\xfe\xff")
PACKED = {
    GZIP: ("packed by gzip", "unpack it with gunzip"),
    b"BZh": ("packed by bzip2", "unpack it with bunzip2"),
    b"\xfd7zXZ": ("packed by xz", "unpack it with unxz"),
    **dict.fromkeys(UTF16, ("a text in UTF-16", "save it as UTF-8")),
}
FIRST_BYTES = 256
LINE_BYTES = 1 << 24  # a header of 100,000 sensors with names of 160 bytes
HEAD_BYTES = 1 << 25  # of all lines of a head
LINES = 50  # ten lines of a title, and forty that tell what each column holds
AGAIN = "download it again"  # helps with a damaged file, and not with one that is not there
# What reading a packed or odd text raises; zipfile raises RuntimeError for a member with a password.
UNREADABLE = (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)


@dataclass(frozen=True, eq=False)
class FileHead:
    """The facts in a file's beginning.

    kind: folder, hdf5, npy, zip, parquet, excel, else text. first: the first bytes. lines: the first filled lines of a
    text, in which signs beyond UTF-8 are replaced; empty for binary or unreadable files. ends: whether a line ends in
    the first 16 MiB. seen: a cache for readers.
    """

    path: Path
    kind: str
    first: bytes = b""
    lines: tuple[str, ...] = ()
    ends: bool = True
    seen: dict[Any, Any] = field(default_factory=dict, repr=False)


def read_head(path: Path, advice: str = AGAIN) -> FileHead:
    """Read a file's beginning. Raises for missing or empty (remedy: ``advice``), special, and Git-LFS pointer files."""
    check_name(path)
    if path.is_dir():
        return FileHead(path, "folder")
    with _open_checked(path, advice) as (file, first):
        kinds = {HDF5: "hdf5", NPY: "npy", PARQUET: "parquet"}
        kind = next((kind for magic, kind in kinds.items() if first.startswith(magic)), "text")
        if first.startswith(ZIP):
            kind = "excel" if path.suffix.lower() in (".xlsx", ".xlsm") else "zip"
        if kind == "zip":
            with suppress(*UNREADABLE), zipfile.ZipFile(file) as archive:
                members = member_names(archive)
                kind = "text" if len(members) == 1 and not members[0].endswith(".npy") else "zip"
            file.seek(0)
        if kind != "text":
            return FileHead(path, kind, first)
        raw = b""
        try:
            with unpack(path, file) as stream:
                for _ in range(LINES):
                    raw += stream.readline(LINE_BYTES)
                    if len(raw) >= HEAD_BYTES:
                        break
        except (*UNREADABLE, SocialxError):
            return FileHead(path, kind, first)
    ends = len(raw) < LINE_BYTES or b"\n" in raw or b"\r" in raw
    text = raw.decode("utf-16" if raw.startswith(UTF16) else "utf-8-sig", "replace")
    lines = re.split("\r\n|\r|\n", text) if ends and "\0" not in text else ()
    return FileHead(path, kind, first, tuple(line for line in lines if line.strip()), ends)


def head_in(head: FileHead, path: Path) -> FileHead:
    """Return the head of a file inside the folder or zip ``head``, read once; ``head`` itself for its own path."""
    if path == head.path:
        return head
    if path not in head.seen:
        head.seen[path] = read_head(path)
    return head.seen[path]


def container(path: Path) -> Path:
    """Return the archive for a path such as ``months.zip/jan.csv``, else the path itself."""
    return next((parent for parent in path.parents if parent.is_file()), path)


def member_paths(archive: Path) -> list[Path]:
    """Return the file paths in a zip, skipping hidden files and unsafe names."""
    with suppress(*UNREADABLE), zipfile.ZipFile(archive) as content:
        names = [PurePosixPath(name) for name in member_names(content) if str(PurePosixPath(name)) == name]
        hidden = (".", "__MACOSX")  # a path that begins with .. or / is none of the archive either
        plain = [name for name in names if not any(part.startswith((*hidden, "/")) for part in name.parts)]
        return sorted(archive / name for name in plain)
    return []


def open_io(path: Path) -> IO[bytes]:
    """Open a file or zip member for reading."""
    archive = container(path)
    if archive == path:
        return path.open("rb")
    return zipfile.ZipFile(archive).open(path.relative_to(archive).as_posix())


def first_bytes(path: Path, advice: str) -> bytes:
    """Return a file's first 256 bytes. Raises as ``read_head``, with the remedy ``advice``, and for a folder."""
    with _open_checked(path, advice) as (_, first):
        return first


def check_first_line(head: FileHead, advice: str) -> None:
    """Raise SocialxError for a folder, and an endless first line (remedy: ``advice``): a download full of zeros."""
    if head.kind == "folder":
        raise SocialxError("file.folder", head.path, "this is a folder", "name a file in it")
    if not head.ends:
        problem = f"the first {LINE_BYTES >> 20} MiB hold no end of a line, so the file is no table"
        raise SocialxError("file.no-line", head.path, problem, advice)


def check_text(path: Path, first: bytes) -> None:
    """Raise SocialxError where the ``first`` bytes show packed or UTF-16 text, for readers of plain text."""
    for magic, (kind, remedy) in PACKED.items():
        if first.startswith(magic):
            raise SocialxError("file.no-text", path, f"the file is {kind}", remedy)


@contextmanager
def _open_checked(path: Path, advice: str) -> Iterator[tuple[IO[bytes], bytes]]:
    """Yield a user file and its first 256 bytes; ``advice``: the remedy in an error about an empty or absent file."""
    try:
        check_regular(container(path))
        file = open_io(path)
        first = file.read(FIRST_BYTES)
    except FileNotFoundError:
        remedy = f"check the path{'' if advice == AGAIN else f', or {advice}'}"
        raise SocialxError("file.missing", path, "there is no such file", remedy) from None
    except IsADirectoryError:
        raise SocialxError("file.folder", path, "this is a folder", "name a file in it") from None
    except OSError as error:
        raise unreadable(path, error) from None
    except (*UNREADABLE, KeyError) as error:  # of a zip around it
        problem = f"the file cannot be unpacked ({error})"
        raise SocialxError("file.packed", path, problem, "unpack the zip and name a folder") from None
    with file:
        if not first:
            raise SocialxError("file.empty", path, "the file is empty", advice)
        if first.startswith(b"version https://git-lfs"):
            raise SocialxError("file.lfs", path, "a Git-LFS pointer, not the data", "git lfs pull, or download it")
        file.seek(0)
        yield file, first


@contextmanager
def unpack(path: Path, file: IO[bytes] | None = None) -> Iterator[IO[bytes]]:
    """Yield the bytes of a text, unpacked from gzip or a one-member zip; ``file``: ``path`` if already open."""
    if file is None:
        with open_io(path) as file, unpack(path, file) as stream:
            yield stream
        return
    magic = file.read(len(ZIP))
    file.seek(0)
    if magic == ZIP:
        with zipfile.ZipFile(file) as archive:
            members = member_names(archive)
            if len(members) != 1:
                problem = f"there are {len(members)} files in the zip ({sample(members)})"
                raise SocialxError("file.zip-members", path, problem, "unpack it and name the file")
            with archive.open(members[0]) as stream:
                yield stream
    elif magic == GZIP:
        with gzip.GzipFile(fileobj=file) as stream:
            yield stream  # type: ignore[misc]  # which is one but for its name
    else:
        yield file


def member_names(archive: zipfile.ZipFile) -> list[str]:
    """Return the file names in a zip, skipping folders and empty names, which mean damage."""
    return [name for name in archive.namelist() if name and not name.endswith("/")]
