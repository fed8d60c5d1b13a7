"""The meaning of a profile: findings with the possible gain, the setting to change, and settings in vain.

``RULES`` is the table. The function in a row is pure, and abstains without the necessary measurements. Shares refer to
the window; a patch alone brings 1 / (1 - share) at most, or with a trial the measured gain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from socialx.core.errors import Argument, Message, SettingsError, counted
from socialx.dataset import ON_DEVICE_SHARE
from socialx.dataset.loaders import GIB
from socialx.profiling.profile import Finding, Profile
from socialx.profiling.trials import TIMES, best_trial

WARN, CRITICAL = 0.05, 0.20  # share of the window that could be saved
CLOSE = 0.03  # shares of two findings that cannot be told apart
ENOUGH = 1.1  # supply from which on workers keep up
ALWAYS = 0.8  # share of times from which on what is late is not only now and then late
RESERVE = 1.2  # workers named, over those that are just enough
LOG_EVERY = 50
LAUNCH_S = 6e-6  # that a launch takes the host, about
LEAK_BYTES = 100 << 20
OTHER = "another batch is another training: its learning rate may have to change"
SEVERITIES = ("info", "warn", "critical")
Patch = dict[str, Any]


def with_findings(profile: Profile) -> Profile:
    """Return the profile with a verdict and findings, costliest first: lost time, slow computing, then information."""
    findings = [
        replace(cause, rule=row.name, will_not_help=cause.will_not_help or row.vain)
        for row in RULES
        if (cause := row.find(profile)) is not None
    ]
    # A finding is information where another one names the same time with its cause.
    families = {finding.family for finding in findings}
    told = {"loader.late"} if "sync" in families and _is_exposed(profile) else set()
    if families & {"loader", "hooks", "sync"}:
        told.add("fluctuation.periodic")
    findings = [replace(finding, severity="info") if finding.rule in told else finding for finding in findings]

    def rank(finding: Finding) -> tuple[int, float]:
        group = 2 if finding.severity == "info" else int(finding.family == "compute")
        return group, -finding.share

    findings.sort(key=rank)
    verdict, summary = _verdict(profile, findings)
    return replace(profile, findings=findings, verdict=verdict, summary=summary)


def _verdict(p: Profile, findings: Sequence[Finding]) -> tuple[str, str]:
    """Return a verdict and a sentence for the first finding, for two close findings, or for a clean profile."""
    costly = [finding for finding in findings if finding.severity != "info"]
    if not costly:
        busy = p.gpu_busy if p.gpu_busy is not None else p.shares.span - (p.host.waiting or 0)
        return "COMPUTE-BOUND", f"the {_device(p)} is busy {busy:.0%} of the time; what is left is the model itself"
    rows = {row.name: row for row in RULES}

    def told(finding: Finding) -> tuple[str, str]:
        row = rows[finding.rule]
        return row.word, row.sentence.format(device=_device(p), share=finding.share)

    first = costly[0]
    word, sentence = told(first)
    for other in costly[1:]:
        also, second = told(other)
        lost = other.family != "compute" or first.family == "compute"
        if lost and also not in (word, "STALLED") and other.share >= WARN and first.share - other.share <= CLOSE:
            return "UNCLEAR", f"{word} or {also}: {sentence}; {second}"
    return word, sentence


def joint_patch(findings: Iterable[Finding]) -> Patch:
    """Return the settings changed by all costly findings; a finding that contradicts an earlier finding is left out."""
    patch: Patch = {}
    for finding in findings:
        if finding.severity != "info" and all(patch.get(key, value) == value for key, value in finding.patch.items()):
            patch |= finding.patch
    return patch


def check_names(names: Sequence[str]) -> None:
    """Raise SettingsError for a name outside rules, families such as ``loader``, and severities."""
    rules = [row.name for row in RULES]
    valid = {*rules, *(name.partition(".")[0] for name in rules), *SEVERITIES}
    for name in names:
        if name not in valid:
            remedy = f"one of {', '.join(sorted(valid))}"
            raise SettingsError("profile.no-finding", Argument("fail_on"), f"{name!a} is no finding", remedy)


def matching_findings(profile: Profile, names: Sequence[str]) -> list[Message]:
    """Return a message per finding among the given rules, families such as ``loader``, or severities."""
    messages = []
    for finding in profile.findings:
        labels = {finding.rule, finding.family, finding.severity}
        labels |= {"warn"} if finding.severity == "critical" else set()
        if labels & set(names):
            messages.append(Message("profile.finding", finding.rule, finding.evidence))
    return messages


# What the rules share


def _finding(share: float, evidence: str, patch: Patch | None = None, **more: Any) -> Finding:
    """Return a finding with severity and ceiling from ``share``; the table gives the name; more: more fields."""
    share = min(max(share, 0.0), 0.999)
    ceiling = 1 / (1 - share) if patch and not more.get("trial") else None
    return Finding("", "critical" if share >= CRITICAL else "warn", share, ceiling, evidence, patch or {}, **more)


def _device(p: Profile) -> str:
    return "GPU" if p.on_device else "CPU"


def fits(p: Profile) -> bool:
    """Return whether the whole series fits into the device's free memory, as the loader mode ``on_device`` needs."""
    size, free = p.loader.series_bytes, p.loader.free_bytes
    return size is not None and (free is None or size <= ON_DEVICE_SHARE * free)


