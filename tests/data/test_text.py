"""Documents: what files hold, one after another, from any place on; and files that are broken, by name."""

from __future__ import annotations

import gzip
import json
import lzma
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from mssp.data.text import Files, HubDataset, PythonFiles, standard_library

POEM = "Two roads — ü\ndiverged\n"


def documents(*paths: Path, **options: Any) -> list[bytes]:
    return list(Files(paths, **options).documents())


@pytest.mark.parametrize("pack", [None, gzip.compress, lzma.compress])
def test_a_text_file_is_a_document(tmp_path: Path, pack: Any) -> None:
    path = tmp_path / {None: "a.txt", gzip.compress: "a.txt.gz", lzma.compress: "a.txt.xz"}[pack]
    path.write_bytes(pack(POEM.encode()) if pack else POEM.encode())
    source = Files([path])
    assert list(source.documents()) == [POEM.encode()]
    assert source.read == source.size == path.stat().st_size


def test_a_text_is_cut_where_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one<end>two<end>\n", encoding="utf-8")
    assert documents(path, split_on="<end>") == [b"one", b"two"]
    monkeypatch.setattr("mssp.data.text._CHUNK", 5)  # through the middle of a separator
    assert documents(path, split_on="<end>") == [b"one", b"two"]
    assert documents(path, split_on="two") == [b"one<end>", b"<end>\n"]


def test_rows_are_documents(tmp_path: Path) -> None:
    rows = [{"id": 1, "text": "one"}, {"id": 2, "text": "zwölf"}]
    lines, table = tmp_path / "a.jsonl.gz", tmp_path / "a.parquet"
    lines.write_bytes(gzip.compress("\n\n".join(map(json.dumps, rows)).encode()))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), table)
    assert documents(lines) == documents(table) == [b"one", "zwölf".encode()]
    with pytest.raises(ValueError, match=r"a\.parquet has no text under 'content', it has id, text: say where its"):
        documents(table, text_field="content")
    with pytest.raises(ValueError, match=r"a\.jsonl\.gz, line 1 has no text under 'content', it has id, text: say"):
        documents(lines, text_field="content")
    with pytest.raises(ValueError, match=r"a\.parquet, row 1: id must be a text, got 1"):
        documents(table, text_field="id")


