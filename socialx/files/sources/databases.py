"""Query results from SQLite or PostgreSQL as a table."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote, unquote, urlsplit

from socialx.core.errors import Argument, Command, SettingsError, SocialxError, counted, in_short, sample, shortened

if TYPE_CHECKING:
    import pyarrow as pa

SQLITE, POSTGRES = "sqlite", "postgresql"
URL = re.compile(r"([a-z][a-z0-9]*)(?:\+[a-z0-9]+)?:(//.*)", re.DOTALL)
KNOWN = {"sqlite": SQLITE, "postgresql": POSTGRES, "postgres": POSTGRES}
OTHER = {"mysql", "mariadb", "mssql", "oracle", "duckdb", "clickhouse", "snowflake", "bigquery"}
# Comments, texts and quoted names of SQL, in which a semicolon ends nothing.
QUOTED = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\$(\w*)\$.*?\$\1\$", re.DOTALL)
SELECT = re.compile(r"[\s(]*(?:select|with)\b", re.IGNORECASE)
TIME = re.compile(r"time|date|stamp|^ts$|_at$", re.IGNORECASE)  # in the name of a column
COLUMNS, QUERY, CONNECT_S = 8, 60, 10  # columns of a table and letters of a query in a message
EXAMPLE = "SELECT time, sensor, speed FROM readings"
TABLES = """SELECT tables.name, columns.name FROM sqlite_master AS tables, pragma_table_info(tables.name) AS columns
    WHERE tables.type IN ('table', 'view') AND tables.name NOT LIKE 'sqlite~_%' ESCAPE '~'
    ORDER BY tables.rowid, columns.cid"""


@dataclass(frozen=True)
class Database:
    """A database address: ``url`` for the driver, ``shown`` in messages, data set ``name``, and SQLite ``path``."""

    url: str
    shown: str
    name: str
    path: Path | None = None
    secrets: tuple[str, ...] = ()  # which no message may hold

    def label(self, query: str) -> str:
        """Return the database and the shortened query for messages."""
        return f"{self.shown} ({shortened(' '.join(query.split()), QUERY)})"

    def refusal(self, error: BaseException) -> SocialxError:
        """Return a SocialxError with the driver's message, in which *** replaces passwords."""
        text = re.sub("|".join(map(re.escape, self.secrets)) or "$.", "***", in_short(error, 1000))
        return SocialxError(self.shown, f"the database says: {shortened(text, 200)}", "correct the query or the URL")


def is_url(data: object) -> bool:
    """Return whether ``data`` is a database URL, supported or unsupported."""
    match = URL.fullmatch(data.strip()) if isinstance(data, str) else None
    return match is not None and match[1] in {*KNOWN, *OTHER}


def database(url: str) -> Database:
    """Parse ``sqlite:///FILE`` or ``postgresql://HOST/NAME``. Raises SettingsError for any other URL."""
    kind, _, rest = url.strip().partition(":")
    kind = kind.partition("+")[0]  # without the name of a driver
    if KNOWN.get(kind) == SQLITE:
        path = rest.removeprefix("///")
        if path == rest or not path:
            three = f"{SQLITE}:///roads.db, or {SQLITE}:////data/roads.db"
            raise SettingsError(f"{SQLITE}:{rest}", "the URL has no path behind three slashes", f"write {three}")
        return Database(url, f"{SQLITE}:///{path}", Path(path).stem or "database", Path(path))
    if kind not in KNOWN:
        raise SettingsError(f"{kind}://", "this database is not supported", f"name {SQLITE}:///FILE or {POSTGRES}://")
    try:
        parts = urlsplit(f"{POSTGRES}:{rest}")
        odd = rest.count("@") > 1 or parts.fragment or parts.port == 0
    except ValueError:  # of brackets, and of a port
        odd = True
    if odd:
        remedy = "write @ / ? # and : of a password as %40 %2F %3F %23 and %3A"
        raise SettingsError(f"{POSTGRES}://", "the host in the URL is ambiguous", remedy)
    hidden = [parts.password or "", *re.findall(r"pass\w*=([^&]*)", parts.query)]
    wait = "" if "connect_timeout" in parts.query else f"{'&' if parts.query else '?'}connect_timeout={CONNECT_S}"
    name = re.sub(r"\W+", "_", unquote(parts.path).strip("/")) or "database"
    secrets = tuple({*hidden, *map(unquote, hidden)} - {""})
    shown = f"{POSTGRES}://{parts.hostname or ''}{parts.path}"
    return Database(f"{POSTGRES}:{rest}{wait}", shown, name, secrets=secrets)