def _without_workers(p: Profile) -> tuple[Patch, str]:
    """Return settings for a loader without workers (on_device, or sharded if too large), and the reason in words."""
    if not fits(p):
        return {"loader.mode": "sharded"}, "the series is read in shards while the model trains"
    return {"loader.mode": "on_device"}, f"the series takes {(p.loader.series_bytes or 0) / GIB:.2f} GiB of memory"


def _more_workers(p: Profile) -> list[Patch]:
    """Return ``[patch]`` with enough workers; [] where cores are lacking, or the number is set already or unknown."""
    making_s, computing = p.loader.making_s, p.step_s * (1 - p.shares.input)
    if making_s is None or computing <= 0:
        return []
    need = max(1, math.ceil(RESERVE * making_s / computing))
    if need > p.host.cores - 1 or need == p.loader.num_workers:
        return []
    return [{"loader.mode": "workers", "loader.num_workers": need}]


def _waits(p: Profile) -> bool:
    """Return whether the host waits for the device in every step, or in every second one."""
    return p.sync is not None and p.sync.per_step >= 0.5


def _is_exposed(p: Profile) -> bool:
    """Return whether a wait in every step lets the device idle while the training process makes a batch.

    Without the wait the host makes a batch and launches a step while the device computes the one before.
    """
    if not _waits(p) or p.loader.mode != "workers" or p.loader.num_workers or p.loader.making_s is None:
        return False
    launches = p.kernels.launches_per_step if p.kernels else None
    return p.loader.making_s + LAUNCH_S * (launches or 0) < p.step_s * (1 - p.shares.input - p.shares.hooks)


def _hidden_by_sync(p: Profile) -> bool:
    """Return whether the work between steps costs time only because the host waits for the device in each step.

    True for short work in every step, where the median step is about as long as the mean.
    """
    even = p.step_ms.p50 >= 0.9 * 1e3 * p.step_s
    return _waits(p) and even and p.shares.hooks < (p.shares.kernel or 0)


# The rules


def _sync(p: Profile) -> Finding | None:
    """Find a wait for the GPU in every step, in which the host launches nothing and makes no batch."""
    if p.sync is None or p.bubble is None or not _waits(p):
        return None
    exposed = _is_exposed(p)
    saved = p.bubble.sync + (p.shares.input if exposed else 0) + (p.shares.hooks if _hidden_by_sync(p) else 0)
    if saved < WARN:
        return None
    evidence = f"the host waits for the GPU {p.sync.per_step:.1f} times a step"
    evidence += ", and makes the next batch only then" if exposed else ""
    every = p.setting("trainer.log_every_n_steps")  # half of the waits at least are that reading
    patch = {"trainer.log_every_n_steps": LOG_EVERY} if every and every * p.sync.per_step <= 2 else {}
    words = f"it waits at {', '.join(p.sync.sites[:2])}" if p.sync.sites else ""
    return _finding(saved, evidence, patch, advice=words)


