"""Two settings in turns in processes of their own, and the rules by which a search takes settings."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

import socialx
from socialx.errors import SettingsError, SocialxError
from socialx.options import Layers, as_tree, flat
from socialx.precision import Precision
from socialx.profiling.measure import Training
from socialx.profiling.paired import Gain, gain_of
from socialx.profiling.profile import Profile, Trial
from socialx.profiling.rules import diagnosed
from socialx.progress import Event, Note
from socialx.settings import Settings
from socialx.tasks import blocks, comparing
from socialx.tasks.blocks import Block, OutOfMemory, runner, serve
from socialx.tasks.comparing import PAIRS_OF_ROUND, ROUNDS, SWEEP_PAIRS, Side, Sweep
from tests.commands import small_file
from tests.networks import CPU, forecaster
from tests.profiling.test_fluctuation import SleepingLearner, starved
from tests.profiling.test_rules import INLINE, LARGER, MANY, changed, healthy

GIB = 1 << 30


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_file(tmp_path_factory.mktemp("data"))


def small(path: Path, /, **sections: dict[str, Any]) -> Settings:
    """A plain model on a CPU."""
    own: dict[str, dict[str, Any]] = {
        "data": {"path": path},
        "model": {"kind": "linear"},
        "trainer": {"device": "cpu"},
        "profile": {"warmup_steps": 2, "block_seconds": 0.05},
    }
    return Settings.model_validate(
        {name: {**own.get(name, {}), **sections.get(name, {})} for name in {*own, *sections}}
    )


# Blocks


def served(settings: Settings | str, *seconds: float) -> list[dict[str, Any]]:
    """All answers of a process to settings and times."""
    first = settings if isinstance(settings, str) else json.dumps(as_tree(settings))
    asked = StringIO("\n".join([first, *(json.dumps({"seconds": each}) for each in seconds)]) + "\n")
    answers = StringIO()
    serve(asked, answers)
    return [json.loads(line) for line in answers.getvalue().splitlines()]


class Ticking:
    """A clock that is an eighth of a second later whenever somebody looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 0.125
        return self.now

    def thread_time(self) -> float:
        return self.now

    process_time = thread_time


@pytest.mark.parametrize("accumulate", [1, 3])
def test_every_line_is_answered_with_a_block(accumulate: int, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socialx.training.clock.time", Ticking())
    settings = small(data, loader={"batch_size": 16}, trainer={"accumulate_grad_batches": accumulate})
    ready, *made = served(settings, 5.0, 5.0, 0.0, 1.0)
    assert ready == {"ready": True}
    found = [Block(**each) for each in made]
    # A step takes half a second; each block has as many as the one before it asked for, at least five.
    assert [each.steps for each in found] == [5, 10, 10, 5]
    for each in found:
        assert each.seconds == pytest.approx(0.5 * each.steps)
        assert each.windows == pytest.approx(each.steps * accumulate * 264 / 17)
        assert each.seconds_per_window == pytest.approx(each.seconds / each.windows)
        assert (each.input, each.hooks, each.peak_bytes) == (pytest.approx(0.25), pytest.approx(0.25), None)


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"data": {"path": "nowhere.h5"}}, "nowhere.h5"),
        ({"model": {"kind": "xlstm", "width": 30}}, "model"),
        ({"pooling": {"heads": 3}, "model": {"kind": "xlstm"}}, "not a multiple"),
    ],
)
def test_an_error_is_one_line_of_json(sections: dict[str, Any], says: str, data: Path) -> None:
    (answer,) = served(small(data, **sections), 1.0)
    assert says in answer["error"]
    assert "\n" not in answer["error"]
    assert not answer.get("memory")


@pytest.mark.parametrize("text", ["", "{}", "no settings", '{"model": {"kind": "none"}}', "[]"])
def test_what_are_no_settings_is_an_error_too(text: str) -> None:
    (answer,) = served(text, 1.0)
    assert answer["error"]


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried\nto allocate"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("shape '[2]' is invalid"), False),
    ],
)
def test_what_fails_in_a_step_is_an_error(
    error: Exception, memory: bool, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("socialx.training.learner.Learner.step", fails)
    (answer,) = served(small(data), 1.0)
    assert answer == {"error": str(error).split("\n")[0], "memory": memory}


class Canned:
    """A process that has answered."""

    def __init__(self, answers: str) -> None:
        self.stdin, self._answers = StringIO(), answers

    def poll(self) -> int:
        return -9


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        ('{"error": "model: no", "memory": true}\n', OutOfMemory, "these: model: no"),
        ('{"error": "model: no"}\n', SocialxError, "these: model: no"),
        ("", SocialxError, "these: its process ended with -9"),
    ],
)
def test_an_error_of_the_process_is_raised_here(answer: str, kind: type, says: str, tmp_path: Path) -> None:
    process: Any = Canned(answer)
    path = tmp_path / "answers"
    path.write_text(answer)
    with path.open() as process.stdout, pytest.raises(SocialxError) as error:  # a file: it can be waited for
        blocks.Runner("these", process).block(1.0)
    assert type(error.value) is kind
    assert str(error.value).startswith(says)
    assert json.loads(process.stdin.getvalue()) == {"seconds": 1.0}


