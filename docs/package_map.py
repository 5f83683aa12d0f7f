"""The map of the package in CONTRIBUTING.md, made of the first sentences of docstrings.

python docs/package_map.py      writes it anew
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "mssp"
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- map: made by docs/package_map.py -->", "<!-- end of the map -->"
# From the ground up: a package imports only those that stand before it.
STOREYS = {
    "The prescription": ("planning",),
    "On a model": ("apply", "nn", "data", "hf", "hosts"),
    "The evidence": ("measure", "theory", "replicas", "ladders", "store", "coordcheck", "sweep", "dmft"),
    "For people": ("report", "cli", "testing"),
}


def first_sentence(path: Path) -> str:
    """Of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s(?=[A-Z])", paragraph)[0].rstrip(".:").replace("``", "`")


def module_map() -> str:
    """Private modules first, then every package with its files, storey by storey."""
    lines = ["### What every package needs", "", *_rows(PACKAGE, sorted(PACKAGE.glob("_[a-z]*.py")))]
    for storey, packages in STOREYS.items():
        lines += ["", f"### {storey}", ""]
        for package in packages:
            folder = PACKAGE / package
            lines += [f"**`{package}/`** {_about(folder)}", "", *_rows(folder, list(_files(folder))), ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _about(folder: Path) -> str:
    """A package's docstring without its pictures."""
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    words = [line for line in text.splitlines() if not line.startswith(" ") and "->" not in line and "   " not in line]
    return " ".join(" ".join(words).split()).replace("``", "`")


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*.py")):
        if path.parent == folder and path.name == "__init__.py":
            continue
        yield path


def _rows(folder: Path, paths: list[Path]) -> list[str]:
    rows = []
    for path in paths:
        name = path.relative_to(folder).as_posix()
        name = name.removesuffix("__init__.py") if name.endswith("/__init__.py") else name
        rows.append(f"| `{name}` | {first_sentence(path)} |")
    return ["| file | what it holds |", "|---|---|", *rows]


def page() -> str:
    """CONTRIBUTING.md with the map as it should be."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return f"{before}{BEGIN}\n\n{module_map()}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
