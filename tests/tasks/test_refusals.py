"""What a task refuses before it does anything, and says in words that hold."""

from __future__ import annotations

from pathlib import Path

import pytest

import socialx
from socialx.core.errors import SettingsError
from tests.commands import refused
from tests.commands import socialx as command


def test_a_size_is_refused_for_a_run_that_goes_on(run: Path) -> None:
    error = refused("train", "--resume", run, "--preset", "xlstm-large", code=2)
    assert error == f"error: {run} keeps its settings, without --preset xlstm-large.\n  try: leave it out\n"
    with pytest.raises(SettingsError, match="keeps its settings"):
        socialx.train(resume=run, preset="mlp-small")


def test_an_end_before_the_start_is_named_as_such(run: Path) -> None:
    error = refused("predict", run, "--start", "2012-05-03 09:00", "--end", "2012-05-03 07:00", code=2)
    assert "--end '2012-05-03 07:00:00' is before the first origin, 2012-05-03 09:00:00" in error


def test_dir_names_what_is_public() -> None:
    assert dir(socialx) == sorted(socialx.__all__)


def test_minutes_that_are_no_step_are_answered_with_those_that_are(run: Path) -> None:
    scores = socialx.evaluate([run])[run]
    with pytest.raises(SettingsError, match=r"minutes=17: no step of the horizon\.\n  try: choose 5, 10, 15, 20"):
        scores.at(minutes=17)
    with pytest.raises(SettingsError, match=r"target='flow': not a target of the model\.\n  try: choose avg_speed"):
        scores.overall("flow")
    assert (
        "--fail-above 17min=3: no step of the horizon.\n  try: choose 5"
        in command("evaluate", run, "--fail-above", "17min=3").stderr
    )