def _loader(p: Profile) -> Finding | None:
    """Find late batches: from this process, from workers, from the next shard, or gathered for a small model."""
    loader, late, cores = p.loader, p.shares.input, p.host.cores
    if late < WARN:
        return None
    if loader.mode == "on_device":
        evidence = f"gathering a batch from the series on the device takes {late:.0%} of a step: the model is small"
        words = "workers could make batches on other cores" if cores > 1 else "this machine has no other core for it"
        instead = [{"loader.mode": "workers", "loader.num_workers": cores - 1}] if cores > 1 else []
        vain = "loader.prefetch_factor and loader.pin_memory: a series on the device uses neither"
        return _finding(late, evidence, advice=words, instead=instead, will_not_help=vain)
    patch, words = _without_workers(p)
    saved = late - (loader.resident_s or 0) / p.step_s
    if loader.mode == "sharded":
        evidence = f"{late:.0%} of the time the {_device(p)} waits for the next shard of the series"
        vain = "another loader.shard_gb: a larger shard takes as much longer to read"
        if not fits(p):
            patch, saved = {}, late
            words = "the series does not fit into the memory: a faster disk, or a larger model, hides the reading"
        return _finding(saved, evidence, patch, advice=words, will_not_help=vain)
    instead, workers, supply = _more_workers(p), loader.num_workers, loader.supply
    if not workers:
        evidence = f"{late:.0%} of the time the {_device(p)} waits while the training process makes a batch"
        vain = "loader.pin_memory: the copy is not what takes the time"
    elif supply is None:
        return None
    elif supply < ENOUGH or (loader.late or 0) >= ALWAYS:  # passing batches on makes them late too
        several, taken = "workers hand" if workers > 1 else "worker hands", 1 / (p.step_s * (1 - late))
        evidence = f"{workers} {several} over {1 / p.step_s:.3g} steps/s, the {_device(p)} takes {taken:.3g}"
        vain = "loader.prefetch_factor: a longer queue does not make more batches a second"
    else:
        evidence = f"workers make {supply:.1f} batches for each that is wanted, and some of them come late"
        instead = [{"loader.prefetch_factor": min(16, 2 * (loader.prefetch_factor or 2))}]
        vain = "more loader.num_workers: there are enough batches on average"
    return _finding(saved, evidence, patch, advice=words, instead=instead, will_not_help=vain)


def _transfer(p: Profile) -> Finding | None:
    """Find copies to the GPU that take 5 % of the time or more, from pinned or pageable memory."""
    share = p.shares.transfer
    if share < WARN or not p.on_device:
        return None
    evidence = f"copies to the GPU take {share:.0%} of the time"
    patch, words = _without_workers(p)
    patch = {} if patch["loader.mode"] == p.loader.mode else patch
    if p.copy is not None and p.copy.pageable and not p.setting("loader.pin_memory"):
        evidence, pin = f"{evidence}, from memory that is not pinned", {"loader.pin_memory": True}
        return _finding(share, evidence, pin, instead=[patch] if patch else [])
    return _finding(share, evidence, patch, advice=words if patch else "")


ON = {"trainer.cuda_graph": "auto", "trainer.compile": "default"}


def _fewer_launches(p: Profile, share: float, evidence: str, *keys: str) -> Finding | None:
    """Return a finding from 5 % on that turns on the first of ``keys`` that is off."""
    if share < WARN:
        return None
    first, *instead = [{key: ON[key]} for key in keys if p.setting(key) in (False, "off", None)] or [{}]
    words = "" if first else "a larger loader.batch_size gives larger kernels"
    return _finding(share, evidence, first, instead=instead, advice=words)


