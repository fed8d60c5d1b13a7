"""A profile as one HTML page that needs no network, no script and no other file.  ``tag`` escapes every text."""

from __future__ import annotations

import math

from socialx.profiling.profile import Profile
from socialx.report.page import (
    DASH,
    NBSP,
    Axis,
    Html,
    details,
    document,
    escaped,
    from_zero,
    joined,
    known,
    number,
    percent,
    plot,
    section,
    setting,
    style,
    table,
    tag,
)

US, MOST_MARKS = "\u00b5s", 60
OTHERS = {"input": ("waiting for input", 3), "transfer": ("copy to device", 4), "hooks": ("between steps", 5)}
WHOLE = {"span": ("training step", 1), **OTHERS}  # of a phase its name and the number of its colour
SPLIT = {"kernel": ("kernels running", 1), "bubble": ("no kernel running", 2), **OTHERS}
CAUSES = {"launch": "late launch", "sync": "host waits", "queued": "between kernels", "copy": "only copies"}
CSS = style("page.css", "profile_page.css")


def page(profile: Profile) -> str:
    """Return the whole document.  What was not measured is left out, and named with its reason at the end."""
    parts = (_header, _findings, _shares, _busy, _steps, _top, _rates, _settings)
    return document(f"socialx profile {profile.verdict}", CSS, [part(profile) for part in parts])


def _scaled(value: float | None, unit: str, base: int = 1000) -> str | None:
    """Return a number with its unit, in thousands (k, M, G) or in steps of 1,024 (Ki, Mi, Gi)."""
    if not known(value):
        return None
    place = next((p for p in range(5) if abs(value) < 0.9995 * base ** (p + 1)), 5)
    return number(value / base**place, f"{NBSP}{'kMGTP'[place - 1 : place]}{'i' * (base > 1000 and place > 0)}{unit}")


def _header(profile: Profile) -> Html:
    window, about, took = profile.window, profile.environment, number(profile.window.seconds, " s") or DASH
    torch = f"torch{NBSP}{about['torch']}" if about.get("torch") else None
    where = (about.get("device_name") or about.get("device"), about.get("precision"), torch)
    steps = f"{window.steps:,} steps in {took} after {window.warmup_steps:,} warm-up steps"
    said = f"Measured: {', '.join(str(each) for each in (steps, f'{window.clock} clock', *where) if each)}."
    parts = (tag("h1", profile.verdict or "Where the time of training goes"), tag("p", profile.summary, class_="lead"))
    return tag("header", tag("p", "socialx profile", class_="note"), *parts, tag("p", said, class_="note"))


def _findings(profile: Profile) -> Html | None:
    cards = []
    for found in profile.findings:
        gain = f"up to {found.ceiling:.2f}x" if known(found.ceiling) and found.ceiling >= 1.005 else None
        title = (tag("span", found.severity, class_="word"), tag("h3", found.rule), tag("span", gain, class_="gain"))
        ways = [("Set", found.patch), *(("Or", way) for way in found.instead)]
        said = [(name, [tag("code", f"{key} = {setting(each)}") for key, each in way.items()]) for name, way in ways]
        said += [("Advice", [escaped(found.advice)]), ("Will not help", [escaped(found.will_not_help)])]
        listed = [part for name, parts in said if any(parts) for part in (tag("dt", name), tag("dd", *parts))]
        body = (tag("p", found.evidence), tag("dl", *listed) if listed else None)
        cards.append(tag("article", tag("div", *title, class_="title"), *body, class_=found.severity))
    return section("What to change", *cards, look="plain")


