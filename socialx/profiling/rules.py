"""What a profile means: findings, each with the most it can bring, the setting to change, and what will not help.

Every rule is a pure function of a profile that returns a finding or None.  A rule abstains where a number that it needs
was not measured.  Shares are of the window; the bound of a finding is 1 / (1 - share).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from socialx.dataset import GIB, RESIDENT_SHARE
from socialx.errors import Argument, Message, SettingsError
from socialx.profiling.profile import Finding, Loading, Profile, Trial

WARN, CRITICAL = 0.05, 0.20  # share of the window that could be saved
CLOSE = 0.03  # shares of two findings that cannot be told apart
ENOUGH = 1.1  # supply from which on workers keep up
ALWAYS = 0.8  # share of times with a wait from which on batches are not only now and then late
RESERVE = 1.2  # workers named, over those that are just enough
LOG_EVERY = 50
LAUNCH_S = 6e-6  # that a launch takes the host, about
LEAK_BYTES = 100 << 20

Rule = Callable[[Profile], Finding | None]


def diagnosed(profile: Profile) -> Profile:
    """The profile with its findings and the verdict: time that is lost comes before work that could be less."""
    found = [finding for rule in RULES if (finding := rule(profile)) is not None]
    found = [replace(each, severity="info") if _told_by_another(each, found) else each for each in found]
    order = {"critical": 0, "warn": 0, "info": 2}
    # Stable: equal shares stay in the order of RULES.
    found.sort(key=lambda each: (max(order[each.severity], each.rule.startswith("compute.")), -each.share))
    verdict, summary = _verdict(profile, found)
    return replace(profile, findings=found, verdict=verdict, summary=summary)


def _told_by_another(finding: Finding, found: Sequence[Finding]) -> bool:
    """Whether another finding names the same time with its cause: then it is information."""
    rules = {each.rule for each in found}
    if finding.rule == "loader.inline":
        return "sync.exposes_loader" in rules
    told = any(rule.startswith(("loader.", "hooks.", "sync.")) for rule in rules)
    return finding.rule == "fluctuation.periodic" and told


def patch_of(findings: Iterable[Finding]) -> dict[str, Any]:
    """The settings that the findings change, those of the first one where two change the same."""
    patch: dict[str, Any] = {}
    for finding in findings:
        if finding.severity != "info" and not set(finding.patch) & set(patch):
            patch |= finding.patch
    return patch


def check_names(names: Sequence[str]) -> None:
    """Raise SettingsError for a name that is no rule, no family such as ``loader``, and no severity."""
    known = {*FAMILIES, *(name.partition(".")[0] for name in FAMILIES), *SEVERITIES}
    for name in names:
        if name not in known:
            raise SettingsError(Argument("fail_on"), f"{name!a} is no finding", f"one of {', '.join(sorted(known))}")


def failing(profile: Profile, names: Sequence[str]) -> list[Message]:
    """A message for each finding that is of one of these rules, families such as ``loader``, or severities."""
    fails = []
    for finding in profile.findings:
        own = {finding.rule, finding.rule.partition(".")[0], finding.severity}
        own |= {"warn"} if finding.severity == "critical" else set()
        if own & set(names):
            fails.append(Message(finding.rule, finding.evidence))
    return fails


def _finding(rule: str, share: float, evidence: str, patch: dict[str, Any], **more: Any) -> Finding:
    share = min(max(share, 0.0), 0.999)
    severity = more.pop("severity", "critical" if share >= CRITICAL else "warn")
    return Finding(rule, severity, share, 1 / (1 - share), evidence, patch, **more)


def _step_s(p: Profile) -> float:
    return p.window.seconds / p.window.steps


def _device(p: Profile) -> str:
    return "GPU" if p.window.clock == "device" else "CPU"


def _syncs(p: Profile) -> float:
    return p.sync.per_step if p.sync else 0.0


def fits(p: Profile) -> bool:
    """Whether the whole series has room on the device."""
    loader = p.loader
    if loader is None or loader.series_bytes is None:
        return False
    return loader.free_bytes is None or loader.series_bytes <= RESIDENT_SHARE * loader.free_bytes


def _resident(p: Profile) -> tuple[dict[str, Any], str]:
    """The loader without workers, and the words for it."""
    if p.loader is None or not fits(p):
        return {"loader.mode": "chunk"}, "the series is read in chunks while the model trains"
    size = (p.loader.series_bytes or 0) / GIB
    return {"loader.mode": "resident"}, f"the series takes {size:.2f} GiB of memory"


def _saved_by_resident(p: Profile) -> float:
    """The share that a resident series would save: all waiting, without the measured time of gathering its batches.

    On a CPU workers take cores from the training step; without them it takes as long as it was measured to take alone.
    """
    gather = (p.loader.resident_s or 0.0) if p.loader else 0.0
    saved = p.shares.input - gather / _step_s(p)
    if p.window.clock == "host" and p.host and p.host.step_alone_s and p.loader and p.loader.num_workers:
        saved += max(0.0, p.shares.span - p.host.step_alone_s / _step_s(p))
    return saved


def _workers_needed(p: Profile) -> int | None:
    loader = p.loader
    if loader is None or loader.making_s is None:
        return None
    computing = _step_s(p) * (1 - p.shares.input)
    return max(1, math.ceil(RESERVE * loader.making_s / computing)) if computing > 0 else None


def _instead_workers(p: Profile) -> list[dict[str, Any]]:
    """Workers, where this machine has the cores for them."""
    need, cores = _workers_needed(p), p.host.cores if p.host else 1
    if need is None or p.loader is None or need > cores - 1 or need == p.loader.num_workers:
        return []
    return [{"loader.mode": "workers", "loader.num_workers": need}]


def sync_exposes_loader(p: Profile) -> Finding | None:
    """A wait of the host in every step: it makes the next batch after it, while the device has nothing to do."""
    loader = p.loader
    if loader is None or loader.mode != "workers" or loader.num_workers or loader.making_s is None:
        return None
    # Without the wait the host makes a batch and launches a step while the device computes the one before.
    computing = _step_s(p) * (1 - p.shares.input - p.shares.hooks)
    launching = LAUNCH_S * ((p.kernels.launches_per_step or 0.0) if p.kernels else 0.0)
    if p.shares.input < WARN or _syncs(p) < 0.5 or loader.making_s + launching >= computing:
        return None
    evidence = f"the host waits for the GPU {_syncs(p):.1f} times a step, and makes the next batch only then"
    sites = f"it waits at {', '.join(p.sync.sites[:2])}" if p.sync and p.sync.sites else ""
    saved = p.shares.input + (p.bubble or {}).get("sync", 0.0)
    vain = "loader.num_workers and loader.prefetch_factor: batches are made in time without that wait"
    return _finding("sync.exposes_loader", saved, evidence, _read_rarely(p), advice=sites, will_not_help=vain)


def loader_inline(p: Profile) -> Finding | None:
    """The training process makes its batches itself."""
    if p.loader is None or p.shares.input < WARN or p.loader.mode != "workers" or p.loader.num_workers:
        return None
    patch, words = _resident(p)
    evidence = f"{p.shares.input:.0%} of the time the {_device(p)} waits while the training process makes a batch"
    rest = {"advice": words, "instead": _instead_workers(p)}
    vain = "loader.pin_memory: the copy is not what takes the time"
    return _finding("loader.inline", _saved_by_resident(p), evidence, patch, will_not_help=vain, **rest)


def _too_few(loader: Loading) -> bool:
    """Whether batches are always late: what workers need beside making them, such as passing them on, counts too."""
    return loader.supply is not None and (loader.supply < ENOUGH or (loader.late or 0.0) >= ALWAYS)


def loader_undersupplied(p: Profile) -> Finding | None:
    """All workers together make fewer batches than the device takes."""
    loader = p.loader
    if loader is None or p.shares.input < WARN or not loader.num_workers or loader.mode != "workers":
        return None
    if not _too_few(loader):
        return None
    patch, words = _resident(p)
    step_s, several = _step_s(p), "workers hand" if loader.num_workers > 1 else "worker hands"
    taken = 1 / (step_s * (1 - p.shares.input))
    evidence = f"{loader.num_workers} {several} over {1 / step_s:.3g} steps/s, the {_device(p)} takes {taken:.3g}"
    rest = {"advice": words, "instead": _instead_workers(p)}
    vain = "loader.prefetch_factor: a longer queue does not make more batches a second"
    return _finding("loader.undersupplied", _saved_by_resident(p), evidence, patch, will_not_help=vain, **rest)


def loader_bursty(p: Profile) -> Finding | None:
    """Workers make enough batches on average, but not evenly."""
    loader = p.loader
    if loader is None or p.shares.input < WARN or not loader.num_workers or loader.mode != "workers":
        return None
    if loader.supply is None or _too_few(loader):
        return None
    evidence = f"workers make {loader.supply:.1f} batches for each that is wanted, and some of them come late"
    prefetch = min(16, 2 * (loader.prefetch_factor or 2))
    patch, _ = _resident(p)
    vain = "more loader.num_workers: there are enough batches on average"
    longer = {"loader.prefetch_factor": prefetch}
    return _finding("loader.bursty", _saved_by_resident(p), evidence, longer, instead=[patch], will_not_help=vain)


def loader_chunk(p: Profile) -> Finding | None:
    """The next chunk is not there when the present one has been used."""
    loader = p.loader
    if loader is None or p.shares.input < WARN or loader.mode != "chunk":
        return None
    evidence = f"{p.shares.input:.0%} of the time the {_device(p)} waits for the next chunk of the series"
    vain = "another loader.chunk_gb: a larger chunk takes as much longer to read"
    if fits(p):
        patch, words = _resident(p)
        return _finding("loader.chunk", _saved_by_resident(p), evidence, patch, advice=words, will_not_help=vain)
    words = "the series does not fit into the memory: a faster disk, or a larger model, hides the reading"
    return _finding("loader.chunk", p.shares.input, evidence, {}, advice=words, will_not_help=vain)


def loader_gather(p: Profile) -> Finding | None:
    """Gathering the batch from the resident series takes part of a step, because the model is small."""
    if p.loader is None or p.shares.input < WARN or p.loader.mode != "resident":
        return None
    evidence = f"gathering a batch from the resident series takes {p.shares.input:.0%} of a step: the model is small"
    cores = p.host.cores if p.host else 1
    words = "workers could make batches on other cores" if cores > 1 else "this machine has no other core to do it on"
    instead = [{"loader.mode": "workers", "loader.num_workers": cores - 1}] if cores > 1 else []
    vain = "loader.prefetch_factor and loader.pin_memory: a resident series uses neither"
    rest = {"advice": words, "instead": instead, "will_not_help": vain}
    return _finding("loader.gather", p.shares.input, evidence, {}, **rest)


def transfer(p: Profile) -> Finding | None:
    """Copies of batches to the device."""
    if p.shares.transfer < WARN or p.window.clock != "device":
        return None
    pageable = bool(p.copy and p.copy.pageable)
    evidence = f"copies to the GPU take {p.shares.transfer:.0%} of the time"
    patch, words = _resident(p)
    vain = "loader.num_workers and loader.prefetch_factor: batches wait for the copy, not for workers"
    if pageable and not p.setting("loader.pin_memory"):
        evidence += ", from memory that is not pinned"
        pin = {"loader.pin_memory": True}
        return _finding("transfer.pageable", p.shares.transfer, evidence, pin, instead=[patch], will_not_help=vain)
    return _finding("transfer.heavy", p.shares.transfer, evidence, patch, advice=words, will_not_help=vain)


def launch_bound(p: Profile) -> Finding | None:
    """The device waits for the host to launch its next kernel."""
    late = (p.bubble or {}).get("launch")
    if late is None or late < WARN:
        return None
    count = f"{p.kernels.per_step:,.0f} kernels" if p.kernels else "the kernels"
    evidence = f"the GPU waits {late:.0%} of the time for the host to launch {count} a step"
    graph = {"trainer.cuda_graph": True}
    compiled = {"trainer.compile": "default"}
    ways = [way for way in (graph, compiled) if p.setting(next(iter(way))) in (False, "off", None)]
    batch = p.setting("loader.batch_size")
    ways += [{"loader.batch_size": 2 * batch}] if batch else []
    vain = "loader settings, and a faster card: the host sets the pace"
    patch = ways[0] if ways else {}
    return _finding("launch.bound", late, evidence, patch, instead=ways[1:], will_not_help=vain)


def _hidden_by_sync(p: Profile) -> bool:
    """Whether the work between steps would be done while the device computes, if the host did not wait for it.

    So where it is short, and in every step: then the median step is about as long as the mean.
    """
    even = p.step_ms.p50 >= 0.9 * 1e3 * _step_s(p)
    return _syncs(p) >= 0.5 and even and p.shares.hooks < (p.shares.kernel or 0.0)


def sync_per_step(p: Profile) -> Finding | None:
    """The host waits for the device in every step, and launches nothing meanwhile."""
    if p.bubble is None or _syncs(p) < 0.5:
        return None
    saved = p.bubble.get("sync", 0.0) + (p.shares.hooks if _hidden_by_sync(p) else 0.0)
    if saved < WARN:
        return None
    evidence = f"the host waits for the GPU {_syncs(p):.1f} times a step"
    sites = f"it waits at {', '.join(p.sync.sites[:2])}" if p.sync and p.sync.sites else ""
    vain = "trainer.compile and loader settings: the wait stays"
    return _finding("sync.per_step", saved, evidence, _read_rarely(p), advice=sites, will_not_help=vain)


def _read_rarely(p: Profile) -> dict[str, Any]:
    """The setting with which the loss is read rarely; nothing where it is already."""
    every = p.setting("trainer.log_every_n_steps")
    return {} if every is None or every >= LOG_EVERY else {"trainer.log_every_n_steps": LOG_EVERY}


def hooks_heavy(p: Profile) -> Finding | None:
    """Work between two steps: reading the loss, logging, Python's garbage collector."""
    if p.shares.hooks < WARN or _hidden_by_sync(p):
        return None
    evidence = f"{p.shares.hooks:.0%} of the time passes between two steps"
    collected = (p.host.gc or 0.0) if p.host else 0.0
    if collected >= 0.6 * p.shares.hooks:
        words = "Python's garbage collector takes it: gc.freeze() after the start, or fewer objects a step"
        return _finding("hooks.heavy", p.shares.hooks, evidence, {}, advice=words, will_not_help="loader settings")
    patch = _read_rarely(p)
    words = "the loss is read and shown there" if patch else "something is called after each step, such as a callback"
    vain = "loader settings, and trainer.compile: neither is between two steps"
    return _finding("hooks.heavy", p.shares.hooks, evidence, patch, advice=words, will_not_help=vain)


