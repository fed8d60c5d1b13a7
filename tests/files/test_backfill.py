"""Older files get what they lack, and not a byte of their readings changes."""

import fcntl
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from socialx.files.sources.backfill import Completion, expand
from socialx.files.sources.older_files import ROWS_WITHOUT_ZERO
from socialx.files.sources.recognition import FileKind, recognise_kind
from socialx.files.sources.request import ConvertOptions
from socialx.files.store.published import DATASETS
from socialx.files.store.store import open_store
from socialx.inspection.checks import problems
from socialx.inspection.report import inspect
from tests.commands import socialx
from tests.data_files import (
    backfill,
    changed,
    digest,
    drop,
    put,
    refusal,
    small_store,
    spoil_copies,
    timestamps,
    unchanged,
    write_frame,
    write_stations,
)
from tests.data_files import speeds as any_speeds
from tests.older_files import (
    CODES,
    DEGREES,
    IDS,
    LANES,
    LATITUDE,
    LENGTH,
    LETTERS,
    LONGITUDE,
    OLDER,
    ROWS,
    cut,
    meta,
    partial,
    speeds,
)  # fmt: skip

REWRITTEN, UNPLACED, COMPLETE = ("V0", "V0b"), ("M0", "TW2"), ("P1", "P2", "M2", "M3", "M4")  # but for rules and units
IMPUTED = ("missing readings: 0", "marked as imputed: its zeros had been replaced")
TAIWAN = ("missing readings: only NaN", "units of avg_speed, avg_occupancy, speed_std, lane_count")
# The rules and units that a variant does not state, where they are more than that 0 is no reading.
STATED = {
    "M1": IMPUTED,
    "M2": IMPUTED,
    "M4": ("missing readings: 0", "marked as perhaps imputed"),
    "TW0": TAIWAN,
    "TW1": TAIWAN,
}


def stored(path: Path) -> tuple[list[tuple[int, bytes]], str, tuple[int, ...]]:
    """Where the features lie in the file and with which bytes, compressed as they are."""
    with h5py.File(path) as file:
        features = file["data/features"]
        if features.chunks:
            infos = [features.id.get_chunk_info(i) for i in range(features.id.get_num_chunks())]
            extents = [(info.byte_offset, info.size) for info in infos]
        else:
            extents = [(features.id.get_offset(), features.id.get_storage_size())]
        kind = (features.dtype.str, features.shape)
    whole = path.read_bytes()
    return [(offset, whole[offset : offset + size]) for offset, size in extents], *kind


def positions(path: Path) -> np.ndarray:
    sensors = open_store(path).sensors
    return np.stack([sensors.latitude, sensors.longitude], axis=1)


@pytest.mark.parametrize("name", OLDER)
def test_every_variant_is_recognised_and_its_plan_changes_nothing(tmp_path: Path, name: str) -> None:
    path = OLDER[name](tmp_path / "old.h5")
    before, plan = digest(path), backfill(path, dry_run=True)
    assert plan.variant.name == ("M3/M4" if name == "M4" else name)  # a few rows without a zero may be of either
    assert (plan.rows, plan.sensors) == (27 if name == "M3" else 12 if name.startswith("TW") else ROWS, 4)
    assert bool(plan.refusal()) == (name in (*UNPLACED, *REWRITTEN))
    refused = refusal(lambda: open_store(path), str(path), "an older", task="train")
    assert refused.endswith(f". Try: socialx backfill {path}{' --rewrite' if name == 'V0' else ''}")
    assert refusal(lambda: open_store(path, "zzz"), task="train") == refused  # before its features are looked at
    asked, flags = json.loads(socialx("inspect", path, "--json").stdout), " --rewrite" if name in REWRITTEN else ""
    assert (asked["kind"], asked["next"]) == (plan.variant.name, f"socialx backfill {path}{flags}")
    assert (asked["rows"], asked["problems"], digest(path), list(tmp_path.iterdir())) == (None, None, before, [path])


def completed(path: Path, *arguments: Path, **options: bool) -> Completion:
    """What backfill did: it left all readings as they lie in the file, no problem, and nothing for a second run."""
    before, plan = stored(path), backfill(path, *arguments, **options)
    assert stored(path) == before
    assert recognise_kind(ConvertOptions(path)) == FileKind("current", "written or completed by socialx", None)
    assert options or problems(inspect(path)) == []
    with unchanged(path):
        assert backfill(path, *arguments, **options).actions == ()
    return plan


