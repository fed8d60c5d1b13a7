"""What a profile means: findings, each with what it can bring, the setting to change, and what will not help.

Every rule is a pure function of a profile that returns a finding or None.  A rule abstains where a number that it needs
was not measured.  Shares are of the window; a finding alone brings 1 / (1 - share) at most, unless it was tried: then
its trial says what it brought.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from socialx.dataset import GIB, RESIDENT_SHARE
from socialx.errors import Argument, Message, SettingsError, counted
from socialx.profiling.paired import WORTH
from socialx.profiling.profile import Finding, Host, LoaderFacts, Profile, Trial, best_trial

WARN, CRITICAL = 0.05, 0.20  # share of the window that could be saved
CLOSE = 0.03  # shares of two findings that cannot be told apart
ENOUGH = 1.1  # supply from which on workers keep up
ALWAYS = 0.8  # share of times from which on what is late is not only now and then late
RESERVE = 1.2  # workers named, over those that are just enough
LOG_EVERY = 50
LAUNCH_S = 6e-6  # that a launch takes the host, about
LEAK_BYTES = 100 << 20
OTHER = "another batch is another training: its learning rate may have to change"
NOT_FOR_COPIES = "loader.num_workers and loader.prefetch_factor: batches wait for the copy, not for workers"
SEVERITIES = ("info", "warn", "critical")
VERDICTS = {  # the word of a verdict, and its sentence
    "INPUT-BOUND": "the {device} waits {share:.0%} of the time for batches",
    "COPY-BOUND": "copies to the {device} take {share:.0%} of the time",
    "LAUNCH-BOUND": "the {device} waits {share:.0%} of the time for the host to launch kernels",
    "KERNEL-BOUND": "the {device} pauses {share:.0%} of the time between kernels that are launched in time",
    "SYNC-BOUND": "the host waits for the {device} in every step, which costs {share:.0%} of the time",
    "HOOK-BOUND": "{share:.0%} of the time passes between two steps",
    "THREAD-BOUND": "another number of threads would save {share:.0%} of the time",
    "PYTHON-BOUND": "a larger batch would save {share:.0%} of the time of each window",
    "WAIT-BOUND": "a training step waits {share:.0%} of the time without computing",
    "MEMORY-BOUND": "the memory of the {device} is the limit",
    "COMPILE-BOUND": "the model is compiled again and again",
    "CLOCK-BOUND": "the card runs at a lowered clock",
    "STALLED": "the {device} stalls again and again, {share:.0%} of the time",
    "COMPUTE-BOUND": "the {device} could compute with {share:.0%} less time",
}

Find = Callable[[Profile], Finding | None]


@dataclass(frozen=True)
class Rule:
    """A rule by its name, and the verdict where its finding is the first one."""

    name: str
    verdict: str
    find: Find


RULES: dict[str, Rule] = {}  # in the order of equal shares: what names its cause more closely comes first


def rule(name: str, verdict: str) -> Callable[[Find], Find]:
    """Register a rule; the order in this file is the order of ``RULES``."""
    if verdict not in VERDICTS:
        raise ValueError(f"{verdict} has no sentence")

    def register(find: Find) -> Find:
        RULES[name] = Rule(name, verdict, find)
        return find

    return register


def with_findings(profile: Profile) -> Profile:
    """The profile with its findings and the verdict: time that is lost comes before work that could be less."""
    judged = ((name, each.find(profile)) for name, each in RULES.items())
    findings = [replace(finding, rule=name) for name, finding in judged if finding is not None]
    # A finding is information where another one names the same time with its cause.
    names = {each.rule for each in findings}
    told = {"loader.inline"} if "sync.exposes_loader" in names else set()
    if any(name.startswith(("loader.", "hooks.", "sync.")) for name in names):
        told.add("fluctuation.periodic")
    findings = [replace(each, severity="info") if each.rule in told else each for each in findings]

    def rank(finding: Finding) -> tuple[int, float]:
        if finding.severity == "info":
            return 2, -finding.share
        return int(finding.rule.startswith("compute.")), -finding.share

    findings.sort(key=rank)
    verdict, summary = _verdict(profile, findings)
    return replace(profile, findings=findings, verdict=verdict, summary=summary)


def _verdict(p: Profile, findings: Sequence[Finding]) -> tuple[str, str]:
    """A word and a sentence: of the first finding, of two that cannot be told apart, or that nothing is in the way."""
    costly = [each for each in findings if each.severity != "info"]
    if not costly:
        busy = p.gpu_busy if p.gpu_busy is not None else p.shares.span - _number(p, "host.waiting")
        word = "MEMORY-BOUND" if any(each.rule == "memory.bound" for each in findings) else "COMPUTE-BOUND"
        return word, f"the {_device(p)} is busy {busy:.0%} of the time; what is left is the model itself"

    def sentence(finding: Finding) -> str:
        return VERDICTS[RULES[finding.rule].verdict].format(device=_device(p), share=finding.share)

    first = costly[0]
    word = RULES[first.rule].verdict
    for other in costly[1:]:
        also = RULES[other.rule].verdict
        lost = not other.rule.startswith("compute.") or first.rule.startswith("compute.")
        if lost and also not in (word, "STALLED") and other.share >= WARN and first.share - other.share <= CLOSE:
            return "UNCLEAR", f"{word} or {also}: {sentence(first)}; {sentence(other)}"
    return word, sentence(first)


def patch_of(findings: Iterable[Finding]) -> dict[str, Any]:
    """The settings that the findings change, those of the first one where two do not agree."""
    patch: dict[str, Any] = {}
    for finding in findings:
        if finding.severity != "info" and all(patch.get(key, value) == value for key, value in finding.patch.items()):
            patch |= finding.patch
    return patch


def check_names(names: Sequence[str]) -> None:
    """Raise SettingsError for a name that is no rule, no family such as ``loader``, and no severity."""
    known = {*RULES, *(name.partition(".")[0] for name in RULES), *SEVERITIES}
    for name in names:
        if name not in known:
            raise SettingsError(Argument("fail_on"), f"{name!a} is no finding", f"one of {', '.join(sorted(known))}")


def failing(profile: Profile, names: Sequence[str]) -> list[Message]:
    """A message for each finding that is of one of these rules, families such as ``loader``, or severities."""
    messages = []
    for finding in profile.findings:
        labels = {finding.rule, finding.rule.partition(".")[0], finding.severity}
        labels |= {"warn"} if finding.severity == "critical" else set()
        if labels & set(names):
            messages.append(Message(finding.rule, finding.evidence))
    return messages


# What the rules share


def _finding(share: float, evidence: str, patch: dict[str, Any] | None = None, **more: Any) -> Finding:
    """A finding whose name the rule adds; its severity follows from the share, unless it is given."""
    share = min(max(share, 0.0), 0.999)
    severity = more.pop("severity", "critical" if share >= CRITICAL else "warn")
    ceiling = None if more.get("trial") else 1 / (1 - share)
    return Finding("", severity, share, ceiling, evidence, patch or {}, **more)


def _step_s(p: Profile) -> float:
    return p.window.seconds / p.window.steps


def _device(p: Profile) -> str:
    return "GPU" if p.window.clock == "device" else "CPU"


def _number(p: Profile, name: str) -> float:
    """A number by its dotted name; 0 where it was not measured."""
    return p.value(name) or 0.0


def _late(p: Profile, mode: str) -> LoaderFacts | None:
    """The loader, where it is of this mode and the device waits for it."""
    return p.loader if p.loader and p.loader.mode == mode and p.shares.input >= WARN else None


def fits(p: Profile) -> bool:
    """Whether the whole series has room on the device."""
    loader = p.loader
    if loader is None or loader.series_bytes is None:
        return False
    return loader.free_bytes is None or loader.series_bytes <= RESIDENT_SHARE * loader.free_bytes


def _without_workers(p: Profile) -> tuple[dict[str, Any], str]:
    """The loader without workers, and the words for it."""
    if not fits(p):
        return {"loader.mode": "chunk"}, "the series is read in chunks while the model trains"
    size = _number(p, "loader.series_bytes") / GIB
    return {"loader.mode": "resident"}, f"the series takes {size:.2f} GiB of memory"


def _saved_by_resident(p: Profile) -> float:
    """The share that a resident series would save: all waiting, without the measured time of gathering its batches.

    On a CPU workers take cores from the training step; without them it takes as long as it was measured to take alone.
    """
    saved = p.shares.input - _number(p, "loader.resident_s") / _step_s(p)
    alone_s = p.value("host.step_alone_s")
    if p.window.clock == "host" and alone_s and p.value("loader.num_workers"):
        saved += max(0.0, p.shares.span - alone_s / _step_s(p))
    return saved


def _instead_workers(p: Profile) -> list[dict[str, Any]]:
    """As many workers as are needed, where this machine has the cores for them."""
    loader, computing = p.loader, _step_s(p) * (1 - p.shares.input)
    if loader is None or loader.making_s is None or computing <= 0:
        return []
    need = max(1, math.ceil(RESERVE * loader.making_s / computing))
    if need > (p.value("host.cores") or 1) - 1 or need == loader.num_workers:
        return []
    return [{"loader.mode": "workers", "loader.num_workers": need}]


def _too_few(loader: LoaderFacts) -> bool:
    """Whether batches are always late: what workers need beside making them, such as passing them on, counts too."""
    return loader.supply is not None and (loader.supply < ENOUGH or (loader.late or 0.0) >= ALWAYS)


def _copies_are_heavy(p: Profile) -> bool:
    return p.shares.transfer >= WARN and p.window.clock == "device"


def _not_pinned(p: Profile) -> bool:
    """Whether batches are copied from memory that is not pinned, and pinning it was not asked for."""
    return p.copy is not None and bool(p.copy.pageable) and not p.setting("loader.pin_memory")


def _read_rarely(p: Profile) -> dict[str, Any]:
    """The setting with which the loss is read rarely; nothing where it is already."""
    every = p.setting("trainer.log_every_n_steps")
    return {} if every is None or every >= LOG_EVERY else {"trainer.log_every_n_steps": LOG_EVERY}


def _sites(p: Profile) -> str:
    """The first lines of code that wait for the device."""
    return f"it waits at {', '.join(p.sync.sites[:2])}" if p.sync and p.sync.sites else ""


def _hidden_by_sync(p: Profile) -> bool:
    """Whether the work between steps would be done while the device computes, if the host did not wait for it.

    So where it is short, and in every step: then the median step is about as long as the mean.
    """
    even = p.step_ms.p50 >= 0.9 * 1e3 * _step_s(p)
    return _number(p, "sync.per_step") >= 0.5 and even and p.shares.hooks < (p.shares.kernel or 0.0)


def _larger_batch(p: Profile) -> tuple[Trial | None, Trial | None]:
    """The best batch that was tried, and its trial together with another number of threads where it has one."""
    best = best_trial(p.trials, "loader.batch_size")
    with_threads = (each for each in p.trials if best and each.together and each.value == best.value)
    return best, next(with_threads, None)


def _better_threads(p: Profile) -> Trial | None:
    """The best number of threads that was tried, the one with which the best batch was, where that is another one."""
    batch, _ = _larger_batch(p)
    named = None if batch is None else batch.threads
    return best_trial((each for each in p.trials if named in (None, each.value)), "trainer.threads")


def _of_span(p: Profile, trial: Trial) -> float:
    """The share of the window that the gain of a training step saves."""
    return p.shares.span * (1 - 1 / trial.gain)


# The rules


@rule("sync.exposes_loader", "SYNC-BOUND")
def _sync_exposes_loader(p: Profile) -> Finding | None:
    """A wait of the host in every step: it makes the next batch after it, while the device has nothing to do."""
    loader, syncs = _late(p, "workers"), _number(p, "sync.per_step")
    if loader is None or loader.num_workers or loader.making_s is None:
        return None
    # Without the wait the host makes a batch and launches a step while the device computes the one before.
    computing = _step_s(p) * (1 - p.shares.input - p.shares.hooks)
    launching = LAUNCH_S * _number(p, "kernels.launches_per_step")
    if syncs < 0.5 or loader.making_s + launching >= computing:
        return None
    evidence = f"the host waits for the GPU {syncs:.1f} times a step, and makes the next batch only then"
    saved = p.shares.input + (p.bubble or {}).get("sync", 0.0)
    vain = "loader.num_workers and loader.prefetch_factor: batches are made in time without that wait"
    return _finding(saved, evidence, _read_rarely(p), advice=_sites(p), will_not_help=vain)


@rule("loader.inline", "INPUT-BOUND")
def _loader_inline(p: Profile) -> Finding | None:
    """The training process makes its batches itself."""
    loader = _late(p, "workers")
    if loader is None or loader.num_workers:
        return None
    patch, words = _without_workers(p)
    evidence = f"{p.shares.input:.0%} of the time the {_device(p)} waits while the training process makes a batch"
    vain, workers = "loader.pin_memory: the copy is not what takes the time", _instead_workers(p)
    return _finding(_saved_by_resident(p), evidence, patch, advice=words, instead=workers, will_not_help=vain)


@rule("loader.undersupplied", "INPUT-BOUND")
def _loader_undersupplied(p: Profile) -> Finding | None:
    """All workers together make fewer batches than the device takes."""
    loader = _late(p, "workers")
    if loader is None or not loader.num_workers or not _too_few(loader):
        return None
    patch, words = _without_workers(p)
    step_s, several = _step_s(p), "workers hand" if loader.num_workers > 1 else "worker hands"
    taken = 1 / (step_s * (1 - p.shares.input))
    evidence = f"{loader.num_workers} {several} over {1 / step_s:.3g} steps/s, the {_device(p)} takes {taken:.3g}"
    vain = "loader.prefetch_factor: a longer queue does not make more batches a second"
    workers = _instead_workers(p)
    return _finding(_saved_by_resident(p), evidence, patch, advice=words, instead=workers, will_not_help=vain)


@rule("loader.bursty", "INPUT-BOUND")
def _loader_bursty(p: Profile) -> Finding | None:
    """Workers make enough batches on average, but not evenly."""
    loader = _late(p, "workers")
    if loader is None or not loader.num_workers or loader.supply is None or _too_few(loader):
        return None
    evidence = f"workers make {loader.supply:.1f} batches for each that is wanted, and some of them come late"
    longer = {"loader.prefetch_factor": min(16, 2 * (loader.prefetch_factor or 2))}
    patch, _ = _without_workers(p)
    vain = "more loader.num_workers: there are enough batches on average"
    return _finding(_saved_by_resident(p), evidence, longer, instead=[patch], will_not_help=vain)


@rule("loader.chunk", "INPUT-BOUND")
def _loader_chunk(p: Profile) -> Finding | None:
    """The next chunk is not there when the present one has been used."""
    if _late(p, "chunk") is None:
        return None
    evidence = f"{p.shares.input:.0%} of the time the {_device(p)} waits for the next chunk of the series"
    vain = "another loader.chunk_gb: a larger chunk takes as much longer to read"
    if fits(p):
        patch, words = _without_workers(p)
        return _finding(_saved_by_resident(p), evidence, patch, advice=words, will_not_help=vain)
    words = "the series does not fit into the memory: a faster disk, or a larger model, hides the reading"
    return _finding(p.shares.input, evidence, advice=words, will_not_help=vain)


@rule("loader.gather", "INPUT-BOUND")
def _loader_gather(p: Profile) -> Finding | None:
    """Gathering the batch from the resident series takes part of a step, because the model is small."""
    if _late(p, "resident") is None:
        return None
    evidence = f"gathering a batch from the resident series takes {p.shares.input:.0%} of a step: the model is small"
    cores = p.host.cores if p.host else 1
    words = "workers could make batches on other cores" if cores > 1 else "this machine has no other core to do it on"
    instead = [{"loader.mode": "workers", "loader.num_workers": cores - 1}] if cores > 1 else []
    vain = "loader.prefetch_factor and loader.pin_memory: a resident series uses neither"
    return _finding(p.shares.input, evidence, advice=words, instead=instead, will_not_help=vain)


@rule("transfer.pageable", "COPY-BOUND")
def _transfer_pageable(p: Profile) -> Finding | None:
    """Copies of batches to the device, from memory that is not pinned."""
    if not _copies_are_heavy(p) or not _not_pinned(p):
        return None
    evidence = f"copies to the GPU take {p.shares.transfer:.0%} of the time, from memory that is not pinned"
    patch, _ = _without_workers(p)
    pin = {"loader.pin_memory": True}
    return _finding(p.shares.transfer, evidence, pin, instead=[patch], will_not_help=NOT_FOR_COPIES)


@rule("transfer.heavy", "COPY-BOUND")
def _transfer_heavy(p: Profile) -> Finding | None:
    """Copies of batches to the device, from memory that is pinned already."""
    if not _copies_are_heavy(p) or _not_pinned(p):
        return None
    evidence = f"copies to the GPU take {p.shares.transfer:.0%} of the time"
    patch, words = _without_workers(p)
    return _finding(p.shares.transfer, evidence, patch, advice=words, will_not_help=NOT_FOR_COPIES)


@rule("sync.per_step", "SYNC-BOUND")
def _sync_per_step(p: Profile) -> Finding | None:
    """The host waits for the device in every step, and launches nothing meanwhile."""
    syncs = _number(p, "sync.per_step")
    if p.bubble is None or syncs < 0.5:
        return None
    saved = p.bubble.get("sync", 0.0) + (p.shares.hooks if _hidden_by_sync(p) else 0.0)
    if saved < WARN:
        return None
    evidence = f"the host waits for the GPU {syncs:.1f} times a step"
    vain = "trainer.compile and loader settings: the wait stays"
    return _finding(saved, evidence, _read_rarely(p), advice=_sites(p), will_not_help=vain)


@rule("launch.bound", "LAUNCH-BOUND")
def _launch_bound(p: Profile) -> Finding | None:
    """The device waits for the host to launch its next kernel."""
    late = (p.bubble or {}).get("launch")
    if late is None or late < WARN:
        return None
    count = f"{p.kernels.per_step:,.0f} kernels" if p.kernels else "the kernels"
    evidence = f"the GPU waits {late:.0%} of the time for the host to launch {count} a step"
    ways: list[dict[str, Any]] = [{"trainer.cuda_graph": "auto"}, {"trainer.compile": "default"}]
    ways = [way for way in ways if p.setting(next(iter(way))) in (False, "off", None)]
    batch = p.setting("loader.batch_size")
    ways += [{"loader.batch_size": 2 * batch}] if batch else []
    vain = "loader settings, and a faster card: the host sets the pace"
    return _finding(late, evidence, ways[0] if ways else {}, instead=ways[1:], will_not_help=vain)


@rule("kernels.small", "KERNEL-BOUND")
def _kernels_small(p: Profile) -> Finding | None:
    """The device pauses between kernels that the host launched in time: there are too many, and they are too small."""
    paused = (p.bubble or {}).get("queued")
    if paused is None or paused < WARN:
        return None
    count = f"{p.kernels.per_step:,.0f} kernels" if p.kernels else "kernels"
    evidence = f"the GPU pauses {paused:.0%} of the time between {count} a step that were launched in time"
    batch = p.setting("loader.batch_size")
    ways: list[dict[str, Any]] = [{"trainer.compile": "default"}] if p.setting("trainer.compile") == "off" else []
    ways += [{"loader.batch_size": 2 * batch}] if batch else []
    vain = "loader settings: the GPU has its work before it needs it"
    return _finding(paused, evidence, ways[0] if ways else {}, instead=ways[1:], will_not_help=vain)


@rule("threads.too_many", "THREAD-BOUND")
def _too_many_threads(p: Profile) -> Finding | None:
    """Fewer threads were tried, and were faster."""
    best = _better_threads(p)
    return None if best is None or p.host is None or best.value >= p.host.threads else _other_threads(p, p.host, best)


@rule("threads.too_few", "THREAD-BOUND")
def _too_few_threads(p: Profile) -> Finding | None:
    """More threads were tried, and were faster."""
    best = _better_threads(p)
    return None if best is None or p.host is None or best.value < p.host.threads else _other_threads(p, p.host, best)


def _other_threads(p: Profile, host: Host, best: Trial) -> Finding:
    several = f"{counted(best.value, 'thread')} {'is' if best.value == 1 else 'are'}"
    evidence = f"{several} {best.gain:.2f}x as fast as {host.threads} on {host.cores} cores"
    vain = "loader settings: the step itself becomes faster"
    return _finding(_of_span(p, best), evidence, {best.setting: best.value}, will_not_help=vain, trial=best)


@rule("batch.small", "PYTHON-BOUND")
def _batch_small(p: Profile) -> Finding | None:
    """A larger batch was tried, and each window was faster in it: a part of a step does not grow with the batch."""
    best, together = _larger_batch(p)
    # On a CUDA device the trace names the cause of it, where there is one.
    if best is None or (p.bubble or {}).get("launch", 0.0) >= WARN or (together and together.gain <= WORTH):
        return None
    now = p.setting("loader.batch_size") or 1
    times = best.value // now
    if times < 2:  # the data has fewer windows than the batch may have
        return None
    evidence = f"{best.value} windows a batch are {best.gain:.2f}x as fast per window as {now}"
    evidence += f", both with {counted(best.threads, 'thread')}" if best.threads else ""
    evidence += ": most of a step is Python and small operators" if best.gain > 2 else ""
    patch: dict[str, Any] = {best.setting: best.value}
    if best.threads:
        patch["trainer.threads"] = best.threads
    groups, words = p.setting("trainer.accumulate_grad_batches") or 1, OTHER
    if groups > 1:
        patch["trainer.accumulate_grad_batches"] = max(1, groups // times)
        words = "with fewer batches a step the training stays the same" if groups % times == 0 else OTHER
    # A batch is gathered from a resident series once, whatever its size; so is what is between steps that become fewer.
    once = p.shares.input if p.loader and p.loader.mode == "resident" else 0.0
    once += p.shares.hooks if groups == 1 else 0.0
    saved = _of_span(p, best) + once * (1 - 1 / times)
    vain, trial = "loader.num_workers: batches are there in time", best
    if together and together.low > WORTH:
        trial = together
    return _finding(saved, evidence, patch, advice=words, will_not_help=vain, trial=trial)


@rule("hooks.heavy", "HOOK-BOUND")
def _hooks_heavy(p: Profile) -> Finding | None:
    """Work between two steps: reading the loss, logging, Python's garbage collector."""
    if p.shares.hooks < WARN or _hidden_by_sync(p):
        return None
    evidence = f"{p.shares.hooks:.0%} of the time passes between two steps"
    if _number(p, "host.gc") >= 0.6 * p.shares.hooks:
        words = "Python's garbage collector takes it: gc.freeze() after the start, or fewer objects a step"
        return _finding(p.shares.hooks, evidence, advice=words, will_not_help="loader settings")
    patch = _read_rarely(p)
    words = "the loss is read and shown there" if patch else "something is called after each step, such as a callback"
    vain = "loader settings, and trainer.compile: neither is between two steps"
    return _finding(p.shares.hooks, evidence, patch, advice=words, will_not_help=vain)


