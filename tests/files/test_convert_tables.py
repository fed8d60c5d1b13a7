"""Tables through the door: what pandas writes comes back reading by reading, or the fault is named where it stands."""

import gzip
import re
import shlex
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import socialx
from socialx.core.errors import SocialxError
from tests.commands import socialx as run
from tests.frames import IDS, convert, long, network, places_of, same, stored

FRAME = network(120, "2024-01-31 18:00")
ROWS = long(FRAME)
Writer = Callable[[pd.DataFrame, Path], Any]


# ---- one network, written in many ways


def csv(**how: Any) -> Writer:
    return lambda frame, path: frame.to_csv(path, **how)


def rows(**how: Any) -> Writer:
    return lambda frame, path: long(frame).to_csv(path, index=False, **how)


def in_json(lines: bool) -> Writer:
    return lambda frame, path: (
        long(frame).astype({"time": str}).to_json(path, orient="records", lines=lines, double_precision=15)
    )


def zipped(frame: pd.DataFrame, path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("speeds.csv", frame.to_csv())


def edited(edit: Callable[[str], str], **how: Any) -> Writer:
    return lambda frame, path: path.write_text(edit(frame.to_csv(**how)))


GERMAN: dict[str, Any] = {"sep": ";", "decimal": ",", "date_format": "%d.%m.%Y %H:%M"}
ONE = {"sensor_column": "sensor", "channel": "speed"}
WAYS: dict[str, tuple[str, Writer, dict[str, Any]]] = {
    "commas": ("csv", csv(), {}),
    "a German export": ("csv", csv(**GERMAN, index_label="Zeit"), {}),
    "tabs": ("txt", csv(sep="\t"), {}),
    "bars": ("txt", csv(sep="|"), {}),
    "no name over the times": ("csv", csv(index_label=""), {}),
    "Latin 1": ("csv", csv(sep=";", encoding="cp1252", index_label="Zeit für Süd"), {}),
    "UTF-16": ("csv", csv(sep="\t", encoding="utf-16"), {}),
    "quotes": ("csv", csv(sep=";", quoting=1), {}),
    "month first": ("csv", csv(date_format="%m/%d/%Y %H:%M"), {}),
    "two digits of the year": ("csv", csv(date_format="%d.%m.%y %H:%M:%S"), {}),
    "half days": ("csv", csv(date_format="%m/%d/%Y %I:%M %p"), {}),
    "a form that is said": ("csv", csv(date_format="%Y|%d|%m %H.%M"), {"time_format": "%Y|%d|%m %H.%M"}),
    "Z": ("csv", csv(date_format="%Y-%m-%d %H:%M:%SZ"), {}),
    "an offset": ("csv", csv(date_format="%Y-%m-%dT%H:%M:%S+00:00"), {}),
    "parts of a second": ("csv", csv(date_format="%Y-%m-%d %H:%M:%S.000"), {}),
    "NA": ("csv", csv(na_rep="NA"), {}),
    "a dash": ("csv", csv(na_rep="-"), {}),
    "a number": ("csv", csv(na_rep="-9"), {"missing": -9}),
    "gzip": ("csv.gz", csv(compression="gzip"), {}),
    "zip": ("zip", zipped, {}),
    "Excel": ("xlsx", lambda frame, path: frame.to_excel(path), {}),
    "Parquet": ("parquet", lambda frame, path: frame.to_parquet(path), {}),
    "units in the header": ("csv", edited(lambda text: re.sub(r"(400\d)", r"\1 (km/h)", text, count=4)), {}),
    "rows by time": ("csv", rows(), ONE),
    "rows by sensor": ("csv", lambda f, p: long(f).sort_values("sensor", kind="stable").to_csv(p, index=False), ONE),
    "rows in any order": ("csv", lambda f, p: long(f).sample(frac=1, random_state=0).to_csv(p, index=False), ONE),
    "rows in Parquet": ("parquet", lambda frame, path: long(frame).to_parquet(path), ONE),
    "lines of JSON": ("jsonl", in_json(True), ONE),
    "an array of JSON": ("json", in_json(False), ONE),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_same_readings(way: str, tmp_path: Path) -> None:
    suffix, write, options = WAYS[way]
    write(FRAME, tmp_path / f"city.{suffix}")
    same(stored(convert(tmp_path / f"city.{suffix}", **options)), FRAME)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    mark=st.sampled_from([";", "\t", "|", ","]),
    decimal=st.sampled_from([".", ","]),
    form=st.sampled_from(["%d.%m.%Y %H:%M", "%Y/%m/%d %H:%M:%S", "%Y-%m-%dT%H:%M"]),
    nothing=st.sampled_from(["", "NA", "n/a", "--"]),
    by_row=st.booleans(),
    numbers=st.lists(st.floats(0, 99, width=32), min_size=24, max_size=24),
)
def test_any_mixture_reads_back(
    tmp_path: Path, mark: str, decimal: str, form: str, nothing: str, by_row: bool, numbers: list[float]
) -> None:
    times = pd.date_range("2024-01-28 12:00", periods=12, freq="1h", name="time")
    frame = pd.DataFrame(np.array(numbers, np.float32).reshape(12, 2), times, ["a1", "b2"])
    frame.iloc[2, 1] = np.nan
    table = long(frame).drop(columns="volume") if by_row else frame.reset_index()
    decimal = "." if mark == decimal else decimal
    table.to_csv(tmp_path / "a.csv", index=False, sep=mark, decimal=decimal, date_format=form, na_rep=nothing)
    options = {"quantity": "speed", "decimal": decimal, "units": "km/h"} | (ONE if by_row else {})
    same(stored(convert(tmp_path / "a.csv", frame.columns, **options)), frame)


# ---- several files


SPLITS: dict[str, Callable[[pd.DataFrame], Mapping[str, pd.DataFrame]]] = {
    "months that share an hour": lambda frame: {"jan.csv": frame[:66], "feb.csv": frame[54:]},
    "two sensors each": lambda frame: {"a.csv": frame[list(IDS[:2])], "b.csv": frame[list(IDS[2:])]},
    "a sensor each": lambda frame: {f"{name}.csv": frame[[name]] for name in frame},
    "rows of a sensor each": lambda frame: {
        f"{name}.csv": part.set_index("time") for name, part in long(frame).groupby("sensor")
    },
}


def in_folder(tables: Mapping[str, pd.DataFrame], path: Path) -> Path:
    path.mkdir()
    for name, table in tables.items():
        table.to_csv(path / name)
    return path


def in_zip(tables: Mapping[str, pd.DataFrame], path: Path) -> Path:
    with zipfile.ZipFile(path.with_suffix(".zip"), "w") as archive:
        archive.writestr("__MACOSX/._junk.csv", b"\0")
        for name, table in tables.items():
            archive.writestr(f"export/{name}", table.to_csv())
    return path.with_suffix(".zip")


def in_workbook(tables: Mapping[str, pd.DataFrame], path: Path) -> Path:
    with pd.ExcelWriter(path.with_suffix(".xlsx")) as book:
        for name, table in tables.items():
            table.to_excel(book, sheet_name=name.removesuffix(".csv"))
    return path.with_suffix(".xlsx")


def packed(tables: Mapping[str, pd.DataFrame], path: Path) -> Path:
    path.mkdir()
    for name, table in tables.items():
        (path / f"{name}.gz").write_bytes(gzip.compress(table.to_csv().encode()))
    return path


LAYOUTS: dict[str, Callable[[Mapping[str, pd.DataFrame], Path], Any]] = {
    "folder": in_folder,
    "files": lambda tables, path: sorted(in_folder(tables, path).iterdir()),
    "zip": in_zip,
    "gzip": packed,
    "workbook": in_workbook,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("split", SPLITS)
def test_several_tables_are_one(split: str, layout: str, tmp_path: Path) -> None:
    path = LAYOUTS[layout](SPLITS[split](FRAME), tmp_path / "city")
    options = {"meta_csv": places_of(IDS, tmp_path / "places.csv")} | (ONE if "rows" in split else {})
    same(stored(convert(path, **options)), FRAME)


def test_a_zip_cannot_name_files_outside_of_it(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "secret.csv")
    with zipfile.ZipFile(tmp_path / "city.zip", "w") as archive:
        for name in (str(tmp_path / "secret.csv"), "../secret.csv", "a/../../secret.csv"):
            archive.writestr(name, FRAME.to_csv())
        archive.writestr("good.csv", (FRAME + 1).to_csv())
    same(stored(convert(tmp_path / "city.zip")), FRAME + 1)


# ---- quantities, units and numbers for no reading


def test_a_quantity_is_chosen_and_counts_keep_their_zeros(tmp_path: Path) -> None:
    ROWS.to_csv(tmp_path / "a.csv", index=False)
    wanted = ROWS.pivot(index="time", columns="sensor", values="volume")
    for said in ({"channel": "volume"}, {"channel": "volume", "quantity": "flow"}):
        store = convert(tmp_path / "a.csv", sensor_column="sensor", missing=None, units="veh", **said)
        same(stored(store, "flow"), wanted)
        assert store.unit == "veh"
    both = convert(tmp_path / "a.csv", sensor_column="sensor", channel="speed,volume")
    same(stored(both), FRAME)
    same(stored(both, "flow"), wanted)


def test_several_numbers_stand_for_no_reading(tmp_path: Path) -> None:
    coded = FRAME.fillna(-1.0)
    coded.iloc[3, 1], coded.iloc[4, 2] = 255, 0
    coded.to_csv(tmp_path / "a.csv")
    same(stored(convert(tmp_path / "a.csv", missing="-1,255,0")), coded.where(~coded.isin([-1, 255, 0])))
    assert stored(convert(tmp_path / "a.csv", missing="-1,255")).iloc[4, 2] == 0


@pytest.mark.parametrize("unit", ["mph", "km/h", "m/s"])
def test_the_unit_is_the_one_that_is_said(unit: str, tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "a.csv")
    assert convert(tmp_path / "a.csv", units=unit).unit == unit
    WAYS["units in the header"][1](FRAME, tmp_path / "b.csv")
    assert convert(tmp_path / "b.csv", units="km/h").unit == "km/h"
    with pytest.raises(SocialxError, match="km/h"):
        convert(tmp_path / "b.csv", units="mph")


# ---- clocks


def test_wall_times_that_only_increase_stay(tmp_path: Path) -> None:
    """Also through the hour that spring skips."""
    moments = pd.date_range("2024-03-30 12:00", periods=24 * 12, freq="5min", tz="UTC").tz_convert("Europe/Paris")
    frame = network(len(moments)).set_axis(moments.tz_localize(None)).rename_axis("time")
    frame.to_csv(tmp_path / "a.csv")
    store = convert(tmp_path / "a.csv", timezone="Europe/Paris", freq="5min")
    same(stored(store).loc[frame.index], frame)
    assert store.timezone == "Europe/Paris"


def test_times_with_an_offset_are_of_utc_or_of_the_zone(tmp_path: Path) -> None:
    moments = pd.date_range("2024-02-01", periods=len(FRAME), freq="5min", tz="Europe/Berlin")
    FRAME.set_axis(moments).to_csv(tmp_path / "a.csv", index_label="time")
    store = convert(tmp_path / "a.csv")
    assert (store.timezone, stored(store).index[0]) == ("UTC", pd.Timestamp("2024-01-31 23:00"))
    store = convert(tmp_path / "a.csv", timezone="Europe/Berlin")
    assert (store.timezone, stored(store).index[0]) == ("Europe/Berlin", pd.Timestamp("2024-02-01"))


@pytest.mark.parametrize("order", ["time", "sensor"])
@pytest.mark.parametrize("seconds", [30, 60, 150])
def test_finer_rows_are_averaged(order: str, seconds: int, tmp_path: Path) -> None:
    fine = FRAME.set_axis(pd.date_range("2024-01-30 06:02", periods=len(FRAME), freq=f"{seconds}s", name="time"))
    long(fine).sort_values(order, kind="stable").to_csv(tmp_path / "a.csv", index=False)
    steps = fine.resample("5min")
    wanted = steps.mean().where(steps.count() >= 150 / seconds)
    found = stored(convert(tmp_path / "a.csv", resample="5min", **ONE))
    assert (found.index == wanted.index).all()
    np.testing.assert_allclose(found[list(IDS)], wanted, rtol=1e-6)


@pytest.mark.parametrize(("units", "factor"), [("veh/h", 1), (None, 5)])
def test_rates_are_averaged_and_counts_are_summed(units: str | None, factor: int, tmp_path: Path) -> None:
    flows = np.random.default_rng(4).integers(100, 3000, (600, 2))
    times = pd.date_range("2024-03-04", periods=600, freq="min", name="time")
    pd.DataFrame(flows, times, ["A", "B"]).to_csv(tmp_path / "a.csv")
    store = convert(tmp_path / "a.csv", ["A", "B"], resample="5min", quantity="flow", units=units)
    np.testing.assert_allclose(store.values, factor * flows.reshape(120, 5, 2).mean(axis=1), rtol=1e-6)


# ---- faults


TEXT = FRAME.to_csv(sep=";")
FAULTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "a word": (TEXT.replace("18:15:00;", "18:15:00;x", 1), ("line 5", "'4001'")),
    "a cell too few": (TEXT.replace("18:15:00;", "18:15:00", 1), ("line 5", "4 cells")),
    "times of two kinds": (TEXT.replace("2024-01-31 20:00:00", "31.01.2024 20:00"), ("31.01.2024 20:00",)),
    "no such day": (TEXT.replace("2024-01-31 20:00:00", "2024-02-30 20:00:00"), ("2024-02-30",)),
    "no time": (TEXT.replace("2024-01-31 20:00:00", ""), ("line 26",)),
    "a column twice": (TEXT.replace("4001;4002", "4001;4001"), ("4001",)),
    "a day that may be a month": (
        network(120, "2024-02-01").to_csv(date_format="%d/%m/%Y %H:%M"),
        ("--time-format '%d/%m/%Y %H:%M'",),
    ),
    "nothing": ("", ()),
    "a pointer": ("version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 57038056\n", ("Git-LFS",)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_where_it_stands(fault: str, tmp_path: Path) -> None:
    text, words = FAULTS[fault]
    (tmp_path / "city.csv").write_text(text)
    with pytest.raises(SocialxError) as caught:
        convert(tmp_path / "city.csv")
    (line,) = caught.value.lines()
    assert [word for word in ("city.csv", *words) if word not in line] == [], line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["at.csv", "city.csv"]


@pytest.mark.parametrize("form", ["%H:%M", "%Y", "day", "%Q", "%Y-%m-%d %I:%M"])
def test_a_form_without_a_whole_date_is_refused(form: str, tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "a.csv")
    done = run("convert", "auto", tmp_path / "a.csv", "--time-format", form, "--output-h5", tmp_path / "o.h5")
    assert done.exit_code == 2
    assert "--time-format" in done.stderr


# ---- what is not proved is asked


def hours(frame: pd.DataFrame) -> pd.DataFrame:
    """A row for each day and sensor, with an hour in each of 24 columns."""
    days = network(48, "2024-01-30").set_axis(pd.date_range("2024-01-30", periods=48, freq="h"))
    rows = days.rename_axis("time").reset_index().melt("time", var_name="sensor", value_name="value")
    rows = rows.assign(day=rows["time"].dt.strftime("%Y-%m-%d"), hour=rows["time"].dt.strftime("H%H"))
    return rows.pivot(index=["day", "sensor"], columns="hour", values="value").reset_index()


ASKED: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "a column per sensor": lambda frame: frame.reset_index(),
    "hours in columns": hours,
    "several quantities": long,
    "lanes in names": lambda frame: frame.set_axis([f"speed{lane}" for lane in range(1, 5)], axis=1).reset_index(),
    "kinds of vehicles": lambda frame: pd.concat(
        [long(frame).assign(kind=kind, speed=long(frame)["speed"] + n) for n, kind in enumerate(("car", "lorry"))]
    ),
    "statistics": lambda frame: pd.concat([frame, (frame + 9).add_prefix("max_")], axis=1).reset_index(),
}


@pytest.mark.parametrize("name", ASKED)
def test_what_is_not_proved_is_asked_and_the_printed_command_reads_it(name: str, tmp_path: Path) -> None:
    path, out = tmp_path / "a.csv", tmp_path / "out.h5"
    ASKED[name](FRAME).to_csv(path, index=False)
    done = run("convert", "auto", path, "--without-positions", "--output-h5", out)
    for _ in range(3):
        assert (done.exit_code, out.exists()) == (2, False), done.stderr
        commands = re.findall(r"try: (socialx convert .*)", done.stderr)
        if not commands:  # then a person must choose
            assert re.search(r"--[a-z-]+", done.stderr)
            return
        done = run(*shlex.split(commands[-1].replace("OUT.h5", str(out)))[1:])
        if done.exit_code == 0:
            return


DESCRIBED: dict[str, tuple[Callable[[pd.DataFrame], pd.DataFrame], str]] = {
    "a column per sensor": (lambda frame: frame.reset_index(), "values: {speed: '(?P<sensor>.+)'}\ntime: time\n"),
    "rows": (long, "values: {speed: speed}\ntime: time\nsensor: sensor\n"),
    "one kind": (ASKED["kinds of vehicles"], "values: {speed: speed}\ntime: time\nsensor: sensor\nonly: {kind: car}\n"),
    "a row per sensor": (
        lambda frame: frame.T.rename_axis("id").reset_index(),
        "values: {speed: '(?P<time>2024.+)'}\nsensor: id\nform: '%Y-%m-%d %H:%M:%S'\n",
    ),
}


@pytest.mark.parametrize("name", DESCRIBED)
def test_a_description_is_written_once_and_append_asks_nothing(name: str, tmp_path: Path) -> None:
    write, spec = DESCRIBED[name]
    write(FRAME[:70]).to_csv(tmp_path / "old.csv", index=False)
    write(FRAME[60:]).to_csv(tmp_path / "new.csv", index=False)
    (tmp_path / "table.yaml").write_text(spec + "missing: none\n")
    options = {"table": tmp_path / "table.yaml", "without_positions": True, "missing": None}
    store = convert(tmp_path / "old.csv", **options)
    same(stored(store), FRAME[:70])
    socialx.append(store.path, tmp_path / "new.csv")
    same(stored(store), FRAME)


def test_a_dry_run_prints_the_description_that_reads_the_table(tmp_path: Path) -> None:
    WAYS["a German export"][1](FRAME, tmp_path / "a.csv")
    at = places_of(IDS, tmp_path / "at.csv")
    done = run("convert", "auto", tmp_path / "a.csv", "--meta-csv", at, "--dry-run", details=False)
    assert (done.exit_code, [*tmp_path.glob("*.h5")]) == (0, [])
    (tmp_path / "table.yaml").write_text(done.stdout)
    same(stored(convert(tmp_path / "a.csv", table=tmp_path / "table.yaml")), FRAME)
