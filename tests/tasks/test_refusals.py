"""What a task refuses before it does anything, and says in words that hold."""

import re
from pathlib import Path

import socialx
from socialx.core.errors import SettingsError
from tests.commands import refused, refuses
from tests.commands import socialx as command


def test_a_size_is_refused_for_a_run_that_goes_on(run: Path) -> None:
    error = refused("train", "--resume", run, "--preset", "xlstm-large", code=2)
    assert (error.code, " --preset xlstm-large" in error) == ("train.resume-keeps", True)
    with refuses("train.resume-keeps", SettingsError):
        socialx.train(resume=run, preset="mlp-small")


def test_an_end_before_the_start_is_named_as_such(run: Path) -> None:
    error = refused("predict", run, "--start", "2012-05-03 09:00", "--end", "2012-05-03 07:00", code=2)
    assert error.code == "predict.end"
    assert re.search("--end '2012-05-03 07:00:00' .* 2012-05-03 09:00:00", error)


def test_dir_names_what_is_public() -> None:
    assert dir(socialx) == sorted(socialx.__all__)


def test_minutes_that_are_no_step_are_answered_with_those_that_are(run: Path) -> None:
    scores = socialx.evaluate([run])[run]
    with refuses("score.no-step", SettingsError) as caught:
        scores.at(minutes=17)
    assert re.match("minutes=17: .*\n.* 5, 10, 15, 20", str(caught.value))
    with refuses("score.no-target", SettingsError) as caught:
        scores.overall("flow")
    assert re.match("target='flow': .*\n.* avg_speed", str(caught.value))
    done = command("evaluate", run, "--fail-above", "17min=3")
    assert done.codes[-1] == "score.limit"
    assert re.search("--fail-above 17min=3: .*\n.* 5, ", done.stderr)