@rule("step.waits", "WAIT-BOUND")
def _step_waits(p: Profile) -> Finding | None:
    """On a CPU a training step passes time without computing."""
    waiting = _number(p, "host.waiting")
    if waiting < WARN or _number(p, "sync.per_step"):
        return None
    batch, _ = _larger_batch(p)
    if best_trial(p.trials, "trainer.threads") or (batch and batch.threads):  # that finding names the setting
        return None
    evidence = f"{waiting:.0%} of the time a training step does not compute: it sleeps, or has no core"
    words = "other programs on these cores, a lock, a file that is read in the model, another process of the training"
    if p.host and p.host.busy:
        evidence, words = f"{evidence}; {p.host.busy}", "profile again when they have ended, or with fewer threads"
    elif p.host and p.host.others_used is not None:
        words = f"a lock, or a file that is read in the model: other programs took {p.host.others_used:.1f} cores"
    return _finding(waiting, evidence, advice=words, will_not_help="trainer.compile")


@rule("compute.fp32", "COMPUTE-BOUND")
def _compute_fp32(p: Profile) -> Finding | None:
    """Kernels that run nearly always, in a type of twice the bytes."""
    running = p.shares.kernel or 0.0
    if p.window.clock != "device" or running < 0.6 or p.setting("trainer.precision") != "32-true":
        return None
    evidence = f"kernels run {running:.0%} of the time in float32; 16-bit types move half the bytes"
    lower, vain = {"trainer.precision": "bf16-mixed"}, "loader settings: the GPU does not wait"
    return _finding(0.5 * running, evidence, lower, will_not_help=vain)


