"""A file whose rule for missing readings is not that of the run: nothing reads it in silence."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from socialx.serving.endpoints import Service
from tests.commands import edited, refused, works
from tests.serving.conftest import experiment, followed
from tests.serving.test_latest import looked

__all__ = ["experiment", "followed"]  # fixtures
CODE = "fit.missing-values"
SAYS = r"{0}: .* {1}\.\n.* --missing 0 .*{1}.*\n"


@pytest.fixture
def other(data: Path, tmp_path: Path) -> Path:
    """The data of the run, whose zeros count as readings."""
    path = tmp_path / "other.h5"
    with edited(data, path) as file:
        file["metadata"].attrs["missing_value"] = np.nan
    return path


@pytest.mark.parametrize("command", ["predict", "evaluate", "explain", "calibrate", "report"])
def test_a_command_that_uses_a_run_says_so(command: str, run: Path, other: Path, tmp_path: Path) -> None:
    page = ["--output", tmp_path / "page.html"] if command == "report" else []
    done = works(command, run, "--data", other, *page)
    assert CODE in done.codes
    assert len(re.findall(SAYS.format(other, run), done.stderr)) == 1
    if command in ("evaluate", "explain"):
        assert "missing: not finite;" in done.stdout
        assert "not finite or 0" in done.stdout


def test_json_says_so_too(run: Path, other: Path) -> None:
    (note,) = json.loads(works("predict", run, "--data", other, "--json").stdout)["notes"]
    assert re.fullmatch(f"{other}: missing values .* {run}", note)
    protocol = json.loads(works("evaluate", run, "--data", other, "--json").stdout)["protocol"]
    assert protocol["missing"] == {"avg_speed": None}
    assert protocol["trained"][str(run)]["missing"] == {"avg_speed": 0.0}
    assert "notes" not in json.loads(works("predict", run, "--json").stdout)


def test_a_training_does_not_go_on_and_nothing_is_written(run: Path, other: Path) -> None:
    before = {path: path.read_bytes() for path in run.iterdir()}
    error = refused("train", "--resume", run, "--data", other, "--max-epochs", "2")
    assert error.code == CODE
    assert re.fullmatch(f"error: {SAYS.format(other, run)}", error)
    assert {path: path.read_bytes() for path in run.iterdir()} == before


def test_a_server_that_follows_the_file_refuses_it(run: Path, other: Path) -> None:
    error = refused("serve", run, "--data", other, "--follow", "--port", "0")
    assert error.code == CODE
    assert re.fullmatch(f"error: {SAYS.format(other, run)}", error)


def test_a_followed_file_that_becomes_one_of_another_rule_changes_nothing(followed: Service, other: Path) -> None:
    latest = followed.served.latest
    assert latest is not None
    before = latest.answer
    latest.path.write_bytes(other.read_bytes())
    assert "missing None, not 0.0" in looked(followed).reason
    assert latest.answer == before


def test_the_remedy_works(run: Path, data: Path, tmp_path: Path) -> None:
    converted = tmp_path / "again.h5"
    places = Path(__file__).parents[2] / "examples/data/sensor_locations.csv"
    for code in ("none", "0"):
        works(
            "convert", "csv", data.parent / "small.csv", "--meta-csv", places, "--name", "metr-la", "--units", "mph",
            "--missing", code, "--output-h5", converted, "--overwrite"
        )  # fmt: skip
        assert (CODE in works("predict", run, "--data", converted).codes) == (code == "none")
