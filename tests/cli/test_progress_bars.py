"""What a command says while it works: how long a training will take."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from socialx.cli import progress_bars
from socialx.cli.progress_bars import Show
from socialx.core.progress import Epoch, Start, Work
from socialx.training.run_folder import open_run
from tests.commands import SMALL, small_file, socialx

START = Start("city.h5", 4, 1000, "cpu", "32-true", 1, "runs/a")
SAID = re.compile(r"an epoch takes about (.+), and about (.+) are left, validation aside\n")


def said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, readings: list[tuple[float, float]]
) -> list[tuple[str, str]]:
    """The forecasts of a training of 5 epochs of 1,000 windows whose loss is read at these seconds and windows."""
    clock = iter([0.0] + [second for second, _ in readings for _ in range(2)])
    monkeypatch.setattr(progress_bars, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    show = Show()
    show(START)
    show(Work("train", 5000, "windows"))
    for number, (_, windows) in enumerate(readings):
        show(Work("train", 5000, "windows", windows, f"loss {number}"))
        show(Work("train", 5000, "windows", windows + 1, f"loss {number}"))  # a step whose loss is not read
    return SAID.findall(capsys.readouterr().err)


def test_the_rest_is_foretold_from_the_readings_of_the_loss(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step took 40 s and is not counted; then 20 windows take 11 s: 550 s an epoch, 2,734 s for 4,970."""
    assert said(capsys, monkeypatch, [(40, 10), (49, 20), (51, 30), (70, 64), (90, 128)]) == [("9 min", "46 min")]


@pytest.mark.parametrize(
    "readings",
    [
        [(40.0, 10.0), (49.0, 500.0)],
        [(40.0, 10.0)],
        [(1.0, 10.0), (50.0, 10.0)],
        [(1.0, 10.0), (50.0, 5000.0 + 1e-9)],  # the last epoch is validated, and nothing is left
    ],
)
def test_nothing_is_foretold_from_too_little(
    readings: list[tuple[float, float]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert said(capsys, monkeypatch, readings) == []


def test_a_training_that_is_foretold_has_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, weights = small_file(tmp_path), {}
    for seconds in (0, 1e9):
        monkeypatch.setattr(progress_bars, "MEASURED_S", seconds)
        run = tmp_path / f"run{seconds:g}"
        command = ("train", "--data", data, "--run-dir", run, "--max-epochs", "2", *SMALL, "--batch-size", "16")
        assert len(SAID.findall(socialx(*command).stderr)) == (seconds == 0)
        weights[seconds] = open_run(run).read_weights().fingerprint
    assert weights[0] == weights[1e9]


@pytest.mark.parametrize(("utilisation", "words"), [(None, "12 windows/s\n"), (83.4, "12 windows/s  GPU 83 %\n")])
def test_the_line_of_an_epoch_says_how_busy_the_card_was(
    utilisation: float | None, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Show()(Epoch(5, False, 1, 10, 3.1, 3.2, 12.0, 1e-3, 1.0, 100.0, gpu_utilisation=utilisation))
    assert capsys.readouterr().err.endswith(words)
