"""Tables as cities and databases export them: every way to write one network gives the same file."""

from __future__ import annotations

import gzip
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import socialx
from socialx.core.errors import SettingsError, SocialxError
from socialx.files.store.store import open_store
from tests import frames
from tests.commands import socialx as run
from tests.frames import converted, long, places_of, same

IDS = ["S1", "S2", "S3", "S4"]
network = partial(frames.network, ids=IDS)
DAY = network(288, "2024-01-28")


Writer = Callable[[pd.DataFrame, Path], Path | None]


def csv(**options: object) -> Writer:
    return lambda frame, path: frame.to_csv(path, **options)  # type: ignore[call-overload, no-any-return]


def epochs(per_second: int) -> Writer:
    def write(frame: pd.DataFrame, path: Path) -> None:
        seconds = (frame.index - pd.Timestamp(0)) // pd.Timedelta("1s")
        frame.set_axis(per_second * seconds, axis=0).to_csv(path, index_label="ts")

    return write


def date_and_clock(frame: pd.DataFrame, path: Path) -> None:
    index = pd.DatetimeIndex(frame.index)
    columns = {"Datum": index.strftime("%d.%m.%Y"), "Zeit": index.strftime("%H:%M")}
    frame.reset_index(drop=True).assign(**columns).to_csv(path, sep="\t", decimal=",", index=False)


def shuffled(frame: pd.DataFrame, path: Path) -> None:
    long(frame).dropna().sample(frac=1, random_state=0).to_csv(path, index=False, sep=";", decimal=",")


def months(frame: pd.DataFrame, path: Path) -> Path:
    folder = path.with_suffix("")
    folder.mkdir()
    frame[:"2024-01-31"].to_csv(folder / "b.csv", sep=";")  # type: ignore[misc]
    frame["2024-02-01":].to_csv(folder / "a.csv", sep=";")  # type: ignore[misc]
    return folder


