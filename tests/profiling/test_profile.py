"""Where the time went: the partition tiles the window, known waits are found, and what is not measured is null."""

import gc
import json
import math
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from socialx.core import environment
from socialx.core.batch import TrainingBatch
from socialx.dataset.loaders import DeviceLoader
from socialx.profiling import measure
from socialx.profiling.analysis import group_means, outliers, partition
from socialx.profiling.measure import Lengths, device_section
from socialx.profiling.page import page
from socialx.profiling.profile import Profile
from socialx.profiling.sections import LoaderFacts, Operators, Top, Window
from socialx.profiling.tables import detail_rows, operator_waiting
from socialx.training.cuda_graph import WARMUP
from socialx.training.gpu_usage import DeviceSamples, sample_device
from socialx.training.learner import Learner
from tests.commands import SMALL
from tests.fake_nvml import fake_nvml
from tests.fake_time import FakeTime
from tests.networks import CPU, learner, loader
from tests.profiling.test_fluctuation import parts_of
from tests.training.test_process_group import finished, start

PHASES = st.tuples(*[st.floats(0, 2)] * 4)


@given(st.lists(PHASES, min_size=1, max_size=20).filter(lambda steps: sum(map(sum, steps)) > 1e-3))
def test_the_four_parts_tile_the_window(steps: list[tuple[float, ...]]) -> None:
    parts = parts_of(steps)
    assert list(parts.seconds) == ["input", "transfer", "span", "hooks"]
    np.testing.assert_allclose(list(parts.seconds.values()), np.sum(steps, axis=0), atol=1e-9)
    assert (sum(parts.shares.values()), len(parts.step_seconds)) == (pytest.approx(1), len(steps))
    np.testing.assert_allclose(parts.step_seconds, np.sum(steps, axis=1), atol=1e-9)


@pytest.mark.parametrize(
    "wrong", [[], [("fetch", 0.0)], [("fetch", 0.0), ("copy", 1.0)], [("copy", 0.0), ("fetch", 1.0), ("fetch", 2.0)]]
)
def test_marks_without_a_whole_step_are_refused(wrong: list[tuple[str, float]]) -> None:
    with pytest.raises(ValueError, match="from a fetch to a closing fetch"):
        partition(wrong)
    with pytest.raises(ValueError, match="backwards"):
        partition([("fetch", 1.0), ("copy", 0.5), ("fetch", 2.0)])


@given(
    st.lists(st.floats(0.9, 1.1), min_size=8, max_size=60, unique=True),
    st.lists(st.floats(3, 9), max_size=3, unique=True),
)
def test_steps_far_above_the_others_are_named_the_slowest_first(usual: list[float], slow: list[float]) -> None:
    found = outliers(np.array([*usual, *slow]))
    order = sorted(range(len(slow)), key=lambda place: -slow[place])
    assert found[: len(slow)] == [len(usual) + place for place in order]


@pytest.mark.parametrize("values", [[1.0], [2.0] * 30, [1.0, 1.1] * 20, [1.0] * 5 + [0.1]])
def test_even_steps_and_quick_ones_are_not_named(values: list[float]) -> None:
    assert outliers(np.array(values)) == []
    assert len(outliers(np.array([1.0] * 100 + [50.0 + n for n in range(20)]))) == 10


