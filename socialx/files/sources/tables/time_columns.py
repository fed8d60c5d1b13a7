"""Find the columns of times among the first rows of a table, and how their times are written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from socialx.files.sources.tables import words
from socialx.files.sources.tables.cells import NUMBER
from socialx.files.sources.tables.spec import EXCEL

DATE = r"[0-9]{4}[-/.][0-9]{1,2}[-/.][0-9]{1,2}|[0-9]{1,2}[-/.][0-9]{1,2}[-/.](?:[0-9]{4}|[0-9]{2})"
CLOCK = r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?(?: ?[AaPp][Mm])?"
ZONE = r" ?(?:Z|UTC|[+-][0-9]{2}:?[0-9]{2})"
MOMENT = re.compile(rf"(?P<date>{DATE})(?:(?P<mid>T| +)(?P<clock>{CLOCK}|[0-9]{{1,2}})(?P<zone>{ZONE})?)?")
ONLY_CLOCK = re.compile(CLOCK)
ISO = re.compile(r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?")
DIGITS = {6: ("%y%m%d", "%d%m%y"), 8: ("%Y%m%d", "%d%m%Y"), 12: ("%Y%m%d%H%M",), 14: ("%Y%m%d%H%M%S",)}
SINCE_1970 = {9: "s", 10: "s", 12: "ms", 13: "ms"}  # by the digits of the whole number
LATE = re.compile(r"(?<=[ T])24(?=$|:00(?:$|:00))")  # the end of a day
MIDNIGHT = re.compile(r".*[ T]0{1,2}(?::00)?(?::00)?(?:\.0+)?Z?")
UNTIL = ("/", " - ", " \N{EN DASH} ", "\N{EN DASH}", " to ", " bis ", "~", "-")  # before the end of an interval
SERIAL_DAYS = (25_569, 73_051)  # of 1970 and 2100, as Excel counts days
HOUR_S, DAY_S = 3600, 86_400
MANY, FEW_HOURS = 60, 19  # columns of which pairs are tried; integers that are not called hours


@dataclass(frozen=True)
class Clock:
    """Columns of times.

    forms: in which all texts are times, the likeliest first.  until: the text before the end of an interval.  shift_s:
    from the end of an interval to its beginning.  dated: whether they hold days, and no time of day.  seconds: a column
    of seconds from a given time.  sure: False where an integer may be an hour, but is not called so.  named: whether
    the names of columns are the times.
    """

    columns: tuple[str, ...] = ()
    forms: tuple[str, ...] = ("",)
    until: str = ""
    shift_s: int = 0
    dated: bool = False
    seconds: str = ""
    sure: bool = True
    named: bool = False


def find_clocks(cells: Mapping[str, Sequence[str]], form: str = "") -> list[Clock]:
    """Return the ways to read times from columns of texts, the likeliest first; [] for none. form: as the user says."""
    moments, days, clocks, hours = list[Clock](), list[Clock](), list[str](), list[str]()
    for name, texts in cells.items():
        distinct = [*dict.fromkeys(texts)]
        if not distinct or not all(map(str.strip, distinct)):
            continue
        begins, until = _without_ends(distinct)
        if fitting := [one for one in _forms(name, begins, form) if fits(begins, one)]:
            midnight = all(map(MIDNIGHT.fullmatch, begins)) and len(distinct) < len(texts)
            dated = midnight or not (fitting[0] in ("s", "ms", EXCEL) or _says_clock(fitting[0], begins[0]))
            clock = Clock((name,), _ordered(begins, fitting), until, dated=dated)
            (days if dated else moments).append(clock)
        elif all(map(ONLY_CLOCK.fullmatch, begins)):
            clocks.append(name)
        elif all(text.isdigit() and int(text) <= 24 for text in distinct):
            hours += [name] if len(distinct) > (1 if words.HOUR.fullmatch(name) else FEW_HOURS) else []
    if form and not moments and (pairs := [*_pairs(cells, form)]):
        return pairs
    if moments or not days:
        return _first(moments)
    for day in _first(days)[:1]:
        joined = [_joined(day, name, cells, sure=True) for name in clocks]
        joined += [_joined(day, name, cells, sure=bool(words.HOUR.fullmatch(name))) for name in hours]
        moments += sorted(filter(None, joined), key=lambda clock: (not clock.sure, _is_later(clock.columns[-1])))
    return _first([clock for clock in moments if clock.sure] or moments) or _first(days)


def _first(ways: list[Clock]) -> list[Clock]:
    """Return the ways, without those of ends of intervals and times of writing where there are others."""
    return [way for way in ways if not any(map(_is_later, way.columns))] or ways


def _is_later(name: str) -> bool:
    return bool(words.LATER.fullmatch(name))


def _says_clock(form: str, text: str) -> bool:
    return "%H" in form or "%I" in form or (not form and len(text) > 10)


def _without_ends(texts: list[str]) -> tuple[list[str], str]:
    """Return the beginnings of intervals, and the text before their ends; other texts as they are, and ""."""
    for until in UNTIL:
        cut = [text.split(until, 1) for text in texts]
        if all(len(parts) == 2 and ":" in parts[1] and ":" in parts[0] for parts in cut):
            begins = [begin.strip() for begin, _ in cut]
            if all(MOMENT.fullmatch(begin) or ONLY_CLOCK.fullmatch(begin) for begin in begins):
                return begins, until
    return texts, ""


def _forms(name: str, texts: list[str], said: str) -> Iterator[str]:
    """Yield the forms that the first text may have."""
    text = texts[0]
    if said:
        yield said
        return
    if ISO.fullmatch(text):
        yield ""
        return
    whole = text.partition(".")[0]
    if NUMBER.fullmatch(text):
        named = bool(words.TIME.fullmatch(name))
        if whole == text and len(text) in DIGITS and (named or len(text) > 10):
            yield from DIGITS[len(text)]
        if len(whole) in SINCE_1970 and (named or not name):
            yield SINCE_1970[len(whole)]
        yield EXCEL
        return
    if match := MOMENT.fullmatch(text):
        yield from _written(match)


def _written(match: re.Match[str]) -> Iterator[str]:
    """Yield the forms of a date with a clock: several where day and month may be swapped."""
    day, clock, zone = match["date"], match["clock"] or "", match["zone"] or ""
    mark = next(letter for letter in day if not letter.isdigit())
    first, _, last = day.split(mark)
    year = "%Y" if max(len(first), len(last)) == 4 else "%y"
    orders = ["%Y-%m-%d"] if len(first) == 4 else [f"%d-%m-{year}"]
    if len(first) < 4 and mark != ".":  # a date with dots begins with the day
        orders += [f"%m-%d-{year}"] + (["%y-%m-%d"] if mark == "-" and year == "%y" else [])
    form, half = "", clock[-1:] in ("M", "m")
    if clock:
        form = (match["mid"] or "") + ("%I" if half else "%H") + ":%M:%S"[: 3 * clock.count(":")]
        form += (".%f" if "." in clock else "") + ((" %p" if " " in clock else "%p") if half else "")
        form += zone if "UTC" in zone else (" %z" if zone.startswith(" ") else "%z") if zone else ""
    yield from (order.replace("-", mark) + form for order in orders)


def fits(texts: Sequence[str], form: str) -> bool:
    """Return whether all texts are times in this form."""
    import pandas as pd

    column = pd.Series(texts, dtype="str")
    if form in ("s", "ms", EXCEL):
        numbers = pd.to_numeric(column, errors="coerce").to_numpy(np.float64)
        low, high = SERIAL_DAYS if form == EXCEL else (1, 1e13)
        serial = form != EXCEL or bool((numbers % 1 > 0).any() and (np.diff(numbers) > 0).all())
        return bool(((numbers >= low) & (numbers < high)).all()) and serial
    plain = column.str.replace(LATE, "00", regex=True)
    if not form and not plain.str.fullmatch(ISO.pattern).all():
        return False
    if re.search("%[YymdHM]%[ymdHMS]", form):  # adjacent digits are complete, but for an hour behind them
        size = len(np.datetime64(0, "s").item().strftime(form))
        if not all(size - form.endswith(" %H") <= len(text) <= size for text in texts):
            return False
    return not _parsed(plain, form).isna().any()


def _parsed(texts: pd.Series[str], form: str) -> pd.Series[pd.Timestamp]:  # type: ignore[name-defined]  # noqa: F821
    import pandas as pd

    zoned = "%z" in form or (not form and bool(re.search(r"(?:Z|[+-]\d\d:?\d\d)$", texts.iloc[0][10:])))
    return pd.to_datetime(texts, format=form or "ISO8601", errors="coerce", utc=zoned or None)


def _ordered(texts: list[str], forms: list[str]) -> tuple[str, ...]:
    """Return the forms, of which the one that puts the times closest together is the likeliest."""
    import pandas as pd

    if len(forms) < 2:
        return tuple(forms)
    column = pd.Series(texts, dtype="str").str.replace(LATE, "00", regex=True)
    return tuple(
        sorted(forms, key=lambda form: float(np.ptp(_parsed(column, form).to_numpy("datetime64[s]").astype(float))))
    )


def _joined(day: Clock, name: str, cells: Mapping[str, Sequence[str]], *, sure: bool) -> Clock | None:
    """Return the clock of days with a column of clocks or hours, or None where these are no times together."""
    distinct = [*dict.fromkeys(cells[name])]
    begins, until = _without_ends(distinct)
    hours = "" if ":" in begins[0] else "%H"
    half = begins[0][-1:] in ("M", "m")
    clock = hours or ("%I" if half else "%H") + ":%M:%S"[: 3 * begins[0].count(":")]
    clock += (".%f" if "." in begins[0] else "") + ((" %p" if " " in begins[0] else "%p") if half else "")
    first = cells[day.columns[0]][0]
    forms = []
    for form in day.forms:
        form = form or ("%Y-%m-%d" if len(first) == 10 else f"%Y-%m-%d{first[10:].replace('Z', '')}")
        form = re.sub(r"[ T]%[HI].*", lambda _: first[first.index(" " if " " in first else "T") :], form)
        iso = form == "%Y-%m-%d" and not hours and all(len(text) in (5, 8) for text in begins) and not half
        forms.append("" if iso and "." not in clock else f"{form} {clock}")
    if until in form and until.strip() == "-":
        return None
    late = "24" in {text[:2] for text in begins} and not any(int(re.split(r"\D", text)[0]) == 0 for text in begins)
    shift = -HOUR_S if late else 0
    return Clock((*day.columns, name), tuple(forms), until, shift, sure=sure)


def _pairs(cells: Mapping[str, Sequence[str]], form: str) -> Iterator[Clock]:
    """Yield the two columns whose cells, joined by a space, have the user's form; first those that are called hours."""
    digits = [name for name in list(cells)[:MANY] if any(letter.isdigit() for letter in cells[name][0][:20])]
    dated = [name for name in digits if words.TIME.fullmatch(name)]
    named = [(day, hour) for day in dated for hour in digits if day != hour and words.HOUR.fullmatch(hour)]
    for pair in named or [*permutations(digits, 2)]:
        texts = [*dict.fromkeys(" ".join(texts) for texts in zip(*(cells[name] for name in pair), strict=True))]
        if fits(texts[:1], form) and fits(texts, form):
            late = any(map(LATE.search, texts)) and not any(map(MIDNIGHT.fullmatch, texts))
            yield Clock(pair, (form,), shift_s=-HOUR_S if late else 0)


def clock_in_names(names: Sequence[str]) -> Clock | None:
    """Return the clock of a table whose columns are called by their times; None for another table."""
    moments = [name for name in names if MOMENT.fullmatch(name)]
    forms = [form for form in _forms("time", moments, "") if fits(moments, form)] if len(moments) > 2 else []
    return Clock(forms=_ordered(moments, forms), named=True) if forms else None
