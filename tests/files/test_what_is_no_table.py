"""Files that are no table of readings, and tables that hold something else: one line with what helps."""

from __future__ import annotations

import gzip
import io
import pickle
import shlex
import sqlite3
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from socialx.files.store.store import open_store
from tests.commands import works
from tests.evidence import advised, asked, by_row, readings, saved
from tests.frames import converted, places_of, same

FRAME = readings(48, ("S1", "S2", "S3"), "10min")
TEXT = FRAME.to_csv().encode()


def zipped(*names: str, data: bytes = TEXT) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, data)
    return file.getvalue()


def tarred(mode: str) -> bytes:
    file, member = io.BytesIO(), tarfile.TarInfo("jan.csv")
    member.size = len(TEXT)
    with tarfile.open(fileobj=file, mode=mode) as archive:
        archive.addfile(member, io.BytesIO(TEXT))
    return file.getvalue()


PICKLES = {f"{protocol}.pkl": pickle.dumps(FRAME, protocol=protocol) for protocol in range(6)}
BYTES = {name: (content, ("a pickle", "pandas.read_pickle(")) for name, content in PICKLES.items()} | {
    "old.pkl": (pickle.dumps([["a", "b"], {"a": 0}], protocol=0), ("a pickle",)),
    "p.zip": (zipped("speed.pkl", data=PICKLES["4.pkl"]), ("a pickle",)),
    "q.zip": (zipped("a.pkl", "b.pkl", data=PICKLES["4.pkl"]), ("a pickle",)),
    "jan.tar.gz": (tarred("w:gz"), ("a tar archive", "tar xzf ")),
    "jan.csv.gz": (tarred("w:gz"), ("a tar archive", "tar xzf ")),
    "jan.tar": (tarred("w"), ("a tar archive", "tar xf ")),
    "old.xls": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), ("an old Excel workbook", "save it as .xlsx")),
    "new.xlsx": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), ("an old Excel workbook", "save it as .xlsx")),
    "a.xml": (b"<?xml version='1.0'?><row t='2023-05-02'/>", ("XML", "pandas.read_xml(")),
    "bom.csv": (b"\xef\xbb\xbf<?xml version='1.0'?><a/>", ("XML",)),
    "login.csv": (b"<!DOCTYPE html><html><body>Log in</body></html>", ("a page of the web",)),
    "report.pdf": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n", ("a PDF", "CSV")),
    "a.feather": (b"ARROW1\0\0" + bytes(100), ("a Feather file", "pandas.read_feather(")),
}


@pytest.mark.parametrize("name", BYTES)
def test_the_bytes_say_what_it_is(tmp_path: Path, name: str) -> None:
    content, words = BYTES[name]
    (tmp_path / name).write_bytes(content)
    assert "the formats are" not in asked(tmp_path / name, *words)


