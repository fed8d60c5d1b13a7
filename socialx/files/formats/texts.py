"""What keeps a file from being a CSV text, said before a parser says it badly."""

from __future__ import annotations

from pathlib import Path

from socialx.errors import SocialxError
from socialx.files.hdf5 import first_bytes

ODD = {
    b"\x1f\x8b": ("packed by gzip", "unpack it with gunzip"),
    b"BZh": ("packed by bzip2", "unpack it with bunzip2"),
    b"\xfd7zXZ": ("packed by xz", "unpack it with unxz"),
    b"\xff\xfe": ("a text in UTF-16", "save it as UTF-8"),
    b"\xfe\xff": ("a text in UTF-16", "save it as UTF-8"),
}
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars", ",": "commas"}  # in the order in which they are tried


def check_text(path: Path, advice: str, *, any_separator: bool = False) -> None:
    """Refuse what is packed, in UTF-16, or separated by anything but commas, unless that is read."""
    head = first_bytes(path, advice)
    for magic, (found, remedy) in ODD.items():
        if head.startswith(magic):
            raise SocialxError(path, found, remedy)
    line = head.splitlines()[0]
    for separator, name in SEPARATORS.items():
        if not any_separator and separator.encode() in line and b"," not in line and b"\0" not in head:
            raise SocialxError(path, f"its cells are separated by {name}", "write it with commas, and decimal points")
