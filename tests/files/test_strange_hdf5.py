"""HDF5 files that no program of ours writes: types, shapes and attributes that NumPy does not have end in one line."""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from socialx.core.errors import SocialxError
from socialx.files.sources.recognition import FileKind, recognise_kind
from socialx.files.sources.request import ConvertOptions
from socialx.files.store.open_hdf5 import open_hdf5
from socialx.files.store.store import open_store
from socialx.inspection.report import inspect
from tests.commands import refused, socialx
from tests.data_files import backfill, changed, drop, put, refusal, small_store
from tests.older_files import OLDER

DATASETS = ("data/features", "metadata/vdids", "metadata/feature_names", "metadata/timestamps")
FURTHER = ("metadata/timestamps_epoch", "metadata/units")
ATTRIBUTES = (("/", "dataset_name"), ("/", "num_timesteps"), ("metadata", "missing_value"), ("metadata", "timezone"))


def what_it_is(path: Path) -> FileKind:
    return recognise_kind(ConvertOptions(path))


def of_time(file: h5py.File, name: str) -> None:
    """A dataset of HDF5's own type for times, which NumPy does not have."""
    kind, space = h5py.h5t.UNIX_D32LE, h5py.h5s.create_simple((3,))
    h5py.h5d.create(file.id, name.encode(), kind, space)


def without_shape(file: h5py.File, name: str) -> None:
    file[name] = h5py.Empty("f4" if name == "data/features" else "S19")


def a_group(file: h5py.File, name: str) -> None:
    file.create_group(name)


def a_type(file: h5py.File, name: str) -> None:
    file[name] = np.dtype("f4")


def compound(file: h5py.File, name: str) -> None:
    file[name] = np.zeros(3, [("a", "f4"), ("b", "S4")])


def references(file: h5py.File, name: str) -> None:
    file.create_dataset(name, (3,), h5py.ref_dtype)


STRANGE = (of_time, without_shape, a_group, a_type, compound, references)


def one_line_or_right(action: Callable[[], object]) -> None:
    try:
        action()
    except SocialxError as error:
        (line,) = error.lines()
        assert "\n" not in line
        assert len(line) < 500


@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize("name", DATASETS + FURTHER)
def test_a_strange_dataset_is_one_line(tmp_path: Path, name: str, strange: Callable[[h5py.File, str], None]) -> None:
    for path in (
        small_store(tmp_path / "ours.h5"),
        OLDER["P1"](tmp_path / "older.h5"),
        OLDER["V0b"](tmp_path / "o.h5"),
    ):
        changed(path, drop(name), lambda file: strange(file, name))
        for action in (what_it_is, open_store, inspect, lambda path: backfill(path, rewrite=True)):
            one_line_or_right(lambda action=action, path=path: action(path))
    if name in DATASETS:
        with pytest.raises(SocialxError):
            open_store(tmp_path / "ours.h5")


@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize("name", ["features", "dates", "sensors"])
def test_a_strange_flat_file_is_one_line(tmp_path: Path, name: str, strange: Callable[[h5py.File, str], None]) -> None:
    path = changed(OLDER["V0"](tmp_path / "older.h5"), drop(name), lambda file: strange(file, name))
    one_line_or_right(lambda: what_it_is(path))
    for action in (open_store, backfill, lambda path: backfill(path, rewrite=True)):
        with pytest.raises(SocialxError) as caught:
            action(path)
        assert len(caught.value.lines()) == 1


@pytest.mark.parametrize("value", ["text", np.arange(3), np.array(["a", "b"], "S1"), h5py.Empty("f4"), np.nan, np.inf])
@pytest.mark.parametrize(("where", "name"), ATTRIBUTES)
def test_a_strange_attribute_is_one_line(tmp_path: Path, where: str, name: str, value: object) -> None:
    path = small_store(tmp_path / "ours.h5")
    with h5py.File(path, "r+") as file:
        file[where].attrs[name] = value
    for action in (what_it_is, open_store, inspect, backfill):
        one_line_or_right(lambda action=action: action(path))


@pytest.mark.parametrize("value", ["40", np.array([40, 40]), np.nan])
def test_a_number_of_rows_that_is_none_is_named(tmp_path: Path, value: object) -> None:
    path = changed(small_store(tmp_path / "ours.h5"), lambda file: file.attrs.update(num_timesteps=value))
    assert refusal(lambda: inspect(path), "num_timesteps").code == "file.rows-attribute"
    assert socialx("inspect", path).exit_code == 1


def test_one_number_of_rows_in_an_array_is_read(tmp_path: Path) -> None:
    path = small_store(tmp_path / "ours.h5")
    changed(path, lambda file: file.attrs.update(num_timesteps=np.array([40.0])))
    assert inspect(path).declared_rows == 40


def test_epochs_that_are_text_are_named_and_backfill_replaces_them(tmp_path: Path) -> None:
    path, older = small_store(tmp_path / "ours.h5"), OLDER["P1"](tmp_path / "older.h5")
    for each in (path, older):
        changed(each, lambda file: put("metadata/timestamps_epoch", file["metadata/timestamps"][:])(file))
    assert refusal(lambda: inspect(path), "metadata/timestamps_epoch", "|S19").code == "file.epochs"
    changed(path, put("metadata/timestamps_epoch", np.bytes_("far")))
    assert refusal(lambda: inspect(path), "metadata/timestamps_epoch").code == "file.epochs"
    backfill(older)
    assert inspect(older).wrong_epochs == 0


def test_a_bug_keeps_its_traceback_and_what_h5py_raises_does_not(tmp_path: Path) -> None:
    path = small_store(tmp_path / "ours.h5")
    for bug in (lambda file: file.absent, lambda file: [][1], lambda file: len(3)):
        with pytest.raises((AttributeError, IndexError, TypeError)), open_hdf5(path, "convert it again") as file:
            bug(file)

    def wrong() -> None:
        with open_hdf5(path, "convert it again") as file:
            file["data/features"][{}]

    refusal(wrong, "read")

    def large() -> None:
        with open_hdf5(path, "convert it again"):
            np.empty(1 << 55, np.uint8)

    refusal(large, "memory")


def test_an_hdf5_file_that_holds_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.h5"
    with h5py.File(path, "w"):
        pass
    for command in (("inspect", path), ("convert", "auto", path)):
        assert (said := refused(*command)).code == "hdf5.empty"
        assert str(path) in said
