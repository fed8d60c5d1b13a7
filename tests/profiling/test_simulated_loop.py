"""The simulated loop is right where the answer is known on paper."""

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulated_loop import NEVER, REMOVED, US, Loop, draw, gains, profile_of, run, trace_of, truth
from socialx.profiling.analysis import partition

FREE = Loop(making_s=0.0, log_every=NEVER, kernels=100)  # the loader and the hooks cost nothing
COMPUTE_S = 100 * 100 * US
FIRST_S = 5 * US  # until the first kernel is launched
LATENCY_S = 20 * US  # of a wait


def shares(loop: Loop) -> dict[str, float]:
    return partition(run(loop).marks).shares


def spent(loop: Loop) -> dict[str, float]:
    """Shares of the training steps' device time by cause, as they are read from the trace."""
    return trace_of(loop).span


def test_a_loop_that_nothing_holds_up_takes_as_long_as_its_kernels() -> None:
    assert (run(FREE).step_s, spent(FREE)["kernel"]) == (pytest.approx(COMPUTE_S), pytest.approx(1, abs=1e-3))
    assert truth(FREE) == ("healthy", pytest.approx(1))


@settings(max_examples=10)
@given(st.floats(1e-3, 0.2), st.integers(1, 150), st.floats(5, 500))
def test_an_inline_loader_behind_a_wait_adds_its_seconds(making_s: float, kernels: int, kernel_us: float) -> None:
    loop = replace(FREE, mode="inline", making_s=making_s, kernels=kernels, kernel_us=kernel_us, log_every=1)
    step_s = LATENCY_S + making_s + FIRST_S + kernels * kernel_us * US
    assert (run(loop).step_s, shares(loop)["input"]) == (pytest.approx(step_s), pytest.approx(making_s / step_s))
    assert shares(loop)["hooks"] == pytest.approx(LATENCY_S / step_s)


def test_a_wait_exposes_a_hidden_loader_and_both_removals_gain() -> None:
    hidden = replace(FREE, mode="inline", making_s=0.5 * COMPUTE_S)
    assert truth(hidden)[0] == "healthy"
    gained = gains(replace(hidden, syncs=1))
    assert (gained["SYNC"], gained["INPUT"]) == (pytest.approx(1.5, rel=0.01), pytest.approx(1.5, rel=0.01))
    assert max(gained["COPY"], gained["LAUNCH"], gained["HOOK"]) < 1.01


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 1), (1, 8), (4, 2), (5, 1)])
def test_starved_workers_set_the_pace_whatever_is_prefetched(workers: int, prefetch: int) -> None:
    loop = replace(FREE, num_workers=workers, prefetch_factor=prefetch, making_s=2 * workers * COMPUTE_S)
    assert run(loop).step_s == pytest.approx(2 * COMPUTE_S)
    assert (shares(loop)["input"], truth(loop)) == (pytest.approx(0.5, rel=0.01), ("INPUT", pytest.approx(2)))
    loader = profile_of(loop).loader
    assert (loader.making_s, loader.supply) == (pytest.approx(2 * workers * COMPUTE_S), pytest.approx(0.5, rel=0.01))


@pytest.mark.slow
@settings(max_examples=10)
@given(st.integers(20, 150), st.floats(1, 10), st.floats(0.1, 0.99))
def test_short_kernels_take_as_long_as_their_launches(kernels: int, launch_us: float, part: float) -> None:
    loop = replace(FREE, kernels=kernels, launch_us=launch_us, kernel_us=part * launch_us)
    assert run(loop).step_s == pytest.approx(kernels * launch_us * US)
    assert gains(loop)["LAUNCH"] == pytest.approx(1 / part)
    assert spent(loop)["launch"] == pytest.approx(1 - part, abs=2 / kernels)


@pytest.mark.parametrize(
    ("change", "cause", "share"),
    [
        ({"launch_us": 10, "kernel_us": 4}, "late", 0.6),
        ({"num_workers": 1, "making_s": 2 * COMPUTE_S}, "input", 0.5),
        ({"syncs": 50}, "sync", 50 * (LATENCY_S + FIRST_S) / (COMPUTE_S + 50 * (LATENCY_S + FIRST_S))),
        ({"hook_every": 1, "hook_s": 0.1}, "hooks", 1 - COMPUTE_S / (0.1 + 100 * FIRST_S)),
        ({}, "whole", 0.0),
    ],
)
def test_the_time_without_a_kernel_goes_to_its_cause(change: dict[str, Any], cause: str, share: float) -> None:
    idle = profile_of(replace(FREE, **{"making_s": 1e-9, **change})).idle
    assert getattr(idle, cause) == pytest.approx(share, abs=0.01)
    assert idle.whole == pytest.approx(share, abs=0.02)  # and to nothing else


@pytest.mark.slow
@settings(max_examples=4)
@given(st.floats(1e-5, 0.05))
def test_a_pinned_copy_adds_its_seconds_and_a_pageable_one_holds_the_host_up(copy_s: float) -> None:
    pinned = replace(FREE, copy_s=copy_s)
    assert run(pinned).step_s == pytest.approx(COMPUTE_S + copy_s)
    pageable = replace(pinned, pin_memory=False)
    assert run(pageable).step_s == pytest.approx(COMPUTE_S + copy_s + FIRST_S)
    assert shares(pageable)["transfer"] == pytest.approx(copy_s / (COMPUTE_S + copy_s + FIRST_S))
    assert [trace.copy and trace.copy.pageable for trace in (trace_of(pinned), trace_of(pageable))] == [False, True]


def test_draws_are_reproducible_and_their_causes_are_causes() -> None:
    loops = [draw(Random(seed)) for seed in range(30)]
    assert loops == [draw(Random(seed)) for seed in range(30)]
    assert {loop.mode for loop in loops} == {"inline", "workers", "on_device"}
    gained = [gains(loop) for loop in loops]
    # Without a cause no loop is slower, but for the ends of its window.
    assert min(gain for each in gained for gain in each.values()) > 0.97
    largest = Counter(max(each, key=lambda family: each[family]) for each in gained if max(each.values()) >= 1.05)
    assert set(largest) == set(REMOVED)
    assert 5 <= sum(largest.values()) <= 27
