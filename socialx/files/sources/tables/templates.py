"""Templates for column names: ``{sensor}``, ``speed{lane}``, ``V{time}``, or just ``speed``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import combinations

from socialx.files.sources.tables import words
from socialx.files.store.ids import casefolded_key

GROUPS = {"{sensor}": "(?P<sensor>.+)", "{lane}": r"(?P<lane>\d+)", "{time}": r"(?P<time>\d.*)"}
CUT = re.compile(r"[ _.:/-]+")
LANE = re.compile(r"([ _.-]?(?:lane|spur|fahrstreifen|fs|l)?[ _.-]?)[0-9]{1,2}", re.IGNORECASE)  # behind an id
CLOCK = re.compile(r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?")
IN_NAME = re.compile(r"(?:[a-zäöüß]{2,}[ _.-]?|[^lvqbk\d])?\d+[a-z]?|ot", re.IGNORECASE)  # what sensors may be called
LANES, EIGHT = 16, 8  # of a sensor at most; of counted names at least
SLOTS = (24, 48, 96, 144, 288)  # times of a day in columns


def pattern(template: str) -> str:
    """Return the pattern for a template; a plain column name stays."""
    if "(?P<" in template or not any(group in template for group in GROUPS):
        return template
    parts = re.split(r"(\{(?:sensor|lane|time)\})", template)
    return "".join(GROUPS.get(part) or re.escape(part) for part in parts)


def bare_words(template: str) -> str:
    """Return the words in a template, without groups, units and the signs around."""
    return words.split_unit(re.sub(r"\{\w+\}", "", template).strip(" _.-"))[0]


def template_by_ids(name: str, ids: Collection[str]) -> str:
    """Return the template for a name in which an id stands between signs, the longest id; "" without an id."""
    if casefolded_key(name) in ids:
        return "{sensor}"
    ends = sorted({0, len(name), *(at for mark in CUT.finditer(name) for at in mark.span())})
    for begin, end in sorted(combinations(ends, 2), key=lambda cut: cut[0] - cut[1]):
        vdid = name[begin:end]
        if not CUT.match(vdid) and not CUT.fullmatch(vdid[-1]) and casefolded_key(vdid) in ids:
            lane = LANE.fullmatch(name[end:])
            return f"{name[:begin]}{{sensor}}{f'{lane[1]}{{lane}}' if lane else name[end:]}"
    return ""


def are_ids(names: Sequence[str]) -> bool:
    """Return whether columns are called as sensors may be: by numbers with three digits, by letters with numbers, or
    counted from 0 or 1, and eight at least. Classes and statistics are excluded.
    """
    if not all(IN_NAME.fullmatch(name) and not words.LANE.match(name) and not words.quantity(name) for name in names):
        return False
    short = sorted(int(name) for name in names if name.isdecimal() and len(name) < 3)
    return not short or (len(names) >= EIGHT and short[0] in (0, 1) and short[-1] - short[0] == len(short) - 1)


def count_clocks(names: Sequence[str]) -> int:
    """Return how many columns are called by a clock time, such as 00:15."""
    return sum(bool(CLOCK.fullmatch(name)) for name in names)


def day_template(numbers: Sequence[str]) -> str:
    """Return the template for columns that count the times in a day, as V00 to V95 and 00:15 do; "" where absent."""
    if count_clocks(numbers) >= SLOTS[0]:
        return "{time}"
    counted = [number for name in numbers if (number := re.fullmatch(r"(.*?)[0-9]{1,3}(\D*)", name))]
    days = [stem for stem, count in Counter((number[1], number[2]) for number in counted).items() if count in SLOTS]
    return f"{days[0][0]}{{time}}{days[0][1]}" if len(days) == 1 else ""


def repeated_quantities(numbers: Sequence[str]) -> list[str]:
    """Return templates for quantities that come again: before a lane number, or next to a sensor's name."""
    count = Counter[str]()
    for name in numbers:
        if (lane := re.fullmatch(r"(.*\D)\d{1,2}", name)) and words.quantity(bare_words(lane[1])):
            count[f"{lane[1]}{{lane}}"] += 1
        elif (sensor := re.fullmatch(r".*\d([ _.-]\D+)", name)) and words.quantity(bare_words(sensor[1])):
            count[f"{{sensor}}{sensor[1]}"] += 1
        elif (sensor := re.fullmatch(r"(\D+[ _.-])\w*\d\w*", name)) and words.quantity(bare_words(sensor[1])):
            count[f"{sensor[1]}{{sensor}}"] += 1
    return [one for one, times in count.items() if times > 1 and ("{sensor}" in one or times <= LANES)]
