"""Holidays: days whose traffic resembles that of another weekday, of a country or from a file."""

from __future__ import annotations

import csv
import re
from datetime import UTC, date, datetime
from pathlib import Path

from socialx.data.calendar import DAY_S, WEEKDAYS, Holidays
from socialx.disk import read_text
from socialx.errors import Argument, SettingsError, SocialxError, shortened

SUNDAY = 6
COUNTRY = re.compile(r"([A-Za-z]{2})(?:-([A-Za-z0-9]{1,3}))?")  # US, DE-BY
MOST_BYTES = 1 << 20
ADVICE = "a CSV with a date and a weekday in each line is needed, such as 2012-05-28,Sunday"


def holidays_of(named: str, first: int, last: int) -> dict[int, int]:
    """Day, counted from 1970 -> the weekday that its traffic resembles, 0 = Monday.

    named: a country such as US, a region such as US-CA, or a CSV file.  Public holidays resemble Sundays; they are
    those of the years of first to last, in seconds, and of the year after.  A line of a file has a date and the weekday
    that it resembles, Sunday where none is named.  Raises SettingsError for a country that nobody knows, and
    SocialxError for a file that is no such list.
    """
    if found := COUNTRY.fullmatch(named):
        years = [datetime.fromtimestamp(second, UTC).year for second in (first, last)]
        return _of_country(found[1], found[2], range(years[0], years[1] + 2))
    return _of_file(Path(named))


def _of_country(country: str, region: str | None, years: range) -> dict[int, int]:
    where = Argument("data.holidays", "-".join(filter(None, (country, region))))
    try:
        import holidays
    except ModuleNotFoundError:
        raise SettingsError(where, "it needs the package holidays", "pip install 'socialx[holidays]'") from None
    try:
        days = holidays.country_holidays(country.upper(), subdiv=region and region.upper(), years=years)
    except NotImplementedError as error:  # the package's own words name the regions that it knows
        raise SettingsError(where, shortened(str(error), 300), "name another one, or a CSV file of dates") from None
    return dict.fromkeys(map(_day, days), SUNDAY)


def _of_file(path: Path) -> dict[int, int]:
    found: dict[int, int] = {}
    try:
        text = read_text(path, MOST_BYTES)
    except OSError as error:
        raise SocialxError(path, error.strerror or error, ADVICE) from None
    except ValueError as error:
        raise SocialxError(path, error, ADVICE) from None
    for number, cells in enumerate(csv.reader(text.removeprefix("\ufeff").splitlines()), 1):
        cells = [cell.strip() for cell in cells]
        if not any(cells) or (number == 1 and not cells[0][:1].isdigit()):  # a header
            continue
        where = f"{path}, line {number}"
        try:
            day = _day(date.fromisoformat(cells[0]))
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


def as_dates(holidays: Holidays) -> dict[str, str]:
    """``2012-05-28`` -> ``Sunday``: days and the weekdays that they resemble, in words."""
    return {
        datetime.fromtimestamp(day * DAY_S, UTC).date().isoformat(): WEEKDAYS[like]
        for day, like in sorted(holidays.items())
    }
