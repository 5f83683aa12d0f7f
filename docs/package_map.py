"""The map of the package in CONTRIBUTING.md, made of the first sentences of docstrings, and the picture of its storeys.

python docs/package_map.py      writes both anew
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "mssp"
PAGE = ROOT / "CONTRIBUTING.md"
PICTURE = ROOT / "docs" / "architecture.svg"
BEGIN, END = "<!-- map: made by docs/package_map.py -->", "<!-- end of the map -->"
# From the ground up: a package imports only those that stand before it.
STOREYS = {
    "The prescription": ("planning",),
    "On a model": ("apply", "nn", "data", "hf", "hosts"),
    "The evidence": ("measure", "theory", "replicas", "ladders", "store", "coordcheck", "sweep", "train", "dmft"),
    "For people": ("report", "cli", "testing"),
}
# What the picture says of a package: two or three words, where the map has a sentence.
CAPTIONS = {
    "planning": "shapes, rules, plans", "apply": "weights, groups", "nn": "the paper’s models", "data": "images, text",
    "hf": "Hugging Face", "hosts": "exports", "measure": "sizes of terms", "theory": "exponents",
    "replicas": "R models at once", "ladders": "growing models", "store": "runs in a file", "coordcheck": "the check",
    "sweep": "transfer, tuning",
    "train": "one model, by a plan", "dmft": "infinite size", "report": "figures, a page", "cli": "commands",
    "testing": "contracts",
}  # fmt: skip


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


# -- the picture -------------------------------------------------------------------------------------------------------

_BOX, _GAP, _SIDE, _STOREY = (104, 46), 8, 138, 74  # pixels: a package, between two, the names of storeys, a storey
_FONT = "Helvetica, Arial, sans-serif"


def picture() -> str:
    """The storeys as an SVG: the prescription is the ground, and a package stands on those below it and to its left."""
    width = _SIDE + max(map(len, STOREYS.values())) * (_BOX[0] + _GAP) + 12
    height = _STOREY * len(STOREYS) + 34
    words = "; ".join(f"{storey}: {', '.join(packages)}" for storey, packages in STOREYS.items())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="{_FONT}">',
        f"<title>The storeys of mssp</title><desc>From the ground up: {words}.</desc>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
    ]
    for level, (storey, packages) in enumerate(STOREYS.items()):
        top = 12 + _STOREY * (len(STOREYS) - 1 - level)
        parts += [
            f'<rect x="12" y="{top}" width="{width - 24}" height="{_STOREY - 8}" rx="6" fill="{_GROUNDS[level]}"/>',
            f'<text x="24" y="{top + 38}" font-size="13" font-weight="bold" fill="#1a1a1a">{storey}</text>',
        ]
        for place, package in enumerate(packages):
            left, middle = _SIDE + place * (_BOX[0] + _GAP), _SIDE + place * (_BOX[0] + _GAP) + _BOX[0] / 2
            parts += [
                f'<rect x="{left}" y="{top + 10}" width="{_BOX[0]}" height="{_BOX[1]}" rx="4" fill="#ffffff" '
                'stroke="#595959"/>',
                f'<text x="{middle:g}" y="{top + 29}" font-size="13" font-weight="bold" fill="#0b3c7d" '
                f'text-anchor="middle">{package}</text>',
                f'<text x="{middle:g}" y="{top + 46}" font-size="10.5" fill="#595959" text-anchor="middle">'
                f"{CAPTIONS[package]}</text>",
            ]
    foot = "A package imports only packages to its left and on the storeys below it."
    parts.append(f'<text x="24" y="{height - 12}" font-size="12" fill="#595959">{foot}</text>')
    return "\n".join([*parts, "</svg>", ""])


_GROUNDS = ("#dfe8f5", "#e6f2ec", "#fbf0dd", "#f6e6ee")  # of the storeys, from the ground up


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    PICTURE.write_text(picture(), encoding="utf-8")
