"""Run stores, as `mssp report`, a resumed `mssp sweep` and `mssp.store` read them: changed byte by byte, and by SQL.

The sound stores are made once, by a real sweep and a real search of a second. What is read of a broken one is compared
with the sound one: a finished run under a checksum is as it was written, or the store is refused.
"""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from mssp.store import Run, Store, Study, export
from mssp.store.runs import FINISHED
from tests.fuzz.arrays import write_sound
from tests.fuzz.cases import Case, Kind, empty, in_process
from tests.fuzz.mutations import NUMBERS, OF_DOCUMENTS, WORDS, Step, after, drawn

NAME = "runs.sqlite"
_COMMON = ["--data", "data.npz", "--steps", "3", "--batch", "10", "--device", "cpu", "--validation", "10"]
_SWEEP = ["sweep", *_COMMON, "--widths", "16", "32", "--scheme", "mssp", "--multipliers", "ones", "--seeds", "2",
          "--lrs", "0.1", "0.5"]  # fmt: skip
_TUNE = ["tune", *_COMMON, "--width", "16", "--points", "1", "--broad-points", "2", "--lr-points", "1",
         "--method", "random", "--budget", "2", "--confirm", "0"]  # fmt: skip
_OF_FINISHED = ("key", "parameters", "spec", "chunk", "status", "metrics", "diverged_at")
Files = dict[str, bytes]  # a store and what lies beside it
Facts = Mapping[str, object]  # the fields of a finished run that its chunk's checksum guards
Finished = Mapping[tuple[str, str], Facts]


@dataclass(frozen=True)
class Sound:
    """A sound store: its files, and its finished runs by study and key."""

    files: Files
    finished: Finished


@cache
def sound(variant: str) -> Sound:
    """A sound store: ``checked``, ``unchecked`` as older versions left it, ``log`` or ``unfinished``."""
    if variant == "checked":
        return _as_sound(_made(lambda: None))
    if variant == "log":
        return _as_sound(_made(lambda: Store(NAME)))
    script = {
        "unchecked": "DROP TABLE checksum; DROP TABLE presence",
        "unfinished": """DELETE FROM checksum WHERE study = 1 AND number = 1;
            DELETE FROM metric WHERE run IN (SELECT id FROM run WHERE study = 1 AND chunk = 1);
            DELETE FROM curve WHERE run IN (SELECT id FROM run WHERE study = 1 AND chunk = 1);
            UPDATE run SET seconds = NULL, diverged_at = NULL WHERE study = 1 AND chunk = 1;
            UPDATE chunk SET status = 'pending' WHERE study = 1 AND number = 1""",
    }[variant]
    return _as_sound(changed(sound("checked").files, lambda database: database.executescript(script)))


VARIANTS = ("checked", "unchecked", "log", "unfinished")


def _made(held_open: Callable[[], Store | None]) -> Files:
    """What a sweep and a search write. While a store is held open, nothing of its log is moved to its file."""
    with TemporaryDirectory() as name, contextlib.chdir(name):
        write_sound(Path("data.npz"))
        with held_open() or contextlib.nullcontext():
            for words in (_SWEEP, _TUNE):
                outcome = in_process(words)
                assert outcome.code == 0, outcome.err
            found = {path.name: path.read_bytes() for path in Path().glob(f"{NAME}*")}
        # The index of a log is made anew by whoever opens the store.
        return {name: content for name, content in found.items() if not name.endswith("-shm")}


def changed(files: Files, change: Callable[[sqlite3.Connection], object]) -> Files:
    """The files of a store after a change by SQL, which SQLite may refuse."""
    with TemporaryDirectory() as name:
        path = Path(name) / NAME
        for each, content in files.items():
            path.with_name(each).write_bytes(content)
        with closing(sqlite3.connect(path, isolation_level=None)) as database, contextlib.suppress(sqlite3.Error):
            database.execute("PRAGMA ignore_check_constraints = ON")
            database.execute("PRAGMA writable_schema = ON")
            change(database)
        return {each.name: each.read_bytes() for each in path.parent.iterdir() if not each.name.endswith("-shm")}


def _as_sound(files: Files) -> Sound:
    with TemporaryDirectory() as name:
        for each, content in files.items():
            (Path(name) / each).write_bytes(content)
        with Store(Path(name) / NAME, read_only=True) as store:
            studies = [store.open_study(each) for each in store.studies()]
            return Sound(files, {(study.name, run.key): _facts(run) for study in studies for run in study.runs()
                                 if run.status in FINISHED})  # fmt: skip


def _facts(run: Run) -> Facts:
    metrics = {name: None if math.isnan(value) else value for name, value in run.metrics.items()}
    return {name: metrics if name == "metrics" else getattr(run, name) for name in _OF_FINISHED}


