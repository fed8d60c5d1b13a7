"""The meaning of a profile: findings with the possible gain, the setting to change, and settings in vain.

A rule is a pure function from a profile to a finding or None, and returns None without the necessary measurements.
Shares refer to the window; a finding alone brings 1 / (1 - share) at most, or with a trial the measured gain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from socialx.core.errors import Argument, Message, SettingsError, counted
from socialx.dataset import GIB, ON_DEVICE_SHARE
from socialx.profiling.profile import WORTH, Finding, Profile, Trial, best_trial

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
FAMILIES = {  # of findings: the verdict where one of them is the first, its sentence, and their names
    "sync": (
        "SYNC-BOUND",
        "the host waits for the {device} in every step, which costs {share:.0%} of the time",
        "exposes_loader per_step",
    ),
    "loader": (
        "INPUT-BOUND",
        "the {device} waits {share:.0%} of the time for batches",
        "inline undersupplied bursty shard gather",
    ),
    "transfer": ("COPY-BOUND", "copies to the {device} take {share:.0%} of the time", "pageable heavy"),
    "launch": ("LAUNCH-BOUND", "the {device} waits {share:.0%} of the time for the host to launch kernels", "bound"),
    "kernels": (
        "KERNEL-BOUND",
        "the {device} pauses {share:.0%} of the time between kernels that are launched in time",
        "small",
    ),
    "threads": ("THREAD-BOUND", "training is faster with another number of threads", "too_many too_few"),
    "batch": ("PYTHON-BOUND", "a window takes less time in a larger batch", "small"),
    "hooks": ("HOOK-BOUND", "{share:.0%} of the time passes between two steps", "heavy"),
    "step": ("WAIT-BOUND", "a training step waits {share:.0%} of the time without computing", "waits"),
    "compute": ("COMPUTE-BOUND", "the {device} could compute with {share:.0%} less time", "fp32 small"),
    "memory": ("MEMORY-BOUND", "the memory of the {device} is the limit", "pressure leak headroom bound"),
    "compile": ("COMPILE-BOUND", "the model is compiled again and again", "recompiles"),
    "clock": ("CLOCK-BOUND", "the GPU runs at a lowered clock", "throttled"),
    "fluctuation": ("STALLED", "the {device} stalls again and again, {share:.0%} of the time", "periodic"),
}
VERDICT_OF = {f"{family}.{name}": word for family, (word, _, names) in FAMILIES.items() for name in names.split()}


def with_findings(profile: Profile) -> Profile:
    """Return the profile with a verdict and findings, costliest first: lost time, slow computing, then information."""
    findings = [finding for rule in RULES if (finding := rule(profile)) is not None]
    # A finding is information where another one names the same time with its cause.
    names = {finding.rule for finding in findings}
    told = {"loader.inline"} if "sync.exposes_loader" in names else set()
    if any(name.startswith(("loader.", "hooks.", "sync.")) for name in names):
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
        busy = p.gpu_busy if p.gpu_busy is not None else p.shares["span"] - p.number("host.waiting")
        word = "MEMORY-BOUND" if any(finding.rule == "memory.bound" for finding in findings) else "COMPUTE-BOUND"
        return word, f"the {_device(p)} is busy {busy:.0%} of the time; what is left is the model itself"

    def told(finding: Finding) -> tuple[str, str]:
        word, sentence, _ = FAMILIES[finding.family]
        return word, sentence.format(device=_device(p), share=finding.share)

    first = costly[0]
    word, sentence = told(first)
    for other in costly[1:]:
        also, second = told(other)
        lost = other.family != "compute" or first.family == "compute"
        if lost and also not in (word, "STALLED") and other.share >= WARN and first.share - other.share <= CLOSE:
            return "UNCLEAR", f"{word} or {also}: {sentence}; {second}"
    return word, sentence


def joint_patch(findings: Iterable[Finding]) -> dict[str, Any]:
    """Return the settings changed by all costly findings; a finding that contradicts an earlier finding is left out."""
    patch: dict[str, Any] = {}
    for finding in findings:
        if finding.severity != "info" and all(patch.get(key, value) == value for key, value in finding.patch.items()):
            patch |= finding.patch
    return patch


def check_names(names: Sequence[str]) -> None:
    """Raise SettingsError for a name outside rules, families such as ``loader``, and severities."""
    valid = {*VERDICT_OF, *FAMILIES, *SEVERITIES}
    for name in names:
        if name not in valid:
            raise SettingsError(Argument("fail_on"), f"{name!a} is no finding", f"one of {', '.join(sorted(valid))}")


def matching_findings(profile: Profile, names: Sequence[str]) -> list[Message]:
    """Return a message per finding among the given rules, families such as ``loader``, or severities."""
    messages = []
    for finding in profile.findings:
        labels = {finding.rule, finding.family, finding.severity}
        labels |= {"warn"} if finding.severity == "critical" else set()
        if labels & set(names):
            messages.append(Message(finding.rule, finding.evidence))
    return messages


# What the rules share


def _finding(
    rule: str, share: float, evidence: str, patch: dict[str, Any] | None = None, vain: str = "", **more: Any
) -> Finding:
    """Return a finding with severity and ceiling from ``share``; vain: settings that do not help; more: more fields."""
    share = min(max(share, 0.0), 0.999)
    severity = more.pop("severity", "critical" if share >= CRITICAL else "warn")
    ceiling = None if more.get("trial") else 1 / (1 - share)
    return Finding(rule, severity, share, ceiling, evidence, patch or {}, will_not_help=vain, **more)


def _device(p: Profile) -> str:
    return "GPU" if p.window["clock"] == "device" else "CPU"


def fits(p: Profile) -> bool:
    """Return whether the whole series fits into the device's free memory, as the loader mode ``on_device`` needs."""
    size, free = p.value("loader.series_bytes"), p.value("loader.free_bytes")
    return size is not None and (free is None or size <= ON_DEVICE_SHARE * free)


