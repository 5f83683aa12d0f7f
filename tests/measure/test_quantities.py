"""The vocabulary of quantities: names are read and written in one file, and a new kind is known everywhere at once."""

from __future__ import annotations

import ast
import copy
import json
import pickle
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

import mssp
from mssp.coordcheck.causes import causes
from mssp.coordcheck.result import Check
from mssp.coordcheck.text import table, verdict_lines
from mssp.measure import quantities
from mssp.measure.quantities import (
    ACCUSING,
    AGGREGATE,
    AGGREGATION,
    BACKWARD,
    BACKWARD_PROPAGATING,
    EFFECTIVE,
    INIT,
    KINDS,
    LARGEST_LOAD,
    TO_HIDDEN,
    UPDATED,
    WAY_BACK,
    Kind,
    Quantity,
    glossary,
    sections,
)
from mssp.report.figures.checks import exponents_figure
from mssp.theory.expected import Prediction, Theory
from mssp.theory.propagation import Exponent
from tests.coordcheck.synthetic import law, plans, series

PACKAGE = Path(mssp.__file__).parent
GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"


# -- names -------------------------------------------------------------------------------------------------------------


def of_kind(kind: Kind) -> Iterator[Quantity]:
    """All of a kind; of roles, two."""
    for of in ("router", "expert_in_bias") if kind.of_roles else kind.terms or ("",):
        for part in ("", *kind.parts):
            if kind.admits(of, part):
                yield kind(of, part)


ALL = [quantity for kind in KINDS for quantity in of_kind(kind)]


def test_names_are_those_of_the_files() -> None:
    assert EFFECTIVE("router") == "effective/router"
    assert BACKWARD("A4", part="1") == "backward/A4.1"
    assert TO_HIDDEN(INIT, UPDATED) == "backward/h2-init-update"
    assert BACKWARD_PROPAGATING("expert_in") == "backward/propagating/expert_in"
    assert AGGREGATION() == "aggregation"
    assert LARGEST_LOAD() == "router/load"


@pytest.mark.parametrize("quantity", ALL)
def test_a_name_is_read_as_it_was_written(quantity: Quantity) -> None:
    read = Quantity.named(str(quantity))
    assert (read.kind, read.of, read.part) == (quantity.kind, quantity.of, quantity.part)
    assert [kind for kind in KINDS if kind.read(quantity) is not None] == [quantity.kind]  # and not otherwise
    assert read is quantity is Quantity.named(quantity)


@pytest.mark.parametrize("quantity", [EFFECTIVE("router"), BACKWARD("A4", "1"), AGGREGATION()])
def test_a_quantity_is_a_string_to_everyone_else(quantity: Quantity) -> None:
    by_name: dict[str, int] = {quantity: 1}
    assert by_name[str(quantity)] == {str(quantity): 1}[quantity] == 1
    assert json.loads(json.dumps({quantity: quantity})) == {str(quantity): str(quantity)}
    assert f"{quantity}" == str(quantity)
    assert type(str(quantity)) is str
    for other in (pickle.loads(pickle.dumps(quantity)), copy.deepcopy(quantity)):
        assert other is quantity
    assert pickle.loads(pickle.dumps(quantity.kind)) is quantity.kind


@pytest.mark.parametrize(
    "name",
    [
        "", "nothing", "effective", "effective/", "effective/a/b", "router/nothing", "router/load/x", "aggregation/x",
        "aggregate/A23", "backward/A4.3", "backward/A4.", "backward/h2-init", "backward/h2-init-", "backward/router",
        "gradient/router.1",
    ],
)  # fmt: skip
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"is not the name of a quantity: names are like effective/router$") as error:
        Quantity.named(name)
    assert "\n" not in str(error.value)


def test_a_kind_makes_no_other_quantities() -> None:
    with pytest.raises(ValueError, match=r"^'aggregate/A23' is not the name of a quantity: of this kind there is `agg"):
        AGGREGATE("A23")
    for kind, of, part in ((EFFECTIVE, "", ""), (EFFECTIVE, "a/b", ""), (TO_HIDDEN, INIT, ""), (AGGREGATION, "x", "")):
        with pytest.raises(ValueError, match="is not the name of a quantity"):
            kind(of, part)


def test_a_file_with_another_name_is_refused() -> None:
    written = Check.of(series({"effective/router": law(0.0)}), Theory(plans())).json()
    written["quantities"]["turned/router"] = written["quantities"].pop("effective/router")
    with pytest.raises(ValueError, match=r"'turned/router' is not the name of a quantity"):
        Check.from_json(written)


def test_groups_of_kinds_are_whole() -> None:
    assert {kind for kind in KINDS if kind.accuses} == set(ACCUSING)
    assert {kind for kind in KINDS if kind.family == BACKWARD.family} == set(WAY_BACK)
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    assert not [kind.name for kind in KINDS if not kind.meaning.endswith(".")]


def test_tables_read_from_what_was_told_to_the_details() -> None:
    assert list(sections(details=True)) == [*sections(), "details"]
    assert sections() == {
        "what the layers were told": ("weights", "rate", "eps", "aggregation", "experts"),
        "updates, layer by layer": ("effective", "propagating"),
        "the sum over experts": ("aggregate", "features", "router"),
        "gradients": ("gradient", "faithfulness"),
        "backward": ("backward",),
        "activations": ("activation",),
    }