def test_files_go_on_where_they_were(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text("".join(f'{{"text": "{name}{i}"}}\n' for i in range(3)))
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for count in range(7):
        first = Files(paths)
        given = first.documents()
        before = [next(given) for _ in range(count)]
        position = json.loads(json.dumps(first.position))
        assert [*before, *Files(paths).documents(position)] == [b"a0", b"a1", b"a2", b"b0", b"b1", b"b2"]


def test_broken_files_are_named(tmp_path: Path) -> None:
    packed = lzma.compress(POEM.encode())
    broken = {
        "half.xz": (packed[: len(packed) // 2], "half.xz is truncated: it ends before its compressed data do"),
        "empty.xz": (b"", "empty.xz is truncated"),
        "other.xz": (b"words", r"other.xz is not a whole \.xz file"),
        "other.gz": (b"words", r"other.gz is not a whole \.gz file"),
        "half.gz": (gzip.compress(POEM.encode())[:-9], "half.gz is truncated"),
        "latin.txt": ("grün".encode("latin-1"), r"latin.txt is not UTF-8 text \(invalid"),
        "half.txt": ("ü".encode()[:1], r"half.txt is not UTF-8 text \(unexpected end of data\)"),
        "cut.jsonl": (b'{"text": "a"}\n{"text": "b', r"cut.jsonl, line 2: it is not JSON: Unterminated string"),
        "list.jsonl": (b"[1]", r"list.jsonl, line 1: it must be a JSON object, got \[1\]"),
        "number.jsonl": (b'{"text": 5}', r"number.jsonl, line 1: text must be a text, got 5"),
        "pair.jsonl": (b'{"text": "\\ud800"}', r"pair.jsonl, line 1: text must be a text, got one with half of a"),
        "cut.parquet": (b"PAR1", r"cut.parquet cannot be read \(Parquet file size is 4 bytes"),
        "a.json": (b"[]", r"a.json must be text, \.jsonl or \.parquet, got \.json: write one JSON object a line"),
        "a.parquet.gz": (b"", r"a.parquet.gz must not be packed, since \.parquet is packed itself: unpack it first"),
    }
    if sys.version_info < (3, 14):
        broken["a.jsonl.zst"] = (
            b"",
            r"a.jsonl.zst is read by Python from version 3.14 on: unpack it first \(zstd -d\)",
        )
    for name, (content, message) in broken.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=message):
            documents(tmp_path / name)
    with pytest.raises(ValueError, match=r"none.txt does not exist: a file is needed"):
        documents(tmp_path / "none.txt")


# -- a dataset of Hugging Face, by a stand-in for the library, which is not installed ----------------------------------


class Stream:
    """Rows as `datasets` streams them: the state is that of the last row that was given."""

    def __init__(self, rows: list[Any], breaks_at: int | None = None) -> None:
        self._rows, self._next, self._breaks_at = rows, 0, breaks_at

    def __iter__(self) -> Any:
        while self._next < len(self._rows):
            if self._next == self._breaks_at:
                raise ConnectionError("the line\nis cut")
            self._next += 1
            yield self._rows[self._next - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"examples_iterable": {"shard_idx": 0, "shard_example_idx": self._next}, "epoch": 0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._next = state["examples_iterable"]["shard_example_idx"]


def streaming(monkeypatch: pytest.MonkeyPatch, rows: list[Any], breaks_at: int | None = None) -> None:
    module = ModuleType("datasets")

    def load_dataset(name: str, *, split: str, streaming: bool) -> Stream:
        assert (split, streaming) == ("train", True)
        if name != "owner/name":
            raise FileNotFoundError(f"there is no {name}")
        return Stream(rows, breaks_at)

    vars(module)["load_dataset"] = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)


ROWS = [{"id": i, "text": f"row {i}"} for i in range(5)]


def test_rows_of_a_dataset_go_on_where_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    streaming(monkeypatch, ROWS)
    first = HubDataset("owner/name")
    given = first.documents()
    assert [next(given), next(given)] == [b"row 0", b"row 1"]
    second = HubDataset("owner/name")
    assert list(second.documents(json.loads(json.dumps(first.position)))) == [b"row 2", b"row 3", b"row 4"]
    assert second.position["row"] == 5


def test_a_dataset_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    streaming(monkeypatch, ROWS, breaks_at=2)
    said = r"the dataset owner/name cannot be read \(ConnectionError: the line is cut\): is the name right, and the"
    with pytest.raises(ValueError, match=said):
        list(HubDataset("owner/name").documents())
    with pytest.raises(ValueError, match=r"the dataset other cannot be read \(FileNotFoundError: there is no other\)"):
        list(HubDataset("other").documents())
    with pytest.raises(ValueError, match=r"row 1 of owner/name has no text under 'body', it has id, text: say where"):
        list(HubDataset("owner/name", text_field="body").documents())
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"by the library datasets, which is missing: mssp\[data\]; or give files"):
        list(HubDataset("owner/name").documents())


# -- the standard library ----------------------------------------------------------------------------------------------


def test_the_standard_library_is_read() -> None:
    source = standard_library()
    assert source.name.startswith("the standard library of Python 3.")
    documents = list(source.documents())
    assert sum(map(len, documents)) > 5_000_000
    root = Path(sysconfig.get_path("stdlib"))
    assert (root / "heapq.py").read_bytes().replace(b"\r\n", b"\n") in documents
    assert (root / "json" / "decoder.py").read_bytes().replace(b"\r\n", b"\n") in documents


def test_a_tree_is_read_by_the_order_of_names(tmp_path: Path) -> None:
    left_out = [
        "test/a.py",
        "b/tests/c.py",
        "site-packages/d.py",
        "idlelib/e.py",
        "_sysconfigdata_x.py",
        "config-3/f.py",
    ]
    for name in ["z.py", "b/y.py", "b/notes.txt", *left_out]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"{name}\r\n".encode())
    assert list(PythonFiles(tmp_path, "").documents()) == [b"b/y.py\n", b"z.py\n"]


def test_a_python_without_source_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no \.py files: this Python has no source"):
        PythonFiles(tmp_path, "")
