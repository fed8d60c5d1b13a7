"""Every rule fires where it should and beside it does not; on simulated loops the first finding is the true cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulated_loop import draw, profile_of, truth
from socialx.core.errors import SettingsError
from socialx.settings.layers import ConfigLayers, as_tree
from socialx.settings.schema import KEYS, Settings
from socialx.training.profile.profile import NAMES, Finding, Gain, Profile, Trial
from socialx.training.profile.rules import (
    FAMILIES,
    SEVERITIES,
    VERDICT_OF,
    check_names,
    joint_patch,
    matching_findings,
    with_findings,
)
from tests.profile.sections import loading, section

GIB = 1 << 30
STEP_S = 0.1
SITE = "train.py:84"
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
    kernels = section("kernels", 1000, 90.0, 0.0, 1000, 8, 1.1, [])
    return Profile(
        window=section("window", 100, 100 * STEP_S, 10, clock),
        shares=section("shares", 0.01, 0.01, 0.97, 0.01, *((0.95, 0.02) if traced else ())),
        step_ms=section("step_ms", 100.0, 101.0, 102.0),
        throughput=section("throughput", 640.0, 1e6, 1e12, None if traced else 1e9),
        gpu_busy=0.96 if traced else None,
        sm_efficiency=0.85 if traced else None,
        bubble={"launch": 0.01, "sync": 0.0, "queued": 0.01, "copy": 0.0, "unknown": 0.0} if traced else None,
        kernels=kernels if traced else None,
        sync=section("sync", 0.0) if traced else None,
        copy=section("copy", 1e6, False) if traced else None,
        memory=section("memory", 60 * GIB, 80 * GIB, 62 * GIB if traced else None, 0 if traced else None, 0.0, 0.5),
        device=section("device", 0.9, 0.8, 1.0, 0.98) if traced else None,
        why={},
        loader=loading("workers", 1000, 4, 2, None, GIB, 20 * GIB, 0.1, 3.9, None, 0.0),
        host=section("host", 4, 16, 1.5, None if traced else 0.0, 0.0),
        machine=section("machine", 5e14, 3e12) if traced else section("machine", 1e12, 1e11),
        fluctuation=section("fluctuation", 0.1, 0.97, 0.9, 1.0, 10.0),
        recompiles=0,
        settings=as_tree(Settings(trainer={"precision": "bf16-mixed", "compile": "off"}, loader={"batch_size": 64})),
    )


class Case(NamedTuple):
    """A rule: by which values it fires, the share and the patch that it names, and a value by which it is quiet."""

    rule: str
    share: float
    fires: dict[str, Any]
    patch: dict[str, Any]
    quiet: dict[str, Any]
    clock: str = "device"

    def profile(self) -> Profile:
        return changed(healthy(self.clock), self.fires)


RESIDENT, CHUNK, LOG = {"loader.mode": "on_device"}, {"loader.mode": "sharded"}, {"trainer.log_every_n_steps": 50}
TOO_LARGE = {"loader.series_bytes": 11 * GIB}
FEW_READINGS = {"settings.trainer.log_every_n_steps": 100}
INLINE = {"shares.input": 0.3, "loader.num_workers": 0, "loader.making_s": 0.03}
EXPOSED = {**INLINE, "sync": section("sync", 1.0, [SITE]), "settings.trainer.log_every_n_steps": 1}
UNDERSUPPLIED = {"shares.input": 0.5, "loader.supply": 0.5, "loader.making_s": 0.4}
BURSTY = {"shares.input": 0.2, "loader.supply": 2.0, "loader.late": 0.3}
CHUNKS = {"shares.input": 0.2, "loader.mode": "sharded", "loader.num_workers": None}
GATHER = {"shares.input": 0.1, "loader.mode": "on_device", "loader.num_workers": None}
COPIES = {"shares.transfer": 0.2}
WAITS = {"sync": section("sync", 1.0, [SITE]), "bubble.sync": 0.1, "shares.kernel": 0.005}
PERIODIC = section("fluctuation", 0.1, 0.6, 0.1, 1.0, 90.0, 0.4, 0.9, 4.0)
STALLED = {"shares.input": 0.04, "shares.hooks": 0.02}
STEADY = {"fluctuation.period_s": None}
MANY = [Trial("trainer.threads", 1, 2.0, 1.9, 2.1)]
FEW = [Trial("trainer.threads", 16, 1.5, 1.4, 1.6), Trial("trainer.threads", 1, 0.6, 0.5, 0.7)]
LARGER = [Trial("loader.batch_size", 128, 1.6, 1.5, 1.7), Trial("loader.batch_size", 512, 2.5, 2.4, 2.6)]
UNSURE = [Trial("trainer.threads", 1, 1.5, 0.9, 2.5), Trial("loader.batch_size", 128, 1.5, 1.04, 2.2)]
LEAK = {"memory.growth_bytes_per_step": 2.0 * (1 << 20), "memory.monotone": 1.0}
SLOWED = {"device.sm_clock_share": 0.7, "device.throttled_by": "power cap"}
FULL_BATCH = {"loader.batch_size": 32, "trainer.accumulate_grad_batches": 2}
EAGER, FP32 = {"settings.trainer.cuda_graph": "off"}, {"settings.trainer.precision": "32-true"}
COMPILED = {"settings.trainer.compile": "max-autotune"}
MOVES = {"throughput.bytes_per_step": 9e9, "throughput.flops_per_step": 1e10}


def stalls(cause: str | None = None, **more: Any) -> dict[str, Any]:
    """A stall that repeats, with its cause."""
    return {**STALLED, "fluctuation": PERIODIC | {"cause": cause}, **more}


CASES = [
    Case("sync.exposes_loader", 0.3, EXPOSED, LOG, {"sync.per_step": 0.2}),
    Case("sync.exposes_loader", 0.34, {**EXPOSED, "bubble.sync": 0.04}, LOG, {"loader.making_s": 0.09}),
    Case("loader.inline", 0.3, INLINE, RESIDENT, {"shares.input": 0.04}),
    Case("loader.inline", 0.2, {**INLINE, "loader.resident_s": 0.01}, RESIDENT, {"loader.num_workers": 1}),
    Case("loader.inline", 0.3, {**INLINE, **TOO_LARGE}, CHUNK, {"loader.mode": "sharded"}, "host"),
    Case("loader.undersupplied", 0.5, UNDERSUPPLIED, RESIDENT, {"loader.supply": 1.5}),
    Case("loader.undersupplied", 0.2, {**BURSTY, "loader.late": 0.9}, RESIDENT, {"loader.late": 0.3}),
    Case("loader.undersupplied", 0.5, {**UNDERSUPPLIED, **TOO_LARGE}, CHUNK, {"loader.supply": None}, "host"),
    Case("loader.bursty", 0.2, BURSTY, {"loader.prefetch_factor": 4}, {"loader.supply": 1.0}),
    Case("loader.bursty", 0.2, {**BURSTY, "loader.prefetch_factor": 12}, {"loader.prefetch_factor": 16},
         {"shares.input": 0.04}),
    Case("loader.shard", 0.2, CHUNKS, RESIDENT, {"shares.input": 0.04}),
    Case("loader.shard", 0.2, {**CHUNKS, **TOO_LARGE}, {}, {"loader.mode": "on_device"}, "host"),
    Case("loader.gather", 0.1, GATHER, {}, {"shares.input": 0.04}),
    Case("loader.gather", 0.1, {**GATHER, "host.cores": 1}, {}, {"loader.mode": "sharded"}, "host"),
    Case("transfer.pageable", 0.2, {**COPIES, "copy.pageable": True, "settings.loader.pin_memory": False},
         {"loader.pin_memory": True}, {"copy.pageable": False}),
    Case("transfer.heavy", 0.2, COPIES, RESIDENT, {"shares.transfer": 0.04}),
    Case("transfer.heavy", 0.2, {**COPIES, **TOO_LARGE}, CHUNK, {"window.clock": "host"}),
    Case("sync.per_step", 0.1, {**WAITS, "settings.trainer.log_every_n_steps": 1}, LOG, {"sync.per_step": 0.2}),
    Case("sync.per_step", 0.1, {**WAITS, **FEW_READINGS}, {}, {"bubble.sync": 0.04}),
    Case("sync.per_step", 0.3, {**WAITS, "shares.hooks": 0.2, "shares.kernel": 0.6}, {},
         {"shares.hooks": 0.0, "bubble.sync": 0.01}),
    Case("launch.bound", 0.3, {"bubble.launch": 0.3, **EAGER}, {"trainer.cuda_graph": "auto"}, {"bubble.launch": 0.04}),
    Case("launch.bound", 0.3, {"bubble.launch": 0.3}, {"trainer.compile": "default"}, {"bubble": None}),
    Case("launch.bound", 0.3, {"bubble.launch": 0.3, **COMPILED}, {"loader.batch_size": 128}, {"bubble.launch": 0.0}),
    Case("kernels.small", 0.3, {"bubble.queued": 0.3}, {"trainer.compile": "default"}, {"bubble.queued": 0.04}),
    Case("kernels.small", 0.3, {"bubble.queued": 0.3, **COMPILED}, {"loader.batch_size": 128}, {"bubble": None}),
    Case("threads.too_many", 0.485, {"trials": MANY}, {"trainer.threads": 1}, {"trials": UNSURE}, "host"),
    Case("threads.too_few", 0.97 / 3, {"trials": FEW}, {"trainer.threads": 16}, {"trials": FEW[1:]}, "host"),
    Case("batch.small", 0.59075, {"trials": LARGER}, {"loader.batch_size": 512}, {"trials": UNSURE}, "host"),
    Case("batch.small", 0.59075, {"trials": LARGER}, {"loader.batch_size": 512}, {"bubble.launch": 0.1}),
    Case("hooks.heavy", 0.2, {"shares.hooks": 0.2, "settings.trainer.log_every_n_steps": 10}, LOG,
         {"shares.hooks": 0.04}, "host"),
    Case("hooks.heavy", 0.2, {"shares.hooks": 0.2, "host.gc": 0.15, "settings.trainer.log_every_n_steps": 1}, {},
         {"sync.per_step": 1.0}),
    Case("step.waits", 0.2, {"host.waiting": 0.2}, {}, {"host.waiting": 0.04}, "host"),
    Case("step.waits", 0.2, {"host.waiting": 0.2}, {}, {"trials": MANY}, "host"),
    Case("compute.fp32", 0.475, FP32, {"trainer.precision": "bf16-mixed"}, {"shares.kernel": 0.5}),
    Case("compute.small", 0.66, {"sm_efficiency": 0.3}, {"loader.batch_size": 128}, {"gpu_busy": 0.7}),
    Case("memory.pressure", 0.0, {"memory.alloc_retries": 3}, FULL_BATCH, {"memory.alloc_retries": 0}),
    Case("memory.pressure", 0.0, {"memory.reserved_bytes": 75 * GIB}, FULL_BATCH, {"memory.reserved_bytes": 70 * GIB}),
    Case("memory.leak", 0.0, LEAK, {}, {"memory.monotone": 0.8}),
    Case("memory.leak", 0.0, LEAK, {}, {"memory.growth_bytes_per_step": 1e5}, "host"),
    Case("compile.recompiles", 0.0, {"recompiles": 4}, {"trainer.compile": "off"}, {"recompiles": 3}),
    Case("clock.throttled", 0.3, SLOWED, {}, {"device.throttled_by": None}),
    Case("clock.throttled", 0.3, SLOWED, {}, {"device.sm_clock_share": 0.9}),
    Case("fluctuation.periodic", 0.06, stalls(), {}, STEADY),
    Case("fluctuation.periodic", 0.06, stalls("loader.num_workers"), RESIDENT, STEADY),
    Case("fluctuation.periodic", 0.06, stalls("loader.shard_gb", **TOO_LARGE), {}, STEADY, "host"),
    Case("fluctuation.periodic", 0.06, stalls("trainer.log_every_n_steps"), {"trainer.log_every_n_steps": 100},
         {"fluctuation": None}, "host"),
    Case("memory.headroom", 0.0, {"memory.peak_bytes": 10 * GIB, "sm_efficiency": 0.7}, {}, {"sm_efficiency": 0.85}),
    Case("memory.bound", 0.0, MOVES, {}, {"throughput.bytes_per_step": 4e9}, "host"),
    Case("memory.bound", 0.0, MOVES, {}, {"throughput.flops_per_step": 5e10}, "host")
]  # fmt: skip


def found(profile: Profile, rule: str) -> Finding | None:
    """The finding of a rule, which is there once or not at all."""
    same = [finding for finding in with_findings(profile).findings if finding.rule == rule]
    assert len(same) <= 1
    return same[0] if same else None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_a_rule_fires_and_says_what_to_change_and_beside_it_is_quiet(case: Case) -> None:
    finding = found(case.profile(), case.rule)
    assert finding.patch == case.patch
    assert finding.share == pytest.approx(case.share)
    # What was tried has no bound: another trial may bring more.
    assert finding.ceiling == (None if finding.trial else pytest.approx(1 / (1 - finding.share)))
    assert finding.trial is None or finding.trial in case.profile().trials
    assert finding.evidence
    assert bool(finding.will_not_help) == (case.rule not in NOTHING_IN_VAIN)
    costly = "critical" if case.share >= 0.2 else "warn"
    assert finding.severity == ("info" if case.rule in ("memory.headroom", "memory.bound") else costly)
    assert found(changed(case.profile(), case.quiet), case.rule) is None
    judged = with_findings(case.profile())
    first = next((each for each in judged.findings if each.severity != "info"), None)
    word = "MEMORY-BOUND" if case.rule == "memory.bound" else "COMPUTE-BOUND"  # where nothing is in the way
    assert judged.verdict == (WORDS[first.family] if first else word)
    assert judged.summary
    assert "{" not in judged.summary
    for change in [
        joint_patch(judged.findings),
        *(way for each in judged.findings for way in (each.patch, *each.instead)),
    ]:
        assert set(change) <= set(KEYS)
        loaded = as_tree(ConfigLayers().over(change).load().settings)
        assert all(
            loaded[section][name] == value
            for (section, name), value in ((key.split("."), value) for key, value in change.items())
        )


WORDS = {
    "sync": "SYNC-BOUND", "loader": "INPUT-BOUND", "transfer": "COPY-BOUND", "launch": "LAUNCH-BOUND",
    "hooks": "HOOK-BOUND", "threads": "THREAD-BOUND", "batch": "PYTHON-BOUND", "step": "WAIT-BOUND",
    "compute": "COMPUTE-BOUND", "memory": "MEMORY-BOUND", "compile": "COMPILE-BOUND", "clock": "CLOCK-BOUND",
    "fluctuation": "STALLED", "kernels": "KERNEL-BOUND"
}  # fmt: skip


def test_every_rule_has_a_case_and_a_verdict() -> None:
    assert {case.rule for case in CASES} == set(VERDICT_OF)
    assert {family: word for family, (word, *_) in FAMILIES.items()} == WORDS


@pytest.mark.parametrize("clock", ["device", "host"])
def test_a_healthy_profile_has_no_finding(clock: str) -> None:
    made = with_findings(healthy(clock))
    assert made.findings == []
    assert made.verdict == "COMPUTE-BOUND"
    assert made.summary.endswith("what is left is the model itself")


@pytest.mark.parametrize(
    ("making_s", "cores", "workers"),
    # ceil(1.2 * 0.4 / 0.05), and one core is left for the training process
    [(0.4, 16, 10), (0.4, 10, None), (0.4, 11, 10), (None, 16, None)],
)
def test_as_many_workers_are_named_as_are_needed_and_there_are_cores_for(
    making_s: float | None, cores: int, workers: int | None
) -> None:
    made = changed(healthy(), {**UNDERSUPPLIED, "host.cores": cores, "loader.making_s": making_s})
    wanted = [{"loader.mode": "workers", "loader.num_workers": workers}] if workers else []
    assert found(made, "loader.undersupplied").instead == wanted


def test_the_loss_is_never_read_more_often_than_now() -> None:
    for changes in (EXPOSED, WAITS, {"shares.hooks": 0.2}):
        made = with_findings(changed(healthy(), {**changes, "settings.trainer.log_every_n_steps": 100}))
        assert made.findings
        assert changes == {"shares.hooks": 0.2} or any(SITE in finding.advice for finding in made.findings)
        assert joint_patch(made.findings).get("trainer.log_every_n_steps", 100) >= 100


@pytest.mark.parametrize(("groups", "times"), [(2, 2), (8, 8), (16, 8), (3, 2), (5, 2), (2, 8), (12, 8)])
def test_a_training_stays_the_same_where_its_steps_have_as_many_windows(groups: int, times: int) -> None:
    tried = [Trial("loader.batch_size", 64 * times, 1.9, 1.8, 2.0)]
    changes = {"trials": tried, "settings.trainer.accumulate_grad_batches": groups}
    finding = found(changed(healthy("host"), changes), "batch.small")
    patch = finding.patch
    same = patch["loader.batch_size"] * patch["trainer.accumulate_grad_batches"] == 64 * groups
    assert ("stays the same" in finding.advice) == same


THREADS, BATCH, BOTH = Gain(1.3, 1.1, 1.5), Gain(6.3, 6.1, 6.5), Gain(8.0, 7.0, 9.0)


def planted(threads: Gain = THREADS, batch: Gain = BATCH, both: Gain | None = BOTH) -> Profile:
    """Batches of one window and eight threads on two cores, as they are found when they are tried."""
    tried = [
        Trial("trainer.threads", 1, **vars(threads)),
        Trial("loader.batch_size", 32, **vars(batch), threads=1, threads_before=1),
    ]
    tried += [Trial("loader.batch_size", 32, **vars(both), threads=1)] if both else []
    small = {"settings.loader.batch_size": 1, "settings.trainer.accumulate_grad_batches": 32}
    return with_findings(changed(healthy("host"), {"trials": tried, "host.threads": 8, "host.cores": 2, **small}))


ALL_PLANTED = {"loader.batch_size": 32, "trainer.accumulate_grad_batches": 1, "trainer.threads": 1}


@pytest.mark.parametrize(
    "threads", [Gain(1.3, 1.1, 1.5), Gain(20.0, 19.0, 21.0), Gain(1.5, 0.08, 1.9), Gain(0.9, 0.5, 1.2)]
)
@pytest.mark.parametrize("both", [Gain(8.0, 7.0, 9.0), Gain(4.0, 0.9, 20.0), None])
def test_the_patch_has_the_batch_and_the_threads_with_which_it_was_tried(threads: Gain, both: Gain | None) -> None:
    """Whichever is found first, and whether or not the number of threads alone was decided."""
    made = planted(threads, both=both)
    assert joint_patch(made.findings) == ALL_PLANTED
    (batch,) = (finding for finding in made.findings if finding.rule == "batch.small")
    assert batch.trial == made.trials[-1 if both and both.low > 1.05 else 1]
    assert batch.gain.startswith(f"tried: {batch.trial.measured}")


@pytest.mark.parametrize("better", [2, 1])
def test_findings_name_one_number_of_threads(better: int) -> None:
    """The one with which the batch was tried, though another was faster with the present batch."""
    found = planted()
    other = Trial("trainer.threads", 3 - better, 30.0, 29.0, 31.0)
    batch = [replace(each, threads=better, threads_before=better) for each in found.trials[1:2]]
    made = with_findings(replace(found, trials=[found.trials[0], other, *batch], findings=[]))
    assert joint_patch(made.findings) == {**ALL_PLANTED, "trainer.threads": better}


@pytest.mark.parametrize("both", [Gain(1.0, 0.9, 1.1), Gain(0.7, 0.6, 0.8)])
def test_a_batch_that_with_its_threads_is_no_faster_than_the_present_settings_is_not_named(both: Gain) -> None:
    assert found(planted(both=both), "batch.small") is None


@pytest.mark.parametrize(
    ("others", "says"),
    [
        (1.4, "other programs took 1.4 of 2 cores meanwhile"),
        (0.5, "other programs took 0.5 of 2 cores meanwhile"),
        (0.1, "a lock, or a file that is read in the model: other programs took 0.1 cores"),
        (None, "other programs on these cores, a lock, a file that is read in the model"),
    ],
)
def test_a_step_that_waits_says_what_other_programs_took(others: float | None, says: str) -> None:
    made = changed(healthy("host"), {"host.waiting": 0.4, "host.cores": 2, "host.others_used": others})
    finding = found(made, "step.waits")
    assert says in f"{finding.evidence} {finding.advice}"


def test_fewer_windows_than_a_batch_may_have_are_no_error() -> None:
    """A batch has at most all windows of an epoch, whatever the setting says."""
    tried = [Trial("loader.batch_size", 40, 1.9, 1.8, 2.0)]
    changes = {"trials": tried, "settings.loader.batch_size": 64, "settings.trainer.accumulate_grad_batches": 2}
    finding = found(changed(healthy("host"), changes), "batch.small")
    assert finding is None or finding.patch.get("loader.batch_size", 64) > 64


# What was not measured


# Sections and numbers that a profile always has, or all together; an operator's rate needs both of a machine's.
WHOLE = {"window", "ms_per_step", "step_ms", "fluctuation", "machine"}
MEASURED = {
    *("shares.input", "shares.transfer", "shares.span", "shares.hooks", "throughput.windows_per_s", "host.threads"),
    *("host.cores", "memory.peak_bytes", "memory.capacity_bytes", "kernels.per_step"),
}


def optional(profile: Profile) -> list[str]:
    """The dotted names of what a profile may lack."""
    sections = {name.partition(".")[0] for name in NAMES} - WHOLE
    there = [name for name in sections if isinstance(getattr(profile, name), dict)]
    inner = [f"{section}.{key}" for section in there for key in getattr(profile, section)]
    return [each.name for each in fields(profile) if "None" in str(each.type)] + sorted(set(inner) - MEASURED)


@given(st.sampled_from(CASES), st.data())
def test_a_rule_abstains_where_a_number_was_not_measured(case: Case, data: st.DataObject) -> None:
    profile = case.profile()
    names = optional(profile)
    lacking = data.draw(st.lists(st.sampled_from(names), unique=True))
    for name in sorted(lacking, key=lambda each: each.count("."), reverse=True):
        profile = changed(profile, {name: None})
    profile = replace(profile, settings=data.draw(st.sampled_from([{}, profile.settings])))
    made = with_findings(profile)
    assert {finding.rule for finding in made.findings} <= set(VERDICT_OF)
    assert all("None" not in finding.evidence for finding in made.findings)


# The verdict


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
    made = with_findings(changed(healthy(), {**INLINE, "shares.input": waiting, "bubble.launch": launching}))
    assert made.verdict == word
    assert ("INPUT-BOUND" in made.summary and "LAUNCH-BOUND" in made.summary) == (word == "UNCLEAR")


@pytest.mark.parametrize("waiting", [0.06, 0.1, 0.25, 0.3])
def test_lost_time_comes_before_work_that_could_be_less(waiting: float) -> None:
    """25 % of waiting are lost; that 16-bit types could save 35 % is another matter."""
    made = with_findings(changed(healthy(), {**INLINE, **FP32, "shares.input": waiting, "shares.kernel": 0.7}))
    assert [finding.rule for finding in made.findings] == ["loader.inline", "compute.fp32"]
    assert made.verdict == "INPUT-BOUND"


# What is to be changed


@given(st.lists(st.sampled_from(CASES), min_size=1, max_size=6))
def test_patches_merge_without_conflicts(cases: list[Case]) -> None:
    findings = [finding for case in cases if (finding := found(case.profile(), case.rule)) is not None]
    patch = joint_patch(findings)
    assert patch.items() <= {item for finding in findings for item in finding.patch.items()}
    taken: set[str] = set()
    for finding in findings:  # a finding is followed as a whole, or not at all
        agrees = all(key not in taken or patch[key] == value for key, value in finding.patch.items())
        if finding.severity != "info" and finding.patch and agrees:
            assert finding.patch.items() <= patch.items()
            taken |= set(finding.patch)
    assert taken == set(patch)


# What makes a command fail


@pytest.mark.parametrize("name", ["", "loaders", "INPUT-BOUND", "loader.", "fatal"])
def test_other_names_are_refused(name: str) -> None:
    check_names([*VERDICT_OF, *SEVERITIES, "loader", "sync", "threads", "memory"])
    with pytest.raises(SettingsError, match=r"is no finding\.\n  try: one of batch, "):
        check_names(["loader", name])


@pytest.mark.parametrize(
    ("names", "fails"),
    [
        (["loader"], ["loader.inline"]),
        (["loader.inline"], ["loader.inline"]),
        (["loader.shard"], []),
        (["critical"], ["loader.inline"]),
        (["warn"], ["loader.inline", "launch.bound"]),
        (["info"], ["memory.headroom"]),
        (["critical", "loader", "launch", "memory"], ["loader.inline", "launch.bound", "memory.headroom"]),
        (["launch", "memory"], ["launch.bound", "memory.headroom"]),
        ([], []),
    ],
)
def test_it_fails_on_rules_families_and_severities(names: list[str], fails: list[str]) -> None:
    changes = {**INLINE, "bubble.launch": 0.1, "memory.peak_bytes": GIB, "sm_efficiency": 0.7}
    messages = matching_findings(with_findings(changed(healthy(), changes)), names)
    assert [message.where for message in messages] == fails  # the largest share first, and hints last
    assert all(message.problem for message in messages)


# On loops whose true cause is known


@cache
def said(seed: int) -> tuple[str, str]:
    """The true cause of a random loop, and the family of the first finding that is lost time."""
    loop = draw(Random(seed))
    findings = with_findings(profile_of(loop)).findings
    for change in (joint_patch(findings), *(each for finding in findings for each in finding.instead)):
        ConfigLayers().over(change).load()  # what is named can be set
    lost = [f for f in findings if f.severity != "info" and not f.rule.startswith(("compute.", "memory."))]
    return truth(loop)[0], VERDICT_OF[lost[0].rule].removesuffix("-BOUND") if lost else "healthy"


def accuracy(seeds: range) -> tuple[float, float]:
    """Share of loops whose cause is named, and share of healthy loops of which something is said."""
    pairs = [said(seed) for seed in seeds]
    alarms = [word != "healthy" for cause, word in pairs if cause == "healthy"]
    return sum(cause == word for cause, word in pairs) / len(pairs), sum(alarms) / max(1, len(alarms))


@pytest.mark.slow
def test_the_cause_of_a_simulated_loop_is_named() -> None:
    right, false_alarms = accuracy(range(20000, 20010))
    assert right >= 0.85
    assert false_alarms == 0


@pytest.mark.slow
def test_the_causes_of_many_simulated_loops_are_named() -> None:
    right, false_alarms = accuracy(range(9000, 9100))
    assert right >= 0.9
    assert false_alarms <= 0.05