def _without_workers(p: Profile) -> tuple[dict[str, Any], str]:
    """Return settings for a loader without workers (on_device, or sharded if too large), and the reason in words."""
    if not fits(p):
        return {"loader.mode": "sharded"}, "the series is read in shards while the model trains"
    size = p.number("loader.series_bytes") / GIB
    return {"loader.mode": "on_device"}, f"the series takes {size:.2f} GiB of memory"


def _saved_on_device(p: Profile) -> float:
    """Return the share of the window that a series on the device would save: all waiting minus the measured gathering.

    On a CPU workers take cores from the training step; without workers a step takes the time measured alone.
    """
    saved: float = p.shares["input"] - p.number("loader.resident_s") / p.step_s
    alone_s = p.number("host.step_alone_s")
    if p.window["clock"] == "host" and alone_s and p.number("loader.num_workers"):
        saved += max(0.0, p.shares["span"] - alone_s / p.step_s)
    return saved


def _instead_workers(p: Profile) -> list[dict[str, Any]]:
    """Return ``[patch]`` with enough workers; [] where cores are lacking, or the number is set already or unknown."""
    making_s, computing = p.value("loader.making_s"), p.step_s * (1 - p.shares["input"])
    if making_s is None or computing <= 0:
        return []
    need = max(1, math.ceil(RESERVE * making_s / computing))
    if need > (p.number("host.cores") or 1) - 1 or need == p.number("loader.num_workers"):
        return []
    return [{"loader.mode": "workers", "loader.num_workers": need}]


def _twice_the_batch(p: Profile) -> list[dict[str, Any]]:
    batch = p.setting("loader.batch_size")
    return [{"loader.batch_size": 2 * batch}] if batch else []


def _read_rarely(p: Profile) -> dict[str, Any]:
    """Return the setting that reads the loss rarely, empty where set already."""
    every = p.setting("trainer.log_every_n_steps")
    return {} if every is None or every >= LOG_EVERY else {"trainer.log_every_n_steps": LOG_EVERY}


def _sites(p: Profile) -> str:
    """Return advice that names the first two lines of code that wait for the device; empty if unknown."""
    sites = p.value("sync.sites")
    return f"it waits at {', '.join(sites[:2])}" if sites else ""


def _hidden_by_sync(p: Profile) -> bool:
    """Return whether the work between steps costs time only because the host waits for the device in each step.

    True for short work in every step, where the median step is about as long as the mean.
    """
    even = p.step_ms["p50"] >= 0.9 * 1e3 * p.step_s
    return bool(p.number("sync.per_step") >= 0.5 and even and p.shares["hooks"] < p.number("shares.kernel"))


def _larger_batch(p: Profile) -> tuple[Trial | None, Trial | None]:
    """Return the best larger batch, and the trial of that batch with a number of threads; None for an absent trial."""
    best = best_trial(p.trials, "loader.batch_size")
    with_threads = (trial for trial in p.trials if best and trial.together and trial.value == best.value)
    return best, next(with_threads, None)


