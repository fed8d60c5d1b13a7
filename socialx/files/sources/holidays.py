"""Holidays: days whose traffic resembles that of another weekday, of a country or from a file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from socialx.core.errors import Argument, SettingsError, SocialxError, shortened
from socialx.data.calendar import WEEKDAYS, Holidays
from socialx.files.sources.small_tables import read_rows

SUNDAY = 6
COUNTRY = re.compile(r"([A-Za-z]{2})(?:-([A-Za-z0-9]{1,3}))?")  # US, DE-BY
MIDNIGHT = " 00:00:00"  # behind a date of a workbook
ADVICE = "name a table with a date and a weekday in each row, such as 2012-05-28,Sunday"


def holidays_of(named: str) -> Holidays:
    """The holidays of a country such as US, a region such as US-CA, or a CSV file.

    Public holidays resemble Sundays; those of a year are made when one of its days is asked for.  A line of a file has
    a date and the weekday that it resembles, Sunday where none is named.  Raises SettingsError for a country that
    nobody knows, and SocialxError for a file that is no such list.
    """
    if found := COUNTRY.fullmatch(named):
        _of_year(found[1], found[2], 2000)
        return partial(_of_country, found[1], found[2])
    return _of_file(Path(named)).get


def list_of(named: str | None) -> Path | None:
    """The file of this name, wherever the current folder is later; None for a country, and for no name."""
    return None if named is None or COUNTRY.fullmatch(named) else Path(named).absolute()


def _of_country(country: str, region: str | None, day: int) -> int | None:
    of = date.fromordinal(min(max(1, day + date(1970, 1, 1).toordinal()), date.max.toordinal()))
    return SUNDAY if of in _of_year(country, region, of.year) else None


@lru_cache(maxsize=256)
def _of_year(country: str, region: str | None, year: int) -> frozenset[date]:
    where = Argument("data.holidays", "-".join(filter(None, (country, region))))
    try:
        import holidays
    except ModuleNotFoundError:
        raise SettingsError(where, "it needs the package holidays", "pip install 'socialx[holidays]'") from None
    try:
        return frozenset(holidays.country_holidays(country.upper(), subdiv=region and region.upper(), years=year))
    except NotImplementedError as error:  # the package's own words name the regions that it knows
        raise SettingsError(where, shortened(str(error), 300), "name another one, or a CSV file of dates") from None


def _of_file(path: Path) -> dict[int, int]:
    found: dict[int, int] = {}
    for place, (line, cells) in enumerate(read_rows(path, ADVICE)):
        if place == 0 and not cells[0][:1].isdigit():  # a header
            continue
        where = f"{path}, {line}"
        try:
            day = _day(date.fromisoformat(cells[0].removesuffix(MIDNIGHT)))
        except ValueError:
            raise SocialxError(where, f"{shortened(cells[0], 40)!r} is no date", ADVICE) from None
        like = (cells[1] if len(cells) > 1 else "") or WEEKDAYS[SUNDAY]
        if like.title() not in WEEKDAYS:
            raise SocialxError(where, f"{shortened(like, 40)!r} is no weekday", f"name one of {', '.join(WEEKDAYS)}")
        if day in found:
            raise SocialxError(where, f"{cells[0]} is there twice", "leave one of the two lines out")
        found[day] = WEEKDAYS.index(like.title())
    if not found:
        raise SocialxError(path, "no date in it", ADVICE)
    return found


def _day(of: date) -> int:
    """A date as the number of days since 1970."""
    return (of - date(1970, 1, 1)).days


def as_dates(days: Mapping[int, int]) -> dict[str, str]:
    """``2012-05-28`` -> ``Sunday``: days and the weekdays that they resemble, in words."""
    return {str(np.datetime64(day, "D")): WEEKDAYS[like] for day, like in sorted(days.items())}