@pytest.mark.parametrize("name", ["jan.tar.gz", "jan.tar"])
def test_the_command_that_unpacks_a_tar(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(BYTES[name][0])
    command = asked(path).rpartition("unpack it with ")[2].partition(", and")[0]
    subprocess.run(shlex.split(command), cwd=tmp_path, check=True)
    same(converted(tmp_path / "jan.csv"), FRAME)


def test_packed_tables_are_read(tmp_path: Path) -> None:
    later = FRAME.set_axis(FRAME.index + pd.Timedelta(hours=8))
    two = {"a.csv": TEXT, "b.csv": later.to_csv().encode()}
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        for name, content in two.items():
            archive.writestr(name, content)
    same(converted(tmp_path / "two.zip"), pd.concat([FRAME, later]))
    (tmp_path / "one.csv.gz").write_bytes(gzip.compress(TEXT))
    same(converted(tmp_path / "one.csv.gz"), FRAME)


def test_the_commands_for_a_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.db"
    with sqlite3.connect(path) as connection:
        by_row(FRAME).rename(columns={"t": "time", "s": "sensor", "v": "speed"}).to_sql("r", connection, index=False)
        connection.execute("CREATE TABLE roads (id)")
        dump = tmp_path / "a dump.sql"
        dump.write_text("\n".join(connection.iterdump()))
    said = asked(path, "(time, sensor, speed)")
    read = shlex.split(said.rpartition(". Try: name ")[2])
    assert read == [f"sqlite:///{path}", "--query", 'SELECT * FROM "r"']
    at = places_of(list(FRAME), tmp_path / "at.csv")
    works("convert", "auto", *read, "--meta-csv", at, "--output-h5", tmp_path / "a.h5")
    monkeypatch.chdir(tmp_path)
    runs(asked(dump, "a dump of SQLite"))
    works("convert", "auto", "sqlite:///dump.db", *read[1:], "--meta-csv", at, "--output-h5", tmp_path / "b.h5")
    assert (open_store(tmp_path / "a.h5").values == open_store(tmp_path / "b.h5").values).all()
    dump.write_text("-- MySQL dump 10.13\nCREATE TABLE `r` (`time` datetime);\nINSERT INTO `r` VALUES (1);\n")
    asked(dump, "database")


def runs(line: str) -> None:
    """Run the command of Python in a refusal."""
    command = shlex.split(line[line.index("python -c ") :])[:3]
    subprocess.run([sys.executable, *command[1:]], check=True)


def test_lists_and_objects_in_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of the times and readings of each sensor are read, and a command flattens objects."""
    path, rows = tmp_path / "a.parquet", by_row(FRAME, "sensor")
    lists = rows.rename(columns={"t": "when", "s": "loop", "v": "speed"}).groupby("loop").agg(list)
    lists.to_parquet(path)
    same(converted(path), FRAME)
    assert converted(path, "avg_speed", timezone="Europe/Paris").shape == FRAME.shape
    lists.iloc[1, 1].pop()
    lists.to_parquet(path)
    asked(path, "differ")
    objects = [{"at": {"time": t}, "loop": {"no": s}, "read": {"speed": v, "ok": True}} for t, s, v in rows.to_numpy()]
    pd.DataFrame(objects).to_parquet(path)
    monkeypatch.chdir(tmp_path)
    runs(asked(path, "read: struct<"))
    same(converted(tmp_path / "flat.parquet"), FRAME)


WORDS = {
    "cp932": ("日時", "観測地点", "速度", "新宿", "渋谷", "品川"),
    "cp949": ("일시", "지점명", "속도", "강남", "종로", "마포"),
    "big5": ("時間", "測站", "車速", "台北", "高雄", "基隆"),
    "gb18030": ("时间", "检测器", "速度", "北京路", "上海路", "广州路"),
}


@pytest.mark.parametrize("encoding", WORDS)
def test_the_command_that_rewrites_another_encoding(tmp_path: Path, encoding: str) -> None:
    time, sensor, speed, *ids = WORDS[encoding]
    frame = FRAME.set_axis(ids, axis=1)
    table = by_row(frame).set_axis([time, sensor, speed], axis=1)
    path = saved(table, tmp_path / "a.csv", encoding=encoding)
    line = asked(path, encoding)
    command = "iconv" + line.partition(" Try: rewrite it: iconv")[2].rstrip()
    assert f" -f {encoding} " in command
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    same(converted(tmp_path / "UTF8.csv", quantity="speed"), frame)


@pytest.mark.parametrize("mark", [",", ";", "\t"])
@pytest.mark.parametrize("kind", ["row", "last", "wide", "clock", "epoch"])
def test_rows_without_a_header_line(tmp_path: Path, kind: str, mark: str) -> None:
    rows = by_row(FRAME)
    clock = pd.DataFrame(
        {"d": rows.t.dt.strftime("%d.%m.%Y"), "c": rows.t.dt.strftime("%H:%M"), "s": rows.s, "v": rows.v}
    )
    seconds = rows.assign(t=(rows.t - pd.Timestamp(0)) // pd.Timedelta(seconds=1))
    tables = {"row": rows, "last": rows[["s", "v", "t"]], "wide": FRAME.reset_index(), "clock": clock, "epoch": seconds}
    path = saved(tables[kind], tmp_path / "a.csv", header=False, sep=mark)
    header = asked(path, "without a header line").rpartition("in front of them: ")[2].strip()
    rest = {"last": "sensor,speed,time", "clock": "date,clock,sensor,speed"}
    wanted = rest.get(kind, "time,sensor,speed") if kind != "wide" else "time,S1,S2,S3"
    named = [
        cell if "NAME" not in cell else name for cell, name in zip(header.split(","), wanted.split(","), strict=True)
    ]
    assert ",".join(named) == wanted
    path.write_text(mark.join(named) + "\n" + path.read_text())
    same(converted(path), FRAME)


# ---- wide tables whose columns are no readings, and those whose columns are


def write_wide(path: Path, **columns: object) -> tuple[Path, pd.DataFrame]:
    frame = pd.DataFrame(columns, index=pd.date_range("2023-06-01", periods=200, freq="10min", name="Tempo"))
    return saved(frame.reset_index(), path), frame.astype(float)


RNG = np.random.default_rng(0)
SLOW, FAST, MIDDLE = (RNG.uniform(low, low + 30, 200).round(1) for low in (5, 80, 40))
FEW, SOME, MANY = (RNG.integers(0, high, 200) for high in (9, 90, 4000))
SHARES = RNG.uniform(0, 1, (2, 200)).round(3)
NO_READINGS = {
    "an id": {"ort_nr": np.full(200, 900123), "hin": FAST, "her": MIDDLE},
    "counts": {"menge": MANY, "tempo": FAST, "anteil": SHARES[0]},
    "vehicles": {"q_pkw": MANY, "v_pkw": FAST, "q_lkw": FEW},
    "shares": {"a": SHARES[0], "b": SHARES[1]},
    "one share": {"value": SHARES[0]},
}


@pytest.mark.parametrize("kind", NO_READINGS)
def test_columns_that_are_no_readings_are_asked(tmp_path: Path, kind: str) -> None:
    path, _ = write_wide(tmp_path / "a.csv", **NO_READINGS[kind])
    assert "--" in asked(path)


@pytest.mark.parametrize("odd", [40123, 2])
def test_a_column_of_another_scale_is_left_out_or_kept(tmp_path: Path, odd: int) -> None:
    path, frame = write_wide(tmp_path / "a.csv", hin=FAST, ort_nr=np.full(200, odd), her=FAST + 1)
    line = asked(path, "differ in scale").replace(" leaves it out", "").replace(" if each column is a sensor", "")
    without, *every = (way() for way in advised(line, path))
    same(without, frame[["hin", "her"]])
    assert len(every) == 2
    for table in every:
        same(table, frame)


READINGS = {
    "sizes": ("avg_speed", {"Ring": FAST, "Gasse": SLOW, "Weg": MIDDLE}),
    "constant": ("avg_speed", {"a1": FAST, "a2": np.full(200, 60.0), "a3": SLOW}),
    "whole": ("avg_speed", {"Nord": SOME + 20, "Ost": np.full(200, 60), "West": SOME}),
    "stuck": ("avg_speed", {"Nord": FAST, "Ost": np.zeros(200), "West": MIDDLE}),
    "two": ("avg_speed", {"1001": FAST, "1002": np.zeros(200, int)}),
    "flows": ("flow", {"Ring": MANY, "Gasse": FEW, "Weg": np.zeros(200, int)}),
    "occupancy": ("occupancy", {"Ring": SHARES[0], "Gasse": SHARES[1]}),
}


@pytest.mark.parametrize("kind", READINGS)
def test_columns_of_readings_are_not_asked(tmp_path: Path, kind: str) -> None:
    feature, columns = READINGS[kind]
    path, frame = write_wide(tmp_path / "a.csv", **columns)
    options = {} if feature == "avg_speed" else {"quantity": feature}
    same(converted(path, feature, **options), frame)