# The rules


def _sync_exposes_loader(p: Profile) -> Finding | None:
    """Find a host wait in every step that delays the next batch while the device idles."""
    syncs, making_s = p.number("sync.per_step"), p.value("loader.making_s")
    inline = p.value("loader.mode") == "workers" and not p.number("loader.num_workers")
    if not inline or p.shares["input"] < WARN or making_s is None:
        return None
    # Without the wait the host makes a batch and launches a step while the device computes the one before.
    computing = p.step_s * (1 - p.shares["input"] - p.shares["hooks"])
    launching = LAUNCH_S * p.number("kernels.launches_per_step")
    if syncs < 0.5 or making_s + launching >= computing:
        return None
    evidence = f"the host waits for the GPU {syncs:.1f} times a step, and makes the next batch only then"
    saved = p.shares["input"] + p.number("bubble.sync")
    vain = "loader.num_workers and loader.prefetch_factor: batches are made in time without that wait"
    return _finding("sync.exposes_loader", saved, evidence, _read_rarely(p), vain, advice=_sites(p))


def _workers(p: Profile) -> Finding | None:
    """Find batches made without workers, by too few workers, or unevenly."""
    input, workers, supply = p.shares["input"], p.number("loader.num_workers"), p.value("loader.supply")
    saved, instead = _saved_on_device(p), _instead_workers(p)
    patch, words = _without_workers(p)
    if not workers:
        evidence = f"{input:.0%} of the time the {_device(p)} waits while the training process makes a batch"
        vain = "loader.pin_memory: the copy is not what takes the time"
        return _finding("loader.inline", saved, evidence, patch, vain, advice=words, instead=instead)
    if supply is None:
        return None
    # What workers need beside making batches, such as passing them on, makes them late too.
    if supply < ENOUGH or p.number("loader.late") >= ALWAYS:
        several, taken = "workers hand" if workers > 1 else "worker hands", 1 / (p.step_s * (1 - input))
        evidence = f"{workers} {several} over {1 / p.step_s:.3g} steps/s, the {_device(p)} takes {taken:.3g}"
        vain = "loader.prefetch_factor: a longer queue does not make more batches a second"
        return _finding("loader.undersupplied", saved, evidence, patch, vain, advice=words, instead=instead)
    evidence = f"workers make {supply:.1f} batches for each that is wanted, and some of them come late"
    longer = {"loader.prefetch_factor": min(16, 2 * (p.number("loader.prefetch_factor") or 2))}
    vain = "more loader.num_workers: there are enough batches on average"
    return _finding("loader.bursty", saved, evidence, longer, vain, instead=[patch])


def _loader(p: Profile) -> Finding | None:
    """Find late batches: from workers, from the next shard, or gathered on the device for a small model."""
    input, mode = p.shares["input"], p.value("loader.mode")
    if input < WARN or mode is None:
        return None
    if mode == "workers":
        return _workers(p)
    if mode == "sharded":
        evidence = f"{input:.0%} of the time the {_device(p)} waits for the next shard of the series"
        vain = "another loader.shard_gb: a larger shard takes as much longer to read"
        if fits(p):
            patch, words = _without_workers(p)
            return _finding("loader.shard", _saved_on_device(p), evidence, patch, vain, advice=words)
        words = "the series does not fit into the memory: a faster disk, or a larger model, hides the reading"
        return _finding("loader.shard", input, evidence, vain=vain, advice=words)
    evidence = f"gathering a batch from the series on the device takes {input:.0%} of a step: the model is small"
    cores = p.number("host.cores") or 1
    words = "workers could make batches on other cores" if cores > 1 else "this machine has no other core to do it on"
    instead = [{"loader.mode": "workers", "loader.num_workers": cores - 1}] if cores > 1 else []
    vain = "loader.prefetch_factor and loader.pin_memory: a series on the device uses neither"
    return _finding("loader.gather", input, evidence, vain=vain, advice=words, instead=instead)


def _transfer(p: Profile) -> Finding | None:
    """Find copies to the GPU that take 5 % of the time or more, from pinned or pageable memory."""
    share = p.shares["transfer"]
    if share < WARN or p.window["clock"] != "device":
        return None
    evidence = f"copies to the GPU take {share:.0%} of the time"
    patch, words = _without_workers(p)
    vain = "loader.num_workers and loader.prefetch_factor: batches wait for the copy, not for workers"
    if p.value("copy.pageable") and not p.setting("loader.pin_memory"):
        evidence, pin = f"{evidence}, from memory that is not pinned", {"loader.pin_memory": True}
        return _finding("transfer.pageable", share, evidence, pin, vain, instead=[patch])
    return _finding("transfer.heavy", share, evidence, patch, vain, advice=words)


