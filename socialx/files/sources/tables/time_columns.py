"""Find the time columns in the first rows, and how the times are written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from socialx.data.calendar import DAY_S
from socialx.files.sources.tables import words
from socialx.files.sources.tables.cells import NUMBER
from socialx.files.sources.tables.spec import EXCEL, UNSAID
from socialx.files.sources.tables.table import parse_times

DATE = r"[0-9]{4}[-/.][0-9]{1,2}[-/.][0-9]{1,2}|[0-9]{1,2}[-/.][0-9]{1,2}[-/.](?:[0-9]{4}|[0-9]{2})"
TIME = r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?(?: ?[AaPp][Mm])?"
ZONE = r" ?(?:Z|UTC|[+-][0-9]{2}:?[0-9]{2})"
MOMENT = re.compile(rf"(?P<date>{DATE})(?:(?P<mid>T| +)(?P<clock>{TIME}|[0-9]{{1,2}})(?P<zone>{ZONE})?)?")
ONLY_TIME = re.compile(TIME)
ONLY_HOUR = re.compile(r"0*(?:1?[0-9]|2[0-4])")
ISO = re.compile(r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?")
DIGITS = {6: ("%y%m%d", "%d%m%y"), 8: ("%Y%m%d", "%d%m%Y"), 12: ("%Y%m%d%H%M",), 14: ("%Y%m%d%H%M%S",)}
SINCE_1970 = {9: "s", 10: "s", 13: "ms"}  # by the digits of the whole number
LATE = re.compile(r"(?:.*[ T])?24(?::00)?(?::00)?")  # the end of a day
MIDNIGHT = re.compile(r"(?:.*[ T])?0{1,2}(?::00)?(?::00)?(?:\.0+)?Z?")
UNTIL = ("/", " - ", " \N{EN DASH} ", "\N{EN DASH}", " to ", " bis ", "~", "-")  # before the end of an interval
STRAYS = 5  # cells of a column of times
HOUR_S = 3600
MANY, FEW_HOURS = 60, 19  # columns of which pairs are tried; integers that are not called hours


@dataclass(frozen=True)
class TimeColumns:
    """Time columns.

    forms: in which all texts are times, the likeliest first.  until: the text before an interval's end.  shift_s: from
    the end to the beginning in an hour.  dated: whether the columns hold days without a clock time.  seconds: a column
    with seconds from a given time.  sure: False where an integer may be an hour under another name.  named: whether
    column names are the times.
    """

    columns: tuple[str, ...] = ()
    forms: tuple[str, ...] = ("",)
    until: str = ""
    shift_s: int = 0
    dated: bool = False
    seconds: str = ""
    sure: bool = True
    named: bool = False


def find_time_columns(cells: Mapping[str, Sequence[str]], form: str = "") -> list[TimeColumns]:
    """Return the ways to read times from text columns, the likeliest first; [] for none. form: as the user says."""
    moments, days, clocks, hours = list[TimeColumns](), list[TimeColumns](), list[str](), list[str]()
    for name, texts in cells.items():
        distinct = [*dict.fromkeys(texts)]
        if not all(distinct):
            continue
        begins, until = _without_ends(distinct)
        if forms := _fitting([form] if form else [*_forms(name, begins[0])], begins):
            midnight = all(map(MIDNIGHT.fullmatch, begins)) and len(distinct) < len(texts)
            dated = midnight or not (re.search("%[HI]|s|excel", forms[0]) or (not forms[0] and len(begins[0]) > 10))
            (days if dated else moments).append(TimeColumns((name,), forms, until, _shift(begins), dated))
        elif all(map(ONLY_TIME.fullmatch, begins)):
            clocks.append(name)
        elif all(map(ONLY_HOUR.fullmatch, distinct)):
            hours += [name] if words.HOUR.fullmatch(name) or len(distinct) > FEW_HOURS else []
    if form and not moments and (pairs := [*_pairs(cells, form)]):
        return pairs
    if moments or not days:
        return _begins(moments or _in_parts(cells))
    day = _begins(days)[0]
    joined = [_joined(day, name, cells, sure=True) for name in clocks]
    joined += [_joined(day, name, cells, sure=bool(words.HOUR.fullmatch(name))) for name in hours]
    moments = [_with_minutes(clock, cells) for clock in joined if clock is not None]
    return _begins([clock for clock in moments if clock.sure] or moments) or _begins(days)


def _parts(cells: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the columns that are called like time parts and hold whole numbers, by the part's form."""
    whole = [name for name, texts in cells.items() if all(map(str.isdecimal, texts))]
    called = {part: [name for name in whole if form.fullmatch(name)] for part, form in words.PARTS.items()}
    return {part: names[0] for part, names in called.items() if len(names) == 1}