def compute_fp32(p: Profile) -> Finding | None:
    """Kernels that run nearly always, in a type of twice the bytes."""
    if p.window.clock != "device" or (p.shares.kernel or 0.0) < 0.6 or p.setting("trainer.precision") != "32-true":
        return None
    evidence = f"kernels run {p.shares.kernel:.0%} of the time in float32; 16-bit types move half the bytes"
    half = 0.5 * (p.shares.kernel or 0.0)
    vain = "loader settings: the GPU does not wait"
    return _finding("compute.fp32", half, evidence, {"trainer.precision": "bf16-mixed"}, will_not_help=vain)


def compute_small(p: Profile) -> Finding | None:
    """Kernels that leave most of the card's processors without work."""
    if p.gpu_busy is None or p.sm_efficiency is None or p.gpu_busy < 0.8 or p.sm_efficiency >= 0.5:
        return None
    evidence = f"kernels run {p.gpu_busy:.0%} of the time and use {p.sm_efficiency:.0%} of the card's processors"
    batch = p.setting("loader.batch_size")
    vain = "trainer.precision alone: smaller numbers do not make more work at a time"
    patch = {"loader.batch_size": 2 * batch} if batch else {}
    return _finding("compute.small", p.gpu_busy - p.sm_efficiency, evidence, patch, advice=OTHER, will_not_help=vain)


