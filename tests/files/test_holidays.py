"""Which days are holidays: of a country, and from a file."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from socialx.core.errors import SettingsError
from socialx.data.calendar import Calendar
from socialx.files.sources.holidays import as_dates, load_holidays
from tests.data_files import refusal

DAYS = np.arange(15_000, 17_000)  # of 2011 to 2016


def dates(named: str, days: np.ndarray = DAYS) -> dict[str, str]:
    return as_dates(Calendar(holidays=load_holidays(named)).holidays_among(days))


def listed(tmp_path: Path, text: str) -> dict[str, str]:
    path = tmp_path / "days.csv"
    path.write_text(text, encoding="utf-8")
    return dates(str(path))


def test_public_holidays_resemble_sundays_in_whatever_year_is_asked_for() -> None:
    found = dates("US")
    assert found["2012-05-28"] == "Sunday"  # Memorial Day
    assert found["2013-05-27"] == "Sunday"
    for year in (2010, 2026, 2040):
        assert dates("US", np.datetime64(f"{year}-12-25", "D").astype(np.int64)[None])
    assert dates("US", np.array([-719_162 - 40, 2_932_896 + 40])) == {}  # no such year
    assert "2012-03-30" not in found
    assert "2012-03-31" in dates("us-ca")  # of California alone


@pytest.mark.parametrize(
    "text",
    [
        "2012-05-28\n2012-07-03,saturday\n",
        "date,like\n2012-05-28,Sunday\n\n 2012-07-03 , SATURDAY \n",
        "\ufeff2012-05-28,\r\n2012-07-03,Saturday\r\n",
    ],
)
def test_a_file_names_a_date_and_a_weekday(tmp_path: Path, text: str) -> None:
    assert listed(tmp_path, text) == {"2012-05-28": "Sunday", "2012-07-03": "Saturday"}


def test_a_file_is_written_as_tables_are(tmp_path: Path) -> None:
    rows = {"date": np.array(["2012-05-28", "2012-07-03"], "M8[D]"), "like": ["Sunday", "Saturday"]}
    pd.DataFrame(rows).to_excel(tmp_path / "days.xlsx", index=False)
    assert dates(str(tmp_path / "days.xlsx")) == {"2012-05-28": "Sunday", "2012-07-03": "Saturday"}
    pd.DataFrame(rows).to_csv(tmp_path / "days.csv", sep=";", index=False)
    assert dates(str(tmp_path / "days.csv")) == {"2012-05-28": "Sunday", "2012-07-03": "Saturday"}


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        (b"2012-05-28,Holiday\n", "holidays.weekday", ["line 1", "'Holiday'"]),
        (b"2012-05-28,S\xfcnday\n", "holidays.weekday", ["line 1", "'S\u00fcnday'"]),
        (b"date\n28.05.2012\n", "holidays.date", ["line 2", "'28.05.2012'"]),
        (b"2012-05-28\n2012-02-30\n", "holidays.date", ["line 2", "'2012-02-30'"]),
        (b"2012-05-28\n2012-07-04\n2012-05-28,Saturday\n", "holidays.twice", ["line 3", "2012-05-28"]),
        (b"date,like\n", "holidays.none", ["days.csv"]),
        (b"", "file.empty", ["days.csv"]),
        (None, "file.missing", ["days.csv"]),
    ],
)
def test_a_file_without_a_list_is_refused(tmp_path: Path, content: bytes | None, code: str, says: list[str]) -> None:
    path = tmp_path / "days.csv"
    if content is not None:
        path.write_bytes(content)
    assert refusal(lambda: dates(str(path)), *says).code == code


@pytest.mark.parametrize(("named", "says"), [("XQ", "XQ"), ("US-QQ", "QQ")])
def test_a_country_that_nobody_knows_is_refused(named: str, says: str) -> None:
    with pytest.raises(SettingsError, match=f"{says}.*not available|{says}"):
        load_holidays(named)


def test_a_country_needs_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "holidays", None)
    with pytest.raises(SettingsError, match="holidays"):
        load_holidays("NO")
