"""Tables as people keep them: titles, units, several sheets, notes, and what is refused of them with its reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest

import socialx
from socialx.core.errors import SettingsError
from socialx.core.progress import Event, Note
from tests import frames
from tests.commands import small_file
from tests.commands import socialx as run
from tests.data_files import refusal
from tests.frames import IDS, converted, same


@pytest.mark.parametrize("kind", ["auto", "export", "auto --transposed"])
def test_no_file_is_one_line(kind: str, tmp_path: Path) -> None:
    empty, out = tmp_path / "empty", tmp_path / "out.h5"
    empty.mkdir()
    city = small_file(tmp_path)
    kind, *transposed = kind.split()
    named = {"without_positions": True, "transposed": bool(transposed)}
    line = refusal(lambda: socialx.convert(kind, empty, out, **named), str(empty))
    assert re.search(r": (this is an empty folder|the folder is empty)\. Try: name ", line)
    refusal(lambda: socialx.append(city, empty), "the folder is empty", task="append")
    refusal(lambda: socialx.convert(kind, [], out, without_positions=True), "no file in it")
    refusal(lambda: socialx.append(city, []), "no file in it", task="append")


network = partial(frames.network, times="Zeit")


def semicolons(frame: pd.DataFrame) -> str:
    return frame.to_csv(sep=";", decimal=",", date_format="%d.%m.%Y %H:%M")


def test_all_sheets_of_a_workbook_are_read(tmp_path: Path) -> None:
    frame, path = network(), tmp_path / "months.xlsx"
    with pd.ExcelWriter(path) as book:
        pd.DataFrame({"note": ["made by the city"]}).to_excel(book, sheet_name="Info", index=False)
        frame[40:].to_excel(book, sheet_name="February")
        frame[:40].map(lambda x: "" if np.isnan(x) else str(x).replace(".", ",")).to_excel(book, sheet_name="January")
    same(converted(path), frame)
    output = tmp_path / "out.h5"
    done = run("convert", "auto", path, "--without-positions", "--output-h5", output, "--overwrite")
    assert "no table with times, left out: sheet Info" in done.stderr
    city = tmp_path / "city.h5"
    frame[:20].to_csv(tmp_path / "a.csv")
    socialx.convert("csv", tmp_path / "a.csv", city, without_positions=True, missing="none")
    assert socialx.append(city, path).rows == 40
    with pd.ExcelWriter(path, mode="a") as book:
        (frame + 1).rename(columns={"4001": "4009"}).to_excel(book, sheet_name="Other")
    refusal(lambda: converted(path), "months.xlsx: 4002 has two observations at")
    refusal(lambda: converted(path, transposed=True), "names no sensors and times")


def test_sheets_with_other_readings_of_one_time_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "months.xlsx"
    with pd.ExcelWriter(path) as book:
        network().to_excel(book, sheet_name="A")
        (network()[30:] + 1).to_excel(book, sheet_name="B")
    refusal(lambda: converted(path), "months.xlsx: 4001 has two observations at")


WAYS = {
    "a semicolon at each end": lambda text: text.replace("\n", ";\n"),
    "a line of units": lambda text: text.replace("\n", "\n;km/h;km/h;km/h;km/h\n", 1),
    "a title": lambda text: "City of X, written 1.2.2024\n\n" + text,
    "a title of several cells": lambda text: "City;of X;;;\nwritten;1.2.2024 10:00;;;\n" + text,
    "a title and units": lambda text: "City\n" + text.replace("\n", "\n;km/h;km/h;km/h;km/h\n", 1),
}


@pytest.mark.parametrize("way", WAYS)
def test_lines_around_the_header_are_no_readings(way: str, tmp_path: Path) -> None:
    frame, path = network(), tmp_path / "city.csv"
    path.write_text(WAYS[way](semicolons(frame)))
    same(converted(path), frame)
    plain = tmp_path / "plain.csv"
    text = frame.to_csv()
    plain.write_text(WAYS[way](text.replace(",", ";")).replace(";", ","))
    if "written" not in plain.read_text().splitlines()[0]:
        same(converted(plain), frame)


def test_a_title_in_a_workbook_is_left_out_and_named(tmp_path: Path) -> None:
    frame, path = network(), tmp_path / "city.xlsx"
    with pd.ExcelWriter(path) as book:
        pd.DataFrame(["City of X"]).to_excel(book, header=False, index=False)
        frame.to_excel(book, startrow=3)
    same(converted(path), frame)
    done = run("convert", "auto", path, "--without-positions", "--output-h5", tmp_path / "out.h5", "--overwrite")
    assert "left out beside the header: City of X.\n" in done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Zeit;4001;4002\n", ("no row after the header (Zeit;4001;4002)",)),
        ("time,4001,4002\n", ("no row after the header",)),
        ("sensor;a\n1;2\n3;4\n", ("no table with a column of times", "line 2 '1;2'")),
    ],
)
def test_what_has_no_times_says_so(text: str, words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    refusal(lambda: converted(tmp_path / "a.csv"), *words)
    frame = pd.DataFrame({"id": IDS, "road": [*"ABCD"]})
    frame.to_excel(tmp_path / "a.xlsx", index=False)
    assert "data.npy" not in refusal(lambda: converted(tmp_path / "a.xlsx"), "no table with a column of times")


def test_a_row_without_a_time_is_no_header(tmp_path: Path) -> None:
    frame = network()
    text = frame.to_csv(sep=";").replace("2024-01-31 20:00:00", "", 1)
    (tmp_path / "a.csv").write_text(text)
    refusal(lambda: converted(tmp_path / "a.csv"), "no table with a column of times")


def test_decimal_commas_in_quotes_are_read(tmp_path: Path) -> None:
    frame = network()
    frame.to_csv(tmp_path / "a.csv", decimal=",", quoting=1)
    same(converted(tmp_path / "a.csv"), frame)
    frame.map(lambda x: "" if np.isnan(x) else str(x).replace(".", ",")).to_excel(tmp_path / "a.xlsx")
    same(converted(tmp_path / "a.xlsx"), frame)


def test_commas_before_three_digits_are_refused(tmp_path: Path) -> None:
    (network() * 1000).map(lambda x: f"{x:,.0f}").to_csv(tmp_path / "a.csv", quoting=1)
    refusal(lambda: converted(tmp_path / "a.csv"), "not a number")


def test_a_column_of_texts_beside_readings_is_left_out(tmp_path: Path) -> None:
    frame, path = network(), tmp_path / "a.csv"
    frame.assign(Tag=frame.index.day_name(), Reserve=1.5).to_csv(path, sep=";")
    same(converted(path, drop="Reserve"), frame)
    output = tmp_path / "out.h5"
    places = pd.DataFrame({"id": IDS, "lat": 48.1, "lon": 11.5})
    places.to_csv(tmp_path / "places.csv", index=False)
    asked = ["convert", "auto", path, "--meta-csv", tmp_path / "places.csv", "--output-h5", output, "--overwrite"]
    assert "--drop Reserve" in run(*asked).stderr
    done = run(*asked, "--drop", "Reserve")
    assert "columns left out: Tag, Reserve" in done.stderr
    assert done.exit_code == 0
    frame[:0].to_csv(path)
    later = network(3, "2024-02-01 01:00").assign(Reserve=1.5)
    later.to_csv(path)
    assert "--drop Reserve" in run("append", output, path).stderr
    assert run("append", output, path, "--drop", "Reserve").exit_code == 0
    with pytest.raises(SettingsError, match="no column of"):
        converted(path, drop="Mittel")


def test_zeros_that_become_speeds_are_said(tmp_path: Path) -> None:
    frame, path, output = network(), tmp_path / "a.csv", tmp_path / "out.h5"
    frame.iloc[::9] = 0.0
    frame.iloc[4::9] = -1.0
    frame.to_csv(path)
    asked = ["convert", "auto", path, "--without-positions", "--output-h5", output, "--overwrite"]
    assert "zeros count" not in run(*asked).stderr
    assert "convert again with --missing -1,0" in run("inspect", output).stdout
    counted = f"{4 * 7} zeros count as readings.\n  try: add --missing -1,0 if zeros stand for missing values\n"
    assert counted in run(*asked, "--missing=-1").stderr
    assert "11.7 % of the readings are 0" in (shown := run("inspect", output).stdout)
    assert "convert again with --missing 0,-1" in shown
    assert "zeros count" not in run(*asked, "--missing=-1,0").stderr
    assert not re.search("remark: (?!the (unit|time zone) )", run("inspect", output).stdout)
    assert "zeros count" not in run(*asked, "--missing=-1", "--quantity", "flow").stderr


@pytest.mark.parametrize("write", [semicolons, pd.DataFrame.to_csv])
def test_the_end_of_a_day_may_be_24_00(write: Callable[[pd.DataFrame], str], tmp_path: Path) -> None:
    frame, path = network(600), tmp_path / "a.csv"
    text = write(frame).replace("2024-02-01 00:00", "2024-01-31 24:00").replace("01.02.2024 00:00", "31.01.2024 24:00")
    assert "24:00" in text
    path.write_text(text)
    same(converted(path), frame)
    frame.reset_index().melt("Zeit", var_name="id", value_name="v").to_csv(path, index=False)
    path.write_text(path.read_text().replace("2024-02-02 00:00:00", "2024-02-01T24:00:00").replace(" ", "T"))
    same(converted(path), frame)


def noted(path: Path, frame: pd.DataFrame, told: dict[str, Any]) -> str:
    """The notes of a conversion that gives back all readings."""
    events: list[Event] = []
    same(converted(path, progress=events.append, **told), frame)
    return " ".join(str(event.message) for event in events if isinstance(event, Note))


@pytest.mark.parametrize("told", [{}, {"timezone": "Europe/Berlin"}, {"round_times": True}])
def test_a_row_that_stands_twice_is_read_once(
    told: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, path = network(), tmp_path / "a.csv"
    again = pd.concat([frame[:20], frame[19:40], frame[39:40], frame[39:]])
    for piece in (1 << 22, 300):
        monkeypatch.setattr("socialx.files.sources.tables.text_cells.PIECE_BYTES", piece)
        for text in (again.to_csv(), semicolons(again)):
            path.write_text(text)
            assert "3 rows repeat an earlier one" in noted(path, frame, told)
        for cells in (again, again[::-1]):
            cells.reset_index().melt("Zeit", var_name="id", value_name="v").to_csv(path, index=False)
            assert "12 rows repeat an earlier one" in noted(path, frame, told)
    again.iloc[20, 0] = 9.0
    again.to_csv(path)
    refusal(lambda: converted(path, **told), "2024-01-31 21:35:00")


def test_times_of_a_long_table_are_rounded_sensor_by_sensor(tmp_path: Path) -> None:
    frame, path = network(), tmp_path / "a.csv"
    cells = frame.reset_index().melt("Zeit", var_name="id", value_name="v")
    cells["Zeit"] += pd.to_timedelta(3 * cells["id"].map(IDS.index) + np.arange(len(cells)) % 2, unit="s")
    for order in ("Zeit", "id"):
        cells.sort_values(order, kind="stable").to_csv(path, index=False)
        for freq in (None, "5min"):
            same(converted(path, round_times=True, freq=freq), frame)
    same(converted(path, round_times=True, timezone="Europe/Berlin"), frame)
    refusal(
        lambda: converted(path, round_times=True, freq="10min"),
        "rows come to the time of another row when rounded to 10 min, first of 4001 at",
        "--resample 20min",
    )
    free = frame.set_axis(frame.index + pd.to_timedelta(np.arange(60) % 7, unit="s"))
    free.to_csv(path)
    same(converted(path, round_times=True, freq="5min"), frame)
    with pytest.raises(SettingsError, match="freq"):
        converted(path, freq="5min")


def test_a_folder_says_which_table_does_not_fit(tmp_path: Path) -> None:
    frame, folder = network(), tmp_path / "months"
    folder.mkdir()
    frame[:30].to_csv(folder / "a.csv")
    frame[30:].to_csv(folder / "b.csv", sep=";")
    pd.DataFrame({"id": IDS, "lat": 48.1, "lon": 11.5}).to_csv(folder / "places.csv", index=False)
    same(converted(folder), frame)
    notes = socialx.convert("auto", folder, tmp_path / "o.h5", without_positions=True).notes
    assert any("places.csv: the positions of the sensors" in str(note) for note in notes)
    frame[30:].assign(extra=1.0).to_csv(folder / "b.csv", sep=";")
    assert converted(folder)["extra"].isna().sum() == 30
    notes = socialx.convert("auto", folder, tmp_path / "o.h5", without_positions=True, overwrite=True).notes
    assert any("5 sensors" in str(note) and "some tables lack extra" in str(note) for note in notes)
    (folder / "b.csv").write_text("readme")
    refusal(lambda: converted(folder), "b.csv: there is no row after the header (readme)")
    (folder / "b.csv").write_text("")
    refusal(lambda: converted(folder), "b.csv: the file is empty")


def test_a_long_table_with_names_of_another_language(tmp_path: Path) -> None:
    frame, path = network(), tmp_path / "a.csv"
    cells = frame.reset_index().melt("Zeit", var_name="czujnik", value_name="predkosc").rename(columns={"Zeit": "data"})
    cells.sort_values(["data", "czujnik"]).to_csv(path, sep=";", decimal=",", index=False)
    same(converted(path), frame)
    cells.assign(nazwa="A", dzien="Wt").to_csv(path, index=False)  # sensor after sensor
    same(converted(path, drop=["nazwa", "dzien"]), frame)
    told = {"sensor_column": "czujnik", "time_column": "data", "drop": ["nazwa", "dzien"]}
    same(converted(path, **told), frame)
    with pytest.raises(SettingsError, match="no column of"):
        converted(path, sensor_column="sensor")
    with pytest.raises(SettingsError, match="no column of times"):
        converted(path, time_column="czas")


def test_what_is_no_table_of_readings_says_what_it_is(tmp_path: Path) -> None:
    places, forecast = tmp_path / "places.csv", tmp_path / "fc.h5"
    pd.DataFrame({"id": IDS, "lat": 48.1, "lon": 11.5}).to_csv(places, index=False)
    with h5py.File(forecast, "w") as file:
        for name in ("forecast", "origin", "times", "sensors"):
            file[name] = [0.0]
    for command in (["inspect"], ["convert", "auto"]):
        assert f"socialx convert auto READINGS --meta-csv {places}" in run(*command, places).stderr
        assert "a forecast that predict wrote" in run(*command, forecast).stderr
        assert run(*command, tmp_path / "no.csv").stderr.endswith("no such file.\n  try: check the path\n")
