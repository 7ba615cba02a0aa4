"""Measurements on disk: one sqlite table that several processes read and write at once.

    (kind, environment, digest of the signature)  ->  signature and value, both as JSON

``kind`` is what was measured ("time 1", "memory 1": the number is the version of the value's form),
``environment`` where (``machine.environment``).

* A value does not change once it is written: of two processes that measured the same call, the first one
  wins, and both go on with its value.  So a plan can be cached by :meth:`Cache.identity`.
* Write-ahead log and transactions: a killed writer loses its last write and nothing else.  The log needs
  memory that processes share, so there is one file for each host: a home folder may be on a network.
* A folder that cannot be written, a full disk, a file that is no database: one warning in the log, and
  the measurements of this process stay in memory.

The folder is ``$OPTPART_CACHE`` if that is set, else ``optpart`` in the user's cache folder.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import platform
import re
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from optpart.graph import Signature, signature_from_json, signature_to_json

logger = logging.getLogger(__name__)

T = TypeVar("T")

BUSY_SECONDS = 30.0
FORMAT = "optpart-measurements-1"
_TABLE = """
CREATE TABLE IF NOT EXISTS measurements (
    kind TEXT NOT NULL, environment TEXT NOT NULL, digest TEXT NOT NULL, signature TEXT NOT NULL, value TEXT NOT NULL,
    PRIMARY KEY (kind, environment, digest)
) WITHOUT ROWID
"""


def cache_folder() -> Path:
    """Where measurements are kept: ``$OPTPART_CACHE``, or ``optpart`` in the user's cache folder."""
    if given := os.environ.get("OPTPART_CACHE"):
        return Path(given)
    base = os.environ.get("LOCALAPPDATA") if os.name == "nt" else os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "optpart"


def default_cache() -> Cache:
    """The cache of this user on this host."""
    host = re.sub(r"[^\w.-]", "_", platform.node()) or "host"
    return _cache_at(cache_folder() / f"measurements-{host}.sqlite")


@functools.cache
def _cache_at(path: Path) -> Cache:
    return Cache(path)


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement; ``value`` is plain data."""

    kind: str
    environment: str
    signature: Signature
    value: Any

    def columns(self) -> tuple[str, str, str, str, str]:
        signature = _text(signature_to_json(self.signature))
        return self.kind, self.environment, digest(self.signature), signature, _text(self.value)


def rows_to_json(rows: Iterable[Row]) -> dict[str, Any]:
    """Measurements as a JSON object, to be carried to another machine."""
    return {
        "format": FORMAT,
        "measurements": [
            {
                "kind": row.kind,
                "environment": row.environment,
                "signature": signature_to_json(row.signature),
                "value": row.value,
            }
            for row in rows
        ],
    }


def rows_from_json(data: Mapping[str, Any]) -> list[Row]:
    """The inverse of :func:`rows_to_json`.

    Raises:
        ValueError: the data is in another format.
    """
    found = data.get("format") if isinstance(data, Mapping) else None
    if found != FORMAT:
        raise ValueError(f"no measurements of this package: format is {found!r}, expected {FORMAT!r}")
    return [
        Row(row["kind"], row["environment"], signature_from_json(row["signature"]), row["value"])
        for row in data["measurements"]
    ]


class Cache:
    """The table in one file, or in memory if there is no path or the file cannot be used."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._memory: sqlite3.Connection | None = None

    def get(self, kind: str, environment: str, signatures: Iterable[Signature]) -> dict[Signature, Any]:
        """The known values of some calls; calls that were not measured are left out."""
        query = "SELECT value FROM measurements WHERE kind = ? AND environment = ? AND digest = ?"

        def read(connection: sqlite3.Connection) -> dict[Signature, Any]:
            rows = ((s, connection.execute(query, (kind, environment, digest(s))).fetchone()) for s in wanted)
            return {s: json.loads(row[0]) for s, row in rows if row is not None}

        wanted = dict.fromkeys(signatures)
        return self._transaction(read)

    def put(self, kind: str, environment: str, values: Mapping[Signature, Any]) -> dict[Signature, Any]:
        """Write values (plain data) where there are none yet; returns the ones that hold from now on."""
        rows = [Row(kind, environment, s, v).columns() for s, v in values.items()]
        insert = "INSERT OR IGNORE INTO measurements VALUES (?, ?, ?, ?, ?)"
        self._transaction(lambda connection: connection.executemany(insert, rows), write=True)
        return self.get(kind, environment, values)

    def identity(self) -> str:
        """A text that stays while values are only added, and changes when some are replaced or all are lost."""

        def number(connection: sqlite3.Connection) -> int:
            return int(connection.execute("PRAGMA user_version").fetchone()[0])

        def set_once(connection: sqlite3.Connection) -> int:
            if not number(connection):
                _set_number(connection)
            return number(connection)

        return f"{self._transaction(number) or self._transaction(set_once, write=True):08x}"

    def renew(self) -> None:
        """Change the identity: plans that were made with the values so far will not be served any more."""
        self._transaction(_set_number, write=True)

    def rows(self, kind: str | None = None) -> list[Row]:
        """Everything in the table, or what is of one kind."""
        query = "SELECT kind, environment, signature, value FROM measurements WHERE kind = coalesce(?, kind)"
        found = self._transaction(lambda connection: connection.execute(query, (kind,)).fetchall())
        return [Row(kind, place, signature_from_json(json.loads(s)), json.loads(v)) for kind, place, s, v in found]

    def replace(self, rows: Iterable[Row]) -> None:
        """Take over measurements of another table, also where this one has its own."""
        data = [row.columns() for row in rows]

        def write(connection: sqlite3.Connection) -> None:
            connection.executemany("INSERT OR REPLACE INTO measurements VALUES (?, ?, ?, ?, ?)", data)
            _set_number(connection)

        self._transaction(write, write=True)

    def _transaction(self, work: Callable[[sqlite3.Connection], T], write: bool = False) -> T:
        """The result of ``work`` on the file, or on memory from the first time on that the file fails."""
        with self._lock:
            if self._memory is None and self.path is not None:
                try:
                    with contextlib.closing(_connect(self.path)) as connection:
                        return _in_transaction(connection, work, write)
                except (OSError, sqlite3.Error) as error:
                    logger.warning("measurements are kept in memory: %s cannot be used (%s)", self.path, error)
            if self._memory is None:
                self._memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
                self._memory.execute(_TABLE)
            return _in_transaction(self._memory, work, write)

    def __reduce__(self) -> tuple[type[Cache], tuple[Path | None]]:
        return Cache, (self.path,)  # connections stay in their process


def _connect(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        with contextlib.suppress(sqlite3.OperationalError):  # somebody else is just doing it, or may not write
            if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(_TABLE)
    except BaseException:  # Ctrl-C too: nobody else has the connection yet to close it
        connection.close()
        raise
    return connection


def _in_transaction(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], T], write: bool) -> T:
    connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
    try:
        result = work(connection)
        connection.execute("COMMIT")
    except BaseException:  # Ctrl-C too: the next one would find this transaction open, where all is kept in memory
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
    return result


def _set_number(connection: sqlite3.Connection) -> None:
    """The identity lives in a field of the file's header that is the application's to use."""
    connection.execute(f"PRAGMA user_version = {1 + secrets.randbelow(2**31 - 1)}")


def _text(data: Any) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


def digest(signature: Signature) -> str:
    """What identifies a call: equal for equal signatures, also after a way through JSON."""
    return hashlib.sha256(_text(signature_to_json(signature)).encode()).hexdigest()