# -- mutations of the bytes --------------------------------------------------------------------------------------------

_PAGE = 4096


def _of_one_file(change: Callable[[Random, bytearray], object]) -> Callable[[Random, Files], Files]:
    def mutate(random: Random, files: Files) -> Files:
        name = random.choice(sorted(files))
        content = bytearray(files[name])
        if content:
            change(random, content)
        return {**files, name: bytes(content)}

    return mutate


def _flip(random: Random, content: bytearray) -> None:
    for _ in range(random.choice((1, 1, 1, 4, 50))):
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)


def _flip_head(random: Random, content: bytearray) -> None:
    """A byte of the file's header, or of the header of one of its pages: there SQLite looks first."""
    place = random.choice((0, random.randrange(0, len(content), _PAGE))) + random.randrange(100)
    content[min(place, len(content) - 1)] = random.choice((0, 1, 127, 128, 255, random.randrange(256)))


def _digit(random: Random, content: bytearray) -> None:
    """A digit of a text becomes another: no page looks broken."""
    places = [place for place, byte in enumerate(content) if 48 <= byte <= 57]
    if places:
        content[random.choice(places)] = random.choice(b"0123456789-.e")


def _letter(random: Random, content: bytearray) -> None:
    places = [place for place, byte in enumerate(content) if 97 <= byte <= 122]
    if places:
        content[random.choice(places)] = random.choice(b'az\n\x00\xff"}\xc3')


def _truncated(random: Random, content: bytearray) -> None:
    del content[random.choice((random.randrange(len(content)), random.randrange(0, len(content), _PAGE))) :]


def _page(random: Random, content: bytearray) -> tuple[slice, slice]:
    first, second = (random.randrange(0, len(content), _PAGE) for _ in range(2))
    return slice(first, first + _PAGE), slice(second, second + _PAGE)


def _zero(random: Random, content: bytearray) -> None:
    first, _ = _page(random, content)
    content[first] = bytes(len(content[first]))


def _splice(random: Random, content: bytearray) -> None:
    """A page, or a piece of any size, stands where another was."""
    first, second = _page(random, content)
    if random.random() < 0.5:
        first, second = (slice(random.randrange(len(content)), None) for _ in range(2))
        piece = bytes(content[first][: random.randrange(200)])
        content[second.start : second.start + len(piece)] = piece
    else:
        content[first] = content[second]


def _insert(random: Random, content: bytearray) -> None:
    place = random.randrange(len(content))
    content[place:place] = random.randbytes(random.choice((1, 100, _PAGE)))


def _more(random: Random, content: bytearray) -> None:
    content += random.randbytes(random.choice((1, _PAGE, 10 * _PAGE)))


def _emptied(random: Random, content: bytearray) -> None:
    content.clear()


_OF_STORES = {
    name: _of_one_file(change)
    for name, change in {
        "flip": _flip, "flip head": _flip_head, "digit": _digit, "letter": _letter, "truncated": _truncated,
        "zero": _zero, "splice": _splice, "insert": _insert, "more": _more, "emptied": _emptied,
    }.items()
} | {
    "journal": lambda random, files: {**files, f"{NAME}-journal": random.randbytes(600)},
    "foreign log": lambda random, files: {**files, f"{NAME}-wal": sound("log").files[f"{NAME}-wal"]},
    "no log": lambda random, files: {name: content for name, content in files.items() if not name.endswith("-wal")},
}  # fmt: skip


# -- mutations by SQL --------------------------------------------------------------------------------------------------

_TABLES = {
    "study": ("id", "name", "settings"),
    "owner": ("id", "token", "host", "pid", "started", "heartbeat", "environment"),
    "work": ("study", "owner"),
    "chunk": ("study", "number", "status", "owner", "error"),
    "run": ("id", "study", "chunk", "key", "parameters", "spec", "diverged_at", "seconds"),
    "metric": ("run", "name", "value"),
    "curve": ("run", "name", "packed", "points"),
    "checksum": ("study", "number", "metrics"),
    "presence": ("owner", "place"),
}
_JSON = (("study", "settings"), ("owner", "environment"), ("run", "parameters"), ("run", "spec"))
_VALUES: tuple[Any, ...] = (
    None, "", "text", "a\nb", b"", b"\x00\xff", b"abc", 0, 1, -1, 2, 99, 2**31, 2**63 - 1, -(2**63), 0.5, -0.5, 1e308,
    5e-324, math.nan, math.inf, -math.inf, "[]", "{}", "null", "[" * 5000, "pending", "running", "done", "failed",
    "sweep x", "tune x", "train_top5", "é" * 5000, "\ud7ff", "1e400", "NaN",
)  # fmt: skip


