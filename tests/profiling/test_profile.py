"""Where the time went: the partition tiles the window, known waits are found, and what is not measured is null."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from socialx.batch import Example
from socialx.data.loaders import ResidentLoader
from socialx.precision import Precision
from socialx.profiling import device, measure
from socialx.profiling.analysis import partition, quantile, variation
from socialx.profiling.profile import Profile, Window
from socialx.training.learner import Learner
from tests.networks import CPU, forecaster, loader

PHASES = st.tuples(*[st.floats(0, 2)] * 4)


def marks(steps: list[tuple[float, ...]]) -> list[tuple[str, float]]:
    at, made = 0.0, []
    for durations in steps:
        for name, seconds in zip(("fetch", "copy", "compute", "done"), durations, strict=True):
            made.append((name, at))
            at += seconds
    return [*made, ("fetch", at)]


@given(st.lists(PHASES, min_size=1, max_size=20).filter(lambda steps: sum(map(sum, steps)) > 1e-3))
def test_the_four_parts_tile_the_window(steps: list[tuple[float, ...]]) -> None:
    parts = partition(marks(steps))
    assert list(parts.seconds) == ["input", "transfer", "span", "hooks"]
    np.testing.assert_allclose(list(parts.seconds.values()), np.sum(steps, axis=0), atol=1e-9)
    assert sum(parts.shares.values()) == pytest.approx(1)
    assert len(parts.step_seconds) == len(steps)
    np.testing.assert_allclose(parts.step_seconds, np.sum(steps, axis=1), atol=1e-9)


@pytest.mark.parametrize(
    "wrong", [[], [("fetch", 0.0)], [("fetch", 0.0), ("copy", 1.0)], [("copy", 0.0), ("fetch", 1.0), ("fetch", 2.0)]]
)
def test_marks_without_a_whole_step_are_refused(wrong: list[tuple[str, float]]) -> None:
    with pytest.raises(ValueError, match="from a fetch to a closing fetch"):
        partition(wrong)


def test_marks_that_run_backwards_are_refused() -> None:
    with pytest.raises(ValueError, match="backwards"):
        partition([("fetch", 1.0), ("copy", 0.5), ("fetch", 2.0)])


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50), st.floats(0, 1))
def test_quantiles_are_numpys(values: list[float], share: float) -> None:
    assert quantile(values, share) == pytest.approx(np.quantile(values, share), abs=1e-9)


def test_variation_is_deviation_over_mean() -> None:
    assert variation([1, 2, 3, 6]) == pytest.approx(np.std([1, 2, 3, 6]) / 3)
    assert variation([0, 0]) == 0


class FakeTime:
    """A clock that moves only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class SlowLoader(ResidentLoader):
    """0.3 s per batch on a fake clock."""

    time: FakeTime

    def epoch(self, number: int, first_batch: int = 0) -> Iterator[Example]:
        for made in super().epoch(number, first_batch):
            self.time.now += 0.3
            yield made


class SlowLearner(Learner):
    """0.7 s per step, and its first two steps ten times as long: a warm-up."""

    time: FakeTime

    def step(self, examples: list[Example]) -> Tensor:  # type: ignore[override]
        self.time.now += 0.7 if self.steps >= 2 else 7.0
        return super().step(examples)


def profiled(monkeypatch: pytest.MonkeyPatch, accumulate: int = 1) -> Profile:
    fake = FakeTime()
    monkeypatch.setattr("socialx.training.clock.time", fake)
    data = loader(batch_size=101)  # 404 windows: 4 batches per epoch
    data.__class__, data.time = SlowLoader, fake  # type: ignore[assignment, attr-defined]
    options = {"learning_rate": 1e-3, "weight_decay": 0.0, "total_steps": 9, "accumulate_grad_batches": accumulate}
    made = SlowLearner(forecaster(social=0), Precision("32-true", CPU), **options)  # type: ignore[arg-type]
    made.time = fake
    return measure.measure(made, data, steps=6, warmup_steps=2, log_every_n_steps=5)


def test_a_known_wait_for_input_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = profiled(monkeypatch)
    assert profile.window == Window(6, pytest.approx(6.0), 2, "host")  # type: ignore[arg-type]
    assert profile.shares.input == pytest.approx(0.3)
    assert profile.shares.span == pytest.approx(0.7)
    assert profile.ms_per_step.input == pytest.approx(300)
    assert profile.throughput.windows_per_s == pytest.approx(101)
    assert profile.step_ms.p95 == pytest.approx(1000)


def test_a_group_of_batches_counts_all_its_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = profiled(monkeypatch, accumulate=2)
    assert profile.throughput.windows_per_s == pytest.approx(202 / 1.3)


def test_what_is_not_measured_is_null_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = profiled(monkeypatch)
    found = profile.as_dict()
    nulls = {name for name, value in found.items() if value is None}
    nulls |= {f"shares.{name}" for name, value in found["shares"].items() if value is None}
    assert nulls == set(found["why"]) == set(profile.why)


def fake_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = types.ModuleType("pynvml")
    readings = iter(range(1000))

    class NVMLError(Exception):
        pass

    def by_uuid(uuid: str) -> str:
        if uuid != "GPU-abc":
            raise NVMLError("Not Found")
        return "handle"

    nvml.NVMLError, nvml.nvmlInit, nvml.nvmlDeviceGetHandleByUUID = NVMLError, lambda: None, by_uuid  # type: ignore[attr-defined]
    nvml.nvmlDeviceGetUtilizationRates = lambda _: types.SimpleNamespace(gpu=10 * (next(readings) % 10))  # type: ignore[attr-defined]
    nvml.nvmlDeviceGetMemoryInfo = lambda _: types.SimpleNamespace(used=5 << 30)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(device, "INTERVAL_S", 0.001)


def properties(monkeypatch: pytest.MonkeyPatch, uuid: str) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: types.SimpleNamespace(uuid=uuid))


def test_the_device_is_sampled_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(monkeypatch)
    properties(monkeypatch, "abc")
    with device.sampling(torch.device("cuda", 0)) as samples:
        while len(samples.utilisation) < 5:
            pass
    summary = samples.summary()
    assert summary is not None
    assert summary.samples >= 5
    assert summary.utilisation_min == 0.0
    assert summary.used_bytes_max == 5 << 30
    assert samples.why is None


def test_no_device_no_library_and_no_card_are_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = []
    with device.sampling(CPU) as samples:
        reasons.append(samples.why)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with device.sampling(torch.device("cuda", 0)) as samples:
        reasons.append(samples.why)
    fake_nvml(monkeypatch)
    properties(monkeypatch, "other")
    with device.sampling(torch.device("cuda", 0)) as samples:
        reasons.append(samples.why)
    assert samples.summary() is None
    assert reasons == ["no CUDA device", "nvidia-ml-py is not installed: pip install 'socialx[gpu]'", "NVML: Not Found"]
