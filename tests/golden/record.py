"""Write the goldens anew: ``python tests/golden/record.py [NAME...]``.

A name is that of a case, or of a file of cases (``plans``, ``mistakes``); without names all are written. What changed
is printed, so that whoever records sees what they agree to. The store that was written long ago is no golden and stays
as it is: ``--store`` makes it anew, and with it what is expected of those who resume it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

from tests.golden.cases import CASES, FILES, file_of, kept_names, kept_or_none, make_store, observe, path_of  # noqa: E402
from tests.golden.comparing import differences, pretty  # noqa: E402

_SHOWN = 10


def main(arguments: list[str]) -> int:
    if "--store" in arguments:
        arguments.remove("--store")
        make_store()
        arguments = arguments or ["store"]
    unknown = [name for name in arguments if name not in CASES and name not in FILES]
    if unknown:
        print(f"There is no case and no file of cases called {', '.join(unknown)}.", file=sys.stderr)
        return 2
    asked = [name for name in CASES if not arguments or name in arguments or file_of(name) in arguments]
    found = {}
    for name in asked:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = observe(CASES[name], Path(folder).resolve())
        before = kept_or_none(name)
        if before is None:
            print(f"{name} is new.")
            continue
        lines = list(differences(before, found[name], CASES[name].tolerance))
        for line in lines[:_SHOWN]:
            print(f"{name}{line}")
        if len(lines) > _SHOWN:
            print(f"{name}: and {len(lines) - _SHOWN} more")
    for name in sorted(kept_names() - set(CASES)):
        print(f"{name} has no case any more.")
    for file in sorted({file_of(name) for name in asked} | {file_of(name) for name in kept_names() - set(CASES)}):
        write(file, {name: found.get(name, kept_or_none(name)) for name in CASES if file_of(name) == file})
    return 0


def write(file: str, entries: dict[str, object]) -> None:
    """One file of goldens, or none where it has no cases left."""
    if not entries:
        path_of(file).unlink(missing_ok=True)
        return
    there = {name: entry for name, entry in entries.items() if entry is not None}
    text = pretty(there, FILES.get(file, 118))
    assert json.loads(text) == json.loads(json.dumps(there))
    path_of(file).write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
