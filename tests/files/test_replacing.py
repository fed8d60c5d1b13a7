"""Replacing a file whole: links are followed, modes kept, and what fails leaves nothing."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from socialx.core.disk import atomic_write, check_output, clean_folder, temporary_for
from socialx.core.errors import SocialxError
from tests.commands import LOCATIONS, cut_csv, refused, socialx
from tests.data_files import refusal

FSYNC = os.fsync


@pytest.fixture(autouse=True)
def waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here files wait for the disk, as they do for users."""
    monkeypatch.setattr(os, "fsync", FSYNC)


@pytest.fixture(scope="module")
def gone() -> int:
    """The id of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def write(path: Path, text: str) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(text)


def test_a_file_is_on_disk_before_its_name_then_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[Path, list[str]]] = []

    def sync(handle: int) -> None:
        FSYNC(handle)
        synced.append((Path(f"/proc/self/fd/{handle}").readlink(), [each.name for each in tmp_path.iterdir()]))

    monkeypatch.setattr(os, "fsync", sync)
    write(tmp_path / "new", "text")
    temporary = temporary_for(tmp_path / "new", os.getpid())
    assert synced == [(temporary, [temporary.name]), (tmp_path, ["new"])]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path, there: bool) -> None:
    target, middle, link = (tmp_path / name for name in ("disk/real.h5", "middle.h5", "link.h5"))
    target.parent.mkdir()
    middle.symlink_to(target)
    link.symlink_to("middle.h5")
    if there:
        target.write_text("old")
        target.chmod(0o640)
    write(link, "new")
    assert link.is_symlink()
    assert middle.is_symlink()
    assert target.read_text() == "new"
    assert not there or target.stat().st_mode & 0o777 == 0o640
    assert list(target.parent.iterdir()) == [target]


def test_no_file_takes_the_place_of_a_device_or_a_pipe(tmp_path: Path) -> None:
    """As root it could: /dev/null would be a file from then on."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.h5").symlink_to("pipe")
    (tmp_path / "null.h5").symlink_to("/dev/null")
    for path in (tmp_path / "pipe", tmp_path / "link.h5"):
        refusal(lambda path=path: write(path, "new"), "device", "choose another output")
        assert (tmp_path / "pipe").is_fifo()
    for name in ("pipe", "link.h5", "null.h5"):
        refusal(lambda name=name: check_output(tmp_path / name, True), "device")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link.h5", "null.h5", "pipe"]


def test_what_a_killed_process_left_beside_the_target_of_a_link_is_swept_away(tmp_path: Path, gone: int) -> None:
    target, link = tmp_path / "disk/real.h5", tmp_path / "link.h5"
    target.parent.mkdir()
    link.symlink_to(target)
    living = temporary_for(target, os.getppid())
    for stale in (living, temporary_for(target, gone)):
        stale.write_text("half")
    write(link, "new")
    assert sorted(target.parent.iterdir()) == [living, target]


def test_what_another_machine_writes_is_left_alone_for_a_week(tmp_path: Path, gone: int) -> None:
    dead, of_another, elsewhere, older, unlike = (
        temporary_for(tmp_path / "out.h5", gone),
        temporary_for(tmp_path / "other.h5", gone),
        tmp_path / f".out.h5.00000000-{gone}.tmp",
        tmp_path / f".out.h5.{gone}.tmp",
        tmp_path / ".out.h5.mine.tmp",
    )
    for name in (dead, of_another, elsewhere, older, unlike):
        name.write_text("half")
    write(tmp_path / "out.h5", "new")
    assert sorted(tmp_path.iterdir()) == sorted((of_another, elsewhere, older, unlike, tmp_path / "out.h5"))
    for name in (elsewhere, older, unlike):
        os.utime(name, (0, time.time() - 8 * 86_400))
    write(tmp_path / "out.h5", "newer")
    assert sorted(tmp_path.iterdir()) == sorted((of_another, unlike, tmp_path / "out.h5"))


def test_a_folder_is_swept_of_temporaries_of_all_names(tmp_path: Path, gone: int) -> None:
    kept = [
        temporary_for(tmp_path / "last.pt", os.getpid()),
        tmp_path / f".best.pt.00000000-{gone}.tmp",
        tmp_path / "notes.tmp",
        tmp_path / ".hidden",
    ]
    old = tmp_path / ".stamp.json.00000000-77.tmp"
    for path in (*kept, old, temporary_for(tmp_path / "best.pt", gone), temporary_for(tmp_path / "a.b.c", gone)):
        path.write_text("half")
    os.utime(old, (0, time.time() - 8 * 86_400))
    clean_folder(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(kept)


def test_an_output_with_a_name_that_is_too_long_is_one_line(tmp_path: Path) -> None:
    long = tmp_path / ("a" * 300 + ".h5")
    refusal(lambda: check_output(long, overwrite=False), "name too long)")
    refusal(lambda: write(long, "text"), "name too long)")
    refused("convert", "metr-la", cut_csv(tmp_path / "data.csv", 30), "--meta-csv", LOCATIONS, "--output-h5", long)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError])
def test_folders_made_for_what_fails_go_again(tmp_path: Path, error: type[BaseException]) -> None:
    (tmp_path / "mine").mkdir()

    def fail() -> None:
        with atomic_write(tmp_path / "mine/a/b/out.h5") as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises((error, SocialxError)):
        fail()
    assert list(tmp_path.rglob("*")) == [tmp_path / "mine"]


def test_a_folder_in_which_somebody_else_writes_stays(tmp_path: Path) -> None:
    def fail() -> None:
        with atomic_write(tmp_path / "a/b/out.h5"):
            (tmp_path / "a/other").write_text("of somebody else")
            raise OSError(28, "No space left on device")

    refusal(fail, "device")
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "a", tmp_path / "a/other"]


def test_a_failed_conversion_leaves_no_folder_and_one_onto_a_link_keeps_it(tmp_path: Path) -> None:
    csv, bad = cut_csv(tmp_path / "data.csv", 30), tmp_path / "bad.csv"
    bad.write_text(csv.read_text() + "2012-13-45 00:00:00,1,2,3,4\n")
    given = ("--meta-csv", LOCATIONS, "--output-h5")
    assert socialx("convert", "metr-la", bad, *given, tmp_path / "new/sub/out.h5").exit_code == 1
    assert not (tmp_path / "new").exists()
    (tmp_path / "disk").mkdir()
    (tmp_path / "link.h5").symlink_to("disk/real.h5")
    for more in ((), ("--overwrite",)):
        assert socialx("convert", "metr-la", csv, *given, tmp_path / "link.h5", *more).exit_code == 0
        assert (tmp_path / "link.h5").is_symlink()
        assert [path.name for path in (tmp_path / "disk").iterdir()] == ["real.h5"]