TRUTH = np.stack([LATITUDE, LONGITUDE], axis=1)
ROUNDED = TRUTH.astype(np.float32).astype(np.float64)


@pytest.mark.parametrize("name", [name for name in OLDER if name not in (*REWRITTEN, *UNPLACED)])
def test_what_a_variant_lacks_is_added_from_the_file_itself(tmp_path: Path, name: str) -> None:
    path = OLDER[name](tmp_path / "old.h5")
    plan = completed(path)
    assert (positions(path) == (ROUNDED if name in ("P0", "M1") else TRUTH)).all()
    with h5py.File(path) as file:
        info = file["metadata/vd_info"]
        assert (info.attrs["coord_crs"], sorted(info)) == ("EPSG:4326", sorted(IDS))
        if name == "P0":
            assert [info[vdid].attrs["lanes"] for vdid in IDS] == LANES.tolist()
            assert [info[vdid].attrs["direction"] for vdid in IDS] == list(LETTERS)
            assert [info[vdid].attrs["length"] for vdid in IDS] == LENGTH.astype(np.float32).tolist()
        if name.startswith("TW"):
            assert info[IDS[0]].attrs["road_name"] == "\u8def"
        epochs, rules = file["metadata/timestamps_epoch"][:], dict(file["metadata"].attrs)
    store, taiwan = open_store(path), name.startswith("TW")
    assert epochs.dtype == np.int64
    assert (epochs[epochs != np.iinfo(np.int64).min] == store.seconds).all()
    assert store.imputed is (None if name == "M4" else name in ("M1", "M2"))
    assert store.missing == (None if taiwan else 0.0)
    assert np.array_equal(rules["missing_value"], np.nan if taiwan else 0.0, equal_nan=True)
    assert rules.get("imputed") == {"M1": True, "M2": True, "M4": "unknown"}.get(name)
    assert rules.get("epoch_basis") == ("naive-utc" if taiwan else None)
    stated = STATED.get(name, ("missing readings: 0",))
    assert (plan.actions[-len(stated) :], bool(plan.actions[: -len(stated)])) == (stated, name not in COMPLETE)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", UNPLACED)
def test_positions_that_only_the_locations_file_has(tmp_path: Path, name: str) -> None:
    path = OLDER[name](tmp_path / "old.h5")
    with unchanged(path):
        words = "4 of 4 sensors (400001, 400017, 400030, 400040)", "--without-positions"
        refusal(lambda: backfill(path), str(path), *words, "--meta-csv", task="backfill")
        refusal(lambda: backfill(path, meta(tmp_path / "meta.csv", IDS[:3])), "1 of 4 sensors (400040)")
    completed(path, meta(tmp_path / "meta.csv"))
    assert positions(path).tolist() == TRUTH.tolist()


def test_sensors_may_stay_without_a_position_where_that_is_asked_for(tmp_path: Path) -> None:
    path = OLDER["M0"](tmp_path / "old.h5")
    completed(path, without_positions=True)
    assert open_store(path).sensors.ids == IDS
    assert np.isnan(positions(path)).all()
    assert completed(path, meta(tmp_path / "meta.csv")).actions[0].startswith("vd_info: 4 positions")
    assert positions(path).tolist() == TRUTH.tolist()


def test_the_locations_file_makes_rounded_positions_exact(tmp_path: Path) -> None:
    path = OLDER["P0"](tmp_path / "old.h5")
    completed(path)
    assert completed(path, meta(tmp_path / "meta.csv")).actions[0].startswith("vd_info: 4 positions")
    assert positions(path).tolist() == TRUTH.tolist()


def test_an_incomplete_vd_info_is_completed(tmp_path: Path) -> None:
    path = partial(tmp_path / "old.h5")
    assert completed(path).actions[0].startswith("vd_info: 3 positions")
    assert positions(path).tolist() == [*ROUNDED[:3].tolist(), TRUTH[3].tolist()]


def test_entries_under_another_spelling_are_found(tmp_path: Path) -> None:
    path = OLDER["M2"](tmp_path / "old.h5")
    changed(path, put("data/features", np.full((ROWS, 4, 3), np.nan, np.float32)))
    changed(path, lambda file: file["metadata/vd_info"].move(IDS[0], f"{IDS[0]}.0"))
    assert backfill(path).actions[0].startswith("vd_info: 1 position")
    assert open_store(path).sensors.latitude[0] == LATITUDE[0]