def test_the_glossary_has_every_kind() -> None:
    _, _, rest = GLOSSARY.read_text(encoding="utf-8").partition("<!-- quantities:")
    lines = rest.partition("<!-- end of quantities -->")[0].splitlines()[1:]
    assert lines == glossary(), "\n".join(["paste this into docs/glossary.md:", *glossary()])


# -- nobody else reads names -------------------------------------------------------------------------------------------

# What stands before ``measure`` knows of no quantities, and splits paths and addresses of files.
BEFORE = ("planning", "apply", "nn", "data", "hf", "hosts")
BEGINNINGS = tuple({kind.family + "/" for kind in KINDS} | {kind.name + ("-" if kind.pairs else "/") for kind in KINDS})
SPLITS = ("partition", "rpartition", "split", "rsplit")
TRIMS = ("startswith", "endswith", "removeprefix", "removesuffix")


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The strings of a piece of code with their lines, those between the braces of f-strings too, but no docstrings."""
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield node.lineno, node.value


def spelled(tree: ast.AST) -> Iterator[str]:
    """Names of quantities, or the beginnings of some, that are written out."""
    for line, text in texts(tree):
        if text.startswith(BEGINNINGS):
            yield f"line {line} spells {text!r}"


def parsed(tree: ast.AST) -> Iterator[str]:
    """Where a string is taken apart as names of quantities are: at a slash, or at the dot before a part."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        given = [text for argument in node.args for _, text in texts(argument)]
        slashes = node.func.attr in SPLITS and "/" in given
        ends = node.func.attr in TRIMS and any(each.startswith(("/", ".1", ".2")) for each in given)
        if slashes or ends:
            yield f"line {node.lineno} parses with {node.func.attr}({', '.join(map(repr, given))})"


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(PACKAGE.rglob("*.py")) if path != Path(quantities.__file__)],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_names_are_read_and_written_by_the_vocabulary_alone(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not list(spelled(tree)), "make it by its kind, as EFFECTIVE(role)"
    if path.relative_to(PACKAGE).parts[0] not in BEFORE:
        assert not list(parsed(tree)), "ask a Quantity for its kind, its role and its part"


@pytest.mark.parametrize(
    "code",
    [
        'sizes["effective/router"]', 'f"gradient/{role}"', 'name.startswith(("effective/", "backward/"))',
        'kinds = ("weights/", "update/")', 'name.partition("/")[0]', 'name.rpartition("/")[2]', 'name.split("/", 1)',
        'name.endswith(".2")', 'name.removesuffix(f"/{role}")', 'f"backward/{name}.1"', '{"backward/router-init"}',
        'sizes = {f"router/{what}": 1}',
    ],
)  # fmt: skip
def test_what_would_read_or_write_a_name_is_noticed(code: str) -> None:
    assert [*spelled(ast.parse(code)), *parsed(ast.parse(code))]


def test_docstrings_and_other_words_are_left_alone() -> None:
    code = '"""As ``effective/router``."""\nEFFECTIVE("router")\nf"{done}/{count}"\ntext.partition(",")\n"gradient of"'
    assert not [*spelled(ast.parse(code)), *parsed(ast.parse(code))]


# -- a new kind --------------------------------------------------------------------------------------------------------

TURNING = Kind(
    name="turning",
    section="updates, layer by layer",
    meaning="By how much a layer turns its input.",
    accuses="the angle of {role}",
)


class Expecting(Theory):
    """The usual theory, which also expects turning to stay."""

    def prediction(self, name: str, step: int) -> Prediction | None:
        if Quantity.named(name).kind is TURNING:
            return Prediction(Exponent(Fraction(0)), "paper")
        return super().prediction(name, step)


def test_a_new_kind_is_in_tables_verdicts_causes_legends_and_the_glossary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantities, "KINDS", (*KINDS, TURNING))
    values = {"effective/router": law(0.0, start=2), "turning/router": law(0.0), "turning/readout": law(1.0)}
    check = Check.of(series(values), Expecting(plans()))
    _, by_section = table(check)
    rows = {row[0]: row[-1] for row in by_section["updates, layer by layer"]}
    assert rows == {"effective/router": "ok", "turning/router": "ok", "turning/readout": "off"}
    assert "  turning/readout grows as N^1, expected N^0: " in "\n".join(verdict_lines(check))
    assert Check.from_json(json.loads(json.dumps(check.json()))).quantities["turning/router"].verdict == "ok"
    figure = exponents_figure(check, ["turning/router", "turning/readout"])
    legends = {series.legend for panel in figure.panels for series in panel.series if series.in_legend}
    assert {figure.legends[name] for name in legends} == {"layer"}
    assert glossary()[-1] == "| `turning/ROLE` | By how much a layer turns its input. |"
    # And once it stands among those that accuse, a miss names its setting.
    monkeypatch.setattr("mssp.coordcheck.causes.ACCUSING", (*ACCUSING, TURNING))
    assert [cause.text for cause in causes(check.quantities, "N")] == [
        "the angle of readout scales as N^1, the rule says N^0"
    ]
