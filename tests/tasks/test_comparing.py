"""Two settings in turns, in processes of their own: blocks, errors, the interval, and what is compared."""

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

import socialx
from socialx.core.errors import Message, SettingsError
from socialx.core.progress import Bar, Note, Work
from socialx.profiling.measure import Training
from socialx.profiling.profile import Gain
from socialx.profiling.trials import mean_gain
from socialx.settings.layers import ConfigLayers, as_tree, flat
from socialx.settings.schema import Settings
from socialx.tasks import compare as comparing
from socialx.tasks.compare import ROUNDS, Block, Side, serve, start_process
from tests.commands import refuses
from tests.fake_time import FakeTime
from tests.networks import CPU, forecaster, learner
from tests.profiling.test_fluctuation import SleepingLearner, starved

GIB = 1 << 30


def small(path: Path, /, **sections: dict[str, Any]) -> Settings:
    """A plain model on a CPU."""
    own: dict[str, dict[str, Any]] = {
        "data": {"path": path},
        "model": {"kind": "linear"},
        "trainer": {"device": "cpu"},
        "profile": {"warmup_steps": 2},
    }
    return Settings.model_validate({key: {**own.get(key, {}), **sections.get(key, {})} for key in {*own, *sections}})


# Blocks


def served(settings: Settings | str, *seconds: float) -> list[dict[str, Any]]:
    """All answers of a process to settings and times."""
    first = settings if isinstance(settings, str) else json.dumps(as_tree(settings))
    asked = StringIO("\n".join([first, *map(str, seconds)]) + "\n")
    answers = StringIO()
    serve(asked, answers)
    return [json.loads(line) for line in answers.getvalue().splitlines()]


def test_both_sides_of_a_round_are_warmed_up_and_then_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    @contextmanager
    def process(name: str, _: Settings) -> Iterator[Callable[[float], dict[str, float]]]:
        def timed(seconds: float) -> dict[str, float]:
            asked.append(name)
            return {"seconds": seconds if name == "these settings" else 2 * seconds, "windows": 10}

        yield timed

    monkeypatch.setattr(comparing, "start_process", process)
    gain, first, second = comparing.run_round(Settings(), Settings(), 3.0, Bar(Work("compare", 1, "s")))
    these, other = "these settings", "the other settings"
    assert (asked[:6], 2 + len(first) + len(second)) == ([these, other, these, other, other, these], len(asked))
    assert gain.gain == pytest.approx(0.5)  # the other settings take twice as long


@pytest.mark.parametrize("accumulate", [1, 3])
def test_every_line_is_answered_with_a_block(accumulate: int, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socialx.training.clock.time", FakeTime(tick=0.125))
    monkeypatch.setattr("socialx.training.learner.Learner._mark", lambda *_: None)  # each mark takes a tick
    settings = small(data, loader={"batch_size": 16}, trainer={"accumulate_grad_batches": accumulate})
    found = served(settings, 5.0, 5.0, 0.0, 1.0)
    # A step takes half a second; each block has as many as the one before it asked for, at least five.
    assert [each["steps"] for each in found] == [5, 10, 10, 5]
    for each in found:
        assert each["seconds"] == pytest.approx(0.5 * each["steps"])
        assert each["windows"] == pytest.approx(each["steps"] * accumulate * 264 / 17)
        assert (each["input"], each["hooks"], each["peak_bytes"]) == (pytest.approx(0.25), pytest.approx(0.25), None)


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"data": {"path": "nowhere.h5"}}, "nowhere.h5"),
        ({"model": {"kind": "social", "width": 30}}, "model"),
        ({"model": {"kind": "social", "width": 10}}, "model.width 10"),
    ],
)
def test_an_error_is_one_line_of_json(sections: dict[str, Any], says: str, data: Path) -> None:
    (answer,) = served(small(data, **sections), 1.0)
    assert says in answer["error"]
    assert "\n" not in answer["error"]