@pytest.mark.parametrize("wrong", [91.0, np.inf, np.nan])
def test_columns_out_of_range_or_that_move_are_no_positions(tmp_path: Path, wrong: float) -> None:
    path = OLDER["P0"](tmp_path / "old.h5")
    with h5py.File(path, "r+") as file:
        file["data/features"][:, 1, 3] = wrong
        file["data/features"][7, 2, 4] += 0.5
        file["data/features"][:5, 3, 3:5] = np.nan  # the first finite row counts
    with unchanged(path):
        refusal(lambda: backfill(path), "2 of 4 sensors (400017, 400030)")


def test_epochs_of_another_zone_are_corrected(tmp_path: Path) -> None:
    path = OLDER["P2"](tmp_path / "old.h5")
    for more in (("missing readings: 0",), ()):
        with h5py.File(path, "r+") as file:
            file["metadata/timestamps_epoch"][...] = file["metadata/timestamps_epoch"][:] + 8 * 3600
        first, *others = completed(path).actions
        assert (first.startswith("timestamps_epoch "), f" {ROWS} rows" in first, others) == (True, True, list(more))


@pytest.mark.parametrize("name", ["P0", "P2", "M0", "M1", "M3"])
def test_slices_are_of_their_parents_kind(tmp_path: Path, name: str) -> None:
    plan = completed(cut(OLDER[name], tmp_path / "slice.h5", slice(5, 25)), meta(tmp_path / "meta.csv"))
    assert (plan.variant.name, plan.rows) == (name, 20)


def without_zeros(path: Path) -> Path:
    """The same file with every zero turned into a reading, as a short slice may be."""
    with h5py.File(path, "r+") as file:
        values = file["data/features"][:]
        values[..., 0] = np.where(values[..., 0] == 0, np.float32(30.5), values[..., 0])
        file["data/features"][...] = values
    return path


def forget_rules(path: Path) -> None:
    """As an earlier backfill left a file: with positions, and perhaps marked as imputed."""
    changed(path, lambda file: file["metadata"].attrs.pop("missing_value"))


@pytest.mark.parametrize(("name", "imputed"), [("P0", False), ("M1", True), ("M2", True), ("M4", None)])
def test_what_an_earlier_backfill_left_is_completed(tmp_path: Path, name: str, imputed: bool | None) -> None:
    path = OLDER[name](tmp_path / "old.h5")
    backfill(path)
    checksum = open_store(path).checksum
    forget_rules(path)
    assert refusal(lambda: open_store(path), "an older file").endswith(f". Try: socialx backfill {path}")
    assert completed(path).actions == ("missing readings: 0",)
    store = open_store(path)
    assert (store.imputed, store.missing, store.checksum) == (imputed, 0.0, checksum)


def test_a_slice_of_m0_without_a_zero_is_not_imputed(tmp_path: Path) -> None:
    path, first = without_zeros(cut(OLDER["M0"], tmp_path / "slice.h5", slice(5, 15))), ["coord_crs EPSG:4326"]
    for _ in range(2):  # the second time with its positions in vd_info
        plan = completed(path, meta(tmp_path / "meta.csv"))
        assert (plan.variant.name, list(plan.actions[-len(first) - 1 :])) == ("M0", [*first, "missing readings: 0"])
        assert open_store(path).imputed is False
        forget_rules(path)
        first = []


def test_what_cannot_be_told_of_a_slice_of_m3_is_left_open_and_said(tmp_path: Path) -> None:
    path = without_zeros(cut(OLDER["M3"], tmp_path / "slice.h5", slice(5, 15)))
    done = socialx("backfill", path)
    assert done.stdout == f"{path}: missing readings: 0; {STATED['M4'][1]}\n"
    assert "filled" in done.stderr
    assert "cannot be told" in done.stderr
    assert json.loads(socialx("inspect", path, "--json").stdout)["imputed"] is None
    assert "perhaps" in socialx("inspect", path).stdout