def _shares(profile: Profile) -> Html | None:
    window, at = profile.window, 0.0
    shapes, said, rows = [], [], []
    for place, (phase, (name, colour)) in enumerate((SPLIT if profile.shares.kernel is not None else WHOLE).items(), 1):
        share, fill = getattr(profile.shares, phase), f"var(--C{colour})"
        wide = 100 * share if known(share) else 0
        shapes.append(tag("rect", x=f"{at:.2f}%", width=f"{wide:.2f}%", height="100%", style=f"fill:{fill}"))
        shapes += [tag("text", place, x=f"{at + wide / 2:.2f}%", y="50%")] if wide >= 6 else []
        at += wide
        said.append(f"{place} {name} {percent(share) or DASH}")
        key = tag("span", place, class_="key", style=f"background:{fill}")
        rows.append((Html(key + name), percent(share), number(getattr(profile.ms_per_step, phase), digits=2)))
        for cause, part in (profile.bubble or {}).items() if phase == "bubble" else ():
            ms = number(1e3 * window.seconds / window.steps * part, digits=2)
            rows += [(tag("span", CAUSES.get(cause, cause), class_="sub"), percent(part), ms)] if part else []
    named = (tag("title", "Shares of a step"), tag("desc", f"From left to right: {', '.join(said)}."))
    bar = tag("svg", *named, *shapes, role="img", class_="stack")
    sites = [tag("code", site) for site in (profile.sync.sites if profile.sync else ())]
    waits = tag("div", "These lines wait for the device:", *sites, class_="note") if sites else None
    listed = table((f"{window.clock} time", "share", "ms per step"), rows, look="parts")
    return section("Shares of a step", tag("div", tag("div", bar, waits), listed, class_="pair"))


def _busy(profile: Profile) -> Html | None:
    """Return the busy share of each bin as an area, with marks where it repeats."""
    line, seen = profile.timeline, profile.fluctuation
    if line is None or not line.busy:
        return None
    count, seconds, said, repeats = len(line.busy), len(line.busy) * line.bin_s, None, None
    tops = (100 - 100 * share if known(share) else 100 for share in line.busy)
    paths = {"area": f"M0 100{''.join(f'V{top:.1f}h1' for top in tops)}V100"}
    if seen:
        mean, low, high = (percent(share) or DASH for share in (seen.mean, seen.p5, seen.p95))
        said = f"Mean {mean}; nine of ten parts of {number(seen.bin_s, ' s')} are between {low} and {high}."
    note = f"Share of each {number(line.bin_s, ' s')} in which a copy or a training step was under way."
    if seen and known(seen.period_s) and 2 * line.bin_s <= seen.period_s <= seconds <= MOST_MARKS * seen.period_s:
        fall = max(range(1, count), key=lambda at: line.busy[at - 1] - line.busy[at]) * line.bin_s
        marks = (fall % seen.period_s + k * seen.period_s for k in range(MOST_MARKS))
        paths["dash"] = "".join(f"M{at / line.bin_s:.1f} 0V100" for at in marks if at < seconds)
        note += " The dashed lines are one period apart."
    if seen and known(seen.period_s):
        parts = (number(seen.period_s, " s"), number(seen.steps_per_period, " steps"), seen.cause)
        repeats = f"It repeats every {' = '.join(part for part in parts if part)}."
    up = Axis(0, 100, {0: "0", 50: "50", 100: "100"}, "%")
    drawn = plot("Utilisation", note, paths, from_zero(5, seconds, "seconds", seconds), up, count)
    return section("Utilisation over time", tag("p", note, class_="note"), drawn, tag("p", said), tag("p", repeats))


def _steps(profile: Profile) -> Html | None:
    """Return the time of each step as a point, with lines of the 50th and the 95th percentile."""
    times, line, drawn = profile.step_ms, profile.timeline, None
    p50, p95, p99 = (number(ms, f"{NBSP}ms") or DASH for ms in (times.p50, times.p95, times.p99))
    note = f"Half of the steps take at most {p50}, 95% at most {p95}, 99% at most {p99}."
    points = [(at, ms) for at, ms in enumerate(line.step_ms if line else ()) if known(ms)]
    if line and points:
        up = from_zero(4, max(times.p95, *(ms for _, ms in points)), "ms")
        width, last = max(1, len(line.step_ms) - 1), (len(line.step_ms) - 1) * line.steps_per_point
        paths = {"dots": "".join(f"M{at} {100 - 100 * up.share(ms):.1f}h0" for at, ms in points)}
        for look, ms in (("solid", times.p50), ("dash", times.p95)):
            paths[look] = f"M0 {100 - 100 * up.share(ms):.1f}H{width}"
        note += " The solid line is at the half, the dashed line at 95%."
        drawn = plot("Step times", note, paths, from_zero(5, max(last, 5), "step", last), up, width)
    late = f"Slowest steps, counted from 0: {', '.join(map(str, times.outliers))}." if times.outliers else None
    return section("Time of each step", tag("p", note, class_="note"), drawn, tag("p", late))


