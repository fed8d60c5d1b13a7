"""A profile as terminal tables."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from socialx.profiling.profile import Profile
from socialx.report.tables import bar, percent


def print_profile(profile: Profile, console: Console | None = None) -> None:
    """Where the time of a step went, the rates, and what could not be measured."""
    out = console or Console()
    window = profile.window
    out.print(
        f"{window.steps} steps in {window.seconds:.2f} s after {window.warmup_steps} warm-up steps, "
        f"{window.clock} clock",
        highlight=False,
    )
    shares = profile.shares
    known = shares.kernel is not None  # then the training step is told as what it consists of
    names = {
        **({"kernel": "kernels running", "bubble": "no kernel running"} if known else {"span": "training step"}),
        "input": "waiting for input",
        "transfer": "copy to device",
        "hooks": "between steps",
    }
    table = Table(show_edge=False)
    table.add_column(f"{window.clock} time", no_wrap=True)
    for head in ("share", "ms/step", ""):
        table.add_column(head, justify="right" if head else "left", no_wrap=True)
    for phase, name in names.items():
        share, ms = getattr(shares, phase), getattr(profile.ms_per_step, phase)
        table.add_row(name, f"{share:6.1%}", f"{ms:.2f}", bar(share))
    out.print(table)
    step, rate = profile.step_ms, profile.throughput.windows_per_s
    out.print(f"windows/s {rate:,.1f}   step p50 {step.p50:.1f} ms   p95 {step.p95:.1f} ms", highlight=False)
    if profile.kernels:
        _print_trace(profile, out)
    if profile.device:
        d = profile.device
        out.print(
            f"NVML utilisation mean {d.utilisation_mean:.0%} (lowest {d.utilisation_min:.0%}, highest "
            f"{d.utilisation_max:.0%}), memory {d.used_bytes_max / 2**30:.1f} GiB",
            highlight=False,
        )
    if profile.memory:
        m = profile.memory
        peak, capacity = m.peak_bytes / 2**30, m.capacity_bytes / 2**30
        out.print(f"peak memory {peak:.1f} of {capacity:.1f} GiB", highlight=False)
    reasons: dict[str, list[str]] = {}
    for key, reason in profile.why.items():
        reasons.setdefault(reason, []).append(key)
    for reason, keys in reasons.items():
        out.print(f"not measured: {', '.join(keys)} ({reason})", highlight=False, markup=False, soft_wrap=True)


def _print_trace(profile: Profile, out: Console) -> None:
    """What the traced steps say: how busy the device was, why it was not, and with which kernels it was."""
    k, sync, copy, bubble = profile.kernels, profile.sync, profile.copy, profile.bubble
    if k is None:
        return
    lines = [
        f"GPU busy {_share(profile.gpu_busy)}   SM efficiency {_share(profile.sm_efficiency)}   in "
        f"{k.traced_steps} traced steps, each {k.slowdown:.2f}x as long",
        f"per step: {k.per_step:,.0f} kernels, {_count(k.launches_per_step)} launches, "
        f"{_count(sync.per_step if sync else None)} syncs",
        f"a kernel takes {k.us_p50:.1f} us (median); {k.tiny_share:.1%} of their time is in kernels below 10 us",
    ]
    if bubble:
        causes = {"launch": "late launch", "sync": "host waits", "queued": "between kernels", "copy": "only copies"}
        parts = [f"{causes.get(cause, cause)} {percent(share)}" for cause, share in bubble.items() if share]
        lines += [f"no kernel running: {', '.join(parts)}"] if parts else []
    if copy and copy.h2d_bytes_per_step:
        pinned = ", memory not pinned" if copy.pageable else ""
        lines.append(f"copied from the host: {copy.h2d_bytes_per_step / 2**20:,.3f} MiB per step{pinned}")
    for line in lines:
        out.print(line, highlight=False, markup=False)
    for site in sync.sites if sync else ():
        out.print(f"waits for the device: {site}", highlight=False, markup=False, soft_wrap=True)
    table = Table(show_edge=False)
    table.add_column("kernel", no_wrap=True, max_width=44)
    for head in ("share", "us/step", "calls/step"):
        table.add_column(head, justify="right", no_wrap=True)
    for top in k.top:
        table.add_row(escape(top.name), f"{top.share:.1%}", f"{top.us_per_step:,.1f}", _count(top.per_step))
    out.print(table)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _count(value: float | None) -> str:
    """A count per step; whole where it is large or whole."""
    return "-" if value is None else f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"
