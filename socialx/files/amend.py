"""Changing a socialx file: a copy is patched and checked, and then takes the file's place in one step."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py

from socialx.disk import replacing, version_of
from socialx.errors import SocialxError
from socialx.files.hdf5_layout import check_parts
from socialx.files.open_hdf5 import open_hdf5, writing

ADVICE = "convert its source again"
WAIT_S = 10.0  # for a reader of the file that is changed


def check_writable(path: Path) -> None:
    """Refuse a file that the system does not let be written."""
    if path.exists() and not os.access(path, os.W_OK):
        raise SocialxError(path, "read-only", "make it writable, or work on a copy")


def amend(path: Path, patch: Callable[[h5py.File], None], check: Callable[[h5py.File, h5py.File], bool]) -> None:
    """Patch a copy of a file and put it in the file's place; the caller holds the file ``exclusive``.

    patch: writes into the copy, whose new objects are in the oldest form that HDF5 knows, so that every reader reads
    them.  check: whether the copy, opened as the second file, gives back what the first one held and what was written.
    Raises SocialxError, and leaves the file as it was, where the file is damaged or the disk fails.
    """
    before = version_of(path)
    with replacing(path) as temporary:
        shutil.copyfile(path, temporary)
        try:
            with writing(temporary, "r+", ("earliest", "v110")) as file:
                check_parts(path, file)  # of the very file that is written
                patch(file)
        except (KeyError, ValueError) as error:  # what h5py makes of damage that reading did not meet
            raise SocialxError(path, f"damaged HDF5 ({str(error)[:160]!a})", ADVICE) from error
        with open_hdf5(path, ADVICE, locking=False) as old, open_hdf5(temporary, ADVICE) as new:
            same = check(old, new)
        if version_of(path) != before:  # by somebody who takes no lock
            raise SocialxError(path, "it was changed meanwhile", "run the command again")
        if not same:
            raise SocialxError(path, "the disk does not give back what was written", "check the disk")