def _by_sql(change: Callable[[Random, sqlite3.Connection], object]) -> Callable[[Random, Files], Files]:
    return lambda random, files: changed(files, partial(change, random))


def _where(random: Random, database: sqlite3.Connection, table: str) -> str:
    """A condition for one row, or for all of them."""
    conditions = " AND ".join(f"{name} IS ?" for name in _TABLES[table])
    rows = database.execute(f"SELECT {', '.join(_TABLES[table])} FROM {table}").fetchall()
    if not rows or random.random() < 0.2:
        return "1"
    values = iter(random.choice(rows))
    return "".join(part if part != "?" else database.execute("SELECT quote(?)", (next(values),)).fetchone()[0]
                   for part in conditions.replace("?", "\0?\0").split("\0"))  # fmt: skip


def _update(random: Random, database: sqlite3.Connection) -> None:
    table = random.choice(sorted(_TABLES))
    column, value = random.choice(_TABLES[table]), random.choice(_VALUES)
    database.execute(f"UPDATE OR IGNORE {table} SET {column} = ? WHERE {_where(random, database, table)}", (value,))


def _of_json(change: Callable[[Random, Any], Any]) -> Callable[[Random, sqlite3.Connection], None]:
    """A change inside the JSON of a field, where another step has left it one."""

    def change_field(random: Random, database: sqlite3.Connection) -> None:
        table, column = random.choice(_JSON)
        where = _where(random, database, table)
        row = database.execute(f"SELECT {column} FROM {table} WHERE {where}").fetchone()
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            document = json.loads(row[0])
            if isinstance(document, dict):
                text = json.dumps(change(random, document))
                database.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (text,))

    return change_field


def _inside(random: Random, document: dict[str, Any]) -> Any:
    return after(document, drawn(random, OF_DOCUMENTS), OF_DOCUMENTS)


def _entry(random: Random, document: dict[str, Any]) -> Any:
    """An entry of the object gets a value that is none of its own."""
    return document | {random.choice([*document, ""]): random.choice((*NUMBERS, *WORDS, None, [], {}, True))}


def _tamper(random: Random, database: sqlite3.Connection) -> None:
    """What a finished run is, or a number of its results, becomes another that may well be one."""
    if random.random() < 0.5:
        database.execute(f"UPDATE metric SET value = value * 1.01 + 0.01 WHERE {_where(random, database, 'metric')}")
        return
    where = _where(random, database, "run")
    old, new = random.choice((('"seed": 0', '"seed": 5'), ('"width": 16', '"width": 32'), ('"lr": 0.5', '"lr": 0.25'),
                              ('"lr": 0.1', '"lr": 0.2')))  # fmt: skip
    database.execute(f"UPDATE run SET spec = replace(spec, ?, ?) WHERE {where}", (old, new))
    if random.random() < 0.7:
        database.execute(f"UPDATE run SET parameters = replace(parameters, ?, ?) WHERE {where}", (old, new))


def _delete(random: Random, database: sqlite3.Connection) -> None:
    table = random.choice(sorted(_TABLES))
    database.execute(f"DELETE FROM {table} WHERE {_where(random, database, table)}")


def _duplicate(random: Random, database: sqlite3.Connection) -> None:
    """A row stands there twice, but for one column."""
    table = random.choice(sorted(_TABLES))
    place = random.randrange(len(_TABLES[table]))
    columns = [name if number != place else "?" for number, name in enumerate(_TABLES[table])]
    if columns[0] == "id":
        columns[0] = "NULL"
    where = _where(random, database, table)
    insert = f"INSERT OR IGNORE INTO {table} SELECT {', '.join(columns)} FROM {table} WHERE {where}"
    database.execute(insert, (random.choice(_VALUES),) * columns.count("?"))


def _drop(random: Random, database: sqlite3.Connection) -> None:
    table = random.choice(sorted(_TABLES))
    database.execute(f"DROP TABLE {table}")
    if random.random() < 0.3:  # a view, or a table of other columns, in its place
        database.execute(random.choice((f"CREATE VIEW {table} AS SELECT 1 AS id", f"CREATE TABLE {table} (id)")))


def _column(random: Random, database: sqlite3.Connection) -> None:
    table = random.choice(sorted(_TABLES))
    column = random.choice(_TABLES[table])
    if random.random() < 0.5:
        database.execute(f"ALTER TABLE {table} RENAME COLUMN {column} TO {column}2")
    else:
        database.execute(f"ALTER TABLE {table} ADD COLUMN {random.choice(('more', 'value2'))} DEFAULT 'x'")


