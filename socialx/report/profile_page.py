"""A profile as one HTML page that needs no network, no script and no other file.  ``tag`` escapes every text."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Sequence
from typing import TypeGuard

from socialx.profiling.profile import Profile

Axis = tuple[list[float], float, str]  # ticks, the last value and the unit
DASH, NBSP, US, MOST_MARKS = "\u2013", "\u00a0", "\u00b5s", 60  # a dash stands for what is not known
# These characters are no text, or turn the direction of the text behind them.
ODD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
OTHERS = {"input": ("waiting for input", 3), "transfer": ("copy to device", 4), "hooks": ("between steps", 5)}
WHOLE = {"span": ("training step", 1), **OTHERS}  # of a phase its name and the number of its colour
SPLIT = {"kernel": ("kernels running", 1), "bubble": ("no kernel running", 2), **OTHERS}
CAUSES = {"launch": "late launch", "sync": "host waits", "queued": "between kernels", "copy": "only copies"}
HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">"""
# The names of colours begin with a capital letter: in lower case they would look like flags of the command line.
CSS = """
:root{color-scheme:light dark;--Page:#f5f6f8;--Card:#fff;--Ink:#1a2330;--Soft:#55606e;--Line:#dfe3e8;--Code:#eef1f4;
--C1:#1f5fa8;--C2:#647080;--C3:#b04d0c;--C4:#0d736b;--C5:#774998;--Area:#c9dcf2;--Critical:#a8231c;--Warn:#7d4b00}
@media screen and (prefers-color-scheme:dark){:root{--Page:#101419;--Card:#181e25;--Ink:#e6eaef;--Soft:#a4b0bd;
--Line:#303944;--Code:#242c36;--C1:#7db4f0;--C2:#9ba6b3;--C3:#efa25c;--C4:#5cc6ba;--C5:#c4a4e6;--Area:#254467;
--Critical:#ffb3ab;--Warn:#ffcf8c}}
*{box-sizing:border-box;margin:0}body{background:var(--Page);color:var(--Ink);font:1rem/1.55 system-ui,sans-serif;
font-variant-numeric:tabular-nums}main{max-width:68rem;margin:0 auto;
padding:clamp(1.5rem,5vw,4rem) clamp(1rem,4vw,3rem)}h1{font-size:clamp(1.9rem,5vw,2.75rem);line-height:1.15}
h2{font-size:1.2rem;margin-bottom:1rem}p{max-width:52rem}h1,p,.title{margin-bottom:.75rem}
h1,h3,p,dd,th,td,code{overflow-wrap:anywhere}.lead{font-size:1.2rem}.note,dt,thead th,.sub{color:var(--Soft)}
.note{font-size:.875rem}.sub{padding-left:2rem}header,section{margin-bottom:1.5rem}
section,article{padding:clamp(1rem,3vw,1.75rem);background:var(--Card);border:1px solid var(--Line);border-radius:12px}
section>:last-child,article>:last-child{margin-bottom:0}.plain{padding:0;background:none;border:0}
article{margin-bottom:1rem;border-left:5px solid var(--C1)}.warn{--C1:var(--Warn)}.critical{--C1:var(--Critical)}
.title{display:flex;flex-wrap:wrap;align-items:center;gap:.4rem .75rem}.gain{margin-left:auto;font-weight:600}
.word{padding:0 .6rem;border:1px solid;border-radius:99px;color:var(--C1)}dl{display:grid;
grid-template-columns:6.5rem minmax(0,1fr);gap:.4rem 1rem;align-items:baseline}
code{font:.875em/1.5 ui-monospace,Consolas,monospace;background:var(--Code);padding:.1em .4em;border-radius:4px}
dd code,.note code{display:block;width:fit-content;margin:.2rem 0}.names th code{padding:0;background:none;
display:-webkit-box;-webkit-box-orient:vertical;-webkit-line-clamp:3;overflow:hidden}.pair{display:grid;
grid-template-columns:repeat(auto-fit,minmax(min(100%,24rem),1fr));gap:1.5rem 3rem}table{border-collapse:collapse;
width:100%;font-size:.9375rem}th,td{padding:.45rem 0 .45rem 1rem;text-align:left;vertical-align:top;
border-bottom:1px solid var(--Line)}th:first-child{padding-left:0}tbody th{font-weight:400}
thead th,.word{font-size:.8125rem;font-weight:600}tbody tr:last-child>*{border-bottom:0}.n{text-align:right;
white-space:nowrap}.key,.stack text{font-size:.875rem;font-weight:600;color:var(--Card);fill:var(--Card);
text-anchor:middle;dominant-baseline:central}.key{display:inline-block;width:1.3rem;margin-right:.7rem;
border-radius:4px;text-align:center}svg{display:block;width:100%;overflow:visible}.stack{height:6rem;
margin-bottom:1.25rem}.bar{height:6px;margin-top:.35rem;fill:var(--C1);background:var(--Code)}.plot{position:relative;
height:12rem;margin:3rem .75rem 4rem 3.5rem;font-size:.8125rem;color:var(--Soft)}.plot svg{height:100%}
.plot span{position:absolute;white-space:nowrap;line-height:1}.y{right:100%;padding-right:.6rem;
transform:translateY(50%)}.x{top:100%;padding-top:.6rem;transform:translateX(-50%)}.y.unit{bottom:calc(100% + 1.4rem)}
.x.unit{right:0;padding-top:2.2rem;transform:none}path{fill:none;vector-effect:non-scaling-stroke;stroke:var(--Ink)}
.grid{stroke:var(--Line)}.area{fill:var(--Area);stroke:var(--C1)}.dash{stroke-dasharray:6 4}.dots{stroke:var(--C1);
stroke-width:5;stroke-linecap:round}summary{font-weight:600}
@media(max-width:34rem){dl{grid-template-columns:1fr;gap:.1rem}dd{margin-bottom:.6rem}td,th+th{padding-left:.6rem}
.names tr,.rates tr{display:grid;grid-template-columns:repeat(3,1fr)}.rates tr{grid-template-columns:1fr auto}
.names th:first-child,.rates tr>:last-child{grid-column:1/-1}.names th:first-child,.rates :nth-child(-n+2){border:0}
.rates tr>:last-child{padding:0 0 .45rem}}
@media print{article,tr,.plot{break-inside:avoid}svg,.key{print-color-adjust:exact}
details::details-content{content-visibility:visible;block-size:auto}}
"""


