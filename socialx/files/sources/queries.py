"""A query of SQLite or PostgreSQL as an Arrow table."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from socialx.core.errors import Argument, SettingsError, SocialxError, in_short

if TYPE_CHECKING:
    import pyarrow as pa

URL = re.compile(r"(sqlite|postgres(?:ql)?|mysql|mariadb|mssql|oracle|duckdb)(?:\+\w+)?:(//.*)", re.DOTALL)
SELECT = re.compile(r"[\s(]*(?:select|with)\b", re.IGNORECASE)
EXAMPLE = "SELECT time, sensor, speed FROM readings"


def is_url(data: object) -> bool:
    """Return whether ``data`` is the URL of a database."""
    return isinstance(data, str) and URL.fullmatch(data.strip()) is not None


def query_table(url: str, query: str | None) -> tuple[str, pa.Table]:
    """Return the URL without secrets, and the rows of a read-only query. Raises with what the database says."""
    match = URL.fullmatch(url.strip())
    kind, rest = (match[1], match[2]) if match else ("", "")
    try:
        parts = urlsplit(f"postgresql:{rest}")
        odd = rest.count("@") > 1 or bool(parts.fragment) or parts.port == 0
    except ValueError:  # of brackets, and of a port
        odd = True
    if odd or (kind == "sqlite" and not rest[3:]) or kind not in ("sqlite", "postgres", "postgresql"):
        remedy = "name sqlite:///FILE or postgresql://HOST/NAME, with @ / : of a password as %40 %2F %3A"
        raise SettingsError("query.database", f"{kind}://", "the database is unknown, or its host ambiguous", remedy)
    shown = f"{kind}://{parts.hostname or ''}{parts.path}"
    if query is None or not SELECT.match(query):
        problem = "a query chooses its rows" if query is None else f"{Argument('query', query)} is not a single SELECT"
        raise SettingsError("query.no-select", shown, problem, f"write {Argument('query', EXAMPLE)}")
    try:
        table = _sqlite(rest[3:], query) if kind == "sqlite" else _postgres(f"postgresql:{rest}", query)
    except ImportError:
        raise SocialxError("query.driver", shown, "the driver is missing", "pip install 'socialx[database]'") from None
    except Exception as error:  # noqa: BLE001  of two drivers, which have many kinds
        problem = f"the database says: {in_short(error)}"
        raise SocialxError("query.database-says", shown, problem, "correct the query or the URL") from None
    if not table.num_rows:
        raise SocialxError("query.no-rows", shown, "the query gives no rows", "change the query")
    return shown, table


def _sqlite(path: str, query: str) -> pa.Table:
    """Return the rows of a query on a SQLite file, opened read-only; a column of several types becomes texts."""
    import pyarrow as pa

    with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as connection:
        connection.execute("PRAGMA trusted_schema = OFF")
        cursor = connection.execute(query)
        columns: list[Any] = [*zip(*cursor.fetchall(), strict=True)] or [()] * len(cursor.description)
    for index, values in enumerate(columns):
        if len({type(value) for value in values} - {type(None)}) > 1:
            columns[index] = [value if value is None else str(value) for value in values]
    return pa.Table.from_arrays([*map(pa.array, columns)], names=[column[0] for column in cursor.description])


def _postgres(url: str, query: str) -> pa.Table:
    """Return the rows of a query in a read-only transaction."""
    import pyarrow as pa
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION READ ONLY")
        cursor.execute(query)
        table = cursor.fetch_arrow_table()
    kinds = [kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind for kind in table.schema.types]
    columns = [column.cast(kind) for column, kind in zip(table.columns, kinds, strict=True)]  # of types that it lacks
    return pa.Table.from_arrays(columns, names=table.column_names)
