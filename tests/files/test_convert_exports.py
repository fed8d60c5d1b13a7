"""Tables as cities and databases export them: every way to write one network gives the same file."""

from __future__ import annotations

import gzip
import io
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import socialx
from socialx.errors import SettingsError, SocialxError
from socialx.files.store import open_store
from tests.commands import socialx as run

IDS = ["S1", "S2", "S3", "S4"]
PLACES = pd.DataFrame({"id": IDS, "lat": [48.1, 48.2, 48.3, 48.4], "lon": [11.1, 11.2, 11.3, 11.4]})


def network(first: str = "2024-01-28", days: int = 9, seed: int = 0) -> pd.DataFrame:
    """Speeds every five minutes, some of them missing."""
    rng = np.random.default_rng(seed)
    times = pd.date_range(first, periods=288 * days, freq="5min")
    values = np.round(rng.uniform(20, 110, (len(times), 4)), 2)
    values[rng.random(values.shape) < 0.05] = np.nan
    return pd.DataFrame(values, columns=IDS, index=times.rename("time"))


def long(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per reading, in order of time."""
    found = frame.reset_index().melt("time", var_name="sensor", value_name="speed")
    found["volume"] = np.arange(len(found)) % 7
    return found.sort_values(["time", "sensor"], kind="stable")


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


@pytest.fixture
def places(tmp_path: Path) -> Path:
    PLACES.to_csv(tmp_path / "places.csv", index=False)
    return tmp_path / "places.csv"


def values_of(path: Path, feature: str = "avg_speed") -> tuple[np.ndarray, list[str], np.ndarray]:
    store = open_store(path, feature)
    values, valid = store.read(slice(0, len(store.seconds)))
    return np.where(valid, values, np.nan), list(store.sensors.ids), store.seconds


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_same_readings(way: str, tmp_path: Path, places: Path) -> None:
    frame, (suffix, write) = network(), WAYS[way]
    path = tmp_path / f"speeds.{suffix}"
    path = write(frame, path) or path
    done = socialx.convert("auto", path, tmp_path / "out.h5", meta=places)
    assert done.problems is None
    values, ids, seconds = values_of(tmp_path / "out.h5")
    order = [ids.index(name) for name in IDS]
    np.testing.assert_array_equal(values[:, order], frame.to_numpy(np.float32))
    np.testing.assert_array_equal(seconds, (frame.index - pd.Timestamp(0)) // pd.Timedelta("1s"))


def test_workbooks_are_read(tmp_path: Path, places: Path) -> None:
    pytest.importorskip("openpyxl")
    frame = network(days=1)
    frame.to_excel(tmp_path / "speeds.xlsx")
    socialx.convert("auto", tmp_path / "speeds.xlsx", tmp_path / "out.h5", meta=places)
    np.testing.assert_array_equal(values_of(tmp_path / "out.h5")[0], frame.to_numpy(np.float32))


def described(frame: pd.DataFrame, path: Path) -> None:
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
    "other columns": ("csv", described),
    "seconds since 1970": ("csv", turned_epochs),
    "Parquet": ("parquet", turned_parquet),
    "Excel": ("xlsx", lambda frame, path: frame.T.to_excel(path)),
}


@pytest.mark.parametrize("way", TURNED)
def test_a_table_with_a_row_per_sensor_gives_the_same_readings(way: str, tmp_path: Path, places: Path) -> None:
    frame, (suffix, write) = network(days=1) / 3, TURNED[way]
    path = tmp_path / f"speeds.{suffix}"
    write(frame, path)
    for kind in ("auto", "export"):
        socialx.convert(kind, path, tmp_path / "out.h5", meta=places, transposed=True, overwrite=True)
        values, ids, seconds = values_of(tmp_path / "out.h5")
        assert ids == IDS
        np.testing.assert_array_equal(values, frame.to_numpy(np.float32))
        np.testing.assert_array_equal(seconds, (frame.index - pd.Timestamp(0)) // pd.Timedelta("1s"))


@pytest.mark.parametrize("ids", [IDS, ["769402", "769403", "769405", "769418"]])
def test_the_refusal_of_a_row_per_sensor_names_the_command_that_reads_it(
    ids: list[str], tmp_path: Path, places: Path
) -> None:
    frame, path, out = network(days=1).set_axis(ids, axis=1), tmp_path / "speeds.csv", tmp_path / "out.h5"
    PLACES.assign(id=ids).to_csv(places, index=False)
    frame.T.to_csv(path)
    named = [["convert", kind, path, "--output-h5", out] for kind in ("export", "csv", "metr-la")]
    for command in (["convert", "auto", path], ["inspect", path], *named):
        done = run(*command)
        assert done.exit_code == 1
        helps = f"socialx convert auto {path} --transposed --meta-csv LOCATIONS.csv --output-h5 OUT.h5"
        assert done.stderr.endswith(f"rows and columns have changed places: {helps}\n")
    typed = ["--transposed", "--meta-csv", places, "--output-h5", out]
    assert run("convert", "auto", path, *typed).exit_code == 0
    np.testing.assert_array_equal(values_of(out)[0], frame.to_numpy(np.float32))
    later = network("2024-01-29", days=1).set_axis(ids, axis=1)
    later.T.to_csv(path)
    assert run("append", out, path, "--transposed").exit_code == 0
    np.testing.assert_array_equal(values_of(out)[0], pd.concat([frame, later]).to_numpy(np.float32))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("time,S1,S2\n2024-01-01 00:00,1,2\n2024-01-01 00:05,1,2\n", "names no sensors and times .*transposed"),
        ("2024-01-01 00:00,2024-01-01 00:05\n1,2\n", "names no sensors and times"),
        (",2024-01-01 00:00,2024-01-01 00:05\nS1,1,x\n", "line 2, column '2024-01-01 00:05' is 'x', not a number"),
        (",2024-01-01 00:00,2024-01-01 00:05\nS1,1,2\nS2,1\n", "line 3 has 2 cells, not 3"),
        (",2024-01-01 00:00,2024-01-01 00:05\nS1,1,2\nS1,1,2\n", "names sensors more than once"),
        (",2024-01-01 00:00,2024-01-01 00:05\n,1,2\n", "rows without the name of a sensor"),
        (",2024-01-01 00:00,2024-01-01 00:05\n", "no row after line 1"),
        (f"{'x' * 200_000}\nS1,1,2\n", "names no sensors and times"),
        (f",2024-01-01 00:00,2024-01-01 00:05\nS1,1,{'9' * 200_000}\n", "cannot be read to its end"),
    ],
)
def test_what_is_no_table_of_a_row_per_sensor_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "speeds.csv").write_text(text)
    with pytest.raises(SocialxError, match=reason) as refused:
        socialx.convert(
            "auto", tmp_path / "speeds.csv", tmp_path / "out.h5", without_positions=True, transposed=True, units="mph"
        )
    assert len(refused.value.lines()) == 1
    assert not (tmp_path / "out.h5").exists()


@pytest.mark.parametrize("typed", [["export"], ["auto"], ["auto", "--transposed"]], ids=" ".join)
def test_an_empty_folder_is_refused_in_one_line(typed: list[str], tmp_path: Path) -> None:
    (tmp_path / "months").mkdir()
    (kind, *options), output = typed, tmp_path / "out.h5"
    done = run("convert", kind, tmp_path / "months", *options, "--output-h5", output)
    assert done.exit_code == 1
    assert re.fullmatch(
        rf"error: {tmp_path}/months: (an empty folder|no file in this folder): name [^\n]+\n", done.stderr
    )


def test_only_export_reads_a_row_per_sensor(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((4, 2)))
    with pytest.raises(SettingsError, match="transposed"):
        socialx.convert("npy", tmp_path / "a.npy", tmp_path / "out.h5", transposed=True)


REFUSED: dict[str, tuple[str, str]] = {
    "a day that may be a month": (network("2024-02-01", 1).to_csv(date_format="%d/%m/%Y %H:%M"), "day/month or month"),
    "rows and columns changed": (network(days=1).T.to_csv(), "rows and columns have changed places"),
    "a word among readings": (network(days=1).to_csv(sep=";").replace("00:15:00;", "00:15:00;x", 1), "not a number"),
    "a cell too few": (
        network(days=1).to_csv(sep=";").replace("00:15:00;", "00:15:00", 1),
        "line 5 has 4 cells, not 5",
    ),
    "times of two kinds": (
        network(days=1).to_csv(sep=";").replace("2024-01-28 20:00:00", "28.01.2024 20:00"),
        "not written like its first one",
    ),
    "a reading twice": (
        long(network(days=1))
        .pipe(lambda frame: pd.concat([frame, frame.iloc[7:8].assign(speed=1.5)]))
        .to_csv(index=False),
        "two readings of",
    ),
    "a column twice": (network(days=1).to_csv(sep=";").replace("S1;S2", "S1;S1"), "names sensors more than once"),
    "no time": (network(days=1).to_csv(sep=";").replace("2024-01-28 20:00:00", ""), "line 242 has no 'time'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_meant_is_refused(name: str, tmp_path: Path, places: Path) -> None:
    text, reason = REFUSED[name]
    (tmp_path / "speeds.csv").write_text(text, encoding="utf-8")
    with pytest.raises(SocialxError, match=reason):
        socialx.convert("auto", tmp_path / "speeds.csv", tmp_path / "out.h5", meta=places)
    assert not (tmp_path / "out.h5").exists()


def test_a_format_of_times_decides(tmp_path: Path, places: Path) -> None:
    frame = network("2024-02-01", 1)
    frame.to_csv(tmp_path / "speeds.csv", date_format="%d/%m/%Y %H:%M")
    for form, month in (("%d/%m/%Y %H:%M", 2), ("%m/%d/%Y %H:%M", 1)):
        socialx.convert(
            "auto", tmp_path / "speeds.csv", tmp_path / "out.h5", meta=places, time_format=form, overwrite=True
        )
        assert pd.Timestamp(int(values_of(tmp_path / "out.h5")[2][0]), unit="s").month == month
    for wrong in ("%Y", "day", "%Q"):
        with pytest.raises((SettingsError, SocialxError)):
            socialx.convert("auto", tmp_path / "speeds.csv", tmp_path / "x.h5", meta=places, time_format=wrong)


def test_files_that_overlap_or_differ_are_refused(tmp_path: Path, places: Path) -> None:
    frame = network(days=2)
    frame[:300].to_csv(tmp_path / "a.csv", sep=";")
    frame[299:].to_csv(tmp_path / "b.csv", sep=";")
    frame[300:].rename(columns={"S1": "S9"}).to_csv(tmp_path / "c.csv", sep=";")
    for other, reason in (("b.csv", "begin before those of .* end"), ("c.csv", "other columns than")):
        with pytest.raises(SocialxError, match=reason):
            socialx.convert("auto", [tmp_path / "a.csv", tmp_path / other], tmp_path / "out.h5", meta=places)


def test_several_files_are_named_on_the_command_line(tmp_path: Path, places: Path) -> None:
    frame = network(days=2)
    for name, part in (("a.csv", frame[300:]), ("b.csv", frame[:300])):
        part.to_csv(tmp_path / name)
    out = tmp_path / "out.h5"
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    result = run("convert", "auto", *files, "--meta-csv", places, "--output-h5", out, "--units", "km/h")
    assert result.exit_code == 0, result.stderr
    np.testing.assert_array_equal(values_of(out)[0], frame.to_numpy(np.float32))
    with pytest.raises(SocialxError, match="has one file"):
        socialx.convert("npy", files, tmp_path / "x.h5", meta=places)


def test_a_quantity_of_a_long_table_is_chosen(tmp_path: Path, places: Path) -> None:
    frame = long(network(days=1))
    frame.to_csv(tmp_path / "long.csv", index=False)
    wanted = frame.pivot(index="time", columns="sensor", values="volume").to_numpy(np.float32)
    for options in ({"quantity": "flow"}, {"channel": "volume"}):
        socialx.convert(
            "auto", tmp_path / "long.csv", tmp_path / "out.h5", meta=places, overwrite=True, units="veh", **options
        )
        values, ids, _ = values_of(tmp_path / "out.h5", "flow")
        np.testing.assert_array_equal(values[:, [ids.index(name) for name in sorted(IDS)]], wanted)  # 0 is a reading
    with pytest.raises(SettingsError, match="no column of readings"):
        socialx.convert("auto", tmp_path / "long.csv", tmp_path / "x.h5", meta=places, channel="colour")


def test_counts_of_a_plain_csv_keep_their_zeros(tmp_path: Path, places: Path) -> None:
    frame = network(days=1).fillna(0).round()
    frame.to_csv(tmp_path / "flow.csv")
    socialx.convert("auto", tmp_path / "flow.csv", tmp_path / "out.h5", meta=places, quantity="flow", units="veh")
    np.testing.assert_array_equal(values_of(tmp_path / "out.h5", "flow")[0], frame.to_numpy(np.float32))


def test_several_numbers_stand_for_no_reading(tmp_path: Path, places: Path) -> None:
    frame = network(days=1)
    frame.fillna(-1).replace({float(frame["S2"].iloc[3]): 999}).to_csv(tmp_path / "speeds.csv")
    socialx.convert("auto", tmp_path / "speeds.csv", tmp_path / "out.h5", meta=places, missing="-1,999,0")
    values, _, _ = values_of(tmp_path / "out.h5")
    wanted = frame.to_numpy(np.float32).copy()
    wanted[3, 1] = np.nan
    np.testing.assert_array_equal(values, wanted)


def test_times_with_an_offset_are_written_in_utc(tmp_path: Path, places: Path) -> None:
    frame = network("2024-03-30", 3).tz_localize("UTC").tz_convert("Europe/Berlin")  # the clock jumps on the 31st
    frame.to_csv(tmp_path / "speeds.csv")
    socialx.convert("auto", tmp_path / "speeds.csv", tmp_path / "out.h5", meta=places)
    store = open_store(tmp_path / "out.h5")
    assert store.timezone == "UTC"
    assert (np.diff(store.seconds) == 300).all()
    with pytest.raises(SettingsError, match="say themselves"):
        socialx.convert("auto", tmp_path / "speeds.csv", tmp_path / "x.h5", meta=places, timezone="Europe/Berlin")


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
    out = tmp_path / "any.h5"
    socialx.convert("auto", path, out, without_positions=True, missing="none", overwrite=True)
    np.testing.assert_array_equal(values_of(out)[0], frame.to_numpy(np.float32))


def test_a_zip_of_several_files_says_so(tmp_path: Path, places: Path) -> None:
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        for name in ("a.csv", "b.csv"):
            archive.writestr(name, network(days=1).to_csv())
    with pytest.raises(SocialxError, match="2 tables in it"):
        socialx.convert("auto", tmp_path / "two.zip", tmp_path / "out.h5", meta=places)


def test_a_damaged_zip_whose_file_has_no_name_says_so(tmp_path: Path, places: Path) -> None:
    with zipfile.ZipFile(tmp_path / "one.zip", "w") as archive:
        archive.writestr("a.csv", network(days=1).to_csv())
    content = (tmp_path / "one.zip").read_bytes()
    (tmp_path / "one.zip").write_bytes(content.replace(b"a.csv", b"\0.csv"))  # a name ends at a zero byte
    with pytest.raises(SocialxError, match=r"one\.zip"):
        socialx.convert("auto", tmp_path / "one.zip", tmp_path / "out.h5", meta=places)


def test_a_large_long_table_is_read_in_pieces(tmp_path: Path, places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socialx.files.formats.sheets.PIECE", 700)
    frame = network(days=1)
    buffer = io.StringIO()
    long(frame).to_csv(buffer, index=False)
    (tmp_path / "long.csv").write_text(buffer.getvalue(), encoding="utf-8")
    socialx.convert("auto", tmp_path / "long.csv", tmp_path / "out.h5", meta=places)
    values, ids, _ = values_of(tmp_path / "out.h5")
    np.testing.assert_array_equal(values[:, [ids.index(name) for name in IDS]], frame.to_numpy(np.float32))


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


def test_a_long_name_of_a_column_is_no_option_to_copy(tmp_path: Path) -> None:
    name = "[" * 500
    network(days=1).rename(columns={"S2": name}).to_csv(tmp_path / "wide.csv")
    PLACES.to_csv(tmp_path / "places.csv", index=False)
    done = run("convert", "csv", tmp_path / "wide.csv", "--meta-csv", tmp_path / "places.csv",
               "--output-h5", tmp_path / "out.h5", "--units", "km/h")  # fmt: skip
    assert done.exit_code == 1
    assert "no position for 1 of 4 sensors" in done.stderr
    assert len(done.stderr) < 1000
