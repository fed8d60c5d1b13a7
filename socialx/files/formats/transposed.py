"""Tables whose rows and columns have changed places: a row for each of N sensors, a column for each of T times."""

from __future__ import annotations

from itertools import pairwise

from socialx.errors import Command, SocialxError, sample
from socialx.files.file_head import FileHead
from socialx.files.formats.matrices import two_lines
from socialx.files.formats.melt import is_label

SOON = 1e-3  # of a number since 1970: about two weeks


def refuse_transposed(head: FileHead) -> None:
    """Raise for a table with a column for each time; return for all else."""
    names, _ = two_lines(head)
    if len(names) > 2 and all(map(is_label, names[1:4])) and not _are_ids(names[1:4]):
        found = f"line 1 has a time in each column ({sample(names[1:4])}): rows and columns have changed places"
        turned = Command("convert", "auto", head.path, transposed=True, meta="LOCATIONS.csv", output="OUT.h5")
        raise SocialxError(head.path, found, turned)


def _are_ids(names: list[str]) -> bool:
    """Whether whole numbers are no times since 1970, which come a minute or more, but soon, after one another."""
    if not all(name.isdigit() for name in names):
        return False
    minute = 60 * 1000 ** ((len(names[0]) - 9) // 3)  # in seconds, milliseconds, ...
    return any(not minute <= later - number < SOON * number for number, later in pairwise(map(int, names)))
