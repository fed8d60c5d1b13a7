"""Which windows are scored is said where a user may think that they are others."""

import re
import shlex
from pathlib import Path

import pytest

from tests.commands import cut_csv, small_file, small_run, works

LAST = "2012-05-04 09:15:00"  # of the data that the run was trained on


@pytest.fixture
def grown(run: Path, tmp_path: Path) -> Path:
    """The file of the run with 100 more rows."""
    file = small_file(tmp_path, 400)
    rows = cut_csv(tmp_path / "all.csv", 500).read_text().splitlines()
    (tmp_path / "new.csv").write_text("\n".join([rows[0], *rows[401:]]) + "\n")
    works("append", file, tmp_path / "new.csv")
    return file


def test_a_file_that_has_grown_names_what_avoids_seen_windows(run: Path, grown: Path) -> None:
    done = works("evaluate", run, "--data", grown)
    advice = "--split all --start '2012-05-04 09:20:00'"
    assert "split.seen" in done.codes
    assert re.search(rf"note: {grown}: {run} .* {LAST}\.\n  try: .* {advice}\n", done.stderr)
    again = works("evaluate", run, "--data", grown, *shlex.split(advice))
    assert "split.seen" not in again.codes
    assert "may have seen" not in again.stderr + again.stdout
    assert again.stdout.rstrip().endswith(": unseen")
    assert "scored: the 89 windows" in again.stdout  # of 100 rows, each with a forecast of 12


def test_a_file_that_has_not_grown_enough_says_so(run: Path, data: Path, tmp_path: Path) -> None:
    assert "append more rows" in works("evaluate", run, "--data", small_file(tmp_path, 405)).stderr
    assert "split.seen" not in works("evaluate", run).codes


def test_a_run_of_the_first_days_says_that_others_are_not_scored(data: Path, tmp_path: Path) -> None:
    run = small_run(data, tmp_path / "run", "--days", "1")
    done = works("evaluate", run)
    assert "split.days" in done.codes
    assert re.search(rf" 1 day of {data} .* \(--days 1\)\.\n", done.stderr)
    two = small_file(tmp_path / "two", 2 * 288)  # exactly two days
    works("evaluate", small_run(two, "run", "--days", "1")).stderr.index("  try: add --days 2 to score all\n")
    assert "split.days" not in works("evaluate", run, "--data", small_file(tmp_path, 288)).codes
    assert "split.days" in works("explain", run, "--data", data).codes
