"""The page of all families of MoE models in transformers, made of the entries that their tests have.

python docs/family_table.py      writes it anew
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import transformers

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.hf.families import NOT_YET, PLANNED, REFUSED  # noqa: E402 # the folder above is not on the path before
from tests.hf.families.found import Found, found  # noqa: E402

PAGE = ROOT / "docs" / "families.md"
_HEAD = """# Families of Mixture-of-Experts models

Every language model with experts in transformers {version}, found by its code. A test fails when there is one that is
not here, and another when this page is not what `python docs/family_table.py` writes.

{counts}

"""
_PLANNED = """## Planned

For each, a tiny model is tested: every parameter has a role, initial standard deviations are those of the plan slice by
slice, ties and zeros are exact, a residual factor of zero makes every block the identity, a step moves what has a
gradient, and checkpoints and folded models compute the same. What gates are is found by running routers.

| family | class | gates | what is special | also in |
|---|---|---|---|---|
"""
_REFUSED = """
## Refused

| family | class | why |
|---|---|---|
"""
_NOT_YET = """
## Not looked at yet

"""


def page() -> str:
    """docs/families.md as it should be."""
    families = found()
    counts = f"{len(families)} families: {len(PLANNED)} are planned, {len(REFUSED)} refused"
    counts += f", {len(NOT_YET)} not looked at yet." if NOT_YET else "."
    text = _HEAD.format(version=transformers.__version__, counts=counts) + _PLANNED + "".join(_planned(families))
    if REFUSED:
        text += _REFUSED + "".join(
            f"| `{name}` | {families[name].class_name} | {REFUSED[name].reason} |\n" for name in sorted(REFUSED)
        )
    return text + (f"{_NOT_YET}{', '.join(f'`{name}`' for name in sorted(NOT_YET))}\n" if NOT_YET else "")


def _planned(families: Mapping[str, Found]) -> Iterator[str]:
    for name, entry in sorted(PLANNED.items()):
        special = "; ".join(filter(None, (", ".join(entry.special), entry.note)))
        larger = ", ".join(f"`{each}`" for each in families[name].through)
        yield f"| `{name}` | {families[name].class_name} | {entry.gates} | {special} | {larger} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
