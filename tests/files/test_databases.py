"""Tables from SQLite and PostgreSQL: what a query gives, what is refused, and that no password is told."""

import importlib.util
import os
import pwd
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import socialx as api
from socialx.files.sources.queries import query_table
from socialx.files.store.store import open_store
from tests.commands import refused, socialx, works
from tests.data_files import refusal

QUERY = "SELECT time, sensor, speed FROM readings ORDER BY time"
IDS = ("a", "b")
TIMES = [f"2024-01-31 00:{minute:02}:00" for minute in range(0, 30, 5)]
VALUES = np.random.default_rng(2).integers(300, 700, (6, 2)) / 10 + 0.05
ROWS = [(t, vdid, v) for t, row in zip(TIMES, VALUES.tolist(), strict=True) for vdid, v in zip(IDS, row, strict=True)]
WORD = "s3cret!word"


@pytest.fixture
def roads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with roads.db and positions."""
    monkeypatch.chdir(tmp_path)
    with sqlite3.connect(tmp_path / "roads.db") as base:
        base.execute("CREATE TABLE sensors (id TEXT, lat REAL, lon REAL)")
        base.execute('CREATE TABLE readings (time TEXT, sensor TEXT, speed REAL, "a note" TEXT)')
        base.executemany("INSERT INTO readings VALUES (?, ?, ?, NULL)", ROWS)
    (tmp_path / "at.csv").write_text("id,lat,lon\na,25,121\nb,25,122\n")
    return tmp_path


def files_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("absolute", [False, True])
def test_the_rows_of_a_query_become_a_file(roads: Path, absolute: bool) -> None:
    url = f"sqlite:///{roads / 'roads.db'}" if absolute else "sqlite:///roads.db"
    assert url.startswith("sqlite:////" if absolute else "sqlite:///r")
    words = ("--query", f"{QUERY};", "--meta-csv", "at.csv", "--units", "km/h", "--output-h5", "out.h5")
    done, store = works("convert", "auto", url, *words), open_store(roads / "out.h5")
    assert (store.values.tolist(), store.sensors.ids) == (VALUES.astype(np.float32).tolist(), IDS)
    assert (store.timestamps.astype(str).tolist(), store.dataset_name) == (TIMES, "roads")
    with h5py.File(roads / "out.h5") as file:
        assert file.attrs["source_data"].startswith(f"{url} (SELECT")
    assert f"{url} (" in done.stderr
    assert "socialx-database" not in done.output
    assert files_of(roads) == ["at.csv", "out.h5", "roads.db"]


def test_auto_says_what_it_is_and_the_command_to_run(roads: Path) -> None:
    done = works("convert", "auto", "sqlite:///roads.db", "--query", QUERY, "--without-positions")
    assert done.stdout.startswith("sqlite:///roads.db (")
    told = f"next: socialx convert auto sqlite:///roads.db --query '{QUERY}' --without-positions --output-h5 OUT.h5\n"
    assert done.stderr == told
    said = api.convert("auto", "sqlite:///roads.db", query=QUERY)
    assert said.data.startswith("sqlite:///roads.db (")
    assert said.next[0].options["query"] == QUERY


def test_later_rows_are_appended(roads: Path) -> None:
    first = f"{QUERY[: QUERY.index(' ORDER')]} WHERE time < '2024-01-31 00:20'"
    api.convert("csv", "sqlite:///roads.db", "out.h5", meta_csv="at.csv", query=first)
    assert "2 rows added" in works("append", "out.h5", "sqlite:///roads.db", "--query", QUERY).stdout
    assert open_store(roads / "out.h5").values.tolist() == VALUES.astype(np.float32).tolist()


def test_without_a_query_one_is_asked(roads: Path) -> None:
    assert "--query 'SELECT" in refused("convert", "auto", "sqlite:///roads.db", code=2)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("DELETE FROM readings", "--query"),
        ("", "--query"),
        ("SELECT 1; DROP TABLE readings", ""),
        ("SELECT 1 /* ; */; -- ;\nDROP TABLE readings", ""),
        ("PRAGMA journal_mode = DELETE", "--query"),
        ("WITH a AS (SELECT 1) DELETE FROM readings", "readonly"),
        ("SELECT tim FROM readings", "column"),
        ("SELECT * FROM readings WHERE speed > 999", "query"),
        ("SELECT time, sensor, speed, speed FROM readings", "speed"),
        ("SELECT time, sensor, x'00' AS raw FROM readings", "column"),
        ("SELECT sensor, speed FROM readings", "column"),
    ],
)
def test_a_query_that_is_refused(roads: Path, query: str, words: str) -> None:
    before = (roads / "roads.db").read_bytes()
    refusal(lambda: api.convert("csv", "sqlite:///roads.db", "out.h5", query=query, meta_csv="at.csv"), words)
    assert ((roads / "roads.db").read_bytes(), files_of(roads)) == (before, ["at.csv", "roads.db"])


def test_cells_of_several_types_are_texts(roads: Path) -> None:
    with sqlite3.connect("roads.db") as base:
        base.execute("UPDATE readings SET speed = '' WHERE sensor = 'b' AND time = ?", TIMES[2:3])
        base.execute("UPDATE readings SET speed = NULL WHERE sensor = 'a' AND time = ?", TIMES[2:3])
    api.convert("csv", "sqlite:///roads.db", "out.h5", query=QUERY, meta_csv="at.csv", units="mph")
    found = open_store(roads / "out.h5").values
    assert np.isnan(found[2]).all()
    assert np.delete(found, 2, 0).tolist() == np.delete(VALUES.astype(np.float32), 2, 0).tolist()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite:///no.db", ""),
        ("sqlite:///at.csv", "database"),
        ("sqlite:///", "sqlite:///FILE"),
        ("sqlite://roads.db", ""),
        (f"mysql://me:{WORD}@host/db", "unknown"),
        (f"postgresql://me:{WORD}/x@host/db", "ambiguous"),
        (f"postgresql://me:{WORD}@x@host/db", "ambiguous"),
        (f"postgresql://me:{WORD}#x@host/db", "ambiguous"),
        (f"postgresql://me:{WORD}/db", "ambiguous"),
        (f"postgresql://me:{WORD}@[host/db", "ambiguous"),
    ],
)
def test_a_url_that_cannot_be_read(roads: Path, url: str, words: str) -> None:
    assert WORD not in refusal(lambda: api.convert("auto", url, query=QUERY), words)
    assert files_of(roads) == ["at.csv", "roads.db"]


def test_a_query_of_a_file_and_a_database_beside_a_file_are_refused(roads: Path) -> None:
    refusal(lambda: api.convert("auto", "at.csv", query=QUERY), "query needs a database", "query")
    refusal(lambda: api.append("out.h5", "at.csv", query=QUERY), "query needs a database")
    refusal(lambda: api.convert("auto", ["sqlite:///roads.db", "at.csv"], query=QUERY), "database")


@pytest.mark.parametrize("command", ["inspect", "backfill", "convert"])
def test_no_command_tells_the_password_of_a_url(roads: Path, command: str) -> None:
    done = socialx(command, *(["auto"] if command == "convert" else []), f"postgresql://me:{WORD}@localhost:1/db")
    assert done.exit_code in (1, 2)
    assert WORD not in done.output
    assert "localhost" in done.output


def test_without_the_driver_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "adbc_driver_postgresql", None)
    url = f"postgresql://me:{WORD}@host/db?sslpassword={WORD}&connect_timeout=3"
    assert refusal(lambda: query_table(url, QUERY), "'socialx[database]'").startswith("postgresql://host/db: ")


# ---- a server of PostgreSQL


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of a database of a server in a temporary folder; it has the readings."""
    if not (shutil.which("initdb") and shutil.which("pg_ctl")):
        pytest.skip("no server of PostgreSQL")
    if importlib.util.find_spec("adbc_driver_postgresql") is None:
        pytest.skip("no adbc-driver-postgresql")
    own: dict[str, Any] = {}
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # a socket has a short path
    secret = folder / "password"
    secret.write_text(f"{WORD}\n")
    if os.geteuid() == 0:  # it refuses to run as root
        user = pwd.getpwnam("nobody")
        own = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        for path in (folder, secret):
            os.chown(path, user.pw_uid, user.pw_gid)

    def run(*words: str) -> None:
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, cwd=folder, timeout=60, **own)

    data, options = str(folder / "data"), f"-c listen_addresses='' -k {folder}"
    try:
        run("initdb", "-D", data, "-U", "me", "--auth=scram-sha-256", f"--pwfile={secret}", "-E", "UTF8", "--no-sync")
        run("pg_ctl", "-D", data, "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            url = f"postgresql://me:{WORD.replace('!', '%21')}@/postgres?host={folder}"
            from adbc_driver_postgresql import dbapi

            with dbapi.connect(url) as connection, connection.cursor() as cursor:
                cursor.execute("CREATE TABLE readings (time timestamp, sensor text, speed numeric(6, 2))")
                for row in ROWS:
                    cursor.execute("INSERT INTO readings VALUES ('{}', '{}', {})".format(*row))  # noqa: S608
                connection.commit()
            yield url
        finally:
            run("pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_rows_of_postgres(server: str, roads: Path) -> None:
    done = works(
        *("convert", "auto", server, "--query", QUERY, "--meta-csv", "at.csv", "--units", "km/h"),
        *("--output-h5", "out.h5")
    )  # fmt: skip
    store = open_store(roads / "out.h5")
    assert (store.values.tolist(), store.sensors.ids) == (VALUES.astype(np.float32).tolist(), IDS)
    assert store.timestamps.astype(str).tolist() == TIMES
    assert WORD not in done.output
    assert WORD.encode() not in (roads / "out.h5").read_bytes()
    with h5py.File("out.h5") as file:
        assert file.attrs["source_data"].startswith("postgresql:///postgres (SELECT")


@pytest.mark.parametrize(
    ("columns", "first"),
    [
        ("time AT TIME ZONE 'UTC' AS time", "2024-01-31 00:00:00"),
        ("time::date AS date, time::time AS clock", "2024-01-31 00:00:00"),
        ("extract(epoch FROM time)::bigint AS time", "2024-01-31 00:00:00"),
    ],
)
def test_times_of_postgres(server: str, roads: Path, columns: str, first: str) -> None:
    query = f"SELECT {columns}, sensor, speed::real AS speed FROM readings"  # noqa: S608
    api.convert("csv", server, "out.h5", query=query, meta_csv="at.csv", units="km/h")
    store = open_store(roads / "out.h5")
    assert (store.timestamps[0].decode(), store.values.tolist()) == (first, VALUES.astype(np.float32).tolist())


def test_what_postgres_refuses(server: str, roads: Path) -> None:
    assert "--query" in refusal(lambda: api.convert("auto", server))
    for query, words in {
        "WITH a AS (DELETE FROM readings RETURNING *) SELECT * FROM a": "",
        "SELECT tim FROM readings": 'column "tim" does not exist',
        "SELECT setval('none', 1)": "",
        "SELECT time, sensor, 'x'::bytea AS raw FROM readings": "no column holds numbers",
        f"{QUERY.replace('ORDER', 'WHERE false ORDER')}": "the query gives no rows",
    }.items():
        assert WORD not in refusal(lambda query=query: api.convert("csv", server, "out.h5", query=query), words)
    assert query_table(server, QUERY)[1].num_rows == len(ROWS)
    other = server.replace("%21", "")
    assert WORD[:-1] not in refusal(lambda: query_table(other, QUERY), "password authentication failed")
