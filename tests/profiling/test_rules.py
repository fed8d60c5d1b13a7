"""Every rule fires where it should and beside it does not; on simulated loops the first finding is the true cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from socialx.errors import SettingsError
from socialx.options import KEYS, Layers, as_tree
from socialx.profiling.profile import (
    DeviceSummary,
    Finding,
    Fluctuation,
    Host,
    Loading,
    Machine,
    Memory,
    Profile,
    Shares,
    StepTimes,
    Throughput,
    TracedKernels,
    TracedSync,
    Trial,
    Window,
)
from socialx.profiling.rules import FAMILIES, RULES, SEVERITIES, check_names, diagnosed, failing, patch_of
from socialx.profiling.trace import Copy
from socialx.settings import Settings
from tests.profiling.simulated_loop import REMOVED, draw, profile_of, truth

GIB = 1 << 30
STEP_S = 0.1
SITE = "train.py:84"
# What a rule needs beside the clock of the steps.
TRACED = {
    "sync.exposes_loader", "sync.per_step", "launch.bound", "transfer.pageable", "transfer.heavy", "compute.fp32",
    "compute.small", "memory.pressure", "memory.headroom", "clock.throttled", "compile.recompiles",
}  # fmt: skip
# There is nothing that people would try in vain, or any setting may have the period.
NOTHING_IN_VAIN = {"fluctuation.periodic", "memory.headroom", "memory.bound"}


def changed(profile: Profile, changes: Mapping[str, Any]) -> Profile:
    """The profile with other values, by dotted name."""

    def put(holder: Any, path: list[str], value: Any) -> Any:
        name, *rest = path
        if isinstance(holder, dict):
            return {**holder, name: put(holder[name], rest, value) if rest else value}
        return replace(holder, **{name: put(getattr(holder, name), rest, value) if rest else value})

    for key, value in changes.items():
        profile = put(profile, key.split("."), value)
    return profile


def healthy(clock: str = "device") -> Profile:
    """A profile in which nothing can be improved: 100 steps of 0.1 s, four workers that keep up."""
    traced = clock == "device"
    kernels = TracedKernels(1000, 90.0, 0.0, 1000, 0.0, 0.5, [], 8, 1.1)
    return Profile(
        window=Window(100, 100 * STEP_S, 10, clock),
        shares=Shares(0.01, 0.01, 0.97, 0.01, *((0.95, 0.02) if traced else ())),
        ms_per_step=Shares(1.0, 1.0, 97.0, 1.0, *((95.0, 2.0) if traced else ())),
        step_ms=StepTimes(100.0, 101.0, 102.0, 0.01),
        throughput=Throughput(640.0, 1e6, 1e12, None if traced else 1e9),
        gpu_busy=0.96 if traced else None,
        sm_efficiency=0.85 if traced else None,
        bubble={"launch": 0.01, "sync": 0.0, "queued": 0.01, "copy": 0.0, "unknown": 0.0} if traced else None,
        kernels=kernels if traced else None,
        sync=TracedSync(0.0, {}, []) if traced else None,
        copy=Copy(1e6, 20.0, False) if traced else None,
        memory=Memory(60 * GIB, 80 * GIB, 62 * GIB if traced else None, 0 if traced else None, 0.0, 0.5),
        device=DeviceSummary(0.9, 0.8, 1.0, 62 * GIB, 50, 0.98) if traced else None,
        why={},
        loader=Loading("workers", 1000, 4, 2, True, True, None, GIB, 20 * GIB, 0.1, 3.9, None, 0.0),
        host=Host(4, 16, 1.5, None if traced else 0.0, 0.0),
        machine=Machine(5e14, 3e12) if traced else Machine(1e12, 1e11),
        fluctuation=Fluctuation(0.1, 0.97, 0.9, 1.0, 10.0),
        recompiles=0,
        settings=as_tree(Settings.model_validate({"trainer": {"precision": "bf16-mixed"}})),
    )


class Case(NamedTuple):
    """A rule with changes of the healthy profile by which it fires, and one change more by which it does not."""

    rule: str
    fires: dict[str, Any]
    patch: dict[str, Any]
    share: float
    quiet: dict[str, Any]
    clock: str = "device"

    def profile(self) -> Profile:
        return changed(healthy(self.clock), self.fires)


RESIDENT, CHUNK, LOG = {"loader.mode": "resident"}, {"loader.mode": "chunk"}, {"trainer.log_every_n_steps": 50}
TOO_LARGE = {"loader.series_bytes": 11 * GIB}
INLINE = {"shares.input": 0.3, "loader.num_workers": 0, "loader.making_s": 0.03}
EXPOSED = {**INLINE, "sync": TracedSync(1.0, {}, [SITE]), "settings.trainer.log_every_n_steps": 1}
UNDERSUPPLIED = {"shares.input": 0.5, "loader.supply": 0.5, "loader.making_s": 0.4}
BURSTY = {"shares.input": 0.2, "loader.supply": 2.0, "loader.late": 0.3}
CHUNKS = {"shares.input": 0.2, "loader.mode": "chunk", "loader.num_workers": None}
GATHER = {"shares.input": 0.1, "loader.mode": "resident", "loader.num_workers": None}
WAITS = {"sync": TracedSync(1.0, {}, [SITE]), "bubble.sync": 0.1, "shares.kernel": 0.005}
PERIODIC = Fluctuation(0.1, 0.6, 0.1, 1.0, 90.0, 0.4, 0.9, 4.0)
STALLED = {"shares.input": 0.04, "shares.hooks": 0.02}
MANY = [Trial("trainer.threads", 1, 2.0, 1.9, 2.1)]
FEW = [Trial("trainer.threads", 16, 1.5, 1.4, 1.6), Trial("trainer.threads", 1, 0.6, 0.5, 0.7)]
LARGER = [Trial("loader.batch_size", 128, 1.6, 1.5, 1.7), Trial("loader.batch_size", 512, 2.5, 2.4, 2.6)]
UNSURE = [Trial("trainer.threads", 1, 1.5, 0.9, 2.5), Trial("loader.batch_size", 128, 1.5, 1.04, 2.2)]
LEAK = {"memory.growth_bytes_per_step": 2.0 * (1 << 20), "memory.monotone": 1.0}
FULL_BATCH = {"loader.batch_size": 32, "trainer.accumulate_grad_batches": 2}

CASES = [
    Case("sync.exposes_loader", EXPOSED, LOG, 0.3, {"sync.per_step": 0.2}),
    Case("sync.exposes_loader", {**EXPOSED, "bubble.sync": 0.04}, LOG, 0.34, {"loader.making_s": 0.09}),
    Case("sync.exposes_loader", EXPOSED, LOG, 0.3, {"loader.num_workers": 1}),
    Case("loader.inline", INLINE, RESIDENT, 0.3, {"shares.input": 0.04}),
    Case("loader.inline", {**INLINE, "loader.resident_s": 0.01}, RESIDENT, 0.2, {"loader.num_workers": 1}),
    Case("loader.inline", {**INLINE, **TOO_LARGE}, CHUNK, 0.3, {"loader.mode": "chunk"}),
    Case("loader.inline", INLINE, RESIDENT, 0.3, {"loader.mode": "resident"}, "host"),
    Case("loader.undersupplied", UNDERSUPPLIED, RESIDENT, 0.5, {"loader.supply": 1.5}),
    Case("loader.undersupplied", {**UNDERSUPPLIED, **TOO_LARGE}, CHUNK, 0.5, {"shares.input": 0.04}),
    Case("loader.undersupplied", {**BURSTY, "loader.late": 0.9}, RESIDENT, 0.2, {"loader.late": 0.3}),
    Case("loader.undersupplied", UNDERSUPPLIED, RESIDENT, 0.5, {"loader.supply": None}, "host"),
    Case("loader.bursty", BURSTY, {"loader.prefetch_factor": 4}, 0.2, {"loader.supply": 1.0}),
    Case("loader.bursty", {**BURSTY, "loader.prefetch_factor": 12}, {"loader.prefetch_factor": 16}, 0.2,
         {"shares.input": 0.04}),
    Case("loader.chunk", CHUNKS, RESIDENT, 0.2, {"shares.input": 0.04}),
    Case("loader.chunk", {**CHUNKS, **TOO_LARGE}, {}, 0.2, {"loader.mode": "resident"}, "host"),
    Case("loader.gather", GATHER, {}, 0.1, {"shares.input": 0.04}),
    Case("loader.gather", {**GATHER, "host.cores": 1}, {}, 0.1, {"loader.mode": "chunk"}, "host"),
    Case("transfer.pageable", {"shares.transfer": 0.2, "copy.pageable": True, "settings.loader.pin_memory": False},
         {"loader.pin_memory": True}, 0.2, {"copy.pageable": False}),
    Case("transfer.heavy", {"shares.transfer": 0.2}, RESIDENT, 0.2, {"shares.transfer": 0.04}),
    Case("transfer.heavy", {"shares.transfer": 0.2, **TOO_LARGE}, CHUNK, 0.2, {"window.clock": "host"}),
    Case("sync.per_step", {**WAITS, "settings.trainer.log_every_n_steps": 1}, LOG, 0.1, {"sync.per_step": 0.2}),
    Case("sync.per_step", {**WAITS, "settings.trainer.log_every_n_steps": 100}, {}, 0.1, {"bubble.sync": 0.04}),
    Case("sync.per_step", {**WAITS, "shares.hooks": 0.2, "shares.kernel": 0.6}, {}, 0.3,
         {"shares.hooks": 0.0, "bubble.sync": 0.01}),
    Case("launch.bound", {"bubble.launch": 0.3}, {"trainer.cuda_graph": True}, 0.3, {"bubble.launch": 0.04}),
    Case("launch.bound", {"bubble.launch": 0.3, "settings.trainer.cuda_graph": True}, {"trainer.compile": "default"},
         0.3, {"bubble": None}),
    Case("launch.bound", {"bubble.launch": 0.3, "settings.trainer.cuda_graph": True,
                          "settings.trainer.compile": "max-autotune"}, {"loader.batch_size": 128}, 0.3,
         {"bubble.launch": 0.0}),
    Case("threads.too_many", {"trials": MANY}, {"trainer.threads": 1}, 0.485, {"trials": UNSURE}, "host"),
    Case("threads.too_few", {"trials": FEW}, {"trainer.threads": 16}, 0.97 / 3, {"trials": FEW[1:]}, "host"),
    Case("batch.small", {"trials": LARGER}, {"loader.batch_size": 512}, 0.59075, {"trials": UNSURE}, "host"),
    Case("batch.small", {"trials": LARGER}, {"loader.batch_size": 512}, 0.59075, {"bubble.launch": 0.1}),
    Case("batch.small", {"trials": LARGER, "shares.hooks": 0.0, "settings.trainer.accumulate_grad_batches": 16},
         {"loader.batch_size": 512, "trainer.accumulate_grad_batches": 2}, 0.582, {"trials": []}, "host"),
    Case("hooks.heavy", {"shares.hooks": 0.2, "settings.trainer.log_every_n_steps": 10}, LOG, 0.2,
         {"shares.hooks": 0.04}, "host"),
    Case("hooks.heavy", {"shares.hooks": 0.2, "host.gc": 0.15, "settings.trainer.log_every_n_steps": 1}, {}, 0.2,
         {"shares.hooks": 0.04}),
    Case("hooks.heavy", {"shares.hooks": 0.2}, {}, 0.2, {"sync.per_step": 1.0}),
    Case("step.waits", {"host.waiting": 0.2}, {}, 0.2, {"host.waiting": 0.04}, "host"),
    Case("step.waits", {"host.waiting": 0.2}, {}, 0.2, {"trials": MANY}, "host"),
    Case("compute.fp32", {"settings.trainer.precision": "32-true"}, {"trainer.precision": "bf16-mixed"}, 0.475,
         {"shares.kernel": 0.5}),
    Case("compute.fp32", {"settings.trainer.precision": "32-true"}, {"trainer.precision": "bf16-mixed"}, 0.475,
         {"settings.trainer.precision": "16-mixed"}),
    Case("compute.small", {"sm_efficiency": 0.3}, {"loader.batch_size": 128}, 0.66, {"sm_efficiency": 0.6}),
    Case("compute.small", {"sm_efficiency": 0.3}, {"loader.batch_size": 128}, 0.66, {"gpu_busy": 0.7}),
    Case("memory.pressure", {"memory.alloc_retries": 3}, FULL_BATCH, 0.0, {"memory.alloc_retries": 0}),
    Case("memory.pressure", {"memory.reserved_bytes": 75 * GIB}, FULL_BATCH, 0.0, {"memory.reserved_bytes": 70 * GIB}),
    Case("memory.pressure", {"memory.alloc_retries": 3, "settings.loader.batch_size": 1}, {}, 0.0,
         {"memory.reserved_bytes": None}),
    Case("memory.leak", LEAK, {}, 0.0, {"memory.monotone": 0.8}),
    Case("memory.leak", LEAK, {}, 0.0, {"memory.growth_bytes_per_step": 1e5}, "host"),
    Case("compile.recompiles", {"recompiles": 4}, {"trainer.compile": "off"}, 0.0, {"recompiles": 3}),
    Case("clock.throttled", {"device.sm_clock_share": 0.7, "device.throttled_by": "power cap"}, {}, 0.3,
         {"device.throttled_by": None}),
    Case("clock.throttled", {"device.sm_clock_share": 0.7, "device.throttled_by": "temperature"}, {}, 0.3,
         {"device.sm_clock_share": 0.9}),
    Case("fluctuation.periodic", {**STALLED, "fluctuation": PERIODIC}, {}, 0.06, {"fluctuation.period_s": None}),
    Case("fluctuation.periodic", {**STALLED, "fluctuation": replace(PERIODIC, cause="loader.num_workers")}, RESIDENT,
         0.06, {"fluctuation.period_s": None}),
    Case("fluctuation.periodic", {**STALLED, **TOO_LARGE, "fluctuation": replace(PERIODIC, cause="loader.num_workers")},
         CHUNK, 0.06, {"fluctuation.period_s": None}, "host"),
    Case("fluctuation.periodic", {**STALLED, "fluctuation": replace(PERIODIC, cause="loader.chunk_gb")}, RESIDENT,
         0.06, {"fluctuation.period_s": None}, "host"),
    Case("fluctuation.periodic", {**STALLED, **TOO_LARGE, "fluctuation": replace(PERIODIC, cause="loader.chunk_gb")},
         {}, 0.06, {"fluctuation.period_s": None}, "host"),
    Case("fluctuation.periodic", {**STALLED, "fluctuation": replace(PERIODIC, cause="trainer.log_every_n_steps"),
                                  "settings.trainer.log_every_n_steps": 4}, {"trainer.log_every_n_steps": 8}, 0.06,
         {"fluctuation": None}, "host"),
    Case("fluctuation.periodic", {**STALLED, "fluctuation": replace(PERIODIC, cause="the end of an epoch"),
                                  "loader.persistent_workers": False}, {"loader.persistent_workers": True}, 0.06,
         {"fluctuation.period_s": None}),
    Case("memory.headroom", {"memory.peak_bytes": 10 * GIB, "sm_efficiency": 0.7}, {}, 0.0, {"sm_efficiency": 0.85}),
    Case("memory.headroom", {"memory.peak_bytes": 10 * GIB, "sm_efficiency": 0.7}, {}, 0.0,
         {"memory.peak_bytes": 50 * GIB}),
    Case("memory.bound", {"throughput.bytes_per_step": 9e9, "throughput.flops_per_step": 1e10}, {}, 0.0,
         {"throughput.bytes_per_step": 4e9}, "host"),
    Case("memory.bound", {"throughput.bytes_per_step": 9e9, "throughput.flops_per_step": 1e10}, {}, 0.0,
         {"throughput.flops_per_step": 5e10}, "host"),
]  # fmt: skip
EACH = pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)


def found(profile: Profile, rule: str) -> Finding | None:
    """The finding of a rule, which is there once or not at all."""
    same = [finding for finding in diagnosed(profile).findings if finding.rule == rule]
    assert len(same) <= 1
    return same[0] if same else None


@EACH
def test_a_rule_fires_and_says_what_to_change(case: Case) -> None:
    finding = found(case.profile(), case.rule)
    assert finding is not None
    assert finding.patch == case.patch
    assert finding.share == pytest.approx(case.share)
    assert finding.ceiling == pytest.approx(1 / (1 - finding.share))
    assert finding.evidence
    assert bool(finding.will_not_help) == (case.rule not in NOTHING_IN_VAIN)
    expected = (
        "info" if case.rule in ("memory.headroom", "memory.bound") else "critical" if case.share >= 0.2 else "warn"
    )
    assert finding.severity == expected


@EACH
def test_beside_it_the_rule_is_quiet(case: Case) -> None:
    assert found(changed(case.profile(), case.quiet), case.rule) is None


def test_every_rule_has_a_case_and_a_family() -> None:
    assert {case.rule for case in CASES} == set(FAMILIES)
    firing = {finding.rule for case in CASES for rule in RULES if (finding := rule(case.profile())) is not None}
    assert firing == set(FAMILIES)


@pytest.mark.parametrize("clock", ["device", "host"])
def test_a_healthy_profile_has_no_finding(clock: str) -> None:
    made = diagnosed(healthy(clock))
    assert made.findings == []
    assert made.verdict == "COMPUTE-BOUND"
    assert made.summary.endswith("what is left is the model itself")


@pytest.mark.parametrize(
    ("settings", "cores", "instead"),
    [
        (
            {"loader.making_s": 0.4},
            16,
            [{"loader.mode": "workers", "loader.num_workers": 10}],
        ),  # ceil(1.2 * 0.4 / 0.05)
        ({"loader.making_s": 0.4}, 10, []),  # one core is left for the training process
        ({"loader.making_s": 0.4}, 11, [{"loader.mode": "workers", "loader.num_workers": 10}]),
        ({"loader.making_s": None}, 16, []),
    ],
)
def test_as_many_workers_are_named_as_are_needed_and_there_are_cores_for(
    settings: dict[str, Any], cores: int, instead: list[dict[str, Any]]
) -> None:
    finding = found(changed(healthy(), {**UNDERSUPPLIED, "host.cores": cores, **settings}), "loader.undersupplied")
    assert finding is not None
    assert finding.instead == instead


def test_a_wait_is_found_by_its_line() -> None:
    for changes, rule in ((EXPOSED, "sync.exposes_loader"), (WAITS, "sync.per_step")):
        finding = found(changed(healthy(), changes), rule)
        assert finding is not None
        assert SITE in finding.advice


def test_the_loss_is_never_read_more_often_than_now() -> None:
    for changes in (EXPOSED, WAITS, {"shares.hooks": 0.2}):
        made = diagnosed(changed(healthy(), {**changes, "settings.trainer.log_every_n_steps": 100}))
        assert made.findings
        assert patch_of(made.findings).get("trainer.log_every_n_steps", 100) >= 100


@pytest.mark.parametrize(("groups", "times"), [(2, 2), (8, 8), (16, 8), (3, 2), (5, 2), (2, 8), (12, 8)])
def test_a_training_stays_the_same_where_its_steps_have_as_many_windows(groups: int, times: int) -> None:
    tried = [Trial("loader.batch_size", 64 * times, 1.9, 1.8, 2.0)]
    changes = {"trials": tried, "settings.trainer.accumulate_grad_batches": groups}
    finding = found(changed(healthy("host"), changes), "batch.small")
    assert finding is not None
    patch = finding.patch
    same = patch["loader.batch_size"] * patch["trainer.accumulate_grad_batches"] == 64 * groups
    assert ("stays the same" in finding.advice) == same


def test_fewer_windows_than_a_batch_may_have_are_no_error() -> None:
    """A batch has at most all windows of an epoch, whatever the setting says."""
    tried = [Trial("loader.batch_size", 40, 1.9, 1.8, 2.0)]
    changes = {"trials": tried, "settings.loader.batch_size": 64, "settings.trainer.accumulate_grad_batches": 2}
    finding = found(changed(healthy("host"), changes), "batch.small")
    assert finding is None or finding.patch.get("loader.batch_size", 64) > 64


# What was not measured


def bare(clock: str = "host", shares: Shares | None = None) -> Profile:
    """What the clock alone gives."""
    whole = shares or Shares(0.4, 0.2, 0.2, 0.2)
    nothing = dict.fromkeys(("gpu_busy", "sm_efficiency", "bubble", "kernels", "sync", "copy", "memory", "device"))
    return Profile(Window(9, 1.0, 0, clock), whole, whole, StepTimes(1, 1, 1, 0), Throughput(1.0), **nothing, why={})


SHARES = st.lists(st.floats(0.01, 1), min_size=4, max_size=4).map(lambda parts: [part / sum(parts) for part in parts])


@given(SHARES)
def test_the_clock_alone_gives_no_finding_of_a_card(parts: list[float]) -> None:
    made = diagnosed(bare(shares=Shares(*parts)))
    assert not {finding.rule for finding in made.findings} & TRACED
    assert {finding.rule for finding in made.findings} <= {"hooks.heavy"}
    assert made.verdict in FAMILIES.values()


def optional(holder: Any, prefix: str = "") -> list[str]:
    """The dotted names of what a profile may lack."""
    names = []
    for each in fields(holder):
        value = getattr(holder, each.name)
        if "None" in str(each.type):
            names.append(f"{prefix}{each.name}")
        if is_dataclass(value):
            names += optional(value, f"{prefix}{each.name}.")
    return names


TOGETHER = ("fluctuation.",)  # a period has a strength and steps, or there is none


@given(st.sampled_from(CASES), st.data())
def test_a_rule_abstains_where_a_number_was_not_measured(case: Case, data: st.DataObject) -> None:
    profile = case.profile()
    names = [name for name in optional(profile) if not name.startswith(TOGETHER)]
    lacking = data.draw(st.lists(st.sampled_from(names), unique=True))
    for name in sorted(lacking, key=lambda each: each.count("."), reverse=True):
        profile = changed(profile, {name: None})
    profile = replace(profile, settings=data.draw(st.sampled_from([{}, profile.settings])))
    made = diagnosed(profile)
    assert {finding.rule for finding in made.findings} <= set(FAMILIES)
    assert all("None" not in finding.evidence for finding in made.findings)


@EACH
def test_without_the_section_that_a_rule_reads_it_is_quiet(case: Case) -> None:
    """Of all that a profile may lack, at least one section is what the rule needs."""
    needed = {name for name in optional(case.profile()) if "." not in name}
    without = {name for name in needed if found(changed(case.profile(), {name: None}), case.rule) is None}
    assert without or case.rule in ("hooks.heavy", "transfer.heavy", "compute.fp32", "batch.small")


# The verdict

WORDS = [
    ({**EXPOSED, "bubble.sync": 0.04}, "SYNC-BOUND"),
    (INLINE, "INPUT-BOUND"),
    (UNDERSUPPLIED, "INPUT-BOUND"),
    (BURSTY, "INPUT-BOUND"),
    (CHUNKS, "INPUT-BOUND"),
    (GATHER, "INPUT-BOUND"),
    ({"shares.transfer": 0.2}, "COPY-BOUND"),
    ({"bubble.launch": 0.3}, "LAUNCH-BOUND"),
    (WAITS, "SYNC-BOUND"),
    ({"shares.hooks": 0.2}, "HOOK-BOUND"),
    ({"trials": FEW}, "THREAD-BOUND"),
    ({"trials": LARGER}, "PYTHON-BOUND"),
    ({"host.waiting": 0.2, "window.clock": "host", "sync": None}, "WAIT-BOUND"),
    ({"settings.trainer.precision": "32-true"}, "COMPUTE-BOUND"),
    ({"sm_efficiency": 0.3}, "COMPUTE-BOUND"),
    ({"memory.alloc_retries": 3}, "MEMORY-BOUND"),
    (LEAK, "MEMORY-BOUND"),
    ({"recompiles": 9}, "COMPILE-BOUND"),
    ({"device.sm_clock_share": 0.7, "device.throttled_by": "power cap"}, "CLOCK-BOUND"),
    ({**STALLED, "fluctuation": PERIODIC}, "STALLED"),
]


@pytest.mark.parametrize(("changes", "word"), WORDS, ids=lambda each: each if isinstance(each, str) else "")
def test_the_verdict_is_the_family_of_the_first_finding(changes: dict[str, Any], word: str) -> None:
    made = diagnosed(changed(healthy(), changes))
    assert made.verdict == word
    assert made.summary
    assert "{" not in made.summary


def test_every_family_is_a_verdict() -> None:
    assert {word for _, word in WORDS} == set(FAMILIES.values())


def test_a_cpu_that_moves_bytes_is_bound_by_memory_though_nothing_is_to_be_done() -> None:
    (case,) = (case for case in CASES if case.rule == "memory.bound" and "throughput.bytes_per_step" in case.quiet)
    made = diagnosed(case.profile())
    assert (made.verdict, [finding.severity for finding in made.findings]) == ("MEMORY-BOUND", ["info"])


@pytest.mark.parametrize(
    ("waiting", "launching", "word"),
    [
        (0.30, 0.30, "UNCLEAR"),
        (0.30, 0.28, "UNCLEAR"),
        (0.28, 0.30, "UNCLEAR"),
        (0.30, 0.26, "INPUT-BOUND"),
        (0.26, 0.30, "LAUNCH-BOUND"),
        (0.06, 0.04, "INPUT-BOUND"),
    ],
)
def test_two_families_within_three_points_are_unclear(waiting: float, launching: float, word: str) -> None:
    made = diagnosed(changed(healthy(), {**INLINE, "shares.input": waiting, "bubble.launch": launching}))
    assert made.verdict == word
    assert ("INPUT-BOUND" in made.summary and "LAUNCH-BOUND" in made.summary) == (word == "UNCLEAR")


def test_two_findings_of_one_family_are_clear() -> None:
    made = diagnosed(changed(healthy(), {**WAITS, "bubble.sync": 0.3, "shares.hooks": 0.0}))
    assert made.verdict == "SYNC-BOUND"


def test_work_that_could_be_less_is_not_within_three_points_because_it_is_more() -> None:
    """25 % of waiting are lost; that 16-bit types could save 35 % is another matter."""
    changes = {**INLINE, "shares.input": 0.25, "shares.kernel": 0.7, "settings.trainer.precision": "32-true"}
    made = diagnosed(changed(healthy(), changes))
    assert [finding.rule for finding in made.findings] == ["loader.inline", "compute.fp32"]
    assert made.verdict == "INPUT-BOUND"


def test_lost_time_comes_before_work_that_could_be_less() -> None:
    for waiting in (0.06, 0.1, 0.3):
        changes = {**INLINE, "shares.input": waiting, "shares.kernel": 0.65, "settings.trainer.precision": "32-true"}
        rules = [finding.rule for finding in diagnosed(changed(healthy(), changes)).findings]
        assert rules == ["loader.inline", "compute.fp32"]


def test_the_largest_share_is_first_and_hints_are_last() -> None:
    changes = {**INLINE, "bubble.launch": 0.4, "memory.peak_bytes": GIB, "sm_efficiency": 0.7}
    made = diagnosed(changed(healthy(), changes))
    assert [finding.rule for finding in made.findings] == ["launch.bound", "loader.inline", "memory.headroom"]


# What is to be changed


@given(st.lists(st.sampled_from(CASES), min_size=1, max_size=6))
def test_patches_merge_without_conflicts(cases: list[Case]) -> None:
    findings = [finding for case in cases if (finding := found(case.profile(), case.rule)) is not None]
    patch = patch_of(findings)
    assert patch.items() <= {item for finding in findings for item in finding.patch.items()}
    taken: set[str] = set()
    for finding in findings:  # a finding is followed as a whole, or not at all
        if finding.severity != "info" and finding.patch and not set(finding.patch) & taken:
            assert finding.patch.items() <= patch.items()
            taken |= set(finding.patch)
    assert taken == set(patch)


def test_what_is_short_of_memory_gets_no_larger_batch() -> None:
    made = diagnosed(changed(healthy(), {"memory.alloc_retries": 3, "sm_efficiency": 0.3}))
    assert patch_of(made.findings)["loader.batch_size"] <= 64


def test_nothing_found_changes_nothing() -> None:
    assert patch_of([]) == {}
    assert patch_of(diagnosed(healthy()).findings) == {}


@EACH
def test_every_change_is_a_setting_that_is_accepted(case: Case) -> None:
    for finding in diagnosed(case.profile()).findings:
        for change in (finding.patch, *finding.instead):
            assert set(change) <= set(KEYS)
            Layers().over(change).load()
    merged = patch_of(diagnosed(case.profile()).findings)
    loaded = as_tree(Layers().over(merged).load().settings)
    for key, value in merged.items():
        section, name = key.split(".")
        assert loaded[section][name] == value


# What makes a command fail


@pytest.mark.parametrize("name", [*FAMILIES, *SEVERITIES, "loader", "sync", "threads", "memory"])
def test_known_names_may_be_asked_for(name: str) -> None:
    check_names([name])


@pytest.mark.parametrize("name", ["", "loaders", "INPUT-BOUND", "loader.", "fatal"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="is no finding: one of batch, "):
        check_names(["loader", name])


@pytest.mark.parametrize(
    ("names", "fails"),
    [
        (["loader"], ["loader.inline"]),
        (["loader.inline"], ["loader.inline"]),
        (["loader.chunk"], []),
        (["critical"], ["loader.inline"]),
        (["warn"], ["loader.inline", "launch.bound"]),
        (["info"], ["memory.headroom"]),
        (["launch", "memory"], ["launch.bound", "memory.headroom"]),
        ([], []),
    ],
)
def test_it_fails_on_rules_families_and_severities(names: list[str], fails: list[str]) -> None:
    changes = {**INLINE, "bubble.launch": 0.1, "memory.peak_bytes": GIB, "sm_efficiency": 0.7}
    messages = failing(diagnosed(changed(healthy(), changes)), names)
    assert [message.where for message in messages] == fails
    assert all(message.what for message in messages)


# On loops whose true cause is known


@cache
def said(seed: int) -> tuple[str, str]:
    """The true cause of a random loop, and the family of the first finding that is lost time."""
    loop = draw(Random(seed))
    findings = diagnosed(profile_of(loop)).findings
    lost = [f for f in findings if f.severity != "info" and not f.rule.startswith(("compute.", "memory."))]
    return truth(loop)[0], FAMILIES[lost[0].rule].removesuffix("-BOUND") if lost else "healthy"


def test_the_words_of_the_families_are_those_of_the_truth() -> None:
    words = {word.removesuffix("-BOUND") for rule, word in FAMILIES.items() if rule not in ("memory.bound",)}
    assert set(REMOVED) == {"INPUT", "SYNC", "COPY", "LAUNCH", "HOOK"} <= words


def accuracy(seeds: range) -> tuple[float, float]:
    """Share of loops whose cause is named, and share of healthy loops of which something is said."""
    pairs = [said(seed) for seed in seeds]
    alarms = [word != "healthy" for cause, word in pairs if cause == "healthy"]
    return sum(cause == word for cause, word in pairs) / len(pairs), sum(alarms) / max(1, len(alarms))


def test_the_cause_of_a_simulated_loop_is_named() -> None:
    right, false_alarms = accuracy(range(20000, 20060))
    assert right >= 0.85
    assert false_alarms == 0


@pytest.mark.slow
def test_the_causes_of_many_simulated_loops_are_named() -> None:
    right, false_alarms = accuracy(range(9000, 9400))
    assert right >= 0.9
    assert false_alarms <= 0.025


@pytest.mark.parametrize("seed", range(20000, 20020))
def test_what_is_said_of_a_simulated_loop_can_be_set(seed: int) -> None:
    findings = diagnosed(profile_of(draw(Random(seed)))).findings
    for change in (patch_of(findings), *(each for finding in findings for each in finding.instead)):
        Layers().over(change).load()