def zipped(frame: pd.DataFrame, path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("speeds.csv", frame.to_csv())


WAYS: dict[str, tuple[str, Writer]] = {
    "commas": ("csv", csv()),
    "semicolons and decimal commas": ("csv", csv(sep=";", decimal=",", date_format="%d.%m.%Y %H:%M")),
    "tabs": ("txt", csv(sep="\t")),
    "no name over the times": ("csv", csv(sep=";", index_label="")),
    "bars": ("txt", csv(sep="|")),
    "carets": ("txt", csv(sep="^")),
    "tildes and decimal commas": ("txt", csv(sep="~", decimal=",")),
    "Latin 1": ("csv", csv(sep=";", encoding="cp1252", index_label="Zeitstempel für Süd")),
    "UTF-16": ("csv", csv(sep="\t", encoding="utf-16")),
    "quotes": ("csv", csv(sep=";", quoting=1)),
    "month first": ("csv", csv(date_format="%m/%d/%Y %H:%M")),
    "day first": ("csv", csv(date_format="%d/%m/%Y %H:%M")),
    "two digits of the year": ("csv", csv(date_format="%d.%m.%y %H:%M:%S")),
    "half days": ("csv", csv(date_format="%m/%d/%Y %I:%M %p")),
    "offset": ("csv", csv(date_format="%Y-%m-%dT%H:%M:%S+00:00")),
    "Z": ("csv", csv(date_format="%Y-%m-%d %H:%M:%SZ")),
    "UTC": ("csv", csv(date_format="%Y-%m-%d %H:%M:%S UTC")),
    "parts of a second": ("csv", csv(date_format="%Y-%m-%d %H:%M:%S.000")),
    "seconds since 1970": ("csv", epochs(1)),
    "milliseconds since 1970": ("csv", epochs(1000)),
    "NA": ("csv", csv(na_rep="NA")),
    "a dash": ("csv", csv(na_rep="-")),
    "null": ("csv", csv(sep=";", na_rep="null")),
    "date and time of day": ("txt", date_and_clock),
    "gzip": ("csv.gz", csv(compression="gzip")),
    "zip": ("zip", zipped),
    "Parquet": ("parquet", lambda frame, path: frame.reset_index().to_parquet(path)),
    "Excel": ("xlsx", lambda frame, path: frame.to_excel(path)),
    "Parquet with an index": ("parquet", lambda frame, path: frame.to_parquet(path)),
    "long, in order of time": ("csv", lambda frame, path: long(frame).to_csv(path, index=False)),
    "long, sensor after sensor": (
        "csv",
        lambda frame, path: long(frame).sort_values("sensor", kind="stable").to_csv(path, index=False),
    ),
    "long, in any order": ("csv", shuffled),
    "long Parquet": ("parquet", lambda frame, path: long(frame).to_parquet(path)),
    "a file a month": ("csv", months),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_same_readings(way: str, tmp_path: Path) -> None:
    frame, (suffix, write) = network(120, "2024-01-31 18:00"), WAYS[way]
    path = tmp_path / f"speeds.{suffix}"
    path = write(frame, path) or path
    done = socialx.convert("auto", path, tmp_path / "first.h5", meta_csv=places_of(IDS, tmp_path / "places.csv"))
    assert done.problems is None
    same(converted(path), frame)


def write_described(frame: pd.DataFrame, path: Path) -> None:
    """With a name, a position and a note beside the times, as offices do."""
    turned = frame.T.rename_axis("name").reset_index()
    turned.insert(0, "lat", 48.0)
    turned.insert(0, "where", ["A, north", "B", "C", "D"])
    turned.to_csv(path, index=False)


def turned_epochs(frame: pd.DataFrame, path: Path) -> None:
    frame.set_axis((frame.index - pd.Timestamp(0)) // pd.Timedelta("1s"), axis=0).T.to_csv(path)


def turned_parquet(frame: pd.DataFrame, path: Path) -> None:
    frame.set_axis(frame.index.astype(str), axis=0).T.to_parquet(path)


TURNED: dict[str, tuple[str, Writer]] = {
    "commas": ("csv", lambda frame, path: frame.T.to_csv(path)),
    "semicolons": ("csv", lambda frame, path: frame.T.to_csv(path, sep=";", decimal=",", index_label="id")),
    "days first": ("csv", lambda frame, path: frame.T.to_csv(path, sep="\t", date_format="%d.%m.%Y %H:%M")),
    "gzip": ("csv.gz", lambda frame, path: frame.T.to_csv(path, compression="gzip")),
    "UTF-16": ("csv", lambda frame, path: frame.T.to_csv(path, encoding="utf-16", na_rep="NA")),
    "other columns": ("csv", write_described),
    "seconds since 1970": ("csv", turned_epochs),
    "Parquet": ("parquet", turned_parquet),
    "Excel": ("xlsx", lambda frame, path: frame.T.to_excel(path)),
}


@pytest.mark.parametrize("way", TURNED)
def test_a_table_with_a_row_per_sensor_gives_the_same_readings(way: str, tmp_path: Path) -> None:
    suffix, write = TURNED[way]
    path = tmp_path / f"speeds.{suffix}"
    write(DAY, path)
    frame = converted(path, transposed=True)
    assert list(frame) == IDS
    same(frame, DAY)


@pytest.fixture
def places(tmp_path: Path) -> Path:
    return places_of(IDS, tmp_path / "places.csv")


def stored_values(path: Path) -> np.ndarray:
    return open_store(path).values


@pytest.mark.parametrize("ids", [IDS, ["769402", "769403", "769405", "769418"]])
def test_the_refusal_of_a_row_per_sensor_names_the_command_that_reads_it(ids: list[str], tmp_path: Path) -> None:
    frame, path, out = DAY.set_axis(ids, axis=1), tmp_path / "speeds.csv", tmp_path / "out.h5"
    frame.T.to_csv(path)
    named = [["convert", kind, path, "--output-h5", out] for kind in ("export", "csv", "metr-la")]
    for command in (["convert", "auto", path], ["inspect", path], *named):
        done = run(*command)
        assert done.exit_code == 1
        helps = f"socialx convert auto {path} --transposed --meta-csv LOCATIONS.csv --output-h5 OUT.h5"
        assert done.stderr.endswith(f"rows and columns have changed places.\n  try: {helps}\n")
    typed = ["--transposed", "--meta-csv", places_of(ids, tmp_path / "places.csv"), "--output-h5", out]
    assert run("convert", "auto", path, *typed).exit_code == 0
    np.testing.assert_array_equal(stored_values(out), frame.to_numpy(np.float32))
    later = network(288, "2024-01-29").set_axis(ids, axis=1)
    later.T.to_csv(path)
    assert run("append", out, path, "--transposed").exit_code == 0
    np.testing.assert_array_equal(stored_values(out), pd.concat([frame, later]).to_numpy(np.float32))


TURNED_HEADER = ",2024-01-01 00:00,2024-01-01 00:05\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("time,S1,S2\n2024-01-01 00:00,1,2\n2024-01-01 00:05,1,2\n", "no sensors and times .*\n  try: drop transposed"),
        ("2024-01-01 00:00,2024-01-01 00:05\n1,2\n", "names no sensors and times"),
        (TURNED_HEADER + "S1,1,x\n", "line 2, column '2024-01-01 00:05' is 'x', not a number"),
        (TURNED_HEADER + "S1,1,2\nS2,1\n", "line 3 has 2 cells, not 3"),
        (TURNED_HEADER + "S1,1,2\nS1,3,2\n", "S1 has two observations at 2024-01-01 00:00:00"),
        (TURNED_HEADER + ",1,2\n", "some rows have no sensor in 'column 1'"),
        (TURNED_HEADER, "no row after the header"),
        (f"{'x' * 200_000}\nS1,1,2\n", "names no sensors and times"),
        (f"{TURNED_HEADER}S1,1,{'9' * 200}\n", "row 2 of sensor S1 is infinite"),
        (f"{TURNED_HEADER}S1,1,{'9' * 200_000}\n", "line 2 'S1,1,9999"),
    ],
)
def test_what_is_no_table_of_a_row_per_sensor_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "speeds.csv").write_text(text)
    with pytest.raises(SocialxError, match=reason) as refused:
        converted(tmp_path / "speeds.csv", transposed=True, units="mph")
    assert len(refused.value.lines()) == 1
    assert not (tmp_path / "out.h5").exists()