@pytest.mark.slow
def test_a_process_of_its_own_takes_a_block_and_ends(data: Path) -> None:
    with runner("these", small(data)) as made:
        assert made.answer() == {"ready": True}
        block = made.block(0.05)
        assert block.steps == 5
        assert block.seconds > 0
        assert made.process.poll() is None
    assert made.process.returncode == 0
    with runner("these", small(Path("nowhere.h5"))) as lost, pytest.raises(SocialxError, match=r"these: .*nowhere\.h5"):
        lost.answer()
    assert lost.process.returncode is not None


@pytest.mark.slow
def test_batches_that_were_made_while_the_other_side_ran_are_no_gain() -> None:
    """Four workers hand over 8 batches/s, whether or not their queue was full when a block began.

    Batches that sleep for half a second can come later than that, never earlier.
    """
    options = {"learning_rate": 1e-3, "weight_decay": 0.0, "total_steps": 9}
    learner = SleepingLearner(forecaster(3, social=0), Precision("32-true", CPU), **options)  # type: ignore[arg-type]
    training = Training(learner, starved(), 1000)
    training.take(12)
    time.sleep(2.5)  # all 8 places of the queue are full again
    assert blocks._block(training, 16, 4.0, CPU)["seconds"] > 1.4  # 1.15 with those 8


def test_the_mean_of_blocks_counts_their_lengths() -> None:
    side = Side.of([Block(5, 1.0, 100, 0.5, 0.1, None), Block(15, 3.0, 300, 0.1, 0.0, 7)])
    assert asdict(side) == pytest.approx({"windows_per_s": 100, "input": 0.2, "hooks": 0.025, "peak_bytes": 7})


# Two settings


@pytest.mark.slow
def test_two_settings_are_trained_in_turns(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "ROUNDS", 2)
    other = tmp_path / "other.yaml"
    other.write_text("loader:\n  batch_size: 128\ntrainer:\n  log_every_n_steps: 7\n")
    found = socialx.compare(settings=small(data, loader={"batch_size": 2}), other=other)
    assert found.changes == {"loader.batch_size": (2, 128), "trainer.log_every_n_steps": (50, 7)}
    assert found.gain.gain == pytest.approx(found.there.windows_per_s / found.here.windows_per_s, rel=0.5)
    assert found.gain.gain > 3  # 128 windows take hardly longer than two
    assert 0 <= found.here.input <= 1
    assert found.here.peak_bytes is None


class Pairs:
    """Stands for two processes: a speed, a waiting share and a peak for each settings; remembers who met whom."""

    def __init__(self, speed: Callable[[dict[str, Any]], float]) -> None:
        self.speed = speed
        self.input: Callable[[dict[str, Any]], float] = lambda _: 0.0
        self.peak: Callable[[dict[str, Any]], int | None] = lambda _: None
        self.fails: Callable[[dict[str, Any]], SocialxError | None] = lambda _: None
        self.met: list[tuple[dict[str, Any], dict[str, Any], int]] = []
        self.now = 0.0  # each comparison takes 100 s

    def __call__(self, here: Settings, there: Settings, pairs: int, *_: object) -> tuple[Gain, Any]:
        one, other = flat(here), flat(there)
        self.met.append((one, other, pairs))
        self.now += 100
        if error := self.fails(other):
            raise error
        gain = self.speed(other) / self.speed(one)
        blocks = ([Block(1, 1 / self.speed(s), 1.0, self.input(s), 0.0, self.peak(s))] for s in (one, other))
        return Gain(gain, 0.99 * gain, 1.01 * gain), tuple(blocks)

    def monotonic(self) -> float:
        return self.now

    def values(self, key: str) -> list[Any]:
        """A setting of the second side of each candidate, the verification left out."""
        return [other[key] for _, other, pairs in self.met if pairs == SWEEP_PAIRS]


