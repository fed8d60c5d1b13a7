"""Settings that are tried: the faster number of threads, and a batch that leaves little to what does not grow.

Two ways in turns: the gain, its interval, and what drifts cancels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from socialx.core.batch import TrainingBatch
from socialx.profiling import trials
from socialx.profiling.profile import Gain, Trial, best_trial
from socialx.profiling.trials import BUDGET_S, T_99, enough, gain, interleaved_ab, try_settings
from socialx.settings.kinds import MODELS
from tests.networks import example, learner, network

CORES = 4


@pytest.mark.parametrize(
    ("gain", "tried", "times"),
    [(0.9, 2, 2), (1, 2, 2), (1.05, 2, 2), (1.2, 2, 8), (1.5, 2, 32), (2, 2, 64), (1, 8, 2), (1.2, 8, 4), (7.9, 8, 64)],
)
def test_enough_of_known_gains(gain: float, tried: int, times: int) -> None:
    assert enough(gain, tried) == times


class Machine:
    """A step takes ``fixed_s + window_s`` x windows, and more with a number of threads that does not suit it."""

    def __init__(self, fixed_s: float = 0.0, window_s: float = 0.01, best: int | None = None) -> None:
        self.fixed_s, self.window_s, self.best = fixed_s, window_s, best
        self.now = 1
        self.calls: list[tuple[int, int]] = []  # threads and windows of each step
        self.windows = self.batch = self.groups = 0
        self.per_batch = 0  # 1: the fixed time is that of each batch of a step, 0: of the step
        self.most: int | None = None  # windows that fit into the memory
        self.out_of_memory: RuntimeError = torch.OutOfMemoryError("CUDA out of memory")
        self.odd: dict[int, float] = {}  # how many times as long a step with batches of so many windows takes
        self.noise: Callable[[int], float] = lambda threads: 1.0
        self.spent = 0.0

    def set_threads(self, count: int) -> None:
        self.now = count

    def timed(self, run: Callable[[], object], device: torch.device) -> float:
        run()
        self.calls.append((self.now, self.windows))
        slow = 1.0 if self.best is None else 1 + abs(self.now - self.best)
        slow *= self.odd.get(self.batch, 1.0) * self.noise(self.now)
        seconds = slow * (self.fixed_s * self.groups**self.per_batch + self.window_s * self.windows)
        self.spent += seconds
        return seconds

    def step(self, group: list[TrainingBatch]) -> None:
        self.windows, self.groups = sum(len(each.batch.inputs) for each in group), len(group)
        self.batch = len(group[0].batch.inputs)
        if self.most is not None and max(len(each.batch.inputs) for each in group) > self.most:
            raise self.out_of_memory

    def learner(self, accumulate: int = 1, eager: bool = True, device: str = "cpu") -> Any:
        """What a trial needs of one."""
        precision = SimpleNamespace(device=torch.device(device))
        return SimpleNamespace(
            step=self.step, precision=precision, accumulate_grad_batches=accumulate, eager=eager, model=None
        )


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Four cores, one thread now, and a clock of its own."""
    return faked(monkeypatch)