@pytest.mark.parametrize("more", [0, 1])
def test_more_rows_without_a_zero_than_metr_la_has_are_interpolated(tmp_path: Path, more: int) -> None:
    path, sensors, rows = OLDER["M4"](tmp_path / "old.h5"), DATASETS["metr-la"].sensors, ROWS_WITHOUT_ZERO + more
    changed(
        path,
        drop("metadata/timestamps_epoch"),
        put("data/features", np.full((rows, sensors, 3), 34.5, np.float32)),
        put("metadata/vdids", np.array([str(716328 + sensor) for sensor in range(sensors)], "S64")),
        put("metadata/timestamps", np.array(timestamps(rows), "S19")),
    )
    assert backfill(path).variant.name == ("M4" if more else "M3/M4")
    assert open_store(path).imputed is (True if more else None)


@pytest.mark.parametrize("name", ["TW0", "TW1", "TW2"])
@pytest.mark.parametrize("said", ["", "km/h", "[1]", "5", '{"avg_occupancy": "share", "total_volume": "vehicles"}'])
def test_units_that_a_file_states_stay_and_others_are_those_of_taiwan(tmp_path: Path, said: str, name: str) -> None:
    path = changed(OLDER[name](tmp_path / "old.h5"), *([put("metadata/units", np.bytes_(said))] if said else []))
    completed(path, meta(tmp_path / "meta.csv"))
    units = [open_store(path, each).unit for each in ("avg_speed", "speed_std", "avg_occupancy", "total_volume")]
    assert units == ["km/h", "km/h", *(("share", "vehicles") if "share" in said else ("%", "unknown"))]


def test_a_later_locations_file_tells_lanes_length_and_direction(tmp_path: Path) -> None:
    path, stations = small_store(tmp_path / "new.h5"), write_stations(tmp_path / "stations.csv")
    with h5py.File(path) as file:
        places = {vdid: (entry.attrs["position_lat"], entry.attrs["position_lon"]) for vdid, entry in info(file)}
    lines = stations.read_text().splitlines()
    for number, line in enumerate(lines[1:], 1):  # the very positions that the file has already
        cells = line.split(",")
        cells[8:10] = map(str, places[cells[0]])
        lines[number] = ",".join(cells)
    stations.write_text("\n".join(lines) + "\n")
    with h5py.File(path, "r+") as file:
        first, second = (entry for _, entry in list(info(file))[:2])
        first.attrs["lanes"], second.attrs["lanes"] = np.nan, 9.0
    plan = completed(path, stations)
    assert [action.partition(" of ")[0].split(": ")[1] for action in plan.actions] == ["lanes, length, direction"]
    with h5py.File(path) as file:
        wanted = {"position_lat", "position_lon", "lanes", "length", "direction"}
        assert all(set(entry.attrs) == wanted for _, entry in info(file))
        assert [entry.attrs["lanes"] for _, entry in info(file)].count(9.0) == 1  # what it had stays
        assert all(np.isfinite(entry.attrs["lanes"]) for _, entry in info(file))


def info(file: h5py.File) -> list[tuple[str, h5py.Group]]:
    return list(file["metadata/vd_info"].items())


def test_the_proposed_command_works_at_once_and_with_any_path(tmp_path: Path) -> None:
    folder = tmp_path / "my files"
    folder.mkdir()
    path, locations = OLDER["V0"](folder / "old one.h5"), meta(folder / "some where.csv")
    proposed = refusal(lambda: backfill(path, locations), "--rewrite")
    assert shlex.split(proposed)[-5:] == ["backfill", str(path), "--rewrite", "--meta-csv", str(locations)]
    with h5py.File(path, "r+") as file:
        file["features"][..., 3:5] = np.nan
    for given in ({}, {"rewrite": True}):
        proposed = refusal(lambda: backfill(path, **given), "position")  # noqa: B023
        assert shlex.split(proposed)[-5:] == ["backfill", str(path), "--rewrite", "--meta-csv", "LOCATIONS.csv"]
    backfill(path, locations, rewrite=True)
    assert problems(inspect(path)) == []


def test_a_rewrite_takes_positions_and_what_else_is_unknown_from_the_locations_file(tmp_path: Path) -> None:
    path = OLDER["V0"](tmp_path / "old.h5")
    with h5py.File(path, "r+") as file:
        file["features"][:, 0, 1:] = np.nan
    rows = [f"{vdid},{LATITUDE[place]},{LONGITUDE[place]},7,S" for place, vdid in enumerate(IDS)]
    (tmp_path / "meta.csv").write_text("\n".join(["id,lat,lon,lanes,dir", *rows]) + "\n")
    backfill(path, tmp_path / "meta.csv", rewrite=True)
    sensors = open_store(path).sensors
    assert sensors.lanes is not None
    assert (sensors.lanes.tolist(), sensors.direction) == ([7.0, *LANES[1:]], ("S", *LETTERS[1:]))
    assert sensors.latitude.tolist() == LATITUDE.tolist()