def _sync_per_step(p: Profile) -> Finding | None:
    """Find a wait for the GPU in every step, in which the host launches no further work."""
    syncs = p.number("sync.per_step")
    saved = p.number("bubble.sync") + (p.shares["hooks"] if _hidden_by_sync(p) else 0.0)
    if p.bubble is None or syncs < 0.5 or saved < WARN:
        return None
    evidence = f"the host waits for the GPU {syncs:.1f} times a step"
    vain = "trainer.compile and loader settings: the wait stays"
    return _finding("sync.per_step", saved, evidence, _read_rarely(p), vain, advice=_sites(p))


def _fewer_launches(p: Profile, rule: str, share: float, evidence: str, vain: str, *keys: str) -> Finding | None:
    """Return a finding that turns on the first of ``keys`` that is off, else doubles the batch; None below 5 %."""
    if share < WARN:
        return None
    on = {"trainer.cuda_graph": "auto", "trainer.compile": "default"}
    ways: list[dict[str, Any]] = [{key: on[key]} for key in keys if p.setting(key) in (False, "off", None)]
    first, *instead = [*ways, *_twice_the_batch(p)] or [{}]
    return _finding(rule, share, evidence, first, vain, instead=instead)


def _launch_bound(p: Profile) -> Finding | None:
    """Find a GPU that waits for a slow host to launch kernels."""
    late, kernels = p.number("bubble.launch"), p.number("kernels.per_step")
    evidence = f"the GPU waits {late:.0%} of the time for the host to launch {kernels:,.0f} kernels a step"
    vain = "loader settings, and a faster GPU: the host sets the pace"
    return _fewer_launches(p, "launch.bound", late, evidence, vain, "trainer.cuda_graph", "trainer.compile")


def _kernels_small(p: Profile) -> Finding | None:
    """Find pauses between kernels launched in time: many small kernels."""
    paused, kernels = p.number("bubble.queued"), p.number("kernels.per_step")
    evidence = f"the GPU pauses {paused:.0%} of the time between {kernels:,.0f} kernels a step"
    evidence += " that were launched in time"
    vain = "loader settings: the GPU has its work before it needs it"
    return _fewer_launches(p, "kernels.small", paused, evidence, vain, "trainer.compile")


def _threads(p: Profile) -> Finding | None:
    """Find a faster number of CPU threads among trials; only the number of the best batch, where trials found both."""
    batch, _ = _larger_batch(p)
    named = None if batch is None else batch.threads
    best = best_trial((trial for trial in p.trials if named in (None, trial.value)), "trainer.threads")
    if best is None or p.host is None:
        return None
    present = p.host["threads"]
    several = f"{counted(best.value, 'thread')} {'is' if best.value == 1 else 'are'}"
    evidence = f"{several} {best.gain:.2f}x as fast as {present} on {p.host['cores']} cores"
    name = "threads.too_many" if best.value < present else "threads.too_few"
    vain = "loader settings: the step itself becomes faster"
    saved = p.shares["span"] * (1 - 1 / best.gain)
    return _finding(name, saved, evidence, {best.setting: best.value}, vain, trial=best)