@given(st.lists(st.floats(0, 9), min_size=1, max_size=200), st.integers(1, 50))
def test_neighbours_are_grouped_into_few_points(values: list[float], most: int) -> None:
    size, means = group_means(np.array(values), most)
    assert len(means) <= most
    assert len(means) == -(-len(values) // size)
    assert sum(means[:-1]) * size + means[-1] * (len(values) - size * (len(means) - 1)) == pytest.approx(sum(values))


class SlowLoader(DeviceLoader):
    """0.3 s per batch on a fake clock."""

    time: FakeTime

    def epoch(self, number: int, first_batch: int = 0) -> Iterator[TrainingBatch]:
        for made in super().epoch(number, first_batch):
            self.time.now += 0.3
            yield made


class SlowLearner(Learner):
    """0.7 s per step, of which it computes 0.5 s, and its first two steps ten times as long: a warm-up."""

    time: FakeTime
    after: Callable[[], object]

    def step(self, examples: list[TrainingBatch]) -> Tensor:
        self.time.now += 0.7 if self.steps >= 2 else 7.0
        self.time.used += 0.5
        loss = super().step(examples)
        self.after()
        return loss


def profiled(
    monkeypatch: pytest.MonkeyPatch,
    accumulate: int = 1,
    facts: LoaderFacts | None = None,
    after: Callable[[], object] = lambda: None,
    steps: int = 6,
    warmup_steps: int = 2,
    max_seconds: float = math.inf,
    records: bool = False,
) -> Profile:
    fake = FakeTime(used=0.0)
    monkeypatch.setattr("socialx.training.clock.time", fake)
    monkeypatch.setattr(measure.time, "monotonic", lambda: fake.now)
    data = loader(batch_size=4)  # 404 windows
    data.__class__, data.time = SlowLoader, fake
    made = learner(kind=SlowLearner, accumulate_grad_batches=accumulate)
    made.time, made.after, made.records = fake, after, records
    lengths = Lengths(steps, warmup_steps, 5, trace_steps=0, trials=False, max_seconds=max_seconds)
    return measure.measure(made, data, lengths, facts or LoaderFacts("on_device", 101))


def test_a_known_wait_for_input_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = profiled(monkeypatch)
    assert profile.window == Window(6, pytest.approx(6.0), 2, "host")
    assert (profile.shares.input, profile.shares.span) == (pytest.approx(0.3), pytest.approx(0.7))
    assert (profile.ms_per_step.input, profile.throughput.windows_per_s) == (pytest.approx(300), pytest.approx(4))
    assert profile.throughput.sensor_steps_per_s == pytest.approx(4 * 12 * 5)
    assert (profile.step_ms.p50, profile.step_ms.p95, profile.step_ms.p99) == pytest.approx((1000, 1000, 1000))
    assert (profile.timeline.step_ms, profile.timeline.busy) == (pytest.approx([1000] * 6), pytest.approx([0.7] * 6))


@pytest.mark.parametrize("batches", [1, 3])
def test_forward_backward_and_optimizer_are_an_eager_step(batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fake, made = FakeTime(used=0.0), learner(accumulate_grad_batches=batches)
    monkeypatch.setattr("socialx.training.clock.time", fake)
    for part, seconds in (("_forecast", 1.0), ("_update", 4.0)):
        monkeypatch.setattr(made, part, slow(getattr(made, part), fake, seconds))
    monkeypatch.setattr(Tensor, "backward", slow(Tensor.backward, fake, 2.0))
    parts = measure.measure(made, loader(batch_size=4), Lengths(8, 0, 5, 0, trials=False), LoaderFacts("on_device", 1))
    ms = parts.ms_per_step
    assert (ms.forward, ms.backward, ms.optimizer) == pytest.approx((1000 * batches, 2000 * batches, 4000))
    assert ms.forward + ms.backward + ms.optimizer == pytest.approx(ms.span)
    shown = {name: row for name, *row in detail_rows(parts)}
    assert shown["training step: optimizer"] == pytest.approx([parts.shares.optimizer, 4000])


def slow(work: Callable[..., Any], clock: FakeTime, seconds: float) -> Callable[..., Any]:
    def working(*args: Any) -> Any:
        result = work(*args)
        clock.now += seconds
        return result

    return working


def test_a_recorded_step_is_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = profiled(monkeypatch, records=True)
    assert (profile.shares.forward, profile.shares.backward, profile.shares.optimizer) == (None, None, None)
    assert {"shares.forward", "shares.backward", "shares.optimizer"} <= set(profile.why)
    assert "one launch" in profile.why["shares.forward"]
    assert detail_rows(profile) == []


@pytest.mark.parametrize(("waiting", "sentence"), [(0.5, "In 50."), (0.01, ""), (None, "")])
def test_operators_say_that_their_times_contain_waiting(
    waiting: float | None, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = replace(profiled(monkeypatch), operators=Operators([Top("mm", 1.0, 1.0, 1.0)], waiting))
    assert operator_waiting(profile)[:6] == sentence
    assert ("lacked a core" in page(profile)) is bool(sentence)


def test_a_group_of_batches_counts_all_its_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = profiled(monkeypatch), profiled(monkeypatch, accumulate=2)
    assert (two.throughput.windows_per_s, one.throughput.windows_per_s) == (pytest.approx(8 / 1.3), pytest.approx(4))


def test_a_step_that_does_not_compute_is_seen_to_wait(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    host = profiled(monkeypatch).host
    assert (host.waiting, host.threads) == (pytest.approx(0.2), 1)
    assert host.cores >= 1
    assert host.cores_used > 0


def test_what_other_programs_take_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the two ends of the window, which lasts six seconds."""
    seconds = iter([100.0, 109.0])
    monkeypatch.setattr(measure, "others_cpu_s", lambda: next(seconds))
    found = profiled(monkeypatch)
    assert found.host.others_used == pytest.approx(1.5)
    assert found.as_dict()["host"]["others_used"] == found.value("host.others_used")
    monkeypatch.setattr(measure, "others_cpu_s", lambda: None)
    assert profiled(monkeypatch).host.others_used is None


def test_cpu_seconds_of_others_are_those_of_the_cores_without_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """In hundredths of a second: two of three cores are ours, and a child counts as this process."""
    files = {
        "/proc/stat": "cpu 9 9 9 9 9 9 9 9 9 9\n"
        + "".join(f"cpu{core} 1000 100 10 99999 88888 1 2 3 0 0\n" for core in range(3))
        + "intr 5 5\n",
        "/proc/77/stat": "77 (a (b) c) R 1 1 1 1 1 1 1 1 1 1 300 200 0 0\n",
    }
    monkeypatch.setattr(environment, "Path", lambda path: types.SimpleNamespace(read_text=lambda: files[path]))
    monkeypatch.setattr(environment.os, "sched_getaffinity", lambda _: {0, 2}, raising=False)
    monkeypatch.setattr(environment.os, "sysconf", lambda _: 100)
    monkeypatch.setattr(environment.os, "times", lambda: (1.0, 2.0, 0.5, 0.25, 999.0))
    monkeypatch.setattr(environment.multiprocessing, "active_children", lambda: [types.SimpleNamespace(pid=77)])
    assert environment.others_cpu_s() == pytest.approx((2 * 1116 - 500) / 100 - 3.75)
    files["/proc/stat"] = "cpu 0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n"
    monkeypatch.setattr(environment.multiprocessing, "active_children", list)
    assert environment.others_cpu_s() is None  # a sandbox that counts nothing


@pytest.mark.parametrize(("most_s", "steps"), [(1e9, 20), (11.5, 12), (3.0, 8), (0.1, 8)])
def test_the_measurement_ends_with_its_time(most_s: float, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second of each step; of eight at least, however slow they are."""
    told = []
    monkeypatch.setattr(measure, "note", told.append)
    made = profiled(monkeypatch, steps=20, max_seconds=most_s)
    assert made.window.steps == len(made.timeline.step_ms) == steps
    assert made.window.seconds == pytest.approx(steps)
    fewer = [("profile.steps", f"{steps} of 20 ")] if steps < 20 else []
    assert [(each.code, each.problem.partition("steps")[0]) for each in told] == fewer


@pytest.mark.parametrize(
    ("asked", "records", "taken"),
    [(10, False, 2), (1, False, 1), (0, True, WARMUP + 1)],  # slow steps, of 7 s each; a recording is made before
)
def test_a_slow_warm_up_is_cut_and_said(asked: int, records: bool, taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert profiled(monkeypatch, steps=5, warmup_steps=asked, records=records).window.warmup_steps == taken


@pytest.mark.slow
def test_the_garbage_collector_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    callbacks = len(gc.callbacks)
    gc.disable()
    try:
        quiet, busy = (profiled(monkeypatch, after=after, steps=2).host for after in (lambda: None, gc.collect))
    finally:
        gc.enable()
    assert quiet.gc == 0
    assert busy.gc > 0
    assert len(gc.callbacks) == callbacks


@pytest.mark.parametrize("leak", [0, 1 << 20])
def test_memory_that_grows_is_measured(leak: int, monkeypatch: pytest.MonkeyPatch) -> None:
    used = iter(range(1 << 30, 1 << 40, leak or 1))
    monkeypatch.setattr(measure, "used_bytes", lambda _: next(used) if leak else 1 << 30)
    monkeypatch.setattr(measure, "LOOK_S", -1.0)  # the steps take no time
    memory = profiled(monkeypatch, steps=20).memory
    assert (memory.growth_bytes_per_step, memory.monotone) == (pytest.approx(leak), 1)
    assert 0 < memory.peak_bytes < memory.capacity_bytes


def test_the_peak_of_a_replayed_step_is_the_pool_of_its_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    card = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 10)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _: 90)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda _: {})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: types.SimpleNamespace(total_memory=100))
    assert measure._memory(card, [], 1, records=False).peak_bytes == 10
    assert measure._memory(card, [], 1, records=True).peak_bytes == 90


def test_models_that_are_compiled_meanwhile_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.utils import counters

    def compiles() -> None:
        counters["stats"]["unique_graphs"] += 1

    assert (profiled(monkeypatch).recompiles, profiled(monkeypatch, after=compiles).recompiles) == (0, 6)


# 6 s with 0.7 s of a step each: the workers would offer as many batches as they make in 0.7 s for each that is taken.
@pytest.mark.parametrize(
    ("facts", "making_s", "supply"),
    [
        (LoaderFacts("workers", 101, num_workers=4), 1.4, 2.0),
        (LoaderFacts("workers", 101, num_workers=1, prefetch_factor=2), 1.4, 0.5),
        (LoaderFacts("workers", 101, num_workers=0), 0.35, 2.0),
        (LoaderFacts("sharded", 101, batches_per_shard=8.0), 0.175, 4.0),
    ],
)
def test_what_the_loader_offers_is_measured(
    facts: LoaderFacts, making_s: float, supply: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = 1.4 if facts.mode == "sharded" or facts.num_workers else 0.35
    plain = SlowLoader.epoch

    def epoch(self: SlowLoader, number: int, first_batch: int = 0) -> Iterator[TrainingBatch]:
        for made in plain(self, number, first_batch):
            self.making_s.append(measured)
            yield made

    monkeypatch.setattr(SlowLoader, "epoch", epoch)
    found = profiled(monkeypatch, facts=facts).loader
    assert (found.making_s, found.supply) == (pytest.approx(making_s), pytest.approx(supply))
    assert found.late == (1.0 if facts.num_workers in (0, None) else None)


def test_every_section_has_its_numbers_or_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = replace(profiled(monkeypatch), settings={"loader": {"mode": "sharded"}})
    found = profile.as_dict()
    nulls = {name for name, value in found.items() if value is None}
    nulls |= {f"shares.{name}" for name, value in found["shares"].items() if value is None}
    assert nulls == set(found["why"]) == set(profile.why)
    assert found["schema"] == "socialx.profile/4"
    json.dumps(found, allow_nan=False)
    assert profile.value("shares.input") == profile.shares.input
    assert profile.value("kernels.per_step") is None
    assert (profile.setting("loader.mode"), profile.setting("trainer.seed")) == ("sharded", None)


# What the device says


def test_the_device_is_sampled_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(monkeypatch, "abc")
    with sample_device(torch.device("cuda", 0)) as samples:
        while len(samples.utilisation) < 5:
            pass
    summary = device_section(samples)
    assert (summary.utilisation_min, summary.sm_clock_share) == (0.0, pytest.approx(0.75))
    assert summary.throttled_by is None
    assert samples.why is None


@pytest.mark.parametrize(
    ("bits", "reason"),
    [
        ([0x0, 0x1, 0x2], None),  # idle, and a clock that the user set
        ([0x8], "hardware slowdown"),
        ([0x20, 0x40], "temperature"),
        ([0x80], "power brake"),
        ([0x4, 0x4, 0x0], "power cap"),
        ([0x4, 0x0, 0x0], None),
        ([], None),
    ],
)
def test_why_a_clock_was_lowered_is_told_by_most_samples(bits: list[int], reason: str | None) -> None:
    summary = device_section(DeviceSamples([50.0] * 3, [0.7] * len(bits), bits))
    assert (summary.throttled_by, summary.sm_clock_share) == (reason, pytest.approx(0.7) if bits else None)


def test_a_library_that_tells_no_clock_tells_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(monkeypatch, "abc")
    monkeypatch.delattr(sys.modules["pynvml"], "NVML_CLOCK_SM")
    with sample_device(torch.device("cuda", 0)) as samples:
        while len(samples.utilisation) < 3:
            pass
    summary = device_section(samples)
    assert (summary.sm_clock_share, summary.throttled_by) == (None, None)


def test_no_device_no_library_and_no_card_are_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = []
    with sample_device(CPU) as samples:
        reasons.append(samples.why)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with sample_device(torch.device("cuda", 0)) as samples:
        reasons.append(samples.why)
    fake_nvml(monkeypatch, "other")
    with sample_device(torch.device("cuda", 0)) as samples:
        reasons.append(samples.why)
    assert device_section(samples) is None
    assert [reason.split()[-1] for reason in reasons] == ["device", "nvidia-ml-py", "Found"]


@pytest.mark.slow
def test_the_command_measures_several_processes_and_speaks_once(data: Path, tmp_path: Path) -> None:
    output = tmp_path / "profile.json"
    words = ["profile", "--data", data, "--steps", "3", "--warmup-steps", "1", *SMALL, "--output", output]
    code, out, err = finished(start(sys.executable, "-m", "socialx", *words, "--devices", "2"))
    assert code == 0, err
    assert out.count("3 steps in") == 1
    made = json.loads(output.read_text())
    assert (made["window"]["steps"], made["trials"]) == (3, [])