def test_a_link_stays_and_its_target_is_patched(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    target, link = OLDER["P0"](tmp_path / "disk" / "real.h5"), tmp_path / "link.h5"
    link.symlink_to("disk/real.h5")
    assert backfill(link).actions
    assert link.is_symlink()
    assert (backfill(target).actions, [path.name for path in target.parent.iterdir()]) == ((), ["real.h5"])


@pytest.mark.parametrize("name", REWRITTEN)
def test_the_oldest_layouts_are_written_anew_only_when_asked(tmp_path: Path, name: str) -> None:
    path = OLDER[name](tmp_path / "old.h5")
    with unchanged(path):
        refusal(lambda: backfill(path), name, f"socialx backfill {path} --rewrite")
    backfill(path, rewrite=True)
    with h5py.File(path) as file:
        features = file["data/features"][:]
        assert (features.dtype, features[..., 0].tobytes()) == (np.float32, speeds().astype(np.float32).tobytes())
        assert features[0, :, 5].tolist() == [DEGREES[letter] for letter in LETTERS]
        assert (features[..., 1] == LANES).all()
        info = file["metadata/vd_info"]
        assert [info[vdid].attrs["direction"] for vdid in IDS] == list(LETTERS)
        assert [info[vdid].attrs["position_lat"] for vdid in IDS] == LATITUDE.tolist()
        assert (file["metadata/feature_names"][0], file.attrs["dataset_name"]) == (b"avg_speed", "pems_bay")
    assert CODES["S"] != DEGREES["S"]
    store = open_store(path)
    assert store.timestamps.astype(str).tolist() == timestamps(ROWS, "2017-01-01T00:00:00")
    assert (store.unit, store.missing, store.sensors.ids, completed(path).actions) == ("mph", 0.0, IDS, ())


def test_files_that_backfill_cannot_help(tmp_path: Path) -> None:
    frame = write_frame(tmp_path / "metr-la.h5", timestamps(9), any_speeds(9))
    assert refusal(lambda: backfill(frame), "socialx convert").code == "file.hdfstore"
    with h5py.File(tmp_path / "doc.h5", "w") as file:
        file["data/features"], file["data/vd_ids"] = np.zeros((2, 2, 1)), np.arange(2)
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = 1
    (tmp_path / "text.h5").write_text("a,b\n")
    codes = {"doc": "older.layout", "other": "file.lacks", "gone": "file.missing", "text": "hdf5.not"}
    for name, code in codes.items():
        assert refusal(lambda name=name: backfill(tmp_path / f"{name}.h5")).code == code


def test_a_file_of_today_lacks_nothing(tmp_path: Path) -> None:
    path = small_store(tmp_path / "new.h5")
    with unchanged(path):
        plan = backfill(path, backup=True)
        assert (plan.variant.name, plan.actions) == ("current", ())
    assert not (tmp_path / "new.h5.bak").exists()


def test_the_old_file_is_kept_on_demand(tmp_path: Path) -> None:
    path = OLDER["P0"](tmp_path / "old.h5")
    path.chmod(0o640)
    before = digest(path)
    backfill(path, backup=True)
    assert (digest(tmp_path / "old.h5.bak"), path.stat().st_mode & 0o777) == (before, 0o640)
    assert (tmp_path / "old.h5.bak").stat().st_mode & 0o777 == 0o640
    backfill(path, meta(tmp_path / "meta.csv"), backup=True)
    assert digest(tmp_path / "old.h5.bak") == before  # the first one is the original


def test_a_file_that_somebody_has_open_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socialx.files.sources.backfill.WAIT_S", 0.1)
    path = OLDER["P0"](tmp_path / "old.h5")
    before = digest(path)
    for mode in ("r", "r+"):
        script = f"import h5py, sys; f = h5py.File({str(path)!r}, {mode!r}); print(1, flush=True); sys.stdin.read()"
        holder = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert holder.stdout is not None
        holder.stdout.readline()
        refusal(lambda: backfill(path), "process")
        holder.communicate(b"")
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        refusal(lambda: backfill(path), "process")
    assert digest(path) == before
    assert backfill(path).actions


@pytest.mark.slow
def test_several_at_once_lose_nothing(tmp_path: Path) -> None:
    path = OLDER["P0"](tmp_path / "old.h5")
    before, command = stored(path), [sys.executable, "-m", "socialx", "backfill", str(path)]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    errors = [process.communicate()[1] for process in running]
    for process_, error in zip(running, errors, strict=True):
        assert process_.returncode == (1 if error.startswith("error:") else 0)
        assert error.strip() == "" or "process" in error
    assert 0 in [process_.returncode for process_ in running]
    assert (stored(path), backfill(path).actions, list(tmp_path.iterdir())) == (before, (), [path])


def test_a_read_only_folder_or_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = OLDER["P0"](tmp_path / "old.h5")
    before = digest(path)
    monkeypatch.setattr(os, "access", lambda *_: False)
    refusal(lambda: backfill(path), "read-only")
    monkeypatch.undo()

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("socialx.files.sources.backfill.shutil.copyfile", refuse)
    refusal(lambda: backfill(path), "cannot be written", "Permission denied")
    assert digest(path) == before


def damage(path: Path, number: int) -> None:
    """Overwrite the middle of a packed chunk of the readings."""
    with h5py.File(path) as file:
        chunk = file["data/features"].id.get_chunk_info(number)
    with path.open("r+b") as file:
        file.seek(chunk.byte_offset + chunk.size // 2)
        file.write(b"\xff" * 16)


@pytest.mark.parametrize("name", ["P0", "P1", "P2"])
@pytest.mark.parametrize("number", [0, 2])
def test_damaged_readings_are_named_and_nothing_is_written(tmp_path: Path, name: str, number: int) -> None:
    path, locations = OLDER[name](tmp_path / "old.h5"), meta(tmp_path / "meta.csv")
    damage(path, number)
    words = f"row {8 * number + 1} on ("
    with unchanged(path):
        for dry_run in (True, False):
            refusal(lambda dry_run=dry_run: backfill(path, locations, dry_run=dry_run), words)
        done = socialx("backfill", path, "--meta-csv", locations)
    assert (done.exit_code, words in done.stderr, sorted(tmp_path.iterdir())) == (1, True, sorted((path, locations)))


def spoil_readings(copy: Path) -> None:
    offset = stored(copy)[0][0][0]
    data = bytearray(copy.read_bytes())
    data[offset] ^= 1
    copy.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("P0", spoil_readings),
        ("P0", lambda copy: changed(copy, lambda file: file["metadata"].attrs.update(missing_value=-1.0))),
        ("TW1", lambda copy: changed(copy, drop("metadata/units"))),
    ],
)
def test_a_damaged_copy_never_takes_the_files_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, spoil: Callable[[Path], None]
) -> None:
    path = OLDER[name](tmp_path / "old.h5")
    with unchanged(path):
        spoil_copies(monkeypatch, spoil)
        refusal(lambda: backfill(path), "returned")