class Html(str):
    """This is text that is HTML already."""


def tag(name: str, *parts: object, **attributes: object) -> Html:
    """Return an element, or nothing if it has parts and all are empty.  The last ``_`` of an attribute is left out."""
    if parts and all(part is None or part == "" for part in parts):
        return Html("")
    named = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None)
    start = "".join(f' {key}="{_text(value)}"' for key, value in named)
    return Html(f"<{name}{start}>{''.join(map(_text, parts))}</{name}>")


def page(profile: Profile) -> str:
    """Return the whole document.  What was not measured is left out, and named with its reason at the end."""
    parts = (_header, _findings, _shares, _busy, _steps, _top, _rates, _settings)
    body = tag("body", tag("main", *(part(profile) for part in parts)))
    return f"{HEAD}{tag('title', 'socialx profile ', profile.verdict)}<style>{CSS}</style></head>\n{body}\n</html>\n"


def _text(part: object) -> Html:
    return part if isinstance(part, Html) else Html("" if part is None else html.escape(ODD.sub("\ufffd", str(part))))


def _known(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)


def _number(value: float | None, unit: str = "", digits: int | None = None) -> str | None:
    """Return a number of about three digits, or of so many after the point, with its unit; None if it is not known."""
    if not _known(value):
        return None
    if digits is None:
        digits = sum(abs(value) < least for least in (99.95, 9.995, 0.9995)) if value != int(value) else 0
    return f"{value:,.{digits}f}{unit}"


def _percent(share: float | None) -> str | None:
    return ("<0.1%" if 0 < share < 0.0005 else f"{share:.1%}") if _known(share) else None


def _scaled(value: float | None, unit: str, base: int = 1000) -> str | None:
    """Return a number with its unit, in thousands (k, M, G) or in steps of 1,024 (Ki, Mi, Gi)."""
    if not _known(value):
        return None
    place = next((p for p in range(5) if abs(value) < 0.9995 * base ** (p + 1)), 5)
    return _number(value / base**place, f"{NBSP}{'kMGTP'[place - 1 : place]}{'i' * (base > 1000 and place > 0)}{unit}")


def _value(setting: object) -> str:
    plain = setting if isinstance(setting, str) else json.dumps(setting, ensure_ascii=False, default=str)
    return DASH if setting is None or plain == "NaN" else plain


