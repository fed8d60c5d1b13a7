"""Files that are no table of readings, and tables that hold something else: one line with what helps."""

import io
import pickle
import re
import shlex
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from socialx.files.store.store import open_store
from tests.commands import refused, socialx
from tests.frames import convert, converted, network, places_of, same, stored

FRAME = network(48, ids=("S1", "S2", "S3"))
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
BYTES = {name: (content, "to_csv") for name, content in PICKLES.items()} | {
    "jan.tar.gz": (tarred("w:gz"), "tar x"),
    "jan.csv.gz": (tarred("w:gz"), "tar x"),
    "jan.tar": (tarred("w"), "tar x"),
    "old.xls": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), ".xlsx"),
    "a.xml": (b"<?xml version='1.0'?><row t='2023-05-02'/>", "read_xml"),
    "bom.csv": (b"\xef\xbb\xbf<?xml version='1.0'?><a/>", "read_xml"),
    "login.csv": (b"<!DOCTYPE html><html><body>Log in</body></html>", "web"),
    "report.pdf": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n", "PDF"),
    "a.feather": (b"ARROW1\0\0" + bytes(100), "read_feather"),
    "a.db": (b"SQLite format 3\0" + bytes(100), "--query"),
    "dump.sql": (b"-- MySQL dump 10.13\nCREATE TABLE `r` (`time` datetime);\n", "database"),
    "a.7z": (b"7z\xbc\xaf\x27\x1c" + bytes(100), "7z x"),
}


@pytest.mark.parametrize("name", BYTES)
def test_the_bytes_say_what_it_is_and_what_helps(tmp_path: Path, name: str) -> None:
    content, words = BYTES[name]
    (tmp_path / name).write_bytes(content)
    for command in (("convert", "auto", tmp_path / name), ("inspect", tmp_path / name)):
        assert words in refused(*command)


@pytest.mark.parametrize("name", ["jan.tar.gz", "jan.tar"])
def test_the_command_that_unpacks_a_tar(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(BYTES[name][0])
    command = re.findall(r"tar x\S* [^ ,]+", refused("convert", "auto", tmp_path / name))[0]
    subprocess.run(shlex.split(command), cwd=tmp_path, check=True)
    same(converted(tmp_path / "jan.csv"), FRAME)


WORDS = {
    "cp932": ("日時", "新宿", "渋谷", "品川"),
    "cp949": ("일시", "강남", "종로", "마포"),
    "gb18030": ("时间", "北京路", "上海路", "广州路"),
    "cp1252": ("Zeitstempel für", "Süd", "Höhe", "Straße"),
}


@pytest.mark.parametrize("encoding", WORDS)
def test_a_text_in_another_encoding_is_read_or_asked(tmp_path: Path, encoding: str) -> None:
    time, *ids = WORDS[encoding]
    frame, path = FRAME.set_axis(ids, axis=1).rename_axis(time), tmp_path / "a.csv"
    frame.to_csv(path, encoding=encoding)
    at = places_of(ids, tmp_path / "at.csv")
    done = socialx("convert", "auto", path, "--meta-csv", at, "--missing", "none", "--output-h5", tmp_path / "out.h5")
    if done.exit_code == 0:
        same(stored(open_store(tmp_path / "out.h5")), frame)
    else:
        assert done.exit_code == 2, done.stderr
    described = f"values: {{speed: '(?P<sensor>.+)'}}\ntime: '{time}'\nencoding: {encoding}\nmissing: none\n"
    (tmp_path / "table.yaml").write_text(described, encoding="utf-8")
    same(stored(convert(path, ids, table=tmp_path / "table.yaml", missing=None)), frame)


def test_a_table_of_positions_is_no_table_of_readings(tmp_path: Path) -> None:
    at = places_of(["S1", "S2", "S3"], tmp_path / "at.csv")
    done = socialx("convert", "auto", at, "--without-positions", "--output-h5", tmp_path / "out.h5")
    assert (done.exit_code, f"--meta-csv {at}" in done.stderr) == (1, True)
