"""A refusal names the file that is wrong, and no other one that was read beside it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands import LOCATIONS, SMALL, cut_csv, socialx

ROWS = 60


def text(line: str) -> Callable[[Path], object]:
    """A file that holds this line alone."""
    return lambda path: path.write_text(f"{line}\n")


def cell(row: int, column: int, value: str) -> Callable[[Path], None]:
    """The file with one cell replaced."""

    def change(path: Path) -> None:
        lines = [line.split(",") for line in path.read_text().splitlines()]
        lines[row][column] = value
        path.write_text("".join(",".join(line) + "\n" for line in lines))

    return change


def header(**names: str) -> Callable[[Path], None]:
    """The file with other names in its first line."""

    def change(path: Path) -> None:
        first, rest = path.read_text().split("\n", 1)
        path.write_text(",".join(names.get(name, name) for name in first.split(",")) + "\n" + rest)

    return change


def gone(path: Path) -> None:
    path.unlink()


FILES = ("first.csv", "second.csv", "places.csv", "old.h5", "run", "roads.csv", "mine.csv")
CONVERT = ["convert", "auto", "first.csv", "--meta-csv", "places.csv", "--output-h5", "new.h5"]
MONTHS = ["convert", "auto", "first.csv", "second.csv", *CONVERT[3:]]
TRAIN = ["train", "--data", "old.h5", "--run-dir", "new", "--max-epochs", "1", *SMALL, "--distances", "roads.csv"]
PLAIN = ["convert", "csv", *CONVERT[2:]]
EVALUATE = ["evaluate", "run", "mine.csv", "--data", "old.h5"]
CASES: list[tuple[list[str], str, Callable[[Path], object]]] = [
    *((command, "first.csv", text("not a table")) for command in (CONVERT, PLAIN, MONTHS)),
    *((command, "first.csv", cell(9, 0, "never")) for command in (CONVERT, PLAIN, MONTHS)),
    *((command, "first.csv", cell(9, 2, "fast")) for command in (CONVERT, PLAIN, MONTHS)),
    *((command, "first.csv", gone) for command in (CONVERT, PLAIN, MONTHS)),
    *((command, "places.csv", text("not a table")) for command in (CONVERT, PLAIN, MONTHS)),
    *((command, "places.csv", header(latitude="width")) for command in (CONVERT, PLAIN, MONTHS)),
    *((command, "places.csv", cell(1, 2, "north")) for command in (CONVERT, PLAIN, MONTHS)),
    *((command, "places.csv", gone) for command in (CONVERT, PLAIN, MONTHS)),
    (MONTHS, "second.csv", cell(9, 0, "never")),
    (MONTHS, "second.csv", cell(9, 2, "fast")),
    (MONTHS, "second.csv", text("not a table")),
    (MONTHS, "second.csv", gone),
    (["append", "old.h5", "second.csv"], "second.csv", cell(9, 0, "never")),
    (["append", "old.h5", "second.csv"], "second.csv", cell(9, 2, "fast")),
    (["append", "old.h5", "second.csv"], "old.h5", text("no file of ours")),
    (["append", "old.h5", "first.csv", "second.csv"], "second.csv", cell(9, 2, "fast")),
    (["backfill", "old.h5", "--meta-csv", "places.csv"], "places.csv", header(latitude="width")),
    (["backfill", "old.h5", "--meta-csv", "places.csv"], "old.h5", text("no file of ours")),
    (TRAIN, "roads.csv", text("not a table")),
    (TRAIN, "old.h5", text("no file of ours")),
    (EVALUATE, "mine.csv", text("not a table")),
    (EVALUATE, "old.h5", text("no file of ours")),
    (["predict", "run", "--data", "old.h5"], "old.h5", text("no file of ours")),
]


@pytest.fixture
def folder(data: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files that fit each other."""
    lines = cut_csv(tmp_path / "all.csv", 400 + ROWS).read_text().splitlines()
    (tmp_path / "first.csv").write_text("\n".join(lines[:401]) + "\n")
    (tmp_path / "second.csv").write_text("\n".join([lines[0], *lines[401:]]) + "\n")
    (tmp_path / "places.csv").write_text(LOCATIONS.read_text())
    (tmp_path / "old.h5").write_bytes(data.read_bytes())
    (tmp_path / "run").symlink_to(trained)
    ids = lines[0].split(",")[1:]
    roads = [f"{one},{other},100" for one in ids for other in ids]
    (tmp_path / "roads.csv").write_text("\n".join(["from,to,cost", *roads]) + "\n")
    (tmp_path / "mine.csv").write_text("origin,sensor,lead_minutes,forecast\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", [CONVERT, PLAIN, MONTHS, ["append", "old.h5", "second.csv"], TRAIN], ids=" ".join)
def test_the_files_fit_each_other(folder: Path, command: list[str]) -> None:
    assert socialx(*command).exit_code == 0


@pytest.mark.parametrize(("command", "wrong", "spoil"), CASES)
def test_that_file_is_named(folder: Path, command: list[str], wrong: str, spoil: Callable[[Path], object]) -> None:
    spoil(folder / wrong)
    result = socialx(*command)
    assert result.exit_code in (1, 2), result.output
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: {wrong}"), line
    what = line.split(": ")[2]
    assert not [name for name in FILES if name != wrong and name in what.split()], line
