"""A part of a file that is really in another file is refused, and the other file stays as it was."""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from socialx.files.sources.recognition import recognise_kind
from socialx.files.sources.request import ConvertOptions
from socialx.files.store.store import open_store
from socialx.inspection.report import inspect
from tests.commands import socialx
from tests.data_files import backfill, changed, drop, refusal, small_store, unchanged
from tests.older_files import IDS, OLDER, meta


def moved(path: Path, name: str, link: Callable[[str], h5py.SoftLink | h5py.ExternalLink]) -> None:
    """Put a link in the place of an object of the file, or in a place where nothing is."""
    with h5py.File(path, "r+") as file:
        if name in file:
            file.move(name, "/elsewhere")
        else:
            file.create_group("/elsewhere")
        file[name] = link("/elsewhere")


@pytest.mark.parametrize("name", ["metadata/vd_info", "metadata", "data", "metadata/timestamps_epoch", "data/features"])
def test_backfill_writes_no_file_behind_an_external_link(tmp_path: Path, name: str) -> None:
    victim, older = (OLDER["P0"](tmp_path / file) for file in ("victim.h5", "older.h5"))
    locations = meta(tmp_path / "meta.csv")
    link = h5py.ExternalLink("victim.h5", name if name != "metadata/vd_info" else "/metadata")
    changed(older, drop(name), lambda file: file.__setitem__(name, link))
    for more in (("--dry-run",), ("--meta-csv", locations), ("--meta-csv", locations, "--dry-run"), ("--rewrite",)):
        with unchanged(victim), unchanged(older):
            done = socialx("backfill", older, *more)
        assert done.exit_code == 1
        line, *_ = done.stderr.splitlines()
        assert done.codes == ("hdf5.linked",)
        assert line.startswith(f"error: {older}: {name} ")
        assert "victim.h5" in line
    assert refusal(lambda: recognise_kind(ConvertOptions(older)), f"{name} ", "victim").code == "hdf5.linked"
    assert sorted(tmp_path.iterdir()) == sorted((victim, older, locations))


def test_backfill_writes_no_sensor_behind_an_external_link(tmp_path: Path) -> None:
    victim, older = OLDER["P1"](tmp_path / "victim.h5"), OLDER["P1"](tmp_path / "older.h5")
    entry = f"metadata/vd_info/{IDS[1]}"
    changed(older, drop(entry), lambda file: file.__setitem__(entry, h5py.ExternalLink("victim.h5", entry)))
    with unchanged(victim):
        refusal(lambda: backfill(older), f"{entry} is a")


@pytest.mark.parametrize("name", ["metadata/vd_info", "metadata/timestamps", "data/features", "data"])
def test_a_current_file_has_no_part_elsewhere(tmp_path: Path, name: str) -> None:
    path = small_store(tmp_path / "ours.h5")
    moved(path, name, h5py.SoftLink)
    for action in (lambda: open_store(path), lambda: inspect(path), lambda: backfill(path)):
        refusal(action, f"{name} is a")


def test_a_link_to_nothing_and_one_to_itself_are_refused_too(tmp_path: Path) -> None:
    for name, link, code in (
        ("none", h5py.ExternalLink("absent.h5", "/x"), "hdf5.linked"),
        ("loop", h5py.SoftLink("/metadata/vd_info"), "hdf5.link"),
    ):
        path = OLDER["P0"](tmp_path / f"{name}.h5")
        with h5py.File(path, "r+") as file:
            file["metadata/vd_info"] = link
        assert refusal(lambda path=path: backfill(path), "metadata/vd_info ").code == code


def test_hard_links_and_links_beside_the_data_are_no_matter(tmp_path: Path) -> None:
    path = OLDER["P1"](tmp_path / "older.h5")
    with h5py.File(path, "r+") as file:
        file["metadata/again"] = file["metadata"]  # a group in itself
        file["data/speeds"] = file["data/features"]
        file["notes"] = h5py.ExternalLink("notes.h5", "/")
        (tmp_path / "notes.h5").write_bytes(path.read_bytes())
    assert backfill(path).actions
    assert len(open_store(path).sensors.ids) == len(IDS)


def test_values_in_other_files_are_refused(tmp_path: Path) -> None:
    for name in ("virtual", "external"):
        path = small_store(tmp_path / f"{name}.h5")
        with h5py.File(path, "r+") as file:
            values = file["data/features"][:]
            del file["data/features"]
            if name == "virtual":
                layout = h5py.VirtualLayout(values.shape, values.dtype)
                layout[:] = h5py.VirtualSource("other.h5", "data/features", values.shape)
                file.create_virtual_dataset("data/features", layout)
            else:
                kept = np.asarray(values).tobytes()
                (tmp_path / "other.raw").write_bytes(kept)
                external = [(str(tmp_path / "other.raw"), 0, len(kept))]
                file.create_dataset("data/features", values.shape, values.dtype, external=external)
        refusal(lambda path=path: open_store(path), "/data/features", "other.")
        refusal(lambda path=path: backfill(path), "/data/features", "other.")
