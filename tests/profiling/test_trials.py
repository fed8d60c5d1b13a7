"""Settings that are tried: other threads, and four times the batch; two ways in turns, and their interval."""

import math
import re
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from socialx.core.batch import TrainingBatch
from socialx.profiling import trials
from socialx.profiling.profile import Gain, Trial
from socialx.profiling.trials import BUDGET_S, best_trial, interleaved_ab, mean_gain, repeat_batch, try_settings
from socialx.scoring.difference import LEAST_DAYS
from socialx.settings.kinds import MODELS
from socialx.training.cuda_graph import WARMUP
from tests.fake_time import FakeTime
from tests.networks import example, learner, loader, network

CORES = 4


class Machine:
    """A batch takes ``fixed_s + window_s`` x windows, and more with a number of threads that does not suit it."""

    def __init__(self) -> None:
        self.fixed_s, self.window_s, self.best, self.noise = 0.0, 0.01, None, 0.0
        self.threads = 1
        self.time, self.random = FakeTime(), Random(0)
        self.steps: list[list[int]] = []  # the windows of each batch
        self.most: int | None = None  # windows that fit into the memory
        self.out_of_memory: RuntimeError = torch.OutOfMemoryError("CUDA out of memory")

    def set_threads(self, count: int) -> None:
        self.threads = count

    def step(self, group: list[Any]) -> None:
        sizes = [each.rows.shape[1] if hasattr(each, "rows") else len(each.batch.inputs) for each in group]
        self.steps.append(sizes)
        if self.most is not None and max(sizes) > self.most:
            raise self.out_of_memory
        slow = 1.0 if self.best is None else 1 + abs(self.threads - self.best)
        slow *= math.exp(self.random.gauss(0, self.noise))
        self.time.now += slow * sum(self.fixed_s + self.window_s * size for size in sizes)

    def tried(self, device: str = "cpu", accumulate: int = 1, **more: Any) -> dict[str, list[Trial]]:
        """The trials of a batch of four windows, by setting."""
        facts = {
            "precision": SimpleNamespace(device=torch.device(device)),
            "trainer": SimpleNamespace(accumulate_grad_batches=accumulate),
        }
        windows = more.pop("windows", None)
        batch = more.pop("batch", None) or example(batch_size=4)
        made = SimpleNamespace(step=self.step, **facts, **{"records": False, "compiles": False, **more})
        found = try_settings(made, batch, lambda: None, windows)
        return {name: [t for t in found if t.setting == name] for name in ("trainer.threads", "loader.batch_size")}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Four cores, one thread now, and a clock of its own."""
    made = Machine()
    monkeypatch.setattr(trials, "time", made.time)
    monkeypatch.setattr(trials, "synchronize", lambda _: None)
    monkeypatch.setattr(torch, "set_num_threads", made.set_threads)
    monkeypatch.setattr(torch, "get_num_threads", lambda: made.threads)
    monkeypatch.setattr(trials, "usable_cores", lambda: CORES)
    return made


@pytest.mark.parametrize(("now", "best", "values"), [(1, 4, [4]), (4, 1, [1]), (2, 4, [1, 4]), (9, 4, [1, 4])])
def test_one_thread_and_all_cores_are_tried(now: int, best: int, values: list[int], machine: Machine) -> None:
    machine.threads, machine.best = now, best
    found = machine.tried()["trainer.threads"]
    assert [each.value for each in found] == values
    fastest = best_trial(found, "trainer.threads")
    assert fastest is not None
    assert (fastest.value, fastest.gain) == (best, pytest.approx(1 + abs(now - best)))
    assert fastest.low == pytest.approx(fastest.gain) == fastest.high
    assert machine.threads == now


def test_the_present_number_of_threads_comes_back_when_a_trial_fails(machine: Machine) -> None:
    machine.threads, machine.most, machine.out_of_memory = 2, 0, RuntimeError("of the step")
    with pytest.raises(RuntimeError, match="of the step"):
        machine.tried()
    assert machine.threads == 2


@pytest.mark.parametrize(("fixed_s", "gain"), [(0.0, 1.0), (0.04, 1.6), (4.0, 3.88)])
def test_four_times_the_batch_gains_what_does_not_grow(fixed_s: float, gain: float, machine: Machine) -> None:
    machine.fixed_s = fixed_s / 10
    machine.window_s = 0.001
    (found,) = machine.tried()["loader.batch_size"]
    assert (found.value, found.threads) == (16, None)
    assert found.gain == pytest.approx(4 * (machine.fixed_s + 0.004) / (machine.fixed_s + 0.016))
    assert found.gain == pytest.approx(gain, abs=0.3)


@pytest.mark.parametrize("accumulate", [2, 3, 4, 8, 32])
def test_batches_of_a_step_are_joined(accumulate: int, machine: Machine) -> None:
    """At most as many as one large batch joins, so that a step of many slow batches can be tried."""
    machine.fixed_s = 0.3
    (found,) = machine.tried(accumulate=accumulate)["loader.batch_size"]
    assert found.gain == pytest.approx(4 * 0.34 / 0.46)
    assert {tuple(sizes) for sizes in machine.steps} == {(4,) * min(4, accumulate), (16,)}


def test_a_batch_is_tried_with_the_better_number_of_threads_on_both_sides(machine: Machine) -> None:
    machine.threads, machine.best, machine.fixed_s = 4, 1, 0.02
    found = machine.tried()
    assert (found["trainer.threads"][0].value, found["trainer.threads"][0].threads) == (1, None)
    assert found["loader.batch_size"][0].threads == 1
    assert (found["loader.batch_size"][0].gain, machine.threads) == (pytest.approx(4 * 0.06 / 0.18), 4)


@pytest.mark.parametrize("now", [2, 8, 64])
def test_more_threads_than_cores_hide_no_batch(now: int, machine: Machine) -> None:
    """Threads without a core of their own wait by chance: their times say little, decided or not."""
    machine.threads, machine.noise, machine.fixed_s = now, 0.5 if now > CORES else 0.0, 0.1
    assert machine.tried()["loader.batch_size"][0].threads in ((1, CORES) if now > CORES else (None,))


@pytest.mark.parametrize("records", [False, True])
def test_a_card_tries_the_batch_alone_also_of_recorded_steps(records: bool, machine: Machine) -> None:
    """Each shape is recorded after a few ordinary steps, which are taken before."""
    machine.threads, machine.fixed_s = 2, 0.2
    found = machine.tried("cuda", records=records)
    assert found["trainer.threads"] == []
    assert found["loader.batch_size"][0].gain > 1.5
    assert machine.steps[machine.steps.index([16]) :].index([4]) == (WARMUP if records else 1)


def test_rows_that_a_recorded_step_gathers_are_repeated() -> None:
    selection = next(iter(loader(batch_size=3).selections(0)))
    for one, more in zip(selection.gather().batch, repeat_batch(selection, 4).gather().batch, strict=True):
        assert torch.equal(torch.cat([one] * 4).nan_to_num(-1), more.nan_to_num(-1))


def test_the_same_windows_several_times_are_a_larger_batch() -> None:
    made = next(iter(loader(batch_size=3).epoch(0)))
    larger = repeat_batch(made, 4)
    assert isinstance(larger, TrainingBatch)
    for one, more in zip((*made.batch, *made.target), (*larger.batch, *larger.target), strict=True):
        assert torch.equal(torch.cat([one] * 4).nan_to_num(-1), more.nan_to_num(-1))


def test_a_compiled_step_gets_no_other_batch(machine: Machine) -> None:
    found = machine.tried(compiles=True)
    assert found["loader.batch_size"] == []
    assert found["trainer.threads"]
    assert learner(compile="default").compiles
    assert not learner().compiles


@pytest.mark.parametrize("host", [False, True])
def test_a_batch_that_does_not_fit_is_not_tried(host: bool, machine: Machine) -> None:
    machine.most = 4
    if host:
        said = "[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory"
        machine.out_of_memory = RuntimeError(said)
    found = machine.tried()
    assert found["loader.batch_size"] == []
    assert found["trainer.threads"]
    machine.most = None
    assert machine.tried(windows=15)["loader.batch_size"] == []
    assert machine.tried(windows=16)["loader.batch_size"]


@pytest.mark.parametrize("fixed_s", [0.01, 1.0, 2.0, 20.0])
def test_a_trial_ends_with_its_time_or_is_not_begun(fixed_s: float, machine: Machine) -> None:
    machine.fixed_s = fixed_s
    assert bool(machine.tried()["trainer.threads"]) == (fixed_s < 3)
    assert machine.time.now < 2 * (BUDGET_S + 4 * fixed_s)


def test_a_real_learner_is_tried(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "BLOCK_S", 0.001)
    monkeypatch.setattr(trials, "usable_cores", lambda: 2)
    threads, batch = try_settings(learner(MODELS["linear"].load()(network())), example(), lambda: None)
    assert (threads.setting, threads.value, torch.get_num_threads()) == ("trainer.threads", 2, 1)
    assert (batch.setting, batch.value) == ("loader.batch_size", 16)
    assert all(0 < each.low <= each.gain <= each.high for each in (threads, batch))


@pytest.mark.parametrize(("low", "worth"), [(1.2, True), (1.04, False), (None, False)])
def test_a_gain_that_may_be_none_is_not_the_best(low: float | None, worth: bool) -> None:
    assert (best_trial([Trial(1.5, low, 9.0, "trainer.threads", 4)], "trainer.threads") is not None) == worth
    assert best_trial([], "trainer.threads") is None


# Two ways in turns


def test_the_gain_of_numbers_on_paper() -> None:
    found = mean_gain([2, 2, 2, 4, 4, 4])
    assert found.gain == pytest.approx(2**1.5)
    assert 2 <= found.low < found.gain < found.high <= 4


@pytest.mark.parametrize("count", [1, 2, 4, 5, 6])
def test_few_gains_have_no_interval(count: int) -> None:
    found = mean_gain([1.5] * count)
    assert found.gain == pytest.approx(1.5)
    assert (found.low is None) == (found.high is None) == (count < LEAST_DAYS)


@pytest.mark.parametrize("pairs", [6, 8])
def test_the_interval_covers_most_truths(pairs: int) -> None:
    """A bootstrap over so few pairs is narrower than its name: 95 % are 85 % and more."""
    random, covered = np.random.default_rng(pairs), 0
    for _ in range(1000):
        found = mean_gain(3 * np.exp(random.normal(0, 0.05, pairs)))
        covered += found.low <= 3 <= found.high
    assert 0.85 <= covered / 1000 <= 0.95


@pytest.mark.parametrize(("pairs", "wanted"), [(1, "AB"), (2, "ABBA"), (6, "ABBAABBAABBA")])
def test_the_order_is_a_b_b_a(pairs: int, wanted: str) -> None:
    order: list[str] = []
    found = interleaved_ab(lambda: order.append("A") or 3.0, lambda: order.append("B") or 1.0, pairs)
    assert ("".join(order), found.gain) == (wanted, pytest.approx(3))


def test_noise_and_drift_are_seldom_a_gain() -> None:
    """A drift of 6 % over all blocks, and 2 % of noise."""
    random, said = np.random.default_rng(0), 0
    for _ in range(500):
        drift = iter(np.linspace(1, 1.06, 16))

        def run(drift=drift) -> float:
            return float(next(drift) * math.exp(random.normal(0, 0.02)))

        said += interleaved_ab(run, run, 8).is_worth
    assert said == 0


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Gain(1.94, 1.91, 1.97), r"1.94x as fast \(1.91 to 1.97\)"),
        (Gain(0.5, 0.4, 0.8), r"2.00x as slow \(1.25 to 2.50\)"),
        (Gain(1.001, 0.995, 1.006), "no difference .* 0.6 %"),
        (Gain(1.0, 0.8, 1.1), "no difference .* 25.0 %"),
        (Gain(1.0, 1.0, 1.0), "no difference .* 0.0 %"),
        (Gain(0.38, 0.08, 1.9), "not decided, .* 0.08x to 1.90x .*"),
        (Gain(1.6, 0.9, 2.9), "not decided, .* 0.90x to 2.90x .*"),
        (Gain(1.5, None, None), "1.50x as fast, .*"),
    ],
)
def test_a_gain_in_words(found: Gain, words: str) -> None:
    assert re.fullmatch(words, str(found))
