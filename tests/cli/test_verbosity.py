"""How much a command says beside its result: two lines of notes, nothing with --quiet, details with --verbose."""

from pathlib import Path

import pandas as pd
import pytest

from tests.commands import EXCERPT, LOCATIONS, socialx

SAID = ("--units", "mph", "--timezone", "America/Los_Angeles")
COMMANDS = {
    "convert": ("convert", "auto", EXCERPT, "--meta-csv", LOCATIONS, *SAID, "--output-h5", "OUT.h5"),
    "inspect": ("inspect", "DATA"),
    "evaluate": ("evaluate", "RUN", "--save-scores", "OUT.csv"),
    "explain": ("explain", "RUN"),
    "calibrate": ("calibrate", "RUN"),
    "predict": ("predict", "RUN"),
    "zero-shot": ("predict", "zero-shot", "--data", EXCERPT, "--meta-csv", LOCATIONS, *SAID),
    "export": ("export", "RUN", "OUT.safetensors"),
    "config": ("config",),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_normal_run_has_two_notes_and_a_quiet_one_none(name: str, run: Path, data: Path, tmp_path: Path) -> None:
    said = {}
    for flag in ("--quiet", "", "--verbose"):
        names = {"RUN": run, "DATA": data}
        words = [names.get(str(word), str(word).replace("OUT", f"{tmp_path}/x{flag}")) for word in COMMANDS[name]]
        result = socialx(*words, *([flag] if flag else []), details=False)
        assert result.exit_code == 0, result.output
        said[flag] = result.stderr.splitlines()
    assert said["--quiet"] == []
    assert len([line for line in said[""] if "years old" not in line]) <= 2, said[""]  # examples are old
    assert len(said["--verbose"]) >= len(said[""])


def test_details_and_errors(tmp_path: Path) -> None:
    words = ("convert", "auto", EXCERPT, "--meta-csv", LOCATIONS, "--output-h5", tmp_path / "a.h5")
    detail = "a table of any network, a column per sensor or a row per reading"
    assert detail not in socialx(*words, details=False).stderr
    assert f"note: {EXCERPT}: {detail}" in socialx(*words, "--overwrite", "-v", details=False).stderr
    refusal = socialx("inspect", tmp_path / "none.h5", "-q", details=False)
    assert refusal.stderr.startswith("error: ")
    assert refusal.exit_code == 1


@pytest.fixture
def streets(tmp_path: Path) -> list[str | Path]:
    """The options for a first forecast of a table of another zone, another pace, and with rows that are absent."""
    table = pd.read_csv(EXCERPT, index_col=0)
    (table.drop(table.index[300:303]) * 0.8).to_csv(tmp_path / "streets.csv")
    said = ("--units", "mph", "--timezone", "Europe/Copenhagen")
    return ["predict", "zero-shot", "--data", tmp_path / "streets.csv", "--meta-csv", LOCATIONS, *said]


def shown(path: list[str | Path], *flags: str) -> tuple[str, ...]:
    """The codes of the notes that a command prints."""
    result = socialx(*path, *flags, details=False)
    assert result.exit_code == 0, result.output
    return result.codes


def test_a_first_forecast_shows_what_changes_its_use(streets: list[str | Path]) -> None:
    assert shown(streets) == ("predict.old", "predict.lately")
    how = {"rows.gaps-filled", "convert.code-missing", "run.other-speeds", "predict.copied"}
    assert how <= set(shown(streets, "-v"))


def test_doubts_are_shown(streets: list[str | Path]) -> None:
    table = pd.read_csv(path := streets[3], index_col=0)
    table.iloc[-900:].to_csv(path)
    assert {"predict.days", "inspect.zeros"} <= set(shown(streets, "--missing", "-1"))
