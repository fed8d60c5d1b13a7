"""A profile as an HTML page, a single file that works offline without scripts, from ``profile_page.html.j2``.

Missing measurements are left out, and listed with reasons at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from markupsafe import Markup

from socialx.drawing.page import COLOURS, NBSP, files, inline, render, setting
from socialx.drawing.terminal import is_known, number, percent
from socialx.profiling.profile import Profile
from socialx.profiling.tables import (
    busy_machine,
    busy_words,
    detail_rows,
    missing_reasons,
    operator_waiting,
    phase_rows,
    rate_rows,
    step_after,
    window_facts,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FOLDER = Path(__file__).parent
STYLES = files("page.css", "profile_page.css", folder=FOLDER)
COLOUR_NUMBERS = {"span": 1, "kernel": 1, "bubble": 2, "input": 3, "transfer": 4, "hooks": 5}


class Chart(NamedTuple):
    """A picture with a remark above and sentences below."""

    remark: str
    picture: Markup | None
    below: list[str]


def page(profile: Profile) -> str:
    """Return a profile as an HTML document that opens offline."""
    parts = {
        "title": f"socialx profile {profile.verdict}",
        "profile": profile,
        "busy_machine": busy_machine(profile),
        "view": ProfileView(profile),
        "rates": rate_rows(profile),
        "window_facts": window_facts(profile),
        "operator_waiting": operator_waiting(profile),
        "changed": [(key, setting(profile.setting(key)), source) for key, source in profile.origin.items()],
        "missing": [(why, ", ".join(keys)) for why, keys in missing_reasons(profile).items()],
    }
    return render("profile_page.html.j2", parts, STYLES, folder=FOLDER)


@dataclass(frozen=True)
class ProfileView:
    """The contents of the template: tables as rows of texts, and pictures."""

    profile: Profile

    def shares(self) -> list[tuple[int, int, str, str, str, float]]:
        """Return rows for the phases in a step, then for the training step's parts and the idle time by cause.

        A row: number, colour (0 for a cause across phases), name, share, milliseconds, and percent of the bar's width.
        """
        rows = []
        for rank, (phase, name, share, ms) in enumerate(phase_rows(self.profile), 1):
            wide = 100 * share if is_known(share) else 0.0
            rows.append((rank, COLOUR_NUMBERS[phase], name, percent(share), number(ms, 2), wide))
        for name, share, ms in detail_rows(self.profile):
            rows.append((0, 0, name.replace("  ", 3 * NBSP), percent(share), number(ms, 2), 0.0))
        return rows

    def after(self) -> tuple[str, str, float] | None:
        """Return name, milliseconds and bar width (percent) of a step after the advised change; None without advice."""
        after = step_after(self.profile)
        return after and (after[0], number(after[2], unit=f"{NBSP}ms"), min(100.0, 100 * after[1]))

    def busy(self) -> Chart | None:
        """Return a chart with the busy share per bin, and the period in words, or None for a flat share."""
        line, below = self.profile.timeline, busy_words(self.profile)
        if not below:
            return None
        bin_s = number(line.bin_s, unit=" s")
        remark = f"Share of each {bin_s} in which a copy or a training step was under way, computing or waiting."

        def draw(axes: Axes) -> None:
            shares = 100 * np.array(line.busy, float)
            seconds = line.bin_s * np.arange(len(shares) + 1)
            shares = np.nan_to_num(np.append(shares, shares[-1]))
            axes.fill_between(seconds, shares, step="post", facecolor=COLOURS["Area"], edgecolor=COLOURS["C1"])
            axes.set(title="%", xlabel="seconds", xlim=(0, seconds[-1]), ylim=(0, 102), yticks=(0, 50, 100))

        return Chart(remark, inline("Time in training steps", remark, draw), below)

    def steps(self) -> Chart:
        """Return a chart with a point per step time, and lines at the 50th and the 95th percentile."""
        times, line, picture = self.profile.step_ms, self.profile.timeline, None
        p50, p95, p99 = (number(ms, unit=f"{NBSP}ms") for ms in (times.p50, times.p95, times.p99))
        remark = f"Median (p50) {p50}, 95th percentile (p95) {p95}, 99th (p99) {p99}."
        if any(map(is_known, line.step_ms)):
            remark += " The solid line is the median, the dashed line p95."
            ms = np.array(line.step_ms, float)
            places = line.steps_per_point * np.arange(len(ms))

            def draw(axes: Axes) -> None:
                axes.plot(places, ms, marker="o", markersize=4, linestyle="none", color=COLOURS["C1"])
                for value, style in ((times.p50, "solid"), (times.p95, "dashed")):
                    axes.axhline(value, color=COLOURS["Soft"], linestyle=style, linewidth=1, zorder=1)
                top = 1.05 * max(times.p95, float(np.nanmax(ms)))
                last = max(int(places[-1]), 5)
                axes.set(title="ms", xlabel="step", xlim=(-0.02 * last, 1.02 * last), ylim=(0, top))

            picture = inline("Step times", remark, draw)
        slowest = ", ".join(map(str, times.outliers))
        return Chart(remark, picture, [f"Slowest steps, counted from 0: {slowest}."] if slowest else [])

    def trials(self) -> list[tuple[str, str]]:
        """Return a row per trial: setting, and the gain in words."""
        rows = []
        for trial in self.profile.trials:
            both = f", both with trainer.threads = {trial.threads}" if trial.threads else ""
            rows.append((f"{trial.setting} = {setting(trial.value)}{both}", str(trial)))
        return rows