@pytest.mark.parametrize("text", ["", "no settings", '{"model": {"kind": "none"}}', "[]"])
def test_what_are_no_settings_is_an_error_too(text: str) -> None:
    (answer,) = served(text, 1.0)
    assert answer["error"]


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory. Tried\nto allocate"), RuntimeError("shape '[2]' is invalid")]
)
def test_what_fails_in_a_step_is_an_error(error: Exception, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("socialx.training.learner.Learner.step", fails)
    assert served(small(data), 1.0) == [{"error": str(error).split("\n")[0]}]


@pytest.mark.parametrize(
    ("answer", "code", "says"), [('{"error": "model: no"}', "compare.child", "model: no"), (None, "compare.ended", "9")]
)
def test_an_error_of_the_process_is_raised_here(
    answer: str | None, code: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "raise SystemExit(9)" if answer is None else f"input(); input(); print({answer!r})"
    (tmp_path / "program.py").write_text(program)
    started = comparing.subprocess.Popen
    command = [sys.executable, tmp_path / "program.py"]
    monkeypatch.setattr(comparing.subprocess, "Popen", lambda _, **more: started(command, **more))
    with refuses(code) as error, start_process("these", Settings()) as timed:
        timed(1.0)
    assert re.fullmatch(rf"these: .*\b{says}\.", str(error.value).partition("\n")[0])


@pytest.mark.slow
def test_batches_that_were_made_while_the_other_side_ran_are_no_gain() -> None:
    """Four workers hand over 8 batches/s, whether or not their queue was full when a block began.

    Batches that sleep for half a second can come later than that, never earlier.
    """
    training = Training(learner(forecaster(3, social=0), SleepingLearner), starved(), 1000)
    training.take(12)
    time.sleep(2.5)  # all 8 places of the queue are full again
    assert comparing.measure_block(training, 16, 4.0, CPU)["seconds"] > 1.4  # 1.15 with those 8


def block(seconds: float, windows: float, input: float, hooks: float, peak_bytes: int | None) -> Block:
    return {"seconds": seconds, "windows": windows, "input": input, "hooks": hooks, "peak_bytes": peak_bytes}


def test_the_mean_of_blocks_counts_their_lengths() -> None:
    side = Side.from_blocks([block(1.0, 100, 0.5, 0.1, None), block(3.0, 300, 0.1, 0.0, 7)])
    assert asdict(side) == pytest.approx({"windows_per_s": 100, "input": 0.2, "hooks": 0.025, "peak_bytes": 7})


# Two settings


@pytest.mark.slow
def test_two_settings_are_trained_in_turns(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "ROUNDS", 2)
    monkeypatch.setattr(comparing, "BLOCK_S", 0.05)
    other = tmp_path / "other.yaml"
    other.write_text("loader:\n  batch_size: 128\ntrainer:\n  log_every_n_steps: 7\n")
    found = socialx.compare(settings=small(data, loader={"batch_size": 2}), other=other)
    assert found.changes == {"loader.batch_size": (2, 128), "trainer.log_every_n_steps": (50, 7)}
    assert found.gain.gain == pytest.approx(found.there.windows_per_s / found.here.windows_per_s, rel=0.5)
    assert found.gain.gain > 3  # 128 windows take hardly longer than two
    assert 0 <= found.here.input <= 1
    assert found.here.peak_bytes is None


# What is compared


def compared(monkeypatch: pytest.MonkeyPatch, other: Any, **sections: Any) -> comparing.Comparison:
    """A comparison whose rounds are made up: nothing is trained."""
    met: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def run_round(here: Settings, there: Settings, *_: object) -> tuple[Gain, list[Block], list[Block]]:
        met.append((flat(here), flat(there)))
        made = [block(1.0, 1.0, 0.0, 0.0, None)]
        return Gain(1.0, 0.99, 1.01), made, made

    monkeypatch.setattr(comparing, "run_round", run_round)
    found = comparing.compare("data.h5", other=other, **sections)
    assert len(met) == ROUNDS
    here, there = met[0]
    assert found.changes == {key: (here[key], there[key]) for key in here if here[key] != there[key]}
    return found


def test_the_interval_is_that_of_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of the same two processes are alike, whatever these processes are worth."""
    gains = [1.5, 1.4, 1.6, 1.45, 1.55, 1.5]
    rounds = iter(gains)

    def run_round(*_: object) -> tuple[Gain, list[Block], list[Block]]:
        gain = next(rounds)
        ours, others = block(1.0, 1.0, 0.5, 0.0, None), block(1 / gain, 1.0, 0.0, 0.0, 3)
        return Gain(gain, gain, gain), [ours], [others]

    monkeypatch.setattr(comparing, "run_round", run_round)
    found = comparing.compare("data.h5", other=Settings())
    assert next(rounds, None) is None
    assert (found.gain, found.rounds, found.interrupted) == (mean_gain(gains), 6, False)
    assert found.here.windows_per_s == pytest.approx(1)
    assert found.there.windows_per_s == pytest.approx(6 / sum(1 / gain for gain in gains))
    assert (found.here.input, found.there.peak_bytes) == (0.5, 3)


@pytest.mark.parametrize("finished", [0, 1, 5])
def test_a_stopped_comparison_keeps_its_rounds(finished: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gains, told = iter([2.0, 4.0, 2.0, 4.0, 2.0, 4.0][:finished]), list[Message]()

    def run_round(*_: object) -> tuple[Gain, list[Block], list[Block]]:
        if (gain := next(gains, None)) is None:
            raise KeyboardInterrupt
        made = [block(1.0, 1.0, 0.0, 0.0, None)]
        return Gain(gain, None, None), made, made

    def listen(event: object) -> None:
        told.extend([event.message] if isinstance(event, Note) else [])

    monkeypatch.setattr(comparing, "run_round", run_round)
    if not finished:
        with pytest.raises(KeyboardInterrupt):
            comparing.compare("data.h5", other=Settings(), progress=listen)
        return
    found = comparing.compare("data.h5", other=Settings(), progress=listen)
    assert (found.rounds, found.interrupted, found.gain.low is None) == (finished, True, finished < 5)
    assert [each.code for each in told] == finished * ["compare.round"]
    assert re.match(r"round 1 of 6: .* 2\.00x", told[0].problem)


FILE = '[loader]\nbatch_size = 8\nmode = "sharded"\n'
WHOLE = Settings.model_validate({"data": {"path": "data.h5"}, "trainer": {"seed": 3}})


@pytest.mark.parametrize(
    ("other", "given", "changes"),
    [
        (FILE, {"loader": {"batch_size": 16}}, {"loader.batch_size": (16, 8), "loader.mode": ("auto", "sharded")}),
        (WHOLE, {"loader": {"batch_size": 32}}, {"loader.batch_size": (32, 16), "trainer.seed": (0, 3)}),
    ],
)
def test_a_file_goes_over_the_settings_of_the_call_and_whole_settings_stand_alone(
    other: Any, given: Any, changes: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if isinstance(other, str):
        (tmp_path / "other.toml").write_text(other)
        other = tmp_path / "other.toml"
    assert compared(monkeypatch, other, **given).changes == changes


@pytest.mark.parametrize("in_a_file", [False, True])
def test_a_file_may_unset_a_setting(in_a_file: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    base, other = tmp_path / "base.yaml", tmp_path / "other.yaml"
    base.write_text("trainer:\n  threads: 3\n")
    other.write_text("trainer:\n  threads: null\n")
    given: dict[str, Any] = {"settings": ConfigLayers.read([base])} if in_a_file else {"trainer": {"threads": 3}}
    assert compared(monkeypatch, other, **given).changes == {"trainer.threads": (3, None)}


@pytest.mark.parametrize("text", ["loader: {batch_sise: 3}", "loader: {batch_size: 0}", "- 3", None])
def test_a_file_that_holds_no_settings_is_refused(text: str | None, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    if text is not None:
        other.write_text(text)
    with pytest.raises(SettingsError):
        comparing.compare("data.h5", other=other)
