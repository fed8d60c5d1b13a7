"""What a file is, is told from a bounded part of it; sizes that it only declares are not believed."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest

from socialx.files.sources.positions import locations
from socialx.files.sources.positions.neighbours import read_distances
from socialx.files.sources.readings import read
from socialx.files.sources.recognition import recognise_kind
from socialx.files.sources.request import ConvertOptions
from socialx.files.store.store import open_store
from tests.commands import refused_in, socialx, works
from tests.data_files import IDS, backfill, changed, drop, refusal, small_store, timestamps, write_locations
from tests.older_files import OLDER

CLOCK = {"first_time": "2012-03-01 00:00:00", "step_s": 300}


@contextmanager
def special(folder: Path) -> Iterator[list[Path]]:
    """A device, a pipe without a writer and a socket."""
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "socket"))
        yield [Path("/dev/zero"), folder / "pipe", folder / "socket"]


@pytest.mark.timeout(60)
def test_what_is_not_a_plain_file_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    path, positions = small_store(tmp_path / "ours.h5"), write_locations(tmp_path / "meta.csv")
    out = ("--output-h5", tmp_path / "out.h5")
    with special(tmp_path) as paths:
        for odd in paths:
            found = "device"
            refusal(lambda odd=odd: recognise_kind(ConvertOptions(odd)), str(odd), found)
            refusal(lambda odd=odd: backfill(odd, dry_run=True), str(odd), found)
            refusal(lambda odd=odd: locations.read_locations(odd), str(odd), found)
            refusal(lambda odd=odd: locations.read_ids(odd), str(odd), found)
            refusal(lambda odd=odd: read_distances(odd, IDS), str(odd), found)
            for kind, clock in (("libcity", {}), ("matrix-csv", CLOCK), ("npy", CLOCK)):
                request = ConvertOptions(odd, without_positions=True, **clock)
                refusal(lambda kind=kind, request=request: read(kind, request), str(odd))
            for command in (
                ("inspect", odd),
                ("convert", "auto", odd),
                ("convert", "csv", odd, "--meta-csv", positions, *out),
                ("convert", "csv", tmp_path / "ours.csv", "--meta-csv", odd, *out),
                ("backfill", path, "--meta-csv", odd),
                ("backfill", odd),
                ("backfill", odd, "--dry-run"),
            ):
                done = socialx(*command)
                assert done.exit_code == 1
                assert done.stderr.startswith(f"error: {odd}: ")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("command", [("inspect",), ("convert", "auto"), ("convert", "csv")])
def test_three_gigabytes_without_a_line_end_take_little_memory(tmp_path: Path, command: tuple[str, ...]) -> None:
    zeros = tmp_path / "zeros.csv"
    zeros.touch()
    os.truncate(zeros, 3_000_000_000)
    more = ("--meta-csv", write_locations(tmp_path / "m.csv"), "--output-h5", tmp_path / "o.h5")
    line, *_ = refused_in(200, *command, zeros, *(more if "csv" in command else ())).splitlines()
    assert "first" in line


@pytest.mark.slow
def test_a_wide_header_is_no_line_without_end(tmp_path: Path) -> None:
    path, ids = tmp_path / "wide.csv", [f"sensor-{place:013d}" for place in range(100_000)]
    row = ",".join(["61.5"] * len(ids))
    path.write_text(f"time,{','.join(ids)}\n2012-03-01 00:00:00,{row}\n")
    assert recognise_kind(ConvertOptions(path)).name == "csv"


@pytest.mark.parametrize(
    ("content", "code", "found"),
    [
        (lambda file: os.truncate(file.fileno(), 3_000_000_000), "table.zero-bytes", ""),
        (lambda file: (file.write("1,2,3\n"), os.truncate(file.fileno(), 100_000_000)), "table.zero-bytes", ""),
        (lambda file: file.write("1,2,3\n1," + "2" * (1 << 25)), "places.unreadable", "without an end"),
    ],
)
def test_a_table_of_positions_is_small(tmp_path: Path, content: Callable[..., object], code: str, found: str) -> None:
    path = tmp_path / "meta.csv"
    with path.open("w") as file:
        file.write("sensor_id,latitude,longitude\n")
        file.flush()
        content(file)
    assert refusal(lambda: locations.read_locations(path), found).code == code


def declare(path: Path, rows: int, features: int = 1, chunks: tuple[int, ...] | None = (288, 3, 1)) -> Path:
    """A small file of three sensors that declares much and holds none of it."""
    with h5py.File(path, "w") as file:
        packed = {"chunks": chunks, "compression": "gzip"}
        file.create_dataset("data/features", (rows, 3, features), "f4", maxshape=(None, 3, features), **packed)
        file["metadata/vdids"] = np.array(IDS, "S64")
        names = np.array([f"f{place}" for place in range(features)], "S32")
        file.create_dataset("metadata/feature_names", data=names, compression="gzip", compression_opts=9)
        if rows < 1000:
            file["metadata/timestamps"] = np.array(timestamps(rows), "S19")
        else:
            file.create_dataset("metadata/timestamps", (rows,), "S19", chunks=(288,), compression="gzip")
        file["metadata"].attrs["missing_value"] = 0.0
    return path


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "sizes", [(10**12,), (10**8,), (24, 400_000), (24, 1, (10**8, 3, 1))], ids=["rows", "fewer", "features", "chunk"]
)
def test_sizes_that_a_file_cannot_hold_are_refused(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    path = declare(tmp_path / "huge.h5", *sizes)
    assert path.stat().st_size < 1_100_000
    for action in (open_store, lambda path: recognise_kind(ConvertOptions(path)), backfill):
        assert refusal(lambda action=action: action(path), "/data/features", "float32 (").code == "hdf5.declares-more"
    assert socialx("inspect", path).exit_code == 1


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_file_of_very_many_features_is_inspected_quickly(tmp_path: Path) -> None:
    done = works("inspect", declare(tmp_path / "wide.h5", 3, 400_000, (3, 3, 400_000)))
    assert "f29 unknown, f30 unknown, ..." in " ".join(done.stdout.split())


def test_an_older_flat_file_is_measured_too(tmp_path: Path) -> None:
    path = OLDER["V0"](tmp_path / "old.h5")
    large = {"shape": (10**10, 4, 6), "dtype": "f8", "chunks": (288, 4, 6), "compression": "gzip"}
    changed(path, drop("features"), lambda file: file.create_dataset("features", **large))
    refusal(lambda: backfill(path, rewrite=True), "/features declares float64")


def test_a_constant_column_is_honest_however_well_it_packs(tmp_path: Path) -> None:
    path = small_store(tmp_path / "ours.h5", rows=3000)
    with h5py.File(path, "r+") as file:
        shape, names = (3000, 3, 4000), [f"f{place}" for place in range(4000)]
        del file["data/features"], file["metadata/feature_names"]
        packed = {"chunks": (3000, 3, 100), "compression": "gzip", "compression_opts": 9, "shuffle": True}
        file.create_dataset("data/features", data=np.full(shape, 60, np.float32), **packed)
        file["metadata/feature_names"] = np.array(names, "S32")
        assert file["data/features"].id.get_storage_size() * 900 < 4 * np.prod(shape)
    assert (open_store(path).values == 60).all()
