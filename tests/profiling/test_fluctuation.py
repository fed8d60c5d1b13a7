"""Stalls that repeat are found with their period and their cause; what does not repeat is none."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from socialx.core.batch import Batch
from socialx.data.series import Series, WindowLayout
from socialx.data.source import Arrays
from socialx.dataset.loaders import WindowOrder, WorkerLoader
from socialx.profiling.analysis import NAMES, Partition, bin_seconds, busy_bins, find_period, fluctuation, partition
from socialx.profiling.measure import Lengths, clock_sections, measure
from socialx.profiling.rules import with_findings
from socialx.profiling.sections import Fluctuation, LoaderFacts
from socialx.settings.schema import LoaderSettings
from socialx.training.clock import HostClock
from socialx.training.learner import Learner
from tests.networks import CPU, forecaster, learner, loader, speeds

PHASES = ("fetch", "copy", "compute", "done")
STEP_S = 0.05


def parts_of(steps: Iterable[tuple[float, ...]]) -> Partition:
    """Steps as seconds of input, transfer, span and hooks."""
    at, made = 0.0, []
    for durations in steps:
        for name, seconds in zip(PHASES, durations, strict=True):
            made.append((name, at))
            at += seconds
    return partition([*made, ("fetch", at)])


def of_signal(busy: np.ndarray, dt: float = 0.25) -> Partition:
    """A step per value: so much of it busy, the rest a wait for input."""
    busy = np.clip(busy, 0, 1)
    return parts_of((dt * (1 - share), 0.0, dt * share, 0.0) for share in busy.tolist())


def square(
    period_s: float, duty: float, seconds: float, jitter: float = 0.0, seed: int = 0, step_s: float = STEP_S
) -> Partition:
    """Times of training steps, each followed by a stall: one period, whose length varies."""
    random, steps, at = np.random.default_rng(seed), [], 0.0
    while at < seconds:
        long = period_s * (1 + jitter * random.uniform(-1, 1))
        count = max(1, round(duty * long / step_s))
        busy = [(0.0, 0.0, duty * long / count, 0.0)] * count
        steps += [((1 - duty) * long, *busy[0][1:]), *busy[1:]]
        at += long
    return parts_of(steps)


@pytest.mark.parametrize("jitter", [0.0, 0.05, 0.1])
@pytest.mark.parametrize("duty", [0.3, 0.5, 0.7])
@pytest.mark.parametrize("period_s", [1.0, 4.0, 9.5])
def test_nearly_every_stall_that_repeats_is_found(period_s: float, duty: float, jitter: float) -> None:
    """Three periods are in the window where they are longest."""
    right = 0
    for seed in range(40):
        found = fluctuation(square(period_s, duty, 30.0, jitter, seed), {})
        assert found.swing_pp >= 90
        right += found.period_s is not None and abs(found.period_s / period_s - 1) <= 0.1
    assert right >= 36


@given(period=st.floats(7, 60), phase=st.floats(0, 6))
def test_the_period_of_a_wave_is_found_between_two_bins(period: float, phase: float) -> None:
    """A straight line below it is no matter."""
    at = np.arange(600)
    found, strength = find_period(0.5 + 0.5 * np.sin(2 * np.pi * at / period + phase) + at / 300)
    assert found == pytest.approx(period, rel=0.02)
    assert strength > 0.9


@pytest.mark.parametrize("bins", [4.5, 5.0, 5.5, 6.0, 6.5])
@pytest.mark.parametrize("workers", [3, 4])
def test_a_period_of_few_bins_is_not_taken_twice(workers: int, bins: float) -> None:
    """Workers in lock-step, whose period is so many times a step of 0.1 s: a bin holds one step."""
    step = (0.0, 0.0, 0.1, 0.0)
    first = (0.1 * (bins - workers), *step[1:])
    found = fluctuation(parts_of([first, *[step] * (workers - 1)] * 60), {"loader.num_workers": workers})
    assert (found.period_s, found.cause) == (pytest.approx(0.1 * bins, rel=0.1), "loader.num_workers")


def noise(random: np.random.Generator) -> np.ndarray:
    return random.random(120)


def wandering(random: np.random.Generator) -> np.ndarray:
    """A first-order autoregression of 0.9."""
    made, value = [], 0.0
    for shock in random.standard_normal(120):
        value = 0.9 * value + shock
        made.append(value)
    return 0.5 + 0.2 * np.array(made)


def bursts(random: np.random.Generator) -> np.ndarray:
    """Stalls of random lengths at random times."""
    busy = np.ones(120)
    for begin in random.integers(0, 120, 12):
        busy[begin : begin + random.integers(1, 6)] = 0
    return busy


def ramp(random: np.random.Generator) -> np.ndarray:
    return np.linspace(random.uniform(0, 0.3), random.uniform(0.7, 1), 120) + random.normal(0, 0.02, 120)


def one_stall(random: np.random.Generator) -> np.ndarray:
    busy, begin = np.ones(120), random.integers(0, 100)
    busy[begin : begin + random.integers(5, 30)] = 0
    return busy


def steady(random: np.random.Generator) -> np.ndarray:
    return random.uniform(0.1, 0.95) + random.normal(0, 0.05, 120)


@pytest.mark.parametrize("signal", [noise, wandering, bursts, ramp, one_stall, steady], ids=lambda each: each.__name__)
def test_what_does_not_repeat_has_no_period(signal: Callable[[np.random.Generator], np.ndarray]) -> None:
    found = [fluctuation(of_signal(signal(np.random.default_rng(seed))), {}) for seed in range(200)]
    assert sum(each.period_s is not None for each in found) <= 5


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_few_steps_have_no_period(count: int) -> None:
    found = fluctuation(parts_of([(0.5, 0.0, 0.5, 0.0)] * count), {"anything": 1.0})
    assert (found.period_s, found.strength, found.steps_per_period, found.cause) == (None, None, None, None)
    assert found.mean == pytest.approx(0.5)


@pytest.mark.parametrize("signal", [[], [0.5], [0.0] * 50, [1.0] * 50, [0.0, 1.0], [0.0, 1.0] * 4])
def test_signals_without_a_period(signal: list[float]) -> None:
    assert find_period(np.array(signal)) == (None, 0.0)


# Bins

DURATIONS = st.lists(st.tuples(*[st.sampled_from([0.0, 0.01, 0.05, 0.125, 0.5, 1.0])] * 4), min_size=1, max_size=30)


@pytest.mark.slow
@given(DURATIONS, st.sampled_from([0.01, 0.03, 0.1, 0.37, 1.0]))
def test_busy_bins_are_what_counting_gives(steps: list[tuple[float, ...]], bin_s: float) -> None:
    assume(sum(map(sum, steps)) >= bin_s)
    parts = parts_of(steps)
    found = busy_bins(parts, bin_s)
    idle = []
    for (name, begin), end in zip(zip(parts.kinds, parts.at, strict=True), parts.at[1:], strict=False):
        if NAMES[name] in ("fetch", "done"):
            idle.append((begin, end))
    for number, share in enumerate(found):
        low, high = number * bin_s, (number + 1) * bin_s
        lost = sum(max(0.0, min(high, end) - max(low, begin)) for begin, end in idle)
        assert share == pytest.approx(1 - lost / bin_s, abs=1e-6)
    assert len(found) == pytest.approx(parts.wall / bin_s, abs=1)
    assert len(found) <= parts.wall / bin_s + 1e-6


@pytest.mark.parametrize("step_s", [1e-4, 1e-3, 5e-3])
def test_a_window_shorter_than_a_bin_is_as_busy_as_it_was(step_s: float) -> None:
    found = fluctuation(parts_of([(0.4 * step_s, 0.0, 0.5 * step_s, 0.1 * step_s)] * 3), {})
    assert found.mean == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("step_s", "steps", "bin_s"),
    [
        (2.0, 20, 2.0),
        (0.03, 100, 0.03),
        (1e-3, 20_000, 0.04),
        (1e-3, 100_000, 0.1),
        (1e-4, 2000, 0.02),
        (0.5, 60_000, 1.5),
    ],
)
def test_bins_hold_the_median_step_and_are_not_too_many(step_s: float, steps: int, bin_s: float) -> None:
    at = step_s * np.arange(steps + 1)
    assert bin_seconds(Partition(at, np.zeros(steps + 1, np.int64))) == pytest.approx(bin_s)


# Causes


@pytest.mark.parametrize(
    ("every", "cause"),
    [
        ({"loader.num_workers": 8.0, "an epoch": 8.0}, "loader.num_workers"),
        ({"loader.num_workers": 4.0, "an epoch": 8.0}, "an epoch"),
        ({"trainer.log_every_n_steps": 7.4, "an epoch": 8.7}, "trainer.log_every_n_steps"),
        ({"loader.shard_gb": 7.0, "loader.num_workers": 16.0}, None),
        ({}, None),
    ],
)
def test_the_cause_has_as_many_steps_as_a_period(every: dict[str, float], cause: str | None) -> None:
    stall, step = (0.8, 0.0, 0.1, 0.0), (0.0, 0.0, 0.1, 0.0)
    found = fluctuation(parts_of([stall, *[step] * 7] * 20), every)
    assert (found.period_s, found.steps_per_period) == (pytest.approx(1.6, rel=0.02), pytest.approx(8, rel=0.02))
    assert found.cause == cause


def profiled(parts: Partition, facts: LoaderFacts, every: int = 50, batches: int = 1) -> Fluctuation:
    """What a profile says of these steps."""
    return clock_sections(HostClock(), parts, loader(), Lengths(9, 0, every, batches=batches), facts).fluctuation


class Marked(HostClock):
    """A clock that read the marks of a partition, and no CPU time."""

    def cpu_seconds(self) -> list[float] | None:
        return None


@pytest.mark.parametrize(
    ("facts", "every", "batches", "cause"),
    [
        (LoaderFacts("workers", 1000, num_workers=8), 50, 1, "loader.num_workers"),
        (LoaderFacts("workers", 1000, num_workers=16), 50, 2, "loader.num_workers"),
        (LoaderFacts("sharded", 1000, batches_per_shard=8.2), 50, 1, "loader.shard_gb"),
        (LoaderFacts("on_device", 1000), 8, 1, "trainer.log_every_n_steps"),
        (LoaderFacts("on_device", 8), 50, 1, "epoch"),
        (LoaderFacts("on_device", 16), 50, 2, "epoch"),
        (LoaderFacts("on_device", 1000, num_workers=8), 50, 1, None),
    ],
)
def test_the_setting_that_has_the_period_is_named(
    facts: LoaderFacts, every: int, batches: int, cause: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.HostClock", Marked)
    stall, step = (0.8, 0.0, 0.1, 0.0), (0.0, 0.0, 0.1, 0.0)
    found = profiled(parts_of([stall, *[step] * 7] * 20), facts, every, batches).cause
    assert (found and found.split()[-1]) == cause


# With real workers

WORKERS, MAKING_S, COMPUTING_S = 4, 0.5, 0.03


class SlowSeries(Series):
    """Needs half a second for each batch."""

    def window(self, starts: Tensor) -> Batch:
        time.sleep(MAKING_S)
        return super().window(starts)


class SleepingLearner(Learner):
    """A step of 30 ms that needs no core."""

    def step(self, examples: Any) -> Tensor:
        time.sleep(COMPUTING_S)
        self.steps += 1
        return torch.zeros(())


def starved() -> WorkerLoader:
    """Four workers that all begin at once and are as slow as each other; each batch is cut from one page."""
    values, valid, seconds = speeds(700, 3)
    source = Arrays(values[..., None], valid[..., None], seconds)

    def part(rows: slice) -> Series:
        return SlowSeries(source, WindowLayout(12, 12), CPU, rows=slice(rows.start, min(rows.stop, 700)))

    how = LoaderSettings(num_workers=WORKERS, shard_gb=2**-11)
    return WorkerLoader(part, 24, CPU, how, WindowOrder(np.arange(600), batch_size=4))


@pytest.mark.slow
def test_workers_in_lock_step_are_found_by_their_number() -> None:
    made_of = starved()
    facts = LoaderFacts("workers", len(made_of), WORKERS, 2, series_bytes=1 << 20, free_bytes=1 << 30)
    lengths = Lengths(40, 8, 1000, trace_steps=0, trials=False)
    profile = with_findings(measure(learner(forecaster(3, social=0), SleepingLearner), made_of, lengths, facts))
    found = profile.fluctuation
    cycle = WORKERS * profile.window.seconds / profile.window.steps  # 0.5 s, and more on a machine that is busy
    assert found.period_s == pytest.approx(cycle, rel=0.1)
    assert 0.9 * MAKING_S < found.period_s < 2 * MAKING_S
    assert (found.steps_per_period, found.cause) == (pytest.approx(WORKERS, rel=0.1), "loader.num_workers")
    assert profile.shares.input > 0.5
    assert profile.loader.making_s > 0.95 * MAKING_S
    assert profile.loader.supply < 1.1
    assert (profile.verdict, profile.findings[0].rule) == ("INPUT-BOUND", "loader.late")
    assert {finding.rule for finding in profile.findings} >= {"fluctuation.periodic"}