@rule("compute.small", "COMPUTE-BOUND")
def _compute_small(p: Profile) -> Finding | None:
    """Kernels that leave most of the card's processors without work."""
    if p.gpu_busy is None or p.sm_efficiency is None or p.gpu_busy < 0.8 or p.sm_efficiency >= 0.5:
        return None
    evidence = f"kernels run {p.gpu_busy:.0%} of the time and use {p.sm_efficiency:.0%} of the card's processors"
    batch = p.setting("loader.batch_size")
    patch = {"loader.batch_size": 2 * batch} if batch else {}
    vain = "trainer.precision alone: smaller numbers do not make more work at a time"
    return _finding(p.gpu_busy - p.sm_efficiency, evidence, patch, advice=OTHER, will_not_help=vain)


@rule("memory.pressure", "MEMORY-BOUND")
def _memory_pressure(p: Profile) -> Finding | None:
    """The allocator of the card has to search for memory."""
    m = p.memory
    if m is None or m.reserved_bytes is None or not (m.alloc_retries or m.reserved_bytes > 0.92 * m.capacity_bytes):
        return None
    evidence = f"{m.reserved_bytes / GIB:.1f} of {m.capacity_bytes / GIB:.1f} GiB reserved, {m.alloc_retries} retries"
    batch, groups = p.setting("loader.batch_size"), p.setting("trainer.accumulate_grad_batches") or 1
    patch: dict[str, Any] = {}
    if batch and batch > 1:
        patch = {"loader.batch_size": batch // 2, "trainer.accumulate_grad_batches": 2 * groups}
    vain = "torch.cuda.empty_cache(): the next step takes it again"
    return _finding(0.0, evidence, patch, instead=[{"model.checkpointing": True}], will_not_help=vain)


@rule("memory.leak", "MEMORY-BOUND")
def _memory_leak(p: Profile) -> Finding | None:
    """Memory that grows with every step."""
    m = p.memory
    if m is None or m.growth_bytes_per_step is None or (m.monotone or 0.0) < 0.9:
        return None
    if m.growth_bytes_per_step * p.window.steps < LEAK_BYTES:
        return None
    evidence = f"memory grows by {m.growth_bytes_per_step / 2**20:.2f} MiB a step"
    words = "something keeps what it no longer needs, such as a list of losses with their graphs"
    return _finding(0.0, evidence, advice=words, will_not_help="gc.collect()")


@rule("compile.recompiles", "COMPILE-BOUND")
def _compile_recompiles(p: Profile) -> Finding | None:
    """torch.compile makes the step again and again."""
    if (p.recompiles or 0) <= 3:
        return None
    evidence = f"torch.compile made the model {p.recompiles} times during the measurement"
    vain = "a longer warm-up: shapes that change are compiled each time"
    return _finding(0.0, evidence, {"trainer.compile": "off"}, will_not_help=vain)


@rule("clock.throttled", "CLOCK-BOUND")
def _clock_throttled(p: Profile) -> Finding | None:
    """The card runs at a lower clock than it could."""
    d = p.device
    if d is None or d.sm_clock_share is None or d.throttled_by is None or d.sm_clock_share >= 0.85:
        return None
    evidence = f"the card's clock is at {d.sm_clock_share:.0%} of its highest: {d.throttled_by}"
    vain = "any setting: power and cooling of the machine decide it"
    return _finding(1 - d.sm_clock_share, evidence, will_not_help=vain)


@rule("fluctuation.periodic", "STALLED")
def _fluctuation_periodic(p: Profile) -> Finding | None:
    """A stall that repeats."""
    f = p.fluctuation
    if f is None or f.period_s is None:
        return None
    steps = f"{f.steps_per_period:.1f} steps"
    evidence = f"the {_device(p)} swings between {f.p5:.0%} and {f.p95:.0%} busy every {f.period_s:.2f} s = {steps}"
    saved = p.shares.input + p.shares.hooks
    if f.cause is None:
        words = "no setting has this period: look for another program on this machine"
        return _finding(saved, evidence, advice=words)
    patch: dict[str, Any] = {}
    if f.cause == "loader.num_workers" or (f.cause == "loader.chunk_gb" and fits(p)):
        patch, _ = _without_workers(p)
    elif f.cause == "trainer.log_every_n_steps":
        patch = {f.cause: 2 * (p.setting(f.cause) or LOG_EVERY)}
    elif f.cause == "the end of an epoch" and p.loader is not None and p.loader.persistent_workers is False:
        patch = {"loader.persistent_workers": True}
    return _finding(saved, f"{evidence}, which is {f.cause}", patch)


@rule("memory.headroom", "COMPUTE-BOUND")
def _memory_headroom(p: Profile) -> Finding | None:
    """Much of the card's memory is free, and its processors are not full."""
    m = p.memory
    if m is None or m.reserved_bytes is None or p.sm_efficiency is None:
        return None
    if m.peak_bytes > 0.5 * m.capacity_bytes or p.sm_efficiency >= 0.8:
        return None
    evidence = f"the peak is {m.peak_bytes / m.capacity_bytes:.0%} of the memory: a larger batch fits"
    return _finding(0.0, evidence, severity="info", advice=OTHER)


@rule("memory.bound", "MEMORY-BOUND")
def _memory_bound(p: Profile) -> Finding | None:
    """On a CPU operators move bytes at the rate of a copy, and compute little with them."""
    t, m = p.throughput, p.machine
    if p.window.clock == "device" or m is None or t.bytes_per_step is None or t.flops_per_step is None:
        return None
    span_s = _step_s(p) * p.shares.span
    moved = t.bytes_per_step / span_s / m.copy_bytes_per_s
    computed = t.flops_per_step / span_s / m.matmul_flops_per_s
    if moved < 0.6 or computed > 0.3:
        return None
    evidence = f"operators move {moved:.0%} of what a copy moves, and compute {computed:.0%} of a matrix product"
    words = "fewer, larger operators or a smaller model.width move less; more cores do not"
    return _finding(0.0, evidence, severity="info", advice=words)