def searched(
    monkeypatch: pytest.MonkeyPatch,
    pairs: Pairs,
    changes: dict[str, Any],
    clock: str = "host",
    settings: dict[str, dict[str, Any]] | None = None,
    **options: Any,
) -> Sweep:
    """A sweep whose start profile and comparisons are made up."""
    s = Settings.model_validate(settings or {})

    def profile(**_: object) -> Profile:
        return diagnosed(changed(healthy(clock), {"settings": as_tree(s), **changes}))

    monkeypatch.setattr(comparing, "profile", profile)
    monkeypatch.setattr(comparing, "_paired", pairs)
    monkeypatch.setattr(comparing, "time", pairs)
    return comparing.sweep("data.h5", settings=s, **options)


def by_batch(speeds: dict[int, float]) -> Callable[[dict[str, Any]], float]:
    return lambda each: speeds[each["loader.batch_size"]]


KNEE = {64: 1.0, 128: 1.6, 256: 2.2, 512: 2.25, 1024: 9.0}


def test_the_batch_is_doubled_up_to_the_knee(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = Pairs(by_batch(KNEE))
    found = searched(monkeypatch, pairs, {"trials": LARGER}, free_batch=True)
    assert pairs.values("loader.batch_size") == [128, 256, 512]
    assert [each.taken for each in found.tried] == [True, True, False]
    assert found.changes == {"loader.batch_size": 256}


def test_the_winner_is_verified_against_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = Pairs(by_batch(KNEE))
    found = searched(monkeypatch, pairs, {"trials": LARGER}, free_batch=True)
    last = pairs.met[-ROUNDS:]
    assert [count for *_, count in last] == [PAIRS_OF_ROUND] * ROUNDS
    assert all(each == last[0] for each in last)
    here, there, _ = last[0]
    assert {key for key in here if here[key] != there[key]} == {"loader.batch_size"}
    assert (here["loader.batch_size"], there["loader.batch_size"]) == (64, 256)
    assert found.gain is not None
    assert found.gain.gain == pytest.approx(2.2)
    assert found.advised == found.changes


def test_a_winner_that_is_not_faster_than_the_start_is_not_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = Pairs(lambda each: 1.5 if each["trainer.threads"] and len(pairs.met) <= 1 else 1.0)
    found = searched(monkeypatch, pairs, {"trials": MANY})
    assert [each.taken for each in found.tried] == [True]
    assert found.changes == {"trainer.threads": 1}
    assert found.advised == {}
    assert found.gain is not None
    assert not found.gain.differs


@pytest.mark.parametrize(
    ("groups", "free", "wanted"),
    [
        (8, False, [(128, 4), (256, 2), (512, 1)]),
        (6, False, [(128, 3)]),
        (2, True, [(128, 1), (256, 1), (512, 1), (1024, 1)]),
        (1, False, []),
        (3, False, []),
    ],
)
def test_a_step_keeps_its_windows_unless_the_batch_is_free(
    groups: int, free: bool, wanted: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = Pairs(by_batch({64 * 2**n: 1.5**n if n < 4 else 1.5**3 for n in range(9)}))
    settings = {"trainer": {"accumulate_grad_batches": groups}}
    searched(monkeypatch, pairs, {"trials": LARGER}, settings=settings, free_batch=free)
    batches = zip(pairs.values("loader.batch_size"), pairs.values("trainer.accumulate_grad_batches"), strict=True)
    assert list(batches) == wanted


def test_why_the_batch_stays_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[Event] = []
    found = searched(monkeypatch, Pairs(lambda _: 1.0), {"trials": LARGER}, progress=notes.append)
    (line,) = (each.message.line() for each in notes if isinstance(each, Note))
    assert "another batch is another training: free_batch" in line
    assert (found.tried, found.changes, found.gain) == ([], {}, None)


@pytest.mark.parametrize("clock", ["host", "device"])
def test_without_a_reason_nothing_is_tried(clock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = Pairs(lambda _: 1.0)
    settings = {"trainer": {"precision": "bf16-mixed", "cuda_graph": True, "compile": "default"}}
    found = searched(monkeypatch, pairs, {}, clock, settings)
    assert (found.tried, found.changes, found.gain, pairs.met) == ([], {}, None, [])
    assert found.start.verdict == "COMPUTE-BOUND"


def test_precision_graphs_and_compilation_are_tried_on_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    def speed(each: dict[str, Any]) -> float:
        graph = 1.2 if each["trainer.cuda_graph"] and each["trainer.precision"] == "bf16-mixed" else 1.0
        return graph * (1.5 if each["trainer.precision"] == "bf16-mixed" else 1.0)

    found = searched(monkeypatch, Pairs(speed), {}, "device", {"trainer": {"precision": "32-true"}})
    keys = ["trainer.precision", "trainer.cuda_graph", "trainer.compile"]
    assert [list(each.changes) for each in found.tried] == [[key] for key in keys]
    assert found.changes == {"trainer.precision": "bf16-mixed", "trainer.cuda_graph": True}
    assert found.gain is not None
    assert found.gain.gain == pytest.approx(1.8)


SLOW_LOADER = {**INLINE, "host.cores": 8}
WORKERS = {"loader": {"mode": "workers", "num_workers": 0}}


def test_other_loaders_are_tried_until_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = Pairs(lambda each: 2.0 if each["loader.mode"] == "chunk" else 1.0)
    pairs.input = lambda each: 0.01 if each["loader.mode"] == "chunk" else 0.3
    found = searched(monkeypatch, pairs, SLOW_LOADER, settings=WORKERS)
    assert pairs.values("loader.mode") == ["resident", "chunk"]
    assert found.changes == {"loader.mode": "chunk"}


def test_workers_are_tried_with_what_they_need_and_with_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = Pairs(lambda each: 1.0)
    pairs.input = lambda _: 0.3
    searched(monkeypatch, pairs, {**SLOW_LOADER, "loader.making_s": 0.1}, settings=WORKERS)
    assert pairs.values("loader.mode") == ["resident", "chunk", "workers", "workers"]
    assert pairs.values("loader.num_workers") == [0, 0, 2, 7]


def test_what_is_tried_is_never_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {**SLOW_LOADER, "loader.mode": "chunk", "loader.num_workers": None}
    pairs = Pairs(lambda each: 1.0)
    pairs.input = lambda _: 0.3
    settings = {"loader": {"mode": "chunk", "chunk_gb": 0.25}}
    searched(monkeypatch, pairs, changes, settings=settings)
    assert all(here != there for here, there, _ in pairs.met)
    assert pairs.values("loader.mode") == ["resident", "workers", "chunk"]
    assert pairs.values("loader.chunk_gb")[-1] == 0.5


def test_threads_are_tried_against_the_best_until_then(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = Pairs(lambda each: {None: 1.0, 1: 1.5, 8: 1.2, 16: 1.6}[each["trainer.threads"]])
    trials = [*MANY, Trial("trainer.threads", 8, 1.2, 1.1, 1.3), Trial("trainer.threads", 16, 1.6, 1.5, 1.7)]
    found = searched(monkeypatch, pairs, {"trials": trials})
    assert [here["trainer.threads"] for here, _, pairs_ in pairs.met if pairs_ == SWEEP_PAIRS] == [None, 1, 1]
    assert [each.taken for each in found.tried] == [True, False, True]
    assert found.changes == {"trainer.threads": 16}


def test_a_gain_that_may_be_none_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = Pairs(lambda each: 1.005 if each["trainer.threads"] else 1.0)
    found = searched(monkeypatch, pairs, {"trials": MANY})
    assert [(each.taken, each.gain is not None) for each in found.tried] == [(False, True)]
    assert found.tried[0].found.startswith("no difference larger than")
    assert found.changes == {}


@pytest.mark.parametrize(("budget_s", "count"), [(50, 1), (150, 2), (1000, 3), (-1, 0)])
def test_after_the_budget_no_candidate_is_begun(budget_s: float, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = Pairs(by_batch(KNEE))
    found = searched(monkeypatch, pairs, {"trials": LARGER}, free_batch=True, budget_s=budget_s)
    assert pairs.values("loader.batch_size") == [128, 256, 512][:count]
    if count < 3:
        assert (found.tried[-1].found, found.tried[-1].gain, found.tried[-1].taken) == ("no time left", None, False)
    assert found.changes == ({} if not count else {"loader.batch_size": [128, 256, 256][count - 1]})
    assert (found.gain is None) == (not count)  # what was taken is verified all the same


def test_out_of_memory_ends_the_axis_and_not_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = Pairs(by_batch({64 * 2**n: 2.0**n for n in range(9)}))
    pairs.fails = lambda each: (
        OutOfMemory("the others", "CUDA out of memory") if each["loader.batch_size"] >= 256 else None
    )
    found = searched(monkeypatch, pairs, {"trials": LARGER}, free_batch=True)
    assert [each.found for each in found.tried][1:] == ["out of memory (CUDA out of memory)"]
    assert found.changes == {"loader.batch_size": 128}
    assert found.gain is not None


def test_settings_that_cannot_run_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = Pairs(lambda each: 2.0 if each["loader.mode"] == "chunk" else 1.0)
    pairs.fails = lambda each: SocialxError("the others", "no") if each["loader.mode"] == "resident" else None
    found = searched(monkeypatch, pairs, SLOW_LOADER, settings=WORKERS)
    assert (found.tried[0].found, found.tried[0].taken) == ("no", False)
    assert found.changes == {"loader.mode": "chunk"}


def test_a_batch_that_would_not_fit_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 128 and 256 windows 18 and 34 GiB are taken; 512 take 66 of 80, 1024 would take 130."""
    pairs = Pairs(by_batch({64 * 2**n: 2.0**n for n in range(9)}))
    pairs.peak = lambda each: (2 * GIB) + each["loader.batch_size"] * GIB // 8
    settings = {"trainer": {"precision": "bf16-mixed", "cuda_graph": True, "compile": "default"}}
    found = searched(monkeypatch, pairs, {"trials": LARGER}, "device", settings, free_batch=True)
    assert pairs.values("loader.batch_size") == [128, 256, 512]
    assert found.tried[-1].changes == {"loader.batch_size": 1024}
    assert found.tried[-1].found == "would take more than 85% of the memory"
    assert found.changes == {"loader.batch_size": 512}


# What is compared


def compared(monkeypatch: pytest.MonkeyPatch, other: Any, **sections: Any) -> comparing.Comparison:
    pairs = Pairs(lambda _: 1.0)
    monkeypatch.setattr(comparing, "_paired", pairs)
    found = comparing.compare("data.h5", other=other, **sections)
    assert len(pairs.met) == ROUNDS
    assert pairs.met[0][2] == PAIRS_OF_ROUND
    here, there, _ = pairs.met[0]
    assert found.changes == {key: (here[key], there[key]) for key in here if here[key] != there[key]}
    return found


def test_the_interval_is_that_of_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of the same two processes are alike, whatever these processes are worth."""
    gains = [1.5, 1.4, 1.6, 1.45, 1.55, 1.5]
    rounds = iter(gains)

    def paired(*_: object) -> tuple[Gain, Any]:
        gain = next(rounds)
        return Gain(gain, gain, gain), ([Block(1, 1.0, 1.0, 0.5, 0.0, None)], [Block(1, 1 / gain, 1.0, 0.0, 0.0, 3)])

    monkeypatch.setattr(comparing, "_paired", paired)
    found = comparing.compare("data.h5", other=Settings())
    assert next(rounds, None) is None
    assert found.gain == gain_of([math.log(gain) for gain in gains])
    assert found.here.windows_per_s == pytest.approx(1)
    assert found.there.windows_per_s == pytest.approx(6 / sum(1 / gain for gain in gains))
    assert (found.here.input, found.there.peak_bytes) == (0.5, 3)


def test_a_file_goes_over_the_settings_of_the_call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text('[loader]\nbatch_size = 8\nmode = "chunk"\n')
    found = compared(monkeypatch, other, loader={"batch_size": 16}, model={"kind": "linear"})
    assert found.changes == {"loader.batch_size": (16, 8), "loader.mode": ("auto", "chunk")}


def test_whole_settings_may_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Settings.model_validate({"data": {"path": "data.h5"}, "trainer": {"seed": 3}})
    assert compared(monkeypatch, other, loader={"batch_size": 16}).changes == {
        "loader.batch_size": (16, 64),
        "trainer.seed": (0, 3),
    }


@pytest.mark.parametrize("key", ["pooling.neighbours", "loader.chunk_gb", "trainer.threads"])
@pytest.mark.parametrize("in_a_file", [False, True])
def test_a_file_may_unset_a_setting(key: str, in_a_file: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    section, name = key.split(".")
    base, other = tmp_path / "base.yaml", tmp_path / "other.yaml"
    base.write_text(f"{section}:\n  {name}: 3\n")
    other.write_text(f"{section}:\n  {name}: null\n")
    given: dict[str, Any] = {"settings": Layers(files=(base,))} if in_a_file else {section: {name: 3}}
    assert compared(monkeypatch, other, **given).changes == {key: (3, None)}


@pytest.mark.parametrize("text", ["loader: {batch_sise: 3}", "loader: {batch_size: 0}", "- 3", None])
def test_a_file_that_holds_no_settings_is_refused(text: str | None, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    if text is not None:
        other.write_text(text)
    with pytest.raises(SettingsError):
        comparing.compare("data.h5", other=other)