def _launch(p: Profile) -> Finding | None:
    """Find a GPU that waits for a slow host to launch kernels."""
    if p.bubble is None or p.kernels is None:
        return None
    late = p.bubble.launch
    evidence = f"the GPU waits {late:.0%} of the time for the host to launch {p.kernels.per_step:,.0f} kernels a step"
    return _fewer_launches(p, late, evidence, *ON)


def _kernels(p: Profile) -> Finding | None:
    """Find pauses between kernels launched in time: many small kernels."""
    if p.bubble is None or p.kernels is None:
        return None
    paused = p.bubble.queued
    evidence = f"the GPU pauses {paused:.0%} of the time between {p.kernels.per_step:,.0f} kernels a step"
    evidence += " that were launched in time"
    return _fewer_launches(p, paused, evidence, "trainer.compile")


def _threads(p: Profile) -> Finding | None:
    """Find a faster number of CPU threads among trials."""
    best = best_trial(p.trials, "trainer.threads")
    if best is None:
        return None
    several = f"{counted(best.value, 'thread')} {'is' if best.value == 1 else 'are'}"
    evidence = f"{several} {best.gain:.2f}x as fast as {p.host.threads} on {p.host.cores} cores"
    saved = p.shares.span * (1 - 1 / best.gain)
    return _finding(saved, evidence, {best.setting: best.value}, trial=best)