def test_many_files_and_folders_in_one_command(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for name in ("P0", "P2", "M0", "TW1"):
        OLDER[name](folder / f"{name}.h5")
    small_store(folder / "new.h5")
    (folder / "notes.txt").write_text("no data")
    assert [path.name for path in expand(folder)] == ["M0.h5", "P0.h5", "P2.h5", "TW1.h5", "new.h5"]
    planned = socialx("backfill", folder, "--dry-run")
    assert planned.exit_code == 1  # M0 would fail
    shown = ("P0", "Taiwan VD", "4 positions", "readings: 0", "readings: only NaN", "nothing is missing")
    assert [words for words in shown if words not in planned.stdout] == []
    done = socialx("backfill", folder)
    assert (done.exit_code, done.stderr.count("error:")) == (1, 1)
    assert "4 of 4 sensors" in done.stderr
    assert problems(inspect(folder / "TW1.h5")) == []  # one that fails does not stop the others
    assert socialx("backfill", folder, "--meta-csv", meta(tmp_path / "meta.csv")).exit_code == 0
    assert socialx("backfill", folder, "--meta-csv", tmp_path / "meta.csv").stdout.count("missing, unchanged") == 5
    assert socialx("backfill", tmp_path / "gone.h5").exit_code == 1
    (tmp_path / "empty").mkdir()
    assert socialx("backfill", tmp_path / "empty").codes == ("backfill.nothing",)