def _section(title: str, *parts: Html | None, look: str | None = None) -> Html | None:
    return tag("section", tag("h2", title), *parts, aria_label=title, class_=look) if any(parts) else None


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]], words: int = 0, look: str = "names") -> Html | None:
    """Return a table: the first column names the rows, the last ``words`` are words, those between are numbers."""
    kinds = [None, *["n"] * (len(heads) - 1 - words), *[None] * words]
    top = [tag("th", head, scope="col", class_=kind) for head, kind in zip(heads, kinds, strict=True)]
    lines = []
    for first, *others in rows:
        cells = (tag("td", DASH if c is None else c, class_=kind) for c, kind in zip(others, kinds[1:], strict=True))
        lines.append(tag("tr", tag("th", first, scope="row"), *cells))
    return tag("table", tag("thead", tag("tr", *top)), tag("tbody", *lines), class_=look) if rows else None


def _ticks(top: float, most: int) -> list[float]:
    """Return round numbers from 0 to the first that is not below ``top``."""
    rounds = (m * 10.0**power for power in range(-9, 18) for m in (1, 2, 5))
    step = next((each for each in rounds if each * most >= 0.999999 * (top or 1)), top)
    return [step * place for place in range(max(1, math.ceil(top / step - 1e-6)) + 1)]


def _plot(title: str, desc: str, width: int, paths: dict[str, str], x: Axis, y: Axis) -> Html:
    """Return a picture with labels beside it, which keep their size while it is stretched to the page."""
    paths = {"grid": "".join(f"M0 {100 - 100 * at / y[1]:.1f}H{width}" for at in y[0]), **paths}
    shapes = (tag("path", d=path, class_=look) for look, path in paths.items())
    box = {"role": "img", "viewBox": f"0 0 {width} 100", "preserveAspectRatio": "none"}
    parts = [tag("svg", tag("title", title), tag("desc", desc), *shapes, **box)]
    for look, side, (ticks, last, unit) in (("x", "left", x), ("y", "bottom", y)):
        parts.append(tag("span", unit, class_=f"{look} unit"))
        for at in (at for at in ticks if at <= last * (1 + 1e-9)):
            parts.append(tag("span", f"{at:,.6g}", class_=look, style=f"{side}:{100 * at / (last or 1):.2f}%"))
    return tag("div", *parts, class_="plot")


def _header(profile: Profile) -> Html:
    window, about, took = profile.window, profile.environment, _number(profile.window.seconds, " s") or DASH
    torch = f"torch{NBSP}{about['torch']}" if about.get("torch") else None
    where = (about.get("device_name") or about.get("device"), about.get("precision"), torch)
    steps = f"{window.steps:,} steps in {took} after {window.warmup_steps:,} warm-up steps"
    said = f"Measured: {', '.join(str(each) for each in (steps, f'{window.clock} clock', *where) if each)}."
    parts = (tag("h1", profile.verdict or "Where the time of training goes"), tag("p", profile.summary, class_="lead"))
    return tag("header", tag("p", "socialx profile", class_="note"), *parts, tag("p", said, class_="note"))


def _findings(profile: Profile) -> Html | None:
    cards = []
    for found in profile.findings:
        gain = f"up to {found.ceiling:.2f}x" if _known(found.ceiling) and found.ceiling >= 1.005 else None
        title = (tag("span", found.severity, class_="word"), tag("h3", found.rule), tag("span", gain, class_="gain"))
        ways = [("Set", found.patch), *(("Or", way) for way in found.instead)]
        said = [(name, [tag("code", f"{key} = {_value(each)}") for key, each in way.items()]) for name, way in ways]
        said += [("Advice", [_text(found.advice)]), ("Will not help", [_text(found.will_not_help)])]
        listed = [part for name, parts in said if any(parts) for part in (tag("dt", name), tag("dd", *parts))]
        body = (tag("p", found.evidence), tag("dl", *listed) if listed else None)
        cards.append(tag("article", tag("div", *title, class_="title"), *body, class_=found.severity))
    return _section("What to change", *cards, look="plain")