def query_table(base: Database, query: str | None) -> pa.Table:
    """Run a single read-only SELECT on the database ``base``. Raises for no query, other statements and no rows."""
    query = _refuse_without_query(base) if query is None else query.strip().rstrip("; \n")
    bare = QUOTED.sub(" ", query).rstrip("; \n")
    if ";" in bare or not SELECT.match(bare):
        argument = Argument("query", shortened(query, QUERY))
        raise SettingsError("", f"{argument} is not a single SELECT or WITH", f"write {Argument('query', EXAMPLE)}")
    table = _query_postgres(base, query) if base.path is None else _query_sqlite(base, base.path, query)
    names = table.column_names
    if twice := sample([name for name in dict.fromkeys(names) if names.count(name) > 1]):
        raise SocialxError(base.shown, f"the query gives columns more than once ({twice})", "name each with AS")
    if not table.num_rows:
        raise SocialxError(base.shown, f"the query gives no rows ({shortened(query, QUERY)})", "change the query")
    return table


def _query_sqlite(base: Database, path: Path, query: str) -> pa.Table:
    """Return the rows of a query on the SQLite file ``path``, opened read-only; columns of mixed types become text."""
    import pyarrow as pa

    if not path.is_file():
        raise SocialxError(base.shown, "there is no such file", "check the path; behind four slashes it is absolute")
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)) as connection:
            connection.execute("PRAGMA trusted_schema = OFF")
            cursor = connection.execute(query)
            names, rows = [column[0] for column in cursor.description or ()], cursor.fetchall()
    except (sqlite3.Error, sqlite3.Warning, UnicodeError) as error:
        raise base.refusal(error) from None
    columns: list[Sequence[Any]] = [*zip(*rows, strict=True)] if rows else [()] * len(names)
    for index, values in enumerate(columns):
        kinds = {type(value) for value in values} - {type(None)}
        if bytes in kinds:
            problem = f"the column {names[index]} of the query holds bytes"
            raise SocialxError(base.shown, problem, "leave it out of the query")
        if len(kinds) > 1:  # they are texts then
            columns[index] = [value if value is None else str(value) for value in values]
    return pa.Table.from_arrays([*map(pa.array, columns)], names=names)


def _query_postgres(base: Database, query: str) -> pa.Table:
    """Return the rows of a read-only query on PostgreSQL; raise SocialxError where the driver is not installed."""
    import pyarrow as pa

    try:
        from adbc_driver_postgresql import dbapi
    except ImportError:
        needs = "PostgreSQL needs the package adbc-driver-postgresql"
        raise SocialxError(base.shown, needs, "pip install 'socialx[database]'") from None
    try:
        with dbapi.connect(base.url) as connection, connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION READ ONLY")
            cursor.execute(query)
            table = cursor.fetch_arrow_table()
    except dbapi.Error as error:
        raise base.refusal(error) from None
    kinds = [kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind for kind in table.schema.types]
    columns = [column.cast(kind) for column, kind in zip(table.columns, kinds, strict=True)]  # of types that it lacks
    return pa.Table.from_arrays(columns, names=table.column_names)


def suggest_query(base: Database) -> tuple[str, str]:
    """Return texts for errors: the list of SQLite tables, "" for PostgreSQL, and a query for the likely table."""
    tables: dict[str, list[str]] = {}
    if base.path is not None:
        for table, column in zip(*(part.to_pylist() for part in _query_sqlite(base, base.path, TABLES)), strict=True):
            tables.setdefault(table, []).append(column)
    listed = "; ".join(f"{name} ({sample(names, COLUMNS)})" for name, names in tables.items())
    has = f"; it has {counted(len(tables), 'table')}: {listed}" if base.path else ""
    dated = [name for name, columns in tables.items() if any(map(TIME.search, columns))]
    query = next((f'SELECT * FROM "{name}"' for name in (*dated, *tables)), EXAMPLE)  # noqa: S608
    return has, query


def _refuse_without_query(base: Database) -> NoReturn:
    """Raise SocialxError with an example query, and the tables of a SQLite file."""
    has, query = suggest_query(base)
    reads = Command("convert", "auto", base.shown, query=query, meta_csv="LOCATIONS.csv", output="OUT.h5")
    raise SocialxError(base.shown, f"a query chooses its rows{has}", reads)