def _larger_batch(p: Profile, evidence: str = "") -> Finding | None:
    """Return a finding for a larger batch that a trial measured as faster per window, after ``evidence``."""
    best = best_trial(p.trials, "loader.batch_size")
    if best is None:
        return None
    evidence += f"{best.value} windows a batch are {best.gain:.2f}x as fast per window as {best.value // TIMES}"
    evidence += f", both with {counted(best.threads, 'thread')}" if best.threads else ""
    patch: Patch = {best.setting: best.value}
    if best.threads:
        patch["trainer.threads"] = best.threads
    groups, words = p.setting("trainer.accumulate_grad_batches") or 1, OTHER
    if groups > 1:
        patch["trainer.accumulate_grad_batches"] = max(1, groups // TIMES)
        words = "with fewer batches a step the training stays the same" if groups % TIMES == 0 else OTHER
    return _finding(p.shares.span * (1 - 1 / best.gain), evidence, patch, advice=words, trial=best)


def _batch(p: Profile) -> Finding | None:
    """Find a larger batch that is faster per window, unless the trace names the cause."""
    launches = _launch(p)
    return None if _leaves_idle(p) or (launches and launches.patch) else _larger_batch(p)


def _hooks(p: Profile) -> Finding | None:
    """Find costly work between steps: reading the loss, logging, Python's garbage collector."""
    share = p.shares.hooks
    if share < WARN or _hidden_by_sync(p):
        return None
    evidence = f"{share:.0%} of the time passes between two steps"
    if (p.host.gc or 0) >= 0.6 * share:
        words = "Python's garbage collector takes it: gc.freeze() after the start, or fewer objects a step"
        return _finding(share, evidence, advice=words)
    every = p.setting("trainer.log_every_n_steps")
    patch = {"trainer.log_every_n_steps": LOG_EVERY} if every and 5 * every <= LOG_EVERY else {}
    words = "the loss is read and shown there" if patch else "something is called after each step, such as a callback"
    return _finding(share, evidence, patch, advice=words)


def _step_waits(p: Profile) -> Finding | None:
    """Find CPU training steps that pass time without computing, unless another number of threads helps."""
    waiting = p.host.waiting or 0
    if waiting < WARN or _waits(p) or best_trial(p.trials, "trainer.threads"):
        return None
    evidence = f"{waiting:.0%} of the time a training step does not compute: it sleeps, or has no core"
    words = "other programs on these cores, a lock, a file that is read in the model, another process of the training"
    if p.others:
        evidence, words = f"{evidence}; {p.others}", "stop them and profile again"
        words += ", or use fewer threads" if p.host.threads > 1 else ""
    elif p.host.others_used is not None:
        words = f"a lock, or a file that is read in the model: other programs took {p.host.others_used:.1f} cores"
    return _finding(waiting, evidence, advice=words)


def _float32(p: Profile) -> Finding | None:
    """Find a GPU that is busy with float32 kernels most of the time, where 16-bit types halve the bytes."""
    running = p.shares.kernel or 0
    if not p.on_device or running < 0.6 or p.setting("trainer.precision") != "32-true":
        return None
    evidence = f"kernels run {running:.0%} of the time in float32; 16-bit types move half the bytes"
    return _finding(0.5 * running, evidence, {"trainer.precision": "bf16-mixed"})


def _leaves_idle(p: Profile) -> bool:
    """Return whether kernels, while they run, use less than half of the GPU's processors."""
    if p.gpu_busy is None or p.sm_efficiency is None:
        return False
    return p.sm_efficiency < 0.5 * p.gpu_busy and p.gpu_busy - p.sm_efficiency >= WARN


def _compute_small(p: Profile) -> Finding | None:
    """Find kernels that leave most GPU processors idle; where a larger batch was tried, the trial decides."""
    if p.gpu_busy is None or p.sm_efficiency is None or not _leaves_idle(p):
        return None
    evidence = f"kernels run {p.gpu_busy:.0%} of the time and use {p.sm_efficiency:.0%} of the GPU's processors"
    if any(trial.setting == "loader.batch_size" for trial in p.trials):
        return _larger_batch(p, f"{evidence}: ")
    batch = p.setting("loader.batch_size")
    patch = {"loader.batch_size": TIMES * batch} if batch else {}
    return _finding(p.gpu_busy - p.sm_efficiency, evidence, patch, advice=OTHER)


def _memory_pressure(p: Profile) -> Finding | None:
    """Find GPU memory that is nearly used up, or an allocator that had to free memory and retry."""
    if p.memory is None or not p.memory.reserved_bytes:
        return None
    reserved, capacity, retries = p.memory.reserved_bytes, p.memory.capacity_bytes, p.memory.alloc_retries or 0
    if not retries and reserved <= 0.92 * capacity:
        return None
    evidence = f"{reserved / GIB:.1f} of {capacity / GIB:.1f} GiB reserved, {retries} retries"
    batch, groups = p.setting("loader.batch_size"), p.setting("trainer.accumulate_grad_batches") or 1
    patch: Patch = {}
    if batch and batch > 1:
        patch = {"loader.batch_size": batch // 2, "trainer.accumulate_grad_batches": 2 * groups}
    return _finding(0.0, evidence, patch, instead=[{"model.activation_checkpointing": True}])


def _memory_leak(p: Profile) -> Finding | None:
    """Find memory that grows with every step."""
    if p.memory is None or p.memory.growth_bytes_per_step is None or (p.memory.monotone or 0) < 0.9:
        return None
    growth = p.memory.growth_bytes_per_step
    if growth * p.window.steps < LEAK_BYTES:
        return None
    evidence = f"memory grows by {growth / 2**20:.2f} MiB a step"
    words = "something keeps what it no longer needs, such as a list of losses with their graphs"
    return _finding(0.0, evidence, advice=words)


def _recompiles(p: Profile) -> Finding | None:
    """Find repeated compilation by torch.compile during the measured steps."""
    if p.recompiles is None or p.recompiles <= 3:
        return None
    evidence = f"torch.compile made the model {p.recompiles} times during the measurement"
    return _finding(0.0, evidence, {"trainer.compile": "off"})


def _throttled(p: Profile) -> Finding | None:
    """Find a GPU whose clock is lowered, such as for power or temperature."""
    if p.device is None or p.device.sm_clock_share is None or p.device.sm_clock_share >= 0.85:
        return None
    if p.device.throttled_by is None:
        return None
    clock = p.device.sm_clock_share
    evidence = f"the GPU's clock is at {clock:.0%} of its highest: {p.device.throttled_by}"
    return _finding(1 - clock, evidence)


def _periodic(p: Profile) -> Finding | None:
    """Find a stall that repeats at equal intervals, and the setting with the same period where known."""
    f = p.fluctuation
    if f.period_s is None:
        return None
    swing = f"swings between {f.p5:.0%} and {f.p95:.0%} busy every {f.period_s:.2f} s"
    evidence = f"the {_device(p)} {swing} = {f.steps_per_period or 0:.1f} steps"
    saved, cause = p.shares.input + p.shares.hooks, f.cause
    if cause is None:
        words = "no setting has this period: look for another program on this machine"
        return _finding(saved, evidence, advice=words)
    patch: Patch = {}
    if cause == "loader.num_workers" or (cause == "loader.shard_gb" and fits(p)):
        patch, _ = _without_workers(p)
    elif cause == "trainer.log_every_n_steps":
        patch = {cause: 10 * (p.setting(cause) or LOG_EVERY)}
    return _finding(saved, f"{evidence}, which is {cause}", patch)


class Rule(NamedTuple):
    """A row: the verdict and its sentence where this finding is the first, what finds it, and settings in vain."""

    name: str
    word: str
    sentence: str
    find: Callable[[Profile], Finding | None]
    vain: str = ""


RULES = (  # in the order of equal shares: what names its cause more closely comes first
    Rule("sync.per_step", "SYNC-BOUND", "the host waits for the {device} in every step, {share:.0%} of the time",
         _sync, "trainer.compile and loader settings: the wait stays"),
    Rule("loader.late", "INPUT-BOUND", "the {device} waits {share:.0%} of the time for batches", _loader),
    Rule("transfer.heavy", "COPY-BOUND", "copies to the {device} take {share:.0%} of the time",
         _transfer, "loader.num_workers and loader.prefetch_factor: batches wait for the copy, not for workers"),
    Rule("launch.bound", "LAUNCH-BOUND", "the {device} waits {share:.0%} of the time for the host to launch kernels",
         _launch, "loader settings, and a faster GPU: the host sets the pace"),
    Rule("kernels.small", "KERNEL-BOUND", "the {device} pauses {share:.0%} of the time between kernels in the queue",
         _kernels, "loader settings: the GPU has its work before it needs it"),
    Rule("threads.number", "THREAD-BOUND", "training is faster with another number of threads",
         _threads, "loader settings: the step itself becomes faster"),
    Rule("batch.small", "PYTHON-BOUND", "a window takes less time in a larger batch",
         _batch, "loader.num_workers: batches are there in time"),
    Rule("hooks.heavy", "HOOK-BOUND", "{share:.0%} of the time passes between two steps",
         _hooks, "loader settings, and trainer.compile: neither is between two steps"),
    Rule("step.waits", "WAIT-BOUND", "a training step waits {share:.0%} of the time without computing",
         _step_waits, "trainer.compile"),
    Rule("compute.fp32", "COMPUTE-BOUND", "the {device} could compute with {share:.0%} less time",
         _float32, "loader settings: the GPU does not wait"),
    Rule("compute.small", "COMPUTE-BOUND", "the {device} could compute with {share:.0%} less time",
         _compute_small, "trainer.precision alone: smaller numbers do not make more work at a time"),
    Rule("memory.pressure", "MEMORY-BOUND", "the memory of the {device} is the limit",
         _memory_pressure, "torch.cuda.empty_cache(): the next step takes it again"),
    Rule("memory.leak", "MEMORY-BOUND", "the memory of the {device} is the limit", _memory_leak, "gc.collect()"),
    Rule("compile.recompiles", "COMPILE-BOUND", "the model is compiled again and again",
         _recompiles, "a longer warm-up: shapes that change are compiled each time"),
    Rule("clock.throttled", "CLOCK-BOUND", "the GPU runs at a lowered clock",
         _throttled, "any setting: power and cooling of the machine decide it"),
    Rule("fluctuation.periodic", "STALLED", "the {device} stalls again and again, {share:.0%} of the time", _periodic),
)  # fmt: skip