def _shares(profile: Profile) -> Html | None:
    window, at = profile.window, 0.0
    shapes, said, rows = [], [], []
    for place, (phase, (name, colour)) in enumerate((SPLIT if profile.shares.kernel is not None else WHOLE).items(), 1):
        share, fill = getattr(profile.shares, phase), f"var(--C{colour})"
        wide = 100 * share if _known(share) else 0
        shapes.append(tag("rect", x=f"{at:.2f}%", width=f"{wide:.2f}%", height="100%", style=f"fill:{fill}"))
        shapes += [tag("text", place, x=f"{at + wide / 2:.2f}%", y="50%")] if wide >= 6 else []
        at += wide
        said.append(f"{place} {name} {_percent(share) or DASH}")
        key = tag("span", place, class_="key", style=f"background:{fill}")
        rows.append((Html(key + name), _percent(share), _number(getattr(profile.ms_per_step, phase), digits=2)))
        for cause, part in (profile.bubble or {}).items() if phase == "bubble" else ():
            ms = _number(1e3 * window.seconds / window.steps * part, digits=2)
            rows += [(tag("span", CAUSES.get(cause, cause), class_="sub"), _percent(part), ms)] if part else []
    named = (tag("title", "Shares of a step"), tag("desc", f"From left to right: {', '.join(said)}."))
    bar = tag("svg", *named, *shapes, role="img", class_="stack")
    sites = [tag("code", site) for site in (profile.sync.sites if profile.sync else ())]
    waits = tag("div", "These lines wait for the device:", *sites, class_="note") if sites else None
    table = _table((f"{window.clock} time", "share", "ms per step"), rows, look="parts")
    return _section("Shares of a step", tag("div", tag("div", bar, waits), table, class_="pair"))


def _busy(profile: Profile) -> Html | None:
    """Return the busy share of each bin as an area, with marks where it repeats."""
    line, seen = profile.timeline, profile.fluctuation
    if line is None or not line.busy:
        return None
    count, seconds, said, repeats = len(line.busy), len(line.busy) * line.bin_s, None, None
    tops = (100 - 100 * share if _known(share) else 100 for share in line.busy)
    paths = {"area": f"M0 100{''.join(f'V{top:.1f}h1' for top in tops)}V100"}
    if seen:
        mean, low, high = (_percent(share) or DASH for share in (seen.mean, seen.p5, seen.p95))
        said = f"Mean {mean}; nine of ten parts of {_number(seen.bin_s, ' s')} are between {low} and {high}."
    note = f"Share of each {_number(line.bin_s, ' s')} in which a copy or a training step was under way."
    if seen and _known(seen.period_s) and 2 * line.bin_s <= seen.period_s <= seconds <= MOST_MARKS * seen.period_s:
        fall = max(range(1, count), key=lambda at: line.busy[at - 1] - line.busy[at]) * line.bin_s
        marks = (fall % seen.period_s + k * seen.period_s for k in range(MOST_MARKS))
        paths["dash"] = "".join(f"M{at / line.bin_s:.1f} 0V100" for at in marks if at < seconds)
        note += " The dashed lines are one period apart."
    if seen and _known(seen.period_s):
        parts = (_number(seen.period_s, " s"), _number(seen.steps_per_period, " steps"), seen.cause)
        repeats = f"It repeats every {' = '.join(part for part in parts if part)}."
    drawn = _plot("Utilisation", note, count, paths, (_ticks(seconds, 5), seconds, "seconds"), ([0, 50, 100], 100, "%"))
    return _section("Utilisation over time", tag("p", note, class_="note"), drawn, tag("p", said), tag("p", repeats))


def _steps(profile: Profile) -> Html | None:
    """Return the time of each step as a point, with lines of the 50th and the 95th percentile."""
    times, line, drawn = profile.step_ms, profile.timeline, None
    p50, p95, p99 = (_number(ms, f"{NBSP}ms") or DASH for ms in (times.p50, times.p95, times.p99))
    note = f"Half of the steps take at most {p50}, 95% at most {p95}, 99% at most {p99}."
    points = [(at, ms) for at, ms in enumerate(line.step_ms if line else ()) if _known(ms)]
    if line and points:
        up = _ticks(max(times.p95, *(ms for _, ms in points)), 4)
        width, last = max(1, len(line.step_ms) - 1), (len(line.step_ms) - 1) * line.steps_per_point
        paths = {"dots": "".join(f"M{at} {100 - 100 * ms / up[-1]:.1f}h0" for at, ms in points)}
        for look, ms in (("solid", times.p50), ("dash", times.p95)):
            paths[look] = f"M0 {100 - 100 * ms / up[-1]:.1f}H{width}"
        note += " The solid line is at the half, the dashed line at 95%."
        drawn = _plot("Step times", note, width, paths, (_ticks(max(last, 5), 5), last, "step"), (up, up[-1], "ms"))
    late = f"Slowest steps, counted from 0: {', '.join(map(str, times.outliers))}." if times.outliers else None
    return _section("Time of each step", tag("p", note, class_="note"), drawn, tag("p", late))


