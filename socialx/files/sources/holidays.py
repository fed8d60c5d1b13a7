"""Holidays by country or from a file: dates with traffic like another weekday."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from socialx.core.errors import Argument, SettingsError, SocialxError, shortened
from socialx.data.calendar import WEEKDAYS, Holidays
from socialx.files.sources.positions.rows import read_rows

SUNDAY = 6
COUNTRY = re.compile(r"([A-Za-z]{2})(?:-([A-Za-z0-9]{1,3}))?")  # US, DE-BY
MIDNIGHT = " 00:00:00"  # behind a date of a workbook
ADVICE = "name a table with a date and a weekday in each row, such as 2012-05-28,Sunday"


def load_holidays(named: str) -> Holidays:
    """Return the holidays for ``named``: a country such as US, a region such as US-CA, or a CSV file.

    Public holidays count as Sundays and are computed per year on demand. A file line has a date and an optional
    weekday, Sunday by default. Raises SettingsError for an unknown country, and SocialxError for a malformed file.
    """
    if country := COUNTRY.fullmatch(named):
        _country_holidays(country[1], country[2], 2000)
        return partial(_holiday_in_country, country[1], country[2])
    return _read_holidays(Path(named)).get


def holiday_file(named: str | None) -> Path | None:
    """Return the absolute path of a holiday file; None for a country and for None."""
    return None if named is None or COUNTRY.fullmatch(named) else Path(named).absolute()


def _holiday_in_country(country: str, region: str | None, day: int) -> int | None:
    """Return SUNDAY where ``day``, since 1970, is a public holiday of the country or region, else None."""
    date_of_day = date.fromordinal(min(max(1, day + date(1970, 1, 1).toordinal()), date.max.toordinal()))
    return SUNDAY if date_of_day in _country_holidays(country, region, date_of_day.year) else None


@lru_cache(maxsize=256)
def _country_holidays(country: str, region: str | None, year: int) -> frozenset[date]:
    """Return a year's public holidays; raise SettingsError for an unknown country or region."""
    argument = Argument("data.holidays", "-".join(filter(None, (country, region))))
    try:
        import holidays
    except ModuleNotFoundError:
        problem = f"{argument} needs the package holidays"
        raise SettingsError("holidays.package", "", problem, "pip install 'socialx[holidays]'") from None
    try:
        return frozenset(holidays.country_holidays(country.upper(), subdiv=region and region.upper(), years=year))
    except NotImplementedError as error:  # the package's own words name the regions that it knows
        problem = f"{argument}: {shortened(str(error), 300)}"
        raise SettingsError("holidays.country", "", problem, "name another one, or a CSV file of dates") from None


def _read_holidays(path: Path) -> dict[int, int]:
    """Return weekday numbers, 0 = Monday, by day since 1970, from a table with a date and a weekday per row."""
    weekdays: dict[int, int] = {}
    for index, (line, cells) in enumerate(read_rows(path, ADVICE)):
        if index == 0 and not cells[0][:1].isdigit():  # a header
            continue
        where = f"{path}, {line}"
        try:
            day = (date.fromisoformat(cells[0].removesuffix(MIDNIGHT)) - date(1970, 1, 1)).days
        except ValueError:
            raise SocialxError("holidays.date", where, f"{shortened(cells[0], 40)!r} is no date", ADVICE) from None
        like = (cells[1] if len(cells) > 1 else "") or WEEKDAYS[SUNDAY]
        if like.title() not in WEEKDAYS:
            problem = f"{shortened(like, 40)!r} is no weekday"
            raise SocialxError("holidays.weekday", where, problem, f"name one of {', '.join(WEEKDAYS)}")
        if day in weekdays:
            raise SocialxError("holidays.twice", where, f"{cells[0]} appears twice", "leave one of the two lines out")
        weekdays[day] = WEEKDAYS.index(like.title())
    if not weekdays:
        raise SocialxError("holidays.none", path, "the file has no date in it", ADVICE)
    return weekdays


def as_dates(days: Mapping[int, int]) -> dict[str, str]:
    """Return weekday names by ISO date, ``2012-05-28`` -> ``Sunday``, for weekday numbers by day since 1970."""
    return {str(np.datetime64(day, "D")): WEEKDAYS[like] for day, like in sorted(days.items())}