def threads(p: Profile) -> Finding | None:
    """Another number of threads was tried, and was faster."""
    tried = [each for each in p.trials if each.setting == "trainer.threads" and each.low > 1 + WARN]
    if not tried or p.host is None:
        return None
    best = max(tried, key=lambda each: each.gain)
    many = best.value < p.host.threads
    one = "1 thread is" if best.value == 1 else f"{best.value} threads are"
    evidence = f"{one} {best.gain:.2f}x as fast as {p.host.threads} on {p.host.cores} cores"
    rule, vain = ("threads.too_many" if many else "threads.too_few"), "loader settings: the step itself becomes faster"
    return _finding(rule, _of_span(p, best), evidence, {best.setting: best.value}, will_not_help=vain)


def batch_small(p: Profile) -> Finding | None:
    """A larger batch was tried, and each window was faster in it: a part of a step does not grow with the batch."""
    tried = [each for each in p.trials if each.setting == "loader.batch_size" and each.low > 1 + WARN]
    # On a CUDA device the trace names the cause of it, where there is one.
    if not tried or (p.bubble or {}).get("launch", 0.0) >= WARN:
        return None
    best = max(tried, key=lambda each: each.gain)
    now = p.setting("loader.batch_size") or 1
    times = best.value // now
    if times < 2:  # the data has fewer windows than the batch may have
        return None
    fixed = f"{best.value} windows a batch are {best.gain:.2f}x as fast per window as {now}"
    evidence = f"{fixed}: most of a step is Python and small operators" if best.gain > 2 else fixed
    patch: dict[str, Any] = {best.setting: best.value}
    groups = p.setting("trainer.accumulate_grad_batches") or 1
    words = OTHER
    if groups > 1:
        patch["trainer.accumulate_grad_batches"] = max(1, groups // times)
        words = "with fewer batches a step the training stays the same" if groups % times == 0 else OTHER
    # A batch is gathered from a resident series once, whatever its size; so is what is between steps that become fewer.
    once = p.shares.input if p.loader and p.loader.mode == "resident" else 0.0
    once += p.shares.hooks if groups == 1 else 0.0
    saved = _of_span(p, best) + once * (1 - 1 / times)
    vain = "loader.num_workers: batches are there in time"
    return _finding("batch.small", saved, evidence, patch, advice=words, will_not_help=vain)


def _of_span(p: Profile, trial: Trial) -> float:
    """The share of the window that the gain of a training step saves."""
    return p.shares.span * (1 - 1 / trial.gain)


def step_waits(p: Profile) -> Finding | None:
    """On a CPU a training step passes time without computing."""
    waiting = p.host.waiting if p.host else None
    if waiting is None or waiting < WARN or _syncs(p):
        return None
    if any(each.setting == "trainer.threads" and each.low > 1 + WARN for each in p.trials):
        return None  # threads that wait for each other: that finding names the setting
    evidence = f"{waiting:.0%} of the time a training step does not compute: it sleeps, or has no core"
    words = "other programs on these cores, a lock, a file that is read in the model"
    return _finding("step.waits", waiting, evidence, {}, advice=words, will_not_help="loader settings, trainer.compile")


def memory_pressure(p: Profile) -> Finding | None:
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
    instead = [{"model.checkpointing": True}]
    return _finding("memory.pressure", 0.0, evidence, patch, instead=instead, will_not_help=vain)


def memory_headroom(p: Profile) -> Finding | None:
    """Much of the card's memory is free, and its processors are not full."""
    m = p.memory
    if m is None or m.reserved_bytes is None or p.sm_efficiency is None:
        return None
    if m.peak_bytes > 0.5 * m.capacity_bytes or p.sm_efficiency >= 0.8:
        return None
    evidence = f"the peak is {m.peak_bytes / m.capacity_bytes:.0%} of the memory: a larger batch fits"
    return _finding("memory.headroom", 0.0, evidence, {}, severity="info", advice=OTHER)


def memory_leak(p: Profile) -> Finding | None:
    """Memory that grows with every step."""
    m = p.memory
    if m is None or m.growth_bytes_per_step is None or (m.monotone or 0.0) < 0.9:
        return None
    grown = m.growth_bytes_per_step * p.window.steps
    if grown < LEAK_BYTES:
        return None
    evidence = f"memory grows by {m.growth_bytes_per_step / 2**20:.2f} MiB a step"
    words = "something keeps what it no longer needs, such as a list of losses with their graphs"
    return _finding("memory.leak", 0.0, evidence, {}, advice=words, will_not_help="gc.collect()")


def compile_recompiles(p: Profile) -> Finding | None:
    """torch.compile makes the step again and again."""
    if (p.recompiles or 0) <= 3:
        return None
    evidence = f"torch.compile made the model {p.recompiles} times during the measurement"
    vain = "a longer warm-up: shapes that change are compiled each time"
    return _finding("compile.recompiles", 0.0, evidence, {"trainer.compile": "off"}, will_not_help=vain)


def clock_throttled(p: Profile) -> Finding | None:
    """The card runs at a lower clock than it could."""
    d = p.device
    if d is None or d.sm_clock_share is None or d.throttled_by is None or d.sm_clock_share >= 0.85:
        return None
    evidence = f"the card's clock is at {d.sm_clock_share:.0%} of its highest: {d.throttled_by}"
    vain = "any setting: power and cooling of the machine decide it"
    return _finding("clock.throttled", 1 - d.sm_clock_share, evidence, {}, will_not_help=vain)


def fluctuation_periodic(p: Profile) -> Finding | None:
    """A stall that repeats."""
    f = p.fluctuation
    if f is None or f.period_s is None:
        return None
    steps = f"{f.steps_per_period:.1f} steps"
    evidence = f"the {_device(p)} swings between {f.p5:.0%} and {f.p95:.0%} busy every {f.period_s:.2f} s = {steps}"
    saved = p.shares.input + p.shares.hooks
    if f.cause is None:
        words = "no setting has this period: look for another program on this machine"
        return _finding("fluctuation.periodic", saved, evidence, {}, advice=words)
    evidence += f", which is {f.cause}"
    patch: dict[str, Any] = {}
    if f.cause == "loader.num_workers" or (f.cause == "loader.chunk_gb" and fits(p)):
        patch, _ = _resident(p)
    elif f.cause == "trainer.log_every_n_steps":
        patch = {f.cause: 2 * (p.setting(f.cause) or LOG_EVERY)}
    elif f.cause == "the end of an epoch" and p.loader is not None and p.loader.persistent_workers is False:
        patch = {"loader.persistent_workers": True}
    return _finding("fluctuation.periodic", saved, evidence, patch)


def memory_bound(p: Profile) -> Finding | None:
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
    return _finding("memory.bound", 0.0, evidence, {}, severity="info", advice=words)


OTHER = "another batch is another training: its learning rate may have to change"
# In the order of one share: what names its cause more closely comes first.
RULES: tuple[Rule, ...] = (
    sync_exposes_loader,
    loader_inline,
    loader_undersupplied,
    loader_bursty,
    loader_chunk,
    loader_gather,
    transfer,
    sync_per_step,
    launch_bound,
    threads,
    batch_small,
    hooks_heavy,
    step_waits,
    compute_fp32,
    compute_small,
    memory_pressure,
    memory_leak,
    compile_recompiles,
    clock_throttled,
    fluctuation_periodic,
    memory_headroom,
    memory_bound,
)
FAMILIES = {
    "sync.exposes_loader": "SYNC-BOUND",
    "loader.inline": "INPUT-BOUND",
    "loader.undersupplied": "INPUT-BOUND",
    "loader.bursty": "INPUT-BOUND",
    "loader.chunk": "INPUT-BOUND",
    "loader.gather": "INPUT-BOUND",
    "transfer.pageable": "COPY-BOUND",
    "transfer.heavy": "COPY-BOUND",
    "launch.bound": "LAUNCH-BOUND",
    "sync.per_step": "SYNC-BOUND",
    "hooks.heavy": "HOOK-BOUND",
    "threads.too_many": "THREAD-BOUND",
    "threads.too_few": "THREAD-BOUND",
    "batch.small": "PYTHON-BOUND",
    "step.waits": "WAIT-BOUND",
    "compute.fp32": "COMPUTE-BOUND",
    "compute.small": "COMPUTE-BOUND",
    "memory.pressure": "MEMORY-BOUND",
    "memory.leak": "MEMORY-BOUND",
    "memory.headroom": "COMPUTE-BOUND",
    "memory.bound": "MEMORY-BOUND",
    "compile.recompiles": "COMPILE-BOUND",
    "clock.throttled": "CLOCK-BOUND",
    "fluctuation.periodic": "STALLED",
}
SEVERITIES = ("info", "warn", "critical")
SENTENCES = {
    "INPUT-BOUND": "the {device} waits {share:.0%} of the time for batches",
    "COPY-BOUND": "copies to the {device} take {share:.0%} of the time",
    "LAUNCH-BOUND": "the {device} waits {share:.0%} of the time for the host to launch kernels",
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


def _verdict(p: Profile, found: Sequence[Finding]) -> tuple[str, str]:
    """A word and a sentence: of the first finding, of two that cannot be told apart, or that nothing is in the way."""
    device, costly = _device(p), [each for each in found if each.severity != "info"]
    if not costly:
        busy = p.gpu_busy if p.gpu_busy is not None else p.shares.span
        word = next((FAMILIES[each.rule] for each in found if each.rule == "memory.bound"), "COMPUTE-BOUND")
        return word, f"the {device} is busy {busy:.0%} of the time; what is left is the model itself"
    first = costly[0]
    word = FAMILIES[first.rule]
    lost = (each for each in costly[1:] if not each.rule.startswith("compute.") or first.rule.startswith("compute."))
    others = (each for each in lost if FAMILIES[each.rule] not in (word, "STALLED") and each.share >= WARN)
    second = next((each for each in others if first.share - each.share <= CLOSE), None)
    sentence = SENTENCES[word].format(device=device, share=first.share)
    if second is None:
        return word, sentence
    also = SENTENCES[FAMILIES[second.rule]].format(device=device, share=second.share)
    return "UNCLEAR", f"{word} or {FAMILIES[second.rule]}: {sentence}; {also}"