def _in_parts(cells: Mapping[str, Sequence[str]]) -> list[TimeColumns]:
    """Return the clock for columns with years, months, days and hours, perhaps minutes; [] for different columns."""
    parts = _parts(cells)
    if not {"%Y", "%m", "%d", "%H"} <= {*parts}:
        return []
    texts = [*dict.fromkeys(map(" ".join, zip(*(cells[name] for name in parts.values()), strict=True)))]
    forms = _fitting([" ".join(parts)], texts)
    return [TimeColumns(tuple(parts.values()), forms, shift_s=_shift(cells[parts["%H"]]))] if forms else []


def _with_minutes(clock: TimeColumns, cells: Mapping[str, Sequence[str]]) -> TimeColumns:
    """Return the clock for days and hours, with a column for minutes if the table has such a column."""
    minute = _parts(cells).get("%M")
    if minute is None or not all(form.endswith("%H") for form in clock.forms):
        return clock
    return replace(clock, columns=(*clock.columns, minute), forms=tuple(f"{form} %M" for form in clock.forms))


def without_strays(texts: Sequence[str], form: str = "") -> list[str]:
    """Return the cells in a time column without some stray texts, the first to be named by the reader; cells in a
    different column stay. form: as the user says.
    """
    begin = next((text for text in texts if text), "")
    for one in [form] if form else _forms("time", begin):
        kept, spec = list(texts), replace(UNSAID, form=one)
        for _ in range(min(STRAYS, len(texts) // 10) + 1):
            if (wrong := parse_times(kept, spec)[2]) is None:
                return kept
            del kept[wrong]
    return list(texts)


def _begins(ways: list[TimeColumns]) -> list[TimeColumns]:
    """Return the ways without interval ends and writing times, if any remain, else all."""
    return [way for way in ways if not any(map(words.LATER.fullmatch, way.columns))] or ways


def _shift(texts: Sequence[str]) -> int:
    """Return the seconds from hour ends, the last being 24, to the beginnings."""
    return -HOUR_S if any(map(LATE.fullmatch, texts)) and not any(map(MIDNIGHT.fullmatch, texts)) else 0


def _without_ends(texts: list[str]) -> tuple[list[str], str]:
    """Return the interval beginnings, and the text before the ends; different texts stay, with ""."""
    for until in UNTIL:
        cut = [text.split(until, 1) for text in texts]
        if all(len(parts) == 2 and ":" in parts[1] for parts in cut):
            begins = [begin.strip() for begin, _ in cut]
            if all(":" in begin and (MOMENT.fullmatch(begin) or ONLY_TIME.fullmatch(begin)) for begin in begins):
                return begins, until
    return texts, ""


def _forms(name: str, text: str) -> Iterator[str]:
    """Yield the forms that a text may have: several where day and month may be swapped."""
    if ISO.fullmatch(text):
        yield ""
    elif NUMBER.fullmatch(text):
        whole, called = text.partition(".")[0], bool(words.TIME.fullmatch(name))
        if whole == text and len(text) in DIGITS and (called or len(text) > 10):
            yield from DIGITS[len(text)]
        if len(whole) in SINCE_1970 and (called or not name):
            yield SINCE_1970[len(whole)]
        yield EXCEL
    elif match := MOMENT.fullmatch(text):
        day, clock, zone = match["date"], match["clock"] or "", match["zone"] or ""
        mark = next(letter for letter in day if not letter.isdecimal())
        first, _, last = day.split(mark)
        year = "%Y" if max(len(first), len(last)) == 4 else "%y"
        orders = ["%Y-%m-%d"] if len(first) == 4 else [f"%d-%m-{year}"]
        if len(first) < 4 and mark != ".":  # a date with dots begins with the day
            orders += [f"%m-%d-{year}"] + (["%y-%m-%d"] if mark == "-" and year == "%y" else [])
        ends = zone if "UTC" in zone else zone[: zone.startswith(" ")] + "%z" if zone else ""
        form = f"{match['mid']}{_clock_form(clock)}{ends}" if clock else ""
        yield from (order.replace("-", mark) + form for order in orders)


def _clock_form(clock: str) -> str:
    """Return the form for a clock time, or for an hour alone."""
    half = (" %p" if " " in clock else "%p") if clock[-1:] in ("M", "m") else ""
    form = ("%I" if half else "%H") + ":%M:%S"[: 3 * clock.count(":")]
    return form + (".%f" if "." in clock else "") + half


def _fitting(forms: Sequence[str], texts: Sequence[str]) -> tuple[str, ...]:
    """Return the forms in which all texts are times; first comes the form with the closest times."""
    spans = {}
    for form in forms:
        size = len(np.datetime64(0, "s").item().strftime(form)) if re.search("%[YymdHM]%[ymdHMS]", form) else 0
        if size and not all(size - form.endswith(" %H") <= len(text) <= size for text in texts):
            continue  # adjacent digits are complete, but for an hour behind them
        seconds, _, wrong = parse_times(texts, replace(UNSAID, form=form))
        serial = form != EXCEL or ((np.diff(seconds) > 0).all() and (seconds % DAY_S).any() and seconds[0] > DAY_S)
        if wrong is None and serial:
            spans[form] = int(np.ptp(seconds))
    return tuple(sorted(spans, key=lambda form: spans[form]))


def _joined(day: TimeColumns, name: str, cells: Mapping[str, Sequence[str]], *, sure: bool) -> TimeColumns | None:
    """Return the clock for days with a column for clocks or hours; None where an interval's end is like a date."""
    begins, until = _without_ends([*dict.fromkeys(cells[name])])
    clock, first, forms = _clock_form(begins[0]), cells[day.columns[0]][0], list[str]()
    for form in day.forms:
        if not form and len(first) > 10:
            form = f"%Y-%m-%d{first[10:].removesuffix('Z')}"
        elif "%H" in form:  # of midnight
            form = re.sub(r"[ T]%H.*", first[re.search("[ T]", first).start() :], form)  # type: ignore[union-attr]
        iso = not form and clock in ("%H:%M", "%H:%M:%S") and all(len(text) in (5, 8) for text in begins)
        forms.append("" if iso else f"{form or '%Y-%m-%d'} {clock}")
    if until.strip() == "-" and "-" in first:
        return None
    return TimeColumns((*day.columns, name), tuple(forms), until, _shift(begins), sure=sure)


def _pairs(cells: Mapping[str, Sequence[str]], form: str) -> Iterator[TimeColumns]:
    """Yield the columns whose cells, joined by a space, have the user's form: first columns called day and hour."""
    digits = [name for name in list(cells)[:MANY] if any(letter.isdecimal() for letter in cells[name][0][:20])]
    pairs = [*permutations(digits, 2)]
    named = [pair for pair in pairs if words.TIME.fullmatch(pair[0]) and words.HOUR.fullmatch(pair[1])]
    whole = [tuple(cells)] if 2 < len(cells) <= len(words.PARTS) else []  # as the user may say
    for pair in [*whole, *(named or pairs)]:
        texts = [*dict.fromkeys(" ".join(texts) for texts in zip(*(cells[name] for name in pair), strict=True))]
        if _fitting([form], texts[:1]) and _fitting([form], texts):
            yield TimeColumns(pair, (form,), shift_s=_shift(texts))


def times_in_names(names: Sequence[str]) -> TimeColumns | None:
    """Return the clock for a table whose columns are called by times; None for a different table."""
    moments = [name for name in names if MOMENT.fullmatch(name)]
    forms = _fitting([*_forms("time", moments[0])], moments) if len(moments) > 2 else ()
    return TimeColumns(forms=forms, named=True) if forms else None
