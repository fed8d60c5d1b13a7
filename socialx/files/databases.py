"""A table from a database: the rows of a query of SQLite or PostgreSQL, as a file that the reader of tables reads."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from socialx.errors import (
    Argument,
    Command,
    SettingsError,
    SocialxError,
    counted,
    in_short,
    retold,
    sample,
    shortened,
    told,
    written,
)
from socialx.files.frames import temporary_folder

if TYPE_CHECKING:
    import pyarrow as pa

SQLITE, POSTGRES = "sqlite", "postgresql"
URL = re.compile(r"([a-z][a-z0-9]*)(?:\+[a-z0-9]+)?:(//.*)", re.DOTALL)
KNOWN = {"sqlite": SQLITE, "postgresql": POSTGRES, "postgres": POSTGRES}
OTHER = {"mysql", "mariadb", "mssql", "oracle", "duckdb", "clickhouse", "snowflake", "bigquery"}
# Comments, texts and quoted names of SQL, in which a semicolon ends nothing.
QUOTED = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\$(\w*)\$.*?\$\1\$", re.DOTALL)
SELECT = re.compile(r"[\s(]*(?:select|with)\b", re.IGNORECASE)
HOST = re.compile(r"(?:\[[0-9a-fA-F:.]*\]|[^\[\]:]*)(?::[0-9]*)?")  # and its port
TIME = re.compile(r"time|date|stamp|^ts$|_at$", re.IGNORECASE)  # in the name of a column
PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
COLUMNS = 8  # of a table, that a message names
QUERY = 60  # letters of a query in a message
CONNECT_S = 10
EXAMPLE = "SELECT time, sensor, speed FROM readings"
OF_SQLITE = """SELECT tables.name, columns.name FROM sqlite_master AS tables, pragma_table_info(tables.name) AS columns
    WHERE tables.type IN ('table', 'view') AND tables.name NOT LIKE 'sqlite~_%' ESCAPE '~'
    ORDER BY tables.rowid, columns.cid"""
OF_POSTGRES = """SELECT CASE table_schema WHEN 'public' THEN '' ELSE table_schema || '.' END || table_name, column_name
    FROM information_schema.columns WHERE table_schema NOT IN ('pg_catalog', 'information_schema')
    ORDER BY table_schema, table_name, ordinal_position"""


@dataclass(frozen=True)
class Database:
    """url: with the password, for the driver alone.  shown: without.  path: of the file of SQLite.

    name: of the database.  secrets: texts that no message may hold.
    """

    kind: str
    url: str
    shown: str
    name: str
    path: Path | None = None
    secrets: tuple[str, ...] = ()

    def says(self, error: BaseException) -> str:
        """What a driver says, without passwords."""
        text = in_short(error, 1000)
        for secret in sorted({*self.secrets}, key=len, reverse=True):
            text = text.replace(secret, "***")
        return shortened(text, 200)


def table_of_query(url: str, query: str | None) -> pa.Table:
    """The rows of a single SELECT, read only; ``url`` is ``sqlite:///FILE`` or ``postgresql://HOST/NAME``.

    All rows are held in memory.  Raises SocialxError without a query, which names the tables, without rows, and for
    what the database refuses; SettingsError for another URL or statement.
    """
    database = _database(url)
    if query is None:
        _refuse_without_query(database)
    bare = QUOTED.sub(" ", query).strip().rstrip("; \n")
    if ";" in bare or not SELECT.match(bare):
        argument = Argument("query", shortened(query, QUERY))
        raise SettingsError(argument, "not a single SELECT or WITH", f"for example {Argument('query', EXAMPLE)}")
    table = _rows(database, query.strip().rstrip("; \n"))
    names = table.column_names
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        what = f"the query gives columns more than once ({sample(twice)})"
        raise SocialxError(database.shown, what, "name each with AS")
    if not table.num_rows:
        raise SocialxError(database.shown, f"the query gives no rows ({shortened(query, QUERY)})", "ask for others")
    return table


@contextmanager
def as_file(data: Any, options: Mapping[str, Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """What a task reads, and its options: in place of a database a temporary file of the rows of its query.

    The messages of the block name the database.  Anything else stays what it is, and takes no query.
    """
    query, rest = options.get("query"), {name: value for name, value in options.items() if name != "query"}
    sources = data if isinstance(data, Sequence) and not isinstance(data, str) else [data]
    urls = [each for each in sources if isinstance(each, str) and _kind(each)]
    if not urls:
        if query is not None:
            remedy = "name a database, for example sqlite:///roads.db, or drop it"
            raise SettingsError(Argument("query"), "the data is no database", remedy)
        yield data, rest
        return
    if len(sources) > 1:
        raise SettingsError(Argument("data"), f"a database and {counted(len(sources) - 1, 'more')}", "name it alone")
    database, table = _database(urls[0]), table_of_query(urls[0], query)
    from pyarrow.parquet import write_table

    with temporary_folder("database") as place:
        path = Path(place, f"{database.name}.parquet")
        try:
            write_table(table, path)
        except OSError as error:
            raise SocialxError(place, f"cannot be written ({in_short(error)})", "set TMPDIR to another") from None
        del table
        with retold(lambda text: _renamed(text, path, database, str(query))):
            yield path, rest


def source(path: Path) -> Path | str:
    """A path, or the name of what the file at it stands for."""
    return path if told(path) == str(path) else told(path)


def as_told(command: Command) -> Command:
    """A command as the messages of the block would name it."""
    parts: list[Any] = []
    written(told(command), lambda part: parts.append(part) or "")  # type: ignore[func-returns-value]
    return parts[0]


def _renamed(text: str, path: Path, database: Database, query: str) -> str:
    """A marked text with the database and its query in place of a temporary file."""

    def renamed(part: Argument | Command) -> str:
        if isinstance(part, Argument):
            return str(Argument(part.name, database.shown if str(part.value) == str(path) else part.value))
        if str(path) in map(str, part.arguments):
            part.arguments = tuple(database.shown if str(each) == str(path) else each for each in part.arguments)
            part.options = {"query": query, **part.options}
        return str(part)

    asked = shortened(" ".join(query.split()), QUERY)
    return written(text, renamed).replace(str(path), f"{database.shown} ({asked})")


def _kind(data: str) -> str | None:
    """The kind of database that a text is the URL of; None for a path, and for another URL."""
    found = URL.fullmatch(data.strip())
    return found[1] if found and found[1] in {*KNOWN, *OTHER} else None


def _database(url: str) -> Database:
    """The database of a URL; refuses other kinds, and a password of which the end cannot be told."""
    kind, found = _kind(url), URL.fullmatch(url.strip())
    if kind not in KNOWN or found is None:
        raise SettingsError(
            f"{kind or 'data'}://", "no database that is read", f"name {SQLITE}:///FILE or {POSTGRES}://"
        )
    rest = found[2]
    if KNOWN[kind] == SQLITE:
        path = rest.removeprefix("///")
        if path == rest or not path:
            three = f"{SQLITE}:///roads.db, or {SQLITE}:////data/roads.db"
            raise SettingsError(f"{SQLITE}:{rest}", "no path behind three slashes", f"for example {three}")
        return Database(SQLITE, url, f"{SQLITE}:///{path}", Path(path).stem or "database", Path(path))
    try:
        parts = urlsplit(f"{POSTGRES}:{rest}")
        user, at, host = parts.netloc.rpartition("@")
        told_apart = rest.count("@") == len(at) and all(map(HOST.fullmatch, host.split(","))) and not parts.fragment
    except ValueError:  # of brackets
        told_apart = False
    if not told_apart:
        remedy = "write @ / ? # and : of a password as %40 %2F %3F %23 and %3A"
        raise SettingsError(f"{POSTGRES}://", "a URL of which the host cannot be told", remedy)
    name, _, password = user.partition(":")
    said = parse_qsl(parts.query, keep_blank_values=True)
    hidden = [value for key, value in said if "pass" in key.lower()]
    public = urlencode([each for each in said if each[1] not in hidden], safe="/", quote_via=quote)
    shown = f"{POSTGRES}://{name}{at}{host}{parts.path}{'?' if public else ''}{public}"
    secrets = {password, unquote(password), *hidden, *map(quote, hidden)} - {""}
    wait = "" if "connect_timeout" in parts.query else f"{'&' if parts.query else '?'}connect_timeout={CONNECT_S}"
    stem = re.sub(r"\W+", "_", unquote(parts.path).strip("/")) or "database"
    return Database(POSTGRES, f"{POSTGRES}:{rest}{wait}", shown, stem, secrets=tuple(secrets))


def _rows(database: Database, query: str) -> pa.Table:
    """The rows of one statement, in a connection that cannot write."""
    return _of_postgres(database, query) if database.path is None else _of_sqlite(database, database.path, query)


def _of_sqlite(database: Database, path: Path, query: str) -> pa.Table:
    import pyarrow as pa

    if not path.is_file():
        raise SocialxError(database.shown, "no such file", "check the path; behind four slashes it is absolute")
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)) as connection:
            connection.execute("PRAGMA trusted_schema = OFF")
            cursor = connection.execute(query)
            names, rows = [column[0] for column in cursor.description or ()], cursor.fetchall()
    except (sqlite3.Error, sqlite3.Warning, UnicodeError) as error:
        raise _refusal(database, error) from None
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    arrays = [_array(database, name, values) for name, values in zip(names, columns, strict=True)]
    return pa.Table.from_arrays(arrays, names=names)


def _array(database: Database, name: str, values: Sequence[Any]) -> pa.Array:
    """A column of SQLite, whose cells may be of several types: they are texts then."""
    import pyarrow as pa

    if any(isinstance(value, bytes) for value in values):
        raise SocialxError(database.shown, f"the column {name} of the query holds bytes", "leave it out of the query")
    if len({type(value) for value in values if value is not None}) <= 1:
        return pa.array(values)
    return pa.array([value if value is None else str(value) for value in values], pa.string())


def _of_postgres(database: Database, query: str) -> pa.Table:
    import pyarrow as pa

    try:
        from adbc_driver_postgresql import dbapi
    except ImportError:
        what = "reading PostgreSQL needs the package adbc-driver-postgresql"
        raise SocialxError(database.shown, what, "pip install 'socialx[database]'") from None
    try:
        with dbapi.connect(database.url) as connection, connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION READ ONLY")
            cursor.execute(query)
            table = cursor.fetch_arrow_table()
    except dbapi.Error as error:
        raise _refusal(database, error) from None
    kinds = [each.storage_type if isinstance(each, pa.BaseExtensionType) else each for each in table.schema.types]
    columns = [column.cast(kind) for column, kind in zip(table.columns, kinds, strict=True)]  # of types that it lacks
    return pa.Table.from_arrays(columns, names=table.column_names)


def _refusal(database: Database, error: BaseException) -> SocialxError:
    return SocialxError(database.shown, f"the database says: {database.says(error)}", "correct the query or the URL")


def _refuse_without_query(database: Database) -> NoReturn:
    """Raise for a database without a query: its tables with their columns, and a command that reads one."""
    listing = _rows(database, OF_SQLITE if database.path is not None else OF_POSTGRES)
    tables: dict[str, list[str]] = {}
    for table, column in zip(*(column.to_pylist() for column in listing.columns), strict=True):
        tables.setdefault(table, []).append(column)
    if not tables:
        raise SocialxError(database.shown, "it has no tables", "name another database")
    dated = [name for name, columns in tables.items() if any(map(TIME.search, columns))]
    first = dated[0] if dated else next(iter(tables))
    columns = tables[first] if len(tables[first]) <= COLUMNS else ["*"]
    parts = [first] if database.path is not None else first.split(".", 1)
    query = " ".join(("SELECT", ", ".join(map(_quoted, columns)), "FROM", ".".join(map(_quoted, parts))))
    listed = "; ".join(f"{name} ({sample(names, COLUMNS)})" for name, names in tables.items())
    what = f"a query chooses its rows; it has {counted(len(tables), 'table')}: {listed}"
    reads = Command("convert", "auto", database.shown, query=query, meta="LOCATIONS.csv", output="OUT.h5")
    raise SocialxError(database.shown, what, reads)


def _quoted(name: str) -> str:
    """A name in SQL, in quotes where it needs them."""
    return name if name == "*" or PLAIN.fullmatch(name) else '"' + name.replace('"', '""') + '"'