def _top(profile: Profile) -> Html | None:
    traced, kind = (profile.kernels, "kernel") if profile.kernels else (profile.operators, "operator")
    rows = []
    for top in traced.top if traced else ():
        wide = f"{100 * top.share:.1f}%" if _known(top.share) else "0"
        drawn = (tag("title", "share of time"), tag("desc", wide), tag("rect", width=wide, height="100%"))
        bar = tag("svg", *drawn, role="img", class_="bar")
        numbers = (_percent(top.share), _number(top.us_per_step, digits=1), _number(top.per_step))
        rows.append((Html(tag("code", top.name, title=top.name) + bar), *numbers))
    return _section(f"Top {kind}s", _table((kind, "share", f"{US} per step", "calls per step"), rows))


def _rates(profile: Profile) -> Html | None:
    """Return the table of rates; what was not measured has no row."""
    get, window, flop = profile.value, profile.window, "FLOP/s"
    each = window.steps / window.seconds if window.seconds else math.nan
    flops, moved = ((get(f"throughput.{name}_per_step") or math.nan) * each for name in ("flops", "bytes"))
    best, copy = get("machine.matmul_flops_per_s"), get("machine.copy_bytes_per_s")
    memory, most, us = map(get, ("memory.peak_bytes", "memory.capacity_bytes", "overhead.us_per_step"))
    rows = (
        ("windows", _number(get("throughput.windows_per_s"), "/s"), _number(each, " steps/s")),
        ("sensor steps", _scaled(get("throughput.sensor_steps_per_s"), "/s"), "readings of one sensor in one window"),
        ("arithmetic", _scaled(flops, flop), _of(flops, best, f"{_scaled(best, flop)} in a large matrix product")),
        ("reads and writes", _scaled(moved, "B/s"), _of(moved, copy, f"{_scaled(copy, 'B/s')} in a large copy")),
        ("device busy", _percent(profile.gpu_busy), f"SM efficiency {_percent(profile.sm_efficiency) or DASH}"),
        ("NVML utilisation", _percent(get("device.utilisation_mean")), "share of the time with any kernel"),
        ("peak memory", _scaled(memory, "B", 1024), _of(memory, most, _scaled(most, "B", 1024))),
        ("cores used", _number(get("host.cores_used")), f"of {get('host.cores')}, with {get('host.threads')} threads"),
        ("supply of batches", _number(get("loader.supply")), "offered for every one that is wanted"),
        ("overhead of the clock", _number(us, f" {US}"), f"{_percent(get('overhead.share')) or DASH} of a step"),
    )
    return _section("Rates", _table(("quantity", "measured", "remark"), [row for row in rows if row[1]], 1, "rates"))


def _of(part: float | None, whole: float | None, name: str | None) -> str | None:
    return f"{_percent(part / whole)} of {name}" if _known(part) and _known(whole) and whole else None


def _settings(profile: Profile) -> Html:
    """Return what was tried, what is not the default, and what was not measured."""
    tried, why, origin = [], profile.why, profile.origin
    for each in profile.trials:
        word = "faster" if each.low > 1 else "slower" if each.high < 1 else "no clear difference"
        gain, low, high = (_number(gain, "x", 2) or DASH for gain in (each.gain, each.low, each.high))
        tried.append((tag("code", f"{each.setting} = {_value(each.value)}"), gain, f"{low} to {high}", word))
    values = {key: profile.setting(key) if key.count(".") == 1 else None for key in origin}
    own = [(tag("code", key), _value(value), origin[key]) for key, value in values.items()]
    reasons = [(said, ", ".join(key for key in why if why[key] == said)) for said in dict.fromkeys(why.values())]
    table = _table(("reason", "numbers"), reasons, 1, "why")
    missing = tag("section", tag("details", tag("summary", f"Not measured: {len(why)}"), table)) if why else None
    trials = _section("Settings that were tried", _table(("setting", "gain", "99% interval", "result"), tried, 1))
    others = _section("Settings that are not the default", _table(("setting", "value", "from"), own, 2, "rates"))
    return Html("".join(map(_text, (trials, others, missing))))