def test_only_export_reads_a_row_per_sensor(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((4, 2)))
    with pytest.raises(SettingsError, match="transposed"):
        socialx.convert("npy", tmp_path / "a.npy", tmp_path / "out.h5", transposed=True)


WRITTEN = DAY.to_csv(sep=";")
ROWS = long(DAY)
REFUSED: dict[str, tuple[str, str]] = {
    "a day that may be a month": (
        network(288, "2024-02-01").to_csv(date_format="%d/%m/%Y %H:%M"),
        "day/month or month",
    ),
    "a word among readings": (WRITTEN.replace("00:15:00;", "00:15:00;x", 1), "not a number"),
    "a cell too few": (WRITTEN.replace("00:15:00;", "00:15:00", 1), "line 5 has 4 cells, not 5"),
    "times of two kinds": (WRITTEN.replace("2024-01-28 20:00:00", "28.01.2024 20:00"), "not written like its first"),
    "a reading twice": (
        pd.concat([ROWS, ROWS.iloc[7:8].assign(speed=1.5)]).to_csv(index=False),
        "has two observations at",
    ),
    "a column twice": (WRITTEN.replace("S1;S2", "S1;S1"), "names sensors more than once"),
    "no time": (WRITTEN.replace("2024-01-28 20:00:00", ""), "line 242 has no 'time'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_meant_is_refused(name: str, tmp_path: Path) -> None:
    text, reason = REFUSED[name]
    (tmp_path / "speeds.csv").write_text(text, encoding="utf-8")
    with pytest.raises(SocialxError, match=reason):
        converted(tmp_path / "speeds.csv")
    assert not (tmp_path / "out.h5").exists()


def test_a_format_of_times_decides(tmp_path: Path) -> None:
    path = tmp_path / "speeds.csv"
    network(288, "2024-02-01").to_csv(path, date_format="%d/%m/%Y %H:%M")
    for form, month in (("%d/%m/%Y %H:%M", 2), ("%m/%d/%Y %H:%M", 1)):
        assert converted(path, time_format=form).index[0].month == month
    for wrong in ("%Y", "day", "%Q"):
        with pytest.raises((SettingsError, SocialxError)):
            converted(path, time_format=wrong)


def test_files_with_other_readings_or_kinds_of_rows_are_refused(tmp_path: Path) -> None:
    DAY[:30].to_csv(tmp_path / "a.csv", sep=";")
    (DAY[29:] + 1).to_csv(tmp_path / "b.csv", sep=";")
    long(DAY[30:]).to_csv(tmp_path / "c.csv", sep=";", index=False)
    for other, reason in (("b.csv", "has two observations"), ("c.csv", "the columns differ from")):
        with pytest.raises(SocialxError, match=reason):
            converted([tmp_path / "a.csv", tmp_path / other])


def test_several_files_are_named_on_the_command_line(tmp_path: Path, places: Path) -> None:
    files, out = [tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path / "out.h5"
    for path, part in zip(files, (DAY[100:], DAY[:100]), strict=True):
        part.to_csv(path)
    result = run("convert", "auto", *files, "--meta-csv", places, "--output-h5", out, "--units", "km/h")
    assert result.exit_code == 0, result.stderr
    np.testing.assert_array_equal(stored_values(out), DAY.to_numpy(np.float32))
    with pytest.raises(SocialxError, match="has one file"):
        socialx.convert("npy", files, tmp_path / "x.h5", meta_csv=places)


def test_a_quantity_of_a_long_table_is_chosen(tmp_path: Path, places: Path) -> None:
    path = tmp_path / "long.csv"
    ROWS.to_csv(path, index=False)
    for options in ({"quantity": "flow"}, {"channel": "volume"}):
        frame = converted(path, "flow", meta_csv=places, units="veh", missing=None, **options)
        same(frame, ROWS.pivot(index="time", columns="sensor", values="volume"))  # 0 is a reading
    with pytest.raises(SettingsError, match="no column of observations"):
        converted(path, channel="colour")


def test_counts_of_a_plain_csv_keep_their_zeros(tmp_path: Path) -> None:
    counts, path = DAY.fillna(0).round(), tmp_path / "flow.csv"
    counts.to_csv(path)
    same(converted(path, "flow", quantity="flow", units="veh", missing=None), counts)


def test_several_numbers_stand_for_no_reading(tmp_path: Path) -> None:
    path, moment = tmp_path / "speeds.csv", DAY.index[3]
    assert np.isfinite(DAY.loc[moment, "S2"])
    DAY.fillna(-1).mask(DAY.loc[moment, "S2"] == DAY, 999).to_csv(path)
    same(converted(path, missing="-1,999,0"), DAY.mask(DAY.loc[moment, "S2"] == DAY))


def test_times_with_an_offset_are_written_in_utc(tmp_path: Path) -> None:
    path = tmp_path / "speeds.csv"  # the clock jumps on the 31st
    network(864, "2024-03-30").tz_localize("UTC").tz_convert("Europe/Berlin").to_csv(path)
    assert (converted(path).index.diff()[1:] == pd.Timedelta("5min")).all()
    assert open_store(tmp_path / "out.h5").timezone == "UTC"
    assert converted(path, timezone="Europe/Berlin").index[12 * 26] == pd.Timestamp("2024-03-31 04:00")
    assert open_store(tmp_path / "out.h5").timezone == "Europe/Berlin"


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    separator=st.sampled_from([";", "\t", "|", ","]),
    decimal=st.sampled_from([".", ","]),
    form=st.sampled_from(["%d.%m.%Y %H:%M", "%Y/%m/%d %H:%M:%S", "%Y-%m-%dT%H:%M", "%d-%m-%Y %H:%M:%S"]),
    nothing=st.sampled_from(["", "NA", "n/a", "--"]),
    pivoted=st.booleans(),
    numbers=st.lists(st.floats(-1e4, 1e4, width=32), min_size=24, max_size=24),
)
def test_any_mixture_reads_back(
    tmp_path: Path, separator: str, decimal: str, form: str, nothing: str, pivoted: bool, numbers: list[float]
) -> None:
    if separator == "," and decimal == ",":
        return
    times = pd.date_range("2024-01-28 12:00", periods=12, freq="1h", name="time")
    frame = pd.DataFrame(np.array(numbers, np.float32).reshape(12, 2), index=times, columns=["a1", "b2"])
    frame.iloc[2, 1] = np.nan
    table = frame.reset_index().melt("time", var_name="sensor", value_name="speed") if pivoted else frame.reset_index()
    text = table.to_csv(index=False, sep=separator, decimal=decimal, date_format=form, na_rep=nothing)
    path = tmp_path / "any.csv"
    path.write_text(text)
    same(converted(path, quantity="speed"), frame)  # which numbers of any size do not say


def test_a_zip_of_several_files_is_read_as_one_network(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        for name in ("a.csv", "b.csv"):
            archive.writestr(name, DAY.to_csv())
    same(converted(tmp_path / "two.zip"), DAY)
    with zipfile.ZipFile(tmp_path / "two.zip", "a") as archive:
        archive.writestr("c.csv", (DAY + 1).to_csv())
    with pytest.raises(SocialxError, match="has two observations at"):
        converted(tmp_path / "two.zip")


def test_a_damaged_zip_whose_file_has_no_name_says_so(tmp_path: Path) -> None:
    path = tmp_path / "one.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.csv", DAY.to_csv())
    path.write_bytes(path.read_bytes().replace(b"a.csv", b"\0.csv"))  # a name ends at a zero byte
    with pytest.raises(SocialxError, match=r"one\.zip"):
        converted(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("damaged.csv.gz", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff" + bytes(range(256))),
        ("cut.csv.gz", gzip.compress(b"time,S1\n" * 1000, mtime=0)[:40]),
    ],
    ids=["damaged", "cut"],
)
def test_a_damaged_gzip_is_refused_by_name(name: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    for kind in ("auto", "export"):
        done = run("convert", kind, path, "--output-h5", tmp_path / "out.h5", "--without-positions")
        assert done.exit_code == 1, done.stderr
        assert f"{name}: " in " ".join(done.stderr.split())


def test_a_byte_of_no_encoding_is_shown_as_a_mark(tmp_path: Path) -> None:
    path = tmp_path / "odd.csv"
    path.write_bytes(b"town;\x8dplace\nM\xfcnchen;\x81 5\nUlm;7\n")
    done = run("convert", "export", path, "--output-h5", tmp_path / "out.h5", "--without-positions")
    assert done.exit_code == 1
    assert "no table with a column of times" in done.stderr


def test_a_long_name_of_a_column_is_no_option_to_copy(tmp_path: Path, places: Path) -> None:
    DAY.rename(columns={"S2": "[" * 500}).to_csv(tmp_path / "wide.csv")
    done = run("convert", "csv", tmp_path / "wide.csv", "--meta-csv", places,
               "--output-h5", tmp_path / "out.h5", "--units", "km/h")  # fmt: skip
    assert done.exit_code == 1
    assert "no position for 1 of 4 sensors" in done.stderr
    assert len(done.stderr) < 1000