def _pragma(random: Random, database: sqlite3.Connection) -> None:
    database.execute(random.choice((
        "PRAGMA user_version = 2", "PRAGMA user_version = 0", "PRAGMA user_version = -1", "PRAGMA application_id = 7",
        "PRAGMA journal_mode = DELETE", "VACUUM", "REINDEX",
    )))  # fmt: skip


def _schema(random: Random, database: sqlite3.Connection) -> None:
    """The text of a table's definition is changed under SQLite."""
    old, new = random.choice((
        ("INTEGER", "TEXT"), ("REAL", "TEXT"), ("NOT NULL", ""), ("TEXT", "BLOB"), ("UNIQUE", ""),
        ("CREATE TABLE", "CREATE VIEW"), ("PRIMARY KEY", ""), ("status", "state"), (")", ""),
    ))  # fmt: skip
    table = random.choice(sorted(_TABLES))
    database.execute("UPDATE sqlite_master SET sql = replace(sql, ?, ?) WHERE name = ?", (old, new, table))


def _trigger(random: Random, database: sqlite3.Connection) -> None:
    table, event = random.choice(sorted(_TABLES)), random.choice(("INSERT", "UPDATE", "DELETE"))
    action = random.choice(
        ("SELECT RAISE(ABORT, 'a' || char(10) || 'b')", "DELETE FROM metric", "SELECT RAISE(IGNORE)")
    )
    database.execute(f"CREATE TRIGGER t AFTER {event} ON {table} BEGIN {action}; END")


_OF_ROWS = {
    name: _by_sql(change)
    for name, change in {
        "update": _update, "update json": _of_json(_inside), "entry": _of_json(_entry), "tamper": _tamper,
        "delete": _delete, "duplicate": _duplicate, "drop": _drop, "column": _column, "pragma": _pragma,
        "schema": _schema, "trigger": _trigger,
    }.items()
}  # fmt: skip
_OFTEN = ("update", "update", "update", "update json", "entry", "tamper", "delete", "duplicate")


# -- cases -------------------------------------------------------------------------------------------------------------


def _draw_bytes(random: Random) -> list[Step]:
    return drawn(random, _OF_STORES, (1, 1, 1, 2))


def _draw_rows(random: Random) -> list[Step]:
    names = _OFTEN if random.random() < 0.8 else sorted(_OF_ROWS)
    return [Step(random.choice(names), random.getrandbits(32)) for _ in range(random.choice((1, 1, 2, 3)))]


def _make(random: Random, steps: Sequence[Step], folder: Path) -> Case:
    variant = random.choice(("checked", *VARIANTS))
    files = after(sound(variant).files, steps, _OF_STORES | _OF_ROWS)
    for place in (folder, empty(folder / "copy")):
        write_sound(place / "data.npz")
        for name, content in files.items():
            (place / name).write_bytes(content)
    finished = sound(variant).finished
    if any(step.name == "foreign log" for step in steps):
        finished = {
            **sound("log").finished,
            **finished,
        }  # of the same runs; a log may well be of one store or the other
    read = partial(_read, folder / "copy" / NAME, finished)
    if random.random() < 0.5:
        return Case(["report", NAME], read, writes=["report.html"])
    # A resumed sweep works in the store, and may have trained a chunk before it meets what is broken.
    more = random.choice(([], [], ["--json"], ["--export", "runs.csv"]))
    words = [*_SWEEP, *more] if random.random() < 0.8 else [*_TUNE, "--seeds", "1"]
    return Case(words, read, writes=["runs.csv", "tuned.json"], always_writes=[f"{NAME}*"])


def _read(path: Path, original: Finished) -> None:
    """Every finished run under a checksum is as it was, and all of them are there; reading leaves nothing behind."""
    before = {each.name: each.read_bytes() for each in path.parent.iterdir()}
    try:
        with Store(path, read_only=True) as store:
            for study in [store.open_study(name) for name in store.studies()]:
                _compare(study, original)
                export(study, path.with_name("table.jsonl"))
                path.with_name("table.jsonl").unlink()
    finally:
        assert {each.name: each.read_bytes() for each in path.parent.iterdir()} == before


def _compare(study: Study, original: Finished) -> None:
    runs = [run for run in study.runs() if run.status in FINISHED]
    if not study.unchecked():
        for run in runs:
            facts = original.get((study.name, run.key))
            # Studies have no checksums of their own: under another name there are the runs of one that was there.
            if facts is None:
                facts = next((each for (_, key), each in original.items() if key == run.key), None)
            assert facts == _facts(run), (facts, run)
    study.environments()
    study.counts()


BYTES, ROWS = Kind("bytes", _draw_bytes, _make), Kind("rows", _draw_rows, _make)
