"""Every rule fires where it should and beside it does not; on simulated loops the first finding is the true cause."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulated_loop import draw, profile_of, truth
from socialx.core.errors import SettingsError
from socialx.profiling.profile import Finding, Profile, Trial
from socialx.profiling.rules import RULES, SEVERITIES, check_names, joint_patch, matching_findings, with_findings
from socialx.profiling.sections import (
    Bubble,
    Copy,
    Device,
    Fluctuation,
    Host,
    Kernels,
    LoaderFacts,
    Memory,
    Phases,
    StepTimes,
    Sync,
    Throughput,
    Timeline,
    Window,
)
from socialx.settings.layers import ConfigLayers, as_tree
from socialx.settings.schema import KEYS, Settings
from tests.commands import refuses

GIB = 1 << 30
STEP_S = 0.1
SITE = "train.py:84"
# There is nothing that people would try in vain, or any setting may have the period.
NOTHING_IN_VAIN = {"fluctuation.periodic"}
WORDS = {row.name: row.word for row in RULES}


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
    made = Profile(
        window=Window(100, 100 * STEP_S, 10, clock),
        shares=Phases(0.01, 0.01, 0.97, 0.01, *((0.95, 0.02) if traced else ())),
        step_ms=StepTimes(100.0, 101.0, 102.0),
        throughput=Throughput(640.0, 1e6),
        memory=Memory(60 * GIB, 80 * GIB, *((62 * GIB, 0) if traced else (None, None)), 0.0, 0.5),
        loader=LoaderFacts("workers", 1000, 4, 2, None, GIB, 20 * GIB, 0.1, 3.9, None, 0.0),
        host=Host(4, 16, 1.5, None if traced else 0.0, 0.0),
        fluctuation=Fluctuation(0.1, 0.97, 0.9, 1.0, 10.0),
        timeline=Timeline(0.1, [0.97], 1, [100.0]),
        recompiles=0,
        settings=as_tree(Settings(trainer={"precision": "bf16-mixed", "compile": "off"}, loader={"batch_size": 64})),
    )
    if not traced:
        return made
    return replace(
        made,
        gpu_busy=0.96,
        sm_efficiency=0.85,
        bubble=Bubble(launch=0.01, sync=0.0, queued=0.01, copy=0.0, unknown=0.0),
        kernels=Kernels(1000, 90.0, 0.0, 1000, 8, 1.1),
        sync=Sync(0.0),
        copy=Copy(1e6, False),
        device=Device(0.9, 0.8, 1.0, 0.98),
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
INLINE = {"shares.input": 0.3, "loader.num_workers": 0, "loader.making_s": 0.03}
READS = {"sync": Sync(1.0, [SITE]), "settings.trainer.log_every_n_steps": 1}
EXPOSED = {**INLINE, **READS}
UNDERSUPPLIED = {"shares.input": 0.5, "loader.supply": 0.5, "loader.making_s": 0.4}
BURSTY = {"shares.input": 0.2, "loader.supply": 2.0, "loader.late": 0.3}
CHUNKS = {"shares.input": 0.2, "loader.mode": "sharded", "loader.num_workers": None}
GATHER = {"shares.input": 0.1, "loader.mode": "on_device", "loader.num_workers": None}
COPIES = {"shares.transfer": 0.2}
WAITS = {"sync": Sync(1.0, [SITE]), "bubble.sync": 0.1, "shares.kernel": 0.005}
PERIODIC = Fluctuation(0.1, 0.6, 0.1, 1.0, 90.0, 0.4, 0.9, 4.0)
STALLED = {"shares.input": 0.04, "shares.hooks": 0.02}
STEADY = {"fluctuation.period_s": None}


def tried(setting: str, value: int, gain: float, spread: float = 1.05, threads: int | None = None) -> Trial:
    return Trial(gain, gain / spread, gain * spread, setting, value, threads)


MANY = [tried("trainer.threads", 1, 2.0)]
FEW = [tried("trainer.threads", 16, 1.5), tried("trainer.threads", 1, 0.6)]
LARGER = [tried("loader.batch_size", 256, 2.5)]
UNSURE = [tried("trainer.threads", 1, 1.5, 1.6), tried("loader.batch_size", 256, 1.5, 1.45)]
LEAK = {"memory.growth_bytes_per_step": 2.0 * (1 << 20), "memory.monotone": 1.0}
SLOWED = {"device.sm_clock_share": 0.7, "device.throttled_by": "power cap"}
FULL_BATCH = {"loader.batch_size": 32, "trainer.accumulate_grad_batches": 2}
EAGER, FP32 = {"settings.trainer.cuda_graph": "off"}, {"settings.trainer.precision": "32-true"}
COMPILED = {"settings.trainer.compile": "max-autotune"}
LATE, PAUSED, QUICK = {"bubble.launch": 0.3}, {"bubble.queued": 0.3}, {"gpu_busy": 0.4, "sm_efficiency": 0.1}


def stalls(cause: str | None = None, **more: Any) -> dict[str, Any]:
    """A stall that repeats, with its cause."""
    return {**STALLED, "fluctuation": replace(PERIODIC, cause=cause), **more}


CASES = [
    Case("sync.per_step", 0.1, {**WAITS, "settings.trainer.log_every_n_steps": 1}, LOG, {"sync.per_step": 0.2}),
    Case("sync.per_step", 0.1, WAITS, {}, {"bubble.sync": 0.04}),  # the loss is read in one of 50 steps
    Case("sync.per_step", 0.3, {**WAITS, "shares.hooks": 0.2, "shares.kernel": 0.6}, {},
         {"shares.hooks": 0.0, "bubble.sync": 0.01}),
    Case("sync.per_step", 0.31, EXPOSED, LOG, {"sync.per_step": 0.2}),
    Case("sync.per_step", 0.35, {**EXPOSED, "bubble.sync": 0.04}, LOG, {"loader.making_s": 0.09, "bubble.sync": 0.0}),
    Case("loader.late", 0.3, INLINE, RESIDENT, {"shares.input": 0.04}),
    Case("loader.late", 0.2, {**INLINE, "loader.resident_s": 0.01}, RESIDENT, {"shares.input": 0.04}),
    Case("loader.late", 0.3, {**INLINE, **TOO_LARGE}, CHUNK, {"shares.input": 0.04}, "host"),
    Case("loader.late", 0.5, UNDERSUPPLIED, RESIDENT, {"loader.supply": None}),
    Case("loader.late", 0.2, {**BURSTY, "loader.late": 0.9}, RESIDENT, {"loader.supply": None}),
    Case("loader.late", 0.5, {**UNDERSUPPLIED, **TOO_LARGE}, CHUNK, {"loader.supply": None}, "host"),
    Case("loader.late", 0.2, BURSTY, RESIDENT, {"shares.input": 0.04}),
    Case("loader.late", 0.2, CHUNKS, RESIDENT, {"shares.input": 0.04}),
    Case("loader.late", 0.2, {**CHUNKS, **TOO_LARGE}, {}, {"shares.input": 0.04}, "host"),
    Case("loader.late", 0.1, GATHER, {}, {"shares.input": 0.04}),
    Case("loader.late", 0.1, {**GATHER, "host.cores": 1}, {}, {"shares.input": 0.04}, "host"),
    Case("transfer.heavy", 0.2, {**COPIES, "copy.pageable": True, "settings.loader.pin_memory": False},
         {"loader.pin_memory": True}, {"shares.transfer": 0.04}),
    Case("transfer.heavy", 0.2, COPIES, RESIDENT, {"shares.transfer": 0.04}),
    Case("transfer.heavy", 0.2, {**COPIES, **TOO_LARGE}, CHUNK, {"window.clock": "host"}),
    Case("transfer.heavy", 0.2, {**COPIES, **TOO_LARGE, "loader.mode": "sharded"}, {}, {"shares.transfer": 0.0}),
    Case("launch.bound", 0.3, LATE | EAGER, {"trainer.cuda_graph": "auto"}, {"bubble.launch": 0.04}),
    Case("launch.bound", 0.3, LATE, {"trainer.compile": "default"}, {"bubble": None}),
    Case("launch.bound", 0.3, LATE | COMPILED, {}, {"bubble.launch": 0.0}),
    Case("kernels.small", 0.3, PAUSED, {"trainer.compile": "default"}, {"bubble.queued": 0.04}),
    Case("kernels.small", 0.3, PAUSED | COMPILED, {}, {"bubble": None}),
    Case("threads.number", 0.485, {"trials": MANY}, {"trainer.threads": 1}, {"trials": UNSURE}, "host"),
    Case("threads.number", 0.97 / 3, {"trials": FEW}, {"trainer.threads": 16}, {"trials": FEW[1:]}, "host"),
    Case("batch.small", 0.582, {"trials": LARGER}, {"loader.batch_size": 256}, {"trials": UNSURE}, "host"),
    Case("batch.small", 0.582, {"trials": LARGER}, {"loader.batch_size": 256}, {"bubble.launch": 0.1}),
    Case("batch.small", 0.582, {"trials": LARGER, **LATE, **COMPILED}, {"loader.batch_size": 256}, QUICK),
    Case("hooks.heavy", 0.2, {"shares.hooks": 0.2, "settings.trainer.log_every_n_steps": 10}, LOG,
         {"shares.hooks": 0.04}, "host"),
    Case("hooks.heavy", 0.2, {"shares.hooks": 0.2, "host.gc": 0.15, "settings.trainer.log_every_n_steps": 1}, {},
         {"sync.per_step": 1.0}),
    Case("step.waits", 0.2, {"host.waiting": 0.2}, {}, {"host.waiting": 0.04}, "host"),
    Case("step.waits", 0.2, {"host.waiting": 0.2}, {}, {"trials": MANY}, "host"),
    Case("compute.fp32", 0.475, FP32, {"trainer.precision": "bf16-mixed"}, {"shares.kernel": 0.5}),
    Case("compute.small", 0.66, {"sm_efficiency": 0.3}, {"loader.batch_size": 256}, {"sm_efficiency": 0.5}),
    Case("compute.small", 0.3, QUICK, {"loader.batch_size": 256}, {"sm_efficiency": 0.2}),  # not busy, and idle inside
    Case("compute.small", 0.582, {**QUICK, "trials": LARGER}, {"loader.batch_size": 256}, {"trials": UNSURE}),
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
    Case("fluctuation.periodic", 0.06, stalls("trainer.log_every_n_steps"), {"trainer.log_every_n_steps": 500},
         STEADY, "host")
]  # fmt: skip


def found(profile: Profile, rule: str) -> Finding | None:
    """The finding of a rule, which is there once or not at all."""
    same = [finding for finding in with_findings(profile).findings if finding.rule == rule]
    assert len(same) <= 1
    return same[0] if same else None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_a_rule_fires_and_says_what_to_change_and_beside_it_is_quiet(case: Case) -> None:
    finding = found(case.profile(), case.rule)
    assert (finding.patch, finding.share) == (case.patch, pytest.approx(case.share))
    # What was tried has no bound, and a gain stands beside a setting alone.
    bound = bool(finding.patch) and not finding.trial
    assert finding.ceiling == (pytest.approx(1 / (1 - finding.share)) if bound else None)
    assert bool(finding.gain) == bool(finding.patch and case.share)
    assert finding.trial is None or finding.trial in case.profile().trials
    assert finding.evidence
    assert bool(finding.will_not_help) == (case.rule not in NOTHING_IN_VAIN)
    assert finding.severity == ("critical" if case.share >= 0.2 else "warn")
    assert found(changed(case.profile(), case.quiet), case.rule) is None
    judged = with_findings(case.profile())
    assert judged.verdict == WORDS[judged.findings[0].rule]
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


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in CASES} == set(WORDS)
    assert len(RULES) == len(WORDS) <= 16


@pytest.mark.parametrize("clock", ["device", "host"])
def test_a_healthy_profile_has_no_finding(clock: str) -> None:
    made = with_findings(healthy(clock))
    assert (made.findings, made.verdict) == ([], "COMPUTE-BOUND")
    assert made.summary.endswith("the model itself")


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
    assert found(made, "loader.late").instead == wanted


def test_the_loss_is_never_read_more_often_than_now() -> None:
    for changes in (EXPOSED, WAITS, {"shares.hooks": 0.2}):
        made = with_findings(changed(healthy(), {**changes, "settings.trainer.log_every_n_steps": 100}))
        assert made.findings
        assert changes == {"shares.hooks": 0.2} or any(SITE in finding.advice for finding in made.findings)
        assert joint_patch(made.findings).get("trainer.log_every_n_steps", 100) >= 100


@pytest.mark.parametrize(("groups", "same"), [(1, False), (2, False), (4, True), (6, False), (32, True)])
def test_a_training_stays_the_same_where_its_steps_have_as_many_windows(groups: int, same: bool) -> None:
    changes = {"trials": LARGER, "settings.trainer.accumulate_grad_batches": groups}
    finding = found(changed(healthy("host"), changes), "batch.small")
    patch = finding.patch
    assert (patch["loader.batch_size"] * patch.get("trainer.accumulate_grad_batches", 1) == 64 * groups) == same
    assert ("stays the same" in finding.advice) == same


def test_a_batch_is_named_with_the_threads_with_which_it_was_tried() -> None:
    trials = [tried("trainer.threads", 1, 1.3), tried("loader.batch_size", 256, 6.3, threads=1)]
    made = with_findings(changed(healthy("host"), {"trials": trials, "host.threads": 8}))
    assert joint_patch(made.findings) == {"loader.batch_size": 256, "trainer.threads": 1}
    assert made.change.rule == "batch.small"
    assert made.change.gain.startswith(f"tried: {made.change.trial}, ")
    assert made.change.gain.endswith(" 1 thread")


def test_a_larger_batch_that_brings_nothing_is_named_by_no_rule() -> None:
    """Though its kernels leave processors idle, and the memory has room."""
    made = with_findings(changed(healthy(), {"sm_efficiency": 0.2, "trials": UNSURE}))
    assert made.findings == []
    assert made.change is None


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({"host.waiting": 0.85, "host.others_used": 9.0}, None),  # when other programs have ended is no setting
        ({"host.waiting": 0.85, "trials": LARGER}, "batch.small"),
        ({"shares.input": 0.5, "loader.num_workers": 0, "trials": LARGER}, "batch.small"),
        ({"shares.input": 0.9, "loader.num_workers": 0, "trials": LARGER}, "loader.late"),
        ({**CHUNKS, **TOO_LARGE}, None),
    ],
)
def test_the_change_is_a_setting_that_brings_its_gain(changes: dict[str, Any], first: str | None) -> None:
    made = with_findings(changed(healthy("host"), changes))
    assert made.findings
    assert (made.change and made.change.rule) == first
    assert all(finding.patch for finding in made.findings if finding.gain)


@pytest.mark.parametrize(
    ("others", "says"),
    [(1.4, "took 1.4 of 2 cores"), (0.5, "took 0.5 of 2 cores"), (0.1, "took 0.1 cores"), (None, "on these cores")],
)
def test_a_step_that_waits_says_what_other_programs_took(others: float | None, says: str) -> None:
    made = changed(healthy("host"), {"host.waiting": 0.4, "host.cores": 2, "host.others_used": others})
    finding = found(made, "step.waits")
    assert says in f"{finding.evidence} {finding.advice}"


# What was not measured


def optional(profile: Profile) -> list[str]:
    """The dotted names of what a profile may lack."""
    names = [each.name for each in fields(profile) if "None" in str(each.type)]
    for each in fields(profile):
        if is_dataclass(section := getattr(profile, each.name)):
            names += [f"{each.name}.{inner.name}" for inner in fields(section) if "None" in str(inner.type)]
    return names


@given(st.sampled_from(CASES), st.data())
def test_a_rule_abstains_where_a_number_was_not_measured(case: Case, data: st.DataObject) -> None:
    profile = case.profile()
    lacking = data.draw(st.lists(st.sampled_from(optional(profile)), unique=True))
    for name in sorted(lacking, key=lambda each: each.count("."), reverse=True):
        profile = changed(profile, {name: None})
    made = with_findings(replace(profile, settings=data.draw(st.sampled_from([{}, profile.settings]))))
    assert {finding.rule for finding in made.findings} <= set(WORDS)
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
    assert [finding.rule for finding in made.findings] == ["loader.late", "compute.fp32"]
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
    check_names([*WORDS, *SEVERITIES, "loader", "sync", "threads", "memory"])
    with refuses("profile.no-finding", SettingsError) as caught:
        check_names(["loader", name])
    assert "one of batch, " in str(caught.value)


@pytest.mark.parametrize(
    ("names", "fails"),
    [
        (["loader"], ["loader.late"]),
        (["loader.late"], ["loader.late"]),
        (["transfer.heavy"], []),
        (["critical"], ["loader.late"]),
        (["warn"], ["loader.late", "launch.bound", "memory.leak"]),
        (["info"], ["fluctuation.periodic"]),
        (["critical", "loader", "launch", "memory"], ["loader.late", "launch.bound", "memory.leak"]),
        ([], []),
    ],
)
def test_it_fails_on_rules_families_and_severities(names: list[str], fails: list[str]) -> None:
    changes = {**INLINE, **LEAK, "bubble.launch": 0.1, "fluctuation": PERIODIC}
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
    return truth(loop)[0], WORDS[lost[0].rule].removesuffix("-BOUND") if lost else "healthy"


def accuracy(seeds: range) -> tuple[float, float]:
    """Share of loops whose cause is named, and share of healthy loops of which something is said."""
    pairs = [said(seed) for seed in seeds]
    alarms = [word != "healthy" for cause, word in pairs if cause == "healthy"]
    return sum(cause == word for cause, word in pairs) / len(pairs), sum(alarms) / max(1, len(alarms))


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "least", "most"), [(range(20000, 20010), 0.85, 0), (range(9000, 9100), 0.9, 0.05)])
def test_the_causes_of_simulated_loops_are_named(seeds: range, least: float, most: float) -> None:
    right, false_alarms = accuracy(seeds)
    assert right >= least
    assert false_alarms <= most
