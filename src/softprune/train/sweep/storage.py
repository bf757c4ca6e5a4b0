"""The database of a study: a file that processes of one machine share, or a server that machines share."""

from __future__ import annotations

import sqlite3
import time
import warnings
from pathlib import Path
from typing import Any

from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy import Connection, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

# Seconds that SQLite waits for another process to finish writing.
_PATIENCE = 120
_OPENINGS = 3
# What SQLAlchemy writes in the place of a password.
_HIDDEN = "***"


def open_file(path: Path, *, grace_seconds: int) -> RDBStorage:
    """The storage in an SQLite file, which is made if need be."""

    def connect() -> sqlite3.Connection:
        # Not by URL: there a path may not have a question mark or a brace.
        return sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)

    return _open("sqlite:///study.db", grace_seconds, creator=connect)


def open_url(url: str, *, grace_seconds: int) -> RDBStorage:
    """The storage that a database URL names.

    Raises:
        ValueError: if it cannot be reached, without its password.
    """
    if f":{_HIDDEN}@" in url:
        raise ValueError(f"the password of {url} is not kept: give the whole URL with --storage or SOFTPRUNE_STORAGE")
    try:
        if not make_url(url).drivername.startswith("sqlite"):
            return _open(url, grace_seconds)
        return _open(url, grace_seconds, connect_args={"timeout": _PATIENCE, "isolation_level": None})
    except (SQLAlchemyError, StorageInternalError, ImportError) as error:
        cause = str(error.__cause__ or error).partition("\n")[0]
        raise ValueError(f"the storage {without_password(url)} cannot be used: {cause}") from error


def without_password(url: str) -> str:
    """A database URL as it may be written down.

    Example:
        >>> without_password("postgresql://ann:secret@host/studies")
        'postgresql://ann:***@host/studies'
    """
    try:
        return make_url(url).render_as_string(hide_password=True)
    except SQLAlchemyError:
        return url


def prefer_log(storage: RDBStorage) -> None:
    """Let readers of an SQLite file, such as a dashboard, go on while a worker writes. Stays with the file."""
    with storage.engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        driver.execute("PRAGMA journal_mode=WAL")


def _open(url: str, grace_seconds: int, **engine: Any) -> RDBStorage:
    for opening in range(1, _OPENINGS + 1):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                storage = RDBStorage(
                    url, engine_kwargs=engine, heartbeat_interval=max(1, grace_seconds // 4), grace_period=grace_seconds
                )
            break
        except (SQLAlchemyError, StorageInternalError):
            # Two workers that make the tables of a new database at once get in each other's way, once.
            if opening == _OPENINGS:
                raise
            time.sleep(0.5)
    if storage.engine.dialect.name == "sqlite":
        event.listen(storage.engine, "begin", _begin_writing)
    return storage


def _begin_writing(connection: Connection) -> None:
    # SQLite knows no SELECT .. FOR UPDATE, by which Optuna makes sure that one worker gets a trial. Without this, two
    # that read "waiting" at once would both take it.
    connection.exec_driver_sql("BEGIN IMMEDIATE")