def _batch_small(p: Profile) -> Finding | None:
    """Find a larger batch that a trial measured as faster per window: part of a step is independent of batch size."""
    best, together = _larger_batch(p)
    # On a CUDA device the trace names the cause of it, where there is one.
    if best is None or p.number("bubble.launch") >= WARN or (together and together.gain <= WORTH):
        return None
    present = p.setting("loader.batch_size") or 1
    times = best.value // present
    if times < 2:  # the data has fewer windows than the batch may have
        return None
    evidence = f"{best.value} windows a batch are {best.gain:.2f}x as fast per window as {present}"
    evidence += f", both with {counted(best.threads, 'thread')}" if best.threads else ""
    evidence += ": most of a step is Python and small operators" if best.gain > 2 else ""
    patch: dict[str, Any] = {best.setting: best.value}
    if best.threads:
        patch["trainer.threads"] = best.threads
    groups, words = p.setting("trainer.accumulate_grad_batches") or 1, OTHER
    if groups > 1:
        patch["trainer.accumulate_grad_batches"] = max(1, groups // times)
        words = "with fewer batches a step the training stays the same" if groups % times == 0 else OTHER
    # A batch is gathered from a series on the device once, whatever its size; so is what is between steps that become
    # fewer.
    once = p.shares["input"] if p.value("loader.mode") == "on_device" else 0.0
    once += p.shares["hooks"] if groups == 1 else 0.0
    saved = p.shares["span"] * (1 - 1 / best.gain) + once * (1 - 1 / times)
    trial = together if together and together.low > WORTH else best
    vain = "loader.num_workers: batches are there in time"
    return _finding("batch.small", saved, evidence, patch, vain, advice=words, trial=trial)


def _hooks_heavy(p: Profile) -> Finding | None:
    """Find costly work between steps: reading the loss, logging, Python's garbage collector."""
    share = p.shares["hooks"]
    if share < WARN or _hidden_by_sync(p):
        return None
    patch, evidence = _read_rarely(p), f"{share:.0%} of the time passes between two steps"
    words = "the loss is read and shown there" if patch else "something is called after each step, such as a callback"
    vain = "loader settings, and trainer.compile: neither is between two steps"
    if p.number("host.gc") >= 0.6 * share:
        words = "Python's garbage collector takes it: gc.freeze() after the start, or fewer objects a step"
        patch, vain = {}, "loader settings"
    return _finding("hooks.heavy", share, evidence, patch, vain, advice=words)


def _step_waits(p: Profile) -> Finding | None:
    """Find CPU training steps that pass time without computing."""
    waiting = p.number("host.waiting")
    if waiting < WARN or p.number("sync.per_step"):
        return None
    batch, _ = _larger_batch(p)
    if best_trial(p.trials, "trainer.threads") or (batch and batch.threads):  # that finding names the setting
        return None
    evidence = f"{waiting:.0%} of the time a training step does not compute: it sleeps, or has no core"
    words = "other programs on these cores, a lock, a file that is read in the model, another process of the training"
    if p.others:
        evidence, words = f"{evidence}; {p.others}", "profile again when they have ended, or with fewer threads"
    elif (used := p.value("host.others_used")) is not None:
        words = f"a lock, or a file that is read in the model: other programs took {used:.1f} cores"
    return _finding("step.waits", waiting, evidence, vain="trainer.compile", advice=words)


def _compute_fp32(p: Profile) -> Finding | None:
    """Find a GPU that is busy with float32 kernels most of the time, where 16-bit types halve the bytes."""
    running = p.number("shares.kernel")
    if p.window["clock"] != "device" or running < 0.6 or p.setting("trainer.precision") != "32-true":
        return None
    evidence = f"kernels run {running:.0%} of the time in float32; 16-bit types move half the bytes"
    vain = "loader settings: the GPU does not wait"
    return _finding("compute.fp32", 0.5 * running, evidence, {"trainer.precision": "bf16-mixed"}, vain)


def _compute_small(p: Profile) -> Finding | None:
    """Find kernels that leave most GPU processors idle."""
    if p.gpu_busy is None or p.sm_efficiency is None or p.gpu_busy < 0.8 or p.sm_efficiency >= 0.5:
        return None
    evidence = f"kernels run {p.gpu_busy:.0%} of the time and use {p.sm_efficiency:.0%} of the GPU's processors"
    (patch,) = _twice_the_batch(p) or [{}]
    vain = "trainer.precision alone: smaller numbers do not make more work at a time"
    return _finding("compute.small", p.gpu_busy - p.sm_efficiency, evidence, patch, vain, advice=OTHER)


def _memory_pressure(p: Profile) -> Finding | None:
    """Find GPU memory that is nearly used up, or an allocator that had to free memory and retry."""
    reserved, capacity = p.number("memory.reserved_bytes"), p.number("memory.capacity_bytes")
    retries = p.number("memory.alloc_retries")
    if not reserved or not (retries or reserved > 0.92 * capacity):
        return None
    evidence = f"{reserved / GIB:.1f} of {capacity / GIB:.1f} GiB reserved, {retries} retries"
    batch, groups = p.setting("loader.batch_size"), p.setting("trainer.accumulate_grad_batches") or 1
    patch: dict[str, Any] = {}
    if batch and batch > 1:
        patch = {"loader.batch_size": batch // 2, "trainer.accumulate_grad_batches": 2 * groups}
    vain = "torch.cuda.empty_cache(): the next step takes it again"
    return _finding("memory.pressure", 0.0, evidence, patch, vain, instead=[{"model.activation_checkpointing": True}])


def _memory_leak(p: Profile) -> Finding | None:
    """Find memory that grows with every step."""
    growth = p.number("memory.growth_bytes_per_step")
    if growth * p.window["steps"] < LEAK_BYTES or p.number("memory.monotone") < 0.9:
        return None
    evidence = f"memory grows by {growth / 2**20:.2f} MiB a step"
    words = "something keeps what it no longer needs, such as a list of losses with their graphs"
    return _finding("memory.leak", 0.0, evidence, vain="gc.collect()", advice=words)


def _compile_recompiles(p: Profile) -> Finding | None:
    """Find repeated compilation by torch.compile during the measured steps."""
    if p.number("recompiles") <= 3:
        return None
    evidence = f"torch.compile made the model {p.recompiles} times during the measurement"
    vain = "a longer warm-up: shapes that change are compiled each time"
    return _finding("compile.recompiles", 0.0, evidence, {"trainer.compile": "off"}, vain)


def _clock_throttled(p: Profile) -> Finding | None:
    """Find a GPU whose clock is lowered, such as for power or temperature."""
    clock, cause = p.value("device.sm_clock_share"), p.value("device.throttled_by")
    if clock is None or cause is None or clock >= 0.85:
        return None
    evidence = f"the GPU's clock is at {clock:.0%} of its highest: {cause}"
    vain = "any setting: power and cooling of the machine decide it"
    return _finding("clock.throttled", 1 - clock, evidence, vain=vain)


def _fluctuation_periodic(p: Profile) -> Finding | None:
    """Find a stall that repeats at equal intervals, and the setting with the same period where known."""
    f = p.fluctuation
    if f is None or f["period_s"] is None:
        return None
    swing = f"swings between {f['p5']:.0%} and {f['p95']:.0%} busy every {f['period_s']:.2f} s"
    evidence = f"the {_device(p)} {swing} = {f['steps_per_period']:.1f} steps"
    saved, cause = p.shares["input"] + p.shares["hooks"], f["cause"]
    if cause is None:
        words = "no setting has this period: look for another program on this machine"
        return _finding("fluctuation.periodic", saved, evidence, advice=words)
    patch: dict[str, Any] = {}
    if cause == "loader.num_workers" or (cause == "loader.shard_gb" and fits(p)):
        patch, _ = _without_workers(p)
    elif cause == "trainer.log_every_n_steps":
        patch = {cause: 2 * (p.setting(cause) or LOG_EVERY)}
    return _finding("fluctuation.periodic", saved, f"{evidence}, which is {cause}", patch)


def _memory_headroom(p: Profile) -> Finding | None:
    """Find free GPU memory while processors are idle, so that a larger batch fits."""
    peak, capacity = p.number("memory.peak_bytes"), p.number("memory.capacity_bytes")
    if p.value("memory.reserved_bytes") is None or p.sm_efficiency is None:
        return None
    if peak > 0.5 * capacity or p.sm_efficiency >= 0.8:
        return None
    evidence = f"the peak is {peak / capacity:.0%} of the memory: a larger batch fits"
    return _finding("memory.headroom", 0.0, evidence, severity="info", advice=OTHER)


def _memory_bound(p: Profile) -> Finding | None:
    """Find CPU operators that move bytes at the rate of a copy, and compute little."""
    moved, computed = p.rate("bytes"), p.rate("flops")
    if p.window["clock"] == "device" or p.machine is None or moved is None or computed is None:
        return None
    moved, computed = moved / p.machine["copy_bytes_per_s"], computed / p.machine["matmul_flops_per_s"]
    if moved < 0.6 or computed > 0.3:
        return None
    evidence = f"operators move {moved:.0%} of what a copy moves, and compute {computed:.0%} of a matrix product"
    words = "fewer, larger operators or a smaller model.width move less; more cores do not"
    return _finding("memory.bound", 0.0, evidence, severity="info", advice=words)


RULES = (  # in the order of equal shares: what names its cause more closely comes first
    *(_sync_exposes_loader, _loader, _transfer, _sync_per_step, _launch_bound, _kernels_small, _threads, _batch_small),
    *(_hooks_heavy, _step_waits, _compute_fp32, _compute_small, _memory_pressure, _memory_leak, _compile_recompiles),
    *(_clock_throttled, _fluctuation_periodic, _memory_headroom, _memory_bound),
)