def _top(profile: Profile) -> Html | None:
    traced, kind = (profile.kernels, "kernel") if profile.kernels else (profile.operators, "operator")
    rows = []
    for top in traced.top if traced else ():
        wide = f"{100 * top.share:.1f}%" if known(top.share) else "0"
        drawn = (tag("title", "share of time"), tag("desc", wide), tag("rect", width=wide, height="100%"))
        bar = tag("svg", *drawn, role="img", class_="bar")
        numbers = (percent(top.share), number(top.us_per_step, digits=1), number(top.per_step))
        rows.append((Html(tag("code", top.name, title=top.name) + bar), *numbers))
    return section(f"Top {kind}s", table((kind, "share", f"{US} per step", "calls per step"), rows))


def _rates(profile: Profile) -> Html | None:
    """Return the table of rates; what was not measured has no row."""
    get, window, flop = profile.value, profile.window, "FLOP/s"
    each = window.steps / window.seconds if window.seconds else math.nan
    flops, moved = ((get(f"throughput.{name}_per_step") or math.nan) * each for name in ("flops", "bytes"))
    best, copy = get("machine.matmul_flops_per_s"), get("machine.copy_bytes_per_s")
    memory, most, us = map(get, ("memory.peak_bytes", "memory.capacity_bytes", "overhead.us_per_step"))
    rows = (
        ("windows", number(get("throughput.windows_per_s"), "/s"), number(each, " steps/s")),
        ("sensor steps", _scaled(get("throughput.sensor_steps_per_s"), "/s"), "readings of one sensor in one window"),
        ("arithmetic", _scaled(flops, flop), _of(flops, best, f"{_scaled(best, flop)} in a large matrix product")),
        ("reads and writes", _scaled(moved, "B/s"), _of(moved, copy, f"{_scaled(copy, 'B/s')} in a large copy")),
        ("device busy", percent(profile.gpu_busy), f"SM efficiency {percent(profile.sm_efficiency) or DASH}"),
        ("NVML utilisation", percent(get("device.utilisation_mean")), "share of the time with any kernel"),
        ("peak memory", _scaled(memory, "B", 1024), _of(memory, most, _scaled(most, "B", 1024))),
        ("cores used", number(get("host.cores_used")), f"of {get('host.cores')}, with {get('host.threads')} threads"),
        ("supply of batches", number(get("loader.supply")), "offered for every one that is wanted"),
        ("overhead of the clock", number(us, f" {US}"), f"{percent(get('overhead.share')) or DASH} of a step"),
    )
    return section("Rates", table(("quantity", "measured", "remark"), [row for row in rows if row[1]], 1, "rates"))


def _of(part: float | None, whole: float | None, name: str | None) -> str | None:
    return f"{percent(part / whole)} of {name}" if known(part) and known(whole) and whole else None


def _settings(profile: Profile) -> Html:
    """Return what was tried, what is not the default, and what was not measured."""
    tried, why, origin = [], profile.why, profile.origin
    for each in profile.trials:
        word = "faster" if each.low > 1 else "slower" if each.high < 1 else "no clear difference"
        gain, low, high = (number(gain, "x", 2) or DASH for gain in (each.gain, each.low, each.high))
        tried.append((tag("code", f"{each.setting} = {setting(each.value)}"), gain, f"{low} to {high}", word))
    values = {key: profile.setting(key) if key.count(".") == 1 else None for key in origin}
    own = [(tag("code", key), setting(value), origin[key]) for key, value in values.items()]
    reasons = [(said, ", ".join(key for key in why if why[key] == said)) for said in dict.fromkeys(why.values())]
    listed = table(("reason", "numbers"), reasons, 1, "why")
    missing = tag("section", details(f"Not measured: {len(why)}", listed)) if why else None
    trials = section("Settings that were tried", table(("setting", "gain", "99% interval", "result"), tried, 1))
    others = section("Settings that are not the default", table(("setting", "value", "from"), own, 2, "rates"))
    return joined(trials, others, missing)