def faked(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(trials, "time_call", made.timed)
    monkeypatch.setattr(torch, "set_num_threads", made.set_threads)
    monkeypatch.setattr(torch, "get_num_threads", lambda: made.now)
    monkeypatch.setattr(trials, "usable_cores", lambda: CORES)
    return made


def tried(machine: Machine, setting: str, batch_size: int = 4, **options: Any) -> list[Trial]:
    """The trials of one setting."""
    found = try_settings(machine.learner(**options), example(batch_size=batch_size), lambda: None)
    return [each for each in found if each.setting == setting]


@pytest.mark.parametrize(("now", "best", "values"), [(1, 4, [4]), (4, 1, [1]), (2, 4, [1, 4]), (9, 4, [1, 4])])
def test_the_faster_number_of_threads_is_found(now: int, best: int, values: list[int], machine: Machine) -> None:
    machine.now, machine.best = now, best
    found = tried(machine, "trainer.threads")
    assert [each.value for each in found] == values
    fastest = max(found, key=lambda each: each.gain)
    assert fastest.value == best
    assert fastest.gain == pytest.approx(1 + abs(now - best))
    assert fastest.low == pytest.approx(fastest.gain) == fastest.high
    assert machine.now == now


def test_the_present_number_of_threads_comes_back_when_a_trial_fails(machine: Machine) -> None:
    machine.now, steps = 2, 0
    learner = machine.learner()

    def step(group: list[TrainingBatch]) -> None:
        nonlocal steps
        steps += 1
        if steps > 3:
            raise KeyboardInterrupt

    learner.step = step
    with pytest.raises(KeyboardInterrupt):
        try_settings(learner, example(), lambda: None)
    assert machine.now == 2


def test_threads_of_a_card_are_not_tried(machine: Machine) -> None:
    machine.now = 2
    found = try_settings(machine.learner(device="cuda"), example(), lambda: None)
    assert {each.setting for each in found} == {"loader.batch_size"}


def test_a_step_that_grows_with_the_batch_gets_one_trial(machine: Machine) -> None:
    machine.window_s = 0.02
    (found,) = tried(machine, "loader.batch_size")
    assert (found.value, found.gain) == (8, pytest.approx(1))


def test_a_step_that_hardly_grows_gets_a_batch_that_brings_most(machine: Machine) -> None:
    machine.fixed_s, machine.window_s = 0.08, 0.005  # 80 % of a step of four windows do not grow
    twice, enough_ = tried(machine, "loader.batch_size")
    assert (twice.value, twice.gain) == (8, pytest.approx(2 / 1.2))
    assert enough_.value == 4 * 64  # 0.8 / 64 of 0.2125 are 6 %, 0.8 / 32 of 0.225 are 11 %
    assert enough_.gain == pytest.approx(1 / (0.2 + 0.8 / 64))


@pytest.mark.parametrize("accumulate", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("fixed_s", [0.008, 0.8])
def test_a_step_of_several_batches_keeps_its_windows(accumulate: int, fixed_s: float, machine: Machine) -> None:
    machine.fixed_s = fixed_s
    found = tried(machine, "loader.batch_size", accumulate=accumulate)
    assert {windows for _, windows in machine.calls} == {4 * accumulate}
    assert all(each.value <= 4 * accumulate for each in found)


def test_a_compiled_or_recorded_step_gets_no_other_batch(machine: Machine) -> None:
    assert tried(machine, "loader.batch_size", eager=False) == []
    machine.now = 2
    assert tried(machine, "trainer.threads", eager=False) != []
    assert try_settings(machine.learner(eager=False, device="cuda"), example(), lambda: None) == []


@pytest.mark.parametrize(("most", "values"), [(4, []), (7, []), (8, [8]), (300, [8, 256])])
def test_a_batch_that_does_not_fit_ends_the_trials(most: int, values: list[int], machine: Machine) -> None:
    machine.fixed_s, machine.window_s, machine.most = 0.08, 0.005, most
    assert [each.value for each in tried(machine, "loader.batch_size")] == values
    host = "[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory"
    machine.out_of_memory = RuntimeError(host)
    assert [each.value for each in tried(machine, "loader.batch_size")] == values


def test_a_slow_step_is_not_tried_at_all(machine: Machine) -> None:
    machine.now, machine.fixed_s = 2, 20.0
    assert try_settings(machine.learner(), example(), lambda: None) == []
    assert len(machine.calls) == 1


def test_a_batch_of_very_many_bytes_is_not_made(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "MOST_BYTES", sum(tensor.nbytes for tensor in example().batch))
    assert tried(machine, "loader.batch_size") == []


def test_a_real_learner_is_tried(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "BLOCK_S", 0.001)
    monkeypatch.setattr(trials, "LARGEST", 2)
    monkeypatch.setattr(trials, "usable_cores", lambda: 2)
    threads, *batches = try_settings(learner(MODELS["linear"].load()(network())), example(), lambda: None)
    assert (threads.setting, threads.value) == ("trainer.threads", 2)
    assert torch.get_num_threads() == 1
    assert [each.value for each in batches] == [8]
    assert all(0 < each.low <= each.gain <= each.high for each in (threads, *batches))


# What must not hide the better batch


def all_tried(machine: Machine, batch_size: int = 1, **options: Any) -> list[Trial]:
    return try_settings(machine.learner(**options), example(batch_size=batch_size), lambda: None)


@pytest.mark.parametrize("gain", [0.38, 0.55, 0.81, 0.99])
@pytest.mark.parametrize(("accumulate", "first", "last"), [(32, 8, 32), (32, 2, 32), (8, 8, 8), (1, 8, 64), (1, 2, 64)])
def test_a_slow_first_batch_does_not_end_the_trials(
    accumulate: int, first: int, last: int, gain: float, machine: Machine
) -> None:
    """A few windows are slower for each, as with a kernel of another shape, and many are several times as fast."""
    quick = first == 8
    machine.per_batch, machine.fixed_s, machine.window_s = 1, 0.02 if quick else 0.09, 0.001
    if first != last:
        machine.odd = {first: (machine.fixed_s / 1 + 0.001) / (machine.fixed_s / first + 0.001) / gain}
    best = best_trial(all_tried(machine, accumulate=accumulate), "loader.batch_size")
    assert best is not None
    assert best.value >= last / 4
    assert best.gain > 4


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("now", "accumulate"), [(8, 32), (8, 1), (64, 32), (16, 8)])
def test_more_threads_than_cores_hide_no_batch(now: int, accumulate: int, seed: int, machine: Machine) -> None:
    """Threads that have no core of their own wait by chance: their times say little, and are not what is compared."""
    random = Random(seed)
    machine.noise = lambda threads: 1.0 if threads <= CORES else 1.3 * math.exp(random.gauss(0, 0.8))
    machine.now, machine.per_batch, machine.fixed_s, machine.window_s = now, 1, 0.02, 0.001
    found = all_tried(machine, accumulate=accumulate)
    best = best_trial(found, "loader.batch_size")
    assert best is not None
    assert best.gain > 3
    assert best.threads == best.threads_before
    assert best.threads in (1, CORES)
    together = [each for each in found if each.together]
    assert [(each.value, each.threads, each.threads_before) for each in together] == [(best.value, best.threads, None)]
    assert machine.now == now


@pytest.mark.parametrize(("now", "accumulate"), [(8, 32), (8, 4), (4, 32), (2, 1)])
def test_the_best_batch_and_number_of_threads_are_tried_together(now: int, accumulate: int, machine: Machine) -> None:
    machine.now, machine.best, machine.per_batch, machine.fixed_s, machine.window_s = now, 1, 1, 0.02, 0.001
    found = all_tried(machine, accumulate=accumulate)
    alone = best_trial(found, "trainer.threads"), best_trial(found, "loader.batch_size")
    assert [each and (each.value, each.threads) for each in alone] == [(1, None), (alone[1].value, 1)]
    (both,) = [each for each in found if each.together]
    assert both.gain == pytest.approx(alone[0].gain * alone[1].gain)
    assert (both.value, both.threads, both.threads_before) == (alone[1].value, 1, None)


@given(
    st.sampled_from([1, 2, 8, 32, 64]),
    st.floats(0.001, 3),
    st.floats(0.0001, 0.1),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([None, 1, 4]),
)
def test_trials_keep_to_their_time(
    accumulate: int, fixed_s: float, window_s: float, now: int, best: int | None
) -> None:
    """All together end with the budget, but for the block that is under way and one look at each number of threads."""
    with pytest.MonkeyPatch.context() as patch:
        machine = faked(patch)
        machine.now, machine.best, machine.per_batch = now, best, 1
        machine.fixed_s, machine.window_s = fixed_s, window_s
        all_tried(machine, accumulate=accumulate)
        longest = 9 * min(8, accumulate) * (fixed_s + window_s) + 64 * window_s + 1
        assert machine.spent <= BUDGET_S + longest


def test_a_step_of_very_many_slow_batches_is_tried_by_some_of_them(machine: Machine) -> None:
    machine.per_batch, machine.fixed_s, machine.window_s = 1, 0.3, 0.001
    best = best_trial(all_tried(machine, accumulate=64), "loader.batch_size")
    assert best is not None
    assert (best.value, best.gain) == (64, pytest.approx(0.301 / (0.3 / 64 + 0.001)))
    assert max(windows for _, windows in machine.calls) == 64


@pytest.mark.parametrize(
    ("gains", "value"),
    [
        ({2: 1.5, 8: 4.0}, 8),
        ({2: 3.8, 8: 4.0}, 2),
        ({2: 0.5, 64: 6.0, 16: 5.5}, 16),
        ({2: 0.5, 64: 6.0, 16: 5.3}, 64),
        ({2: 1.0}, None),
    ],
)
def test_of_batches_the_smallest_that_brings_most_is_the_best(gains: dict[int, float], value: int | None) -> None:
    made = [Trial("loader.batch_size", size, gain, 0.95 * gain, 1.05 * gain) for size, gain in gains.items()]
    best = best_trial(made, "loader.batch_size")
    assert (best and best.value) == value


def test_a_learner_that_compiles_is_not_eager() -> None:
    assert learner().eager
    assert not learner(compile="default").eager


# Two ways in turns


def density(t: float, degrees: int) -> float:
    """Of Student's t distribution."""
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
    return scale * (1 + t * t / degrees) ** (-(degrees + 1) / 2)


@pytest.mark.parametrize("degrees", range(1, len(T_99) + 1))
def test_the_table_holds_the_quantiles_of_students_t(degrees: int) -> None:
    at = np.linspace(0, T_99[degrees - 1], 20_001)
    within = 2 * np.trapezoid([density(t, degrees) for t in at.tolist()], at)
    assert within == pytest.approx(0.99, abs=1e-4)


def test_the_gain_of_numbers_on_paper() -> None:
    """Logarithms of the ratios 2, 2, 2, 4, 4, 4: mean 1.5 ln 2, deviation ln 2 x sqrt(0.3)."""
    found = gain([2, 4, 6, 8, 4, 4], [1, 2, 3, 2, 1, 1])
    reach = 4.032 * math.log(2) * math.sqrt(0.3 / 6)
    assert found.gain == pytest.approx(2**1.5)
    assert found.low == pytest.approx(2**1.5 * math.exp(-reach))
    assert found.high == pytest.approx(2**1.5 * math.exp(reach))


@pytest.mark.parametrize("pairs", [3, 6, 8])
@pytest.mark.parametrize("truth", [1.0, 1.04, 3.0])
def test_the_interval_covers_the_truth_in_99_of_100_cases(truth: float, pairs: int) -> None:
    random, covered = np.random.default_rng(pairs), 0
    for _ in range(2000):
        before, after = np.exp(random.normal(0, 0.05, (2, pairs)))
        found = gain(truth * before, after)
        covered += found.low <= truth <= found.high
    assert 0.98 <= covered / 2000 <= 0.998


@pytest.mark.parametrize(("pairs", "wanted"), [(1, "AB"), (2, "ABBA"), (6, "ABBAABBAABBA")])
def test_the_order_is_a_b_b_a(pairs: int, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    order = []

    def way(name: str) -> Callable[[], float]:
        return lambda: order.append(name) or float(len(order))

    seen = []
    monkeypatch.setattr("socialx.profiling.trials.gain", lambda before, after: seen.append((before, after)))
    interleaved_ab(way("A"), way("B"), pairs)
    assert "".join(order) == wanted
    ((before, after),) = seen
    assert [wanted[int(at) - 1] for at in before] == ["A"] * pairs
    assert [wanted[int(at) - 1] for at in after] == ["B"] * pairs
    assert all({int(a), int(b)} == {2 * n + 1, 2 * n + 2} for n, (a, b) in enumerate(zip(before, after, strict=True)))


def test_noise_and_drift_are_no_difference() -> None:
    """A drift of 6 % over all blocks, and 2 % of noise."""
    random, said = np.random.default_rng(0), 0
    for _ in range(500):
        drift = iter(np.linspace(1, 1.06, 12))

        def run(drift=drift) -> float:
            return float(next(drift) * math.exp(random.normal(0, 0.02)))

        said += interleaved_ab(run, run, 6).differs
    assert said <= 15


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Gain(1.94, 1.91, 1.97), "1.94x as fast (1.91 to 1.97)"),
        (Gain(0.5, 0.4, 0.8), "2.00x as slow (1.25 to 2.50)"),
        (Gain(1.001, 0.995, 1.006), "no difference larger than 0.6 %"),
        (Gain(1.0, 0.8, 1.1), "no difference larger than 25.0 %"),
        (Gain(1.0, 1.0, 1.0), "no difference larger than 0.0 %"),
        (Gain(0.38, 0.08, 1.9), "not decided, from 0.08x to 1.90x as fast"),
        (Gain(1.6, 0.9, 2.9), "not decided, from 0.90x to 2.90x as fast"),
    ],
)
def test_a_gain_in_words(found: Gain, words: str) -> None:
    assert str(found) == words
    assert found.differs == (("as" in words) and "not decided" not in words)


@pytest.mark.parametrize(
    ("found", "decided"),
    [
        (Gain(6.3, 6.1, 6.5), True),
        (Gain(0.55, 0.53, 0.57), True),
        (Gain(1.0, 0.96, 1.04), True),
        (Gain(0.38, 0.08, 1.9), False),
        (Gain(1.04, 1.01, 1.07), False),
        (Gain(0.81, 0.55, 1.18), False),
    ],
)
def test_a_gain_is_decided_where_it_is_worth_a_change_or_is_not(found: Gain, decided: bool) -> None:
    assert found.is_decided == decided


@pytest.mark.parametrize("last", [2, 3, 6])
def test_blocks_end_when_they_are_enough(last: int) -> None:
    blocks = []
    found = interleaved_ab(
        lambda: blocks.append("A") or 2.0, lambda: blocks.append("B") or 1.0, 6, lambda before, _: len(before) == last
    )
    assert "".join(blocks) == "ABBAABBAABBA"[: 2 * last]
    assert found.gain == pytest.approx(2)
