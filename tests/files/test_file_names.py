"""A file may have a name that is no UTF-8, as files of old archives have: it is read like any other."""

import os
from pathlib import Path

import h5py
import pytest

from socialx.inspection.report import inspect
from tests.commands import process
from tests.data_files import speeds, timestamps, write_csv, write_locations
from tests.older_files import IDS, OLDER, meta


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A folder whose name is no text in UTF-8."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this file system has only names in UTF-8")
    return folder


def named(folder: Path, name: bytes) -> Path:
    return Path(os.fsdecode(os.fsencode(folder) + b"/" + name))


@pytest.mark.slow
def test_a_name_that_is_no_text_is_converted_and_inspected(odd: Path) -> None:
    csv, locations = write_csv(named(odd, b"d\xe9.csv"), timestamps(40), speeds(40)), named(odd, b"l\xe9.csv")
    write_locations(locations)
    for output in (named(odd, b"o\xe9.h5"), odd.parent / "plain.h5"):
        given = ("--meta-csv", locations, "--units", "mph", "--validate", "--output-h5", output)
        for command in (("convert", "csv", csv, *given), ("inspect", output), ("inspect", output, "--json")):
            done = process(*command)
            assert done.returncode == 0, done.stderr
        with h5py.File(output) as file:
            assert file.attrs["source_data"].endswith("caf\ufffd/d\ufffd.csv")
            assert file["metadata/source"][()].decode().endswith("l\ufffd.csv")
    assert process("convert", "auto", csv).returncode == 0


@pytest.mark.parametrize("name", ["P0", "V0"])
def test_an_older_file_of_such_a_name_is_completed(odd: Path, name: str) -> None:
    older = OLDER[name](named(odd, b"old\xe9.h5"))
    done = process("backfill", older, "--rewrite", "--backup", "--meta-csv", meta(named(odd, b"m\xe9.csv")))
    assert done.returncode == 0, done.stderr
    assert inspect(older).sensors == len(IDS)
