"""A check as text for people: one table per kind of quantity, and the verdicts in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

from mssp._tables import align, number
from mssp.coordcheck.judgement import WIDEST_CI, Judged
from mssp.measure.quantities import BY_START, BY_UPDATE, sections

if TYPE_CHECKING:
    from mssp.coordcheck.result import Check

_MOST_OFF_SHOWN = 6  # quantities that are off, listed in the verdict


def lines(check: Check, *, everything: bool = False) -> list[str]:
    """The whole report; without ``everything``, quantities with neither prediction nor desideratum are left out."""
    return [*_heading(check), *_tables(check, everything), "", *verdict_lines(check)]


def headings(check: Check) -> list[str]:
    """The lines to print in bold."""
    return [heading(check), *sections(), *(line for line in verdict_lines(check) if line.startswith(("pass", "FAIL")))]


def heading(check: Check) -> str:
    """The check's setting in words."""
    return " · ".join(filter(None, (check.setting.title, check.setting.details)))


def verdict_lines(check: Check) -> list[str]:
    """The answers to both questions, and the causes behind them."""
    judged = judged_of(check)
    off = [quantity for quantity in check.off if quantity in judged]
    if not off:
        verdict = [f"pass: all {len(judged)} predicted quantities scale as the theory says of this scheme"]
    else:
        more = len(off) - _MOST_OFF_SHOWN
        verdict = [f"FAIL: {len(off)} of {len(judged)} predicted quantities are off"]
        verdict += [f"  likely cause: {cause.text}" for cause in check.causes[:3]]
        if not any(cause.setting == "divergence" for cause in check.causes):
            verdict += [f"  {quantity.name} {quantity.reason}" for quantity in off[:_MOST_OFF_SHOWN]]
            verdict += [f"  and {more} more"] if more > 0 else []
    vague = [quantity.name for quantity in vague_of(check)]
    if vague:
        unclear = f"unclear: {len(vague)} exponents are known to no better than ±{WIDEST_CI:g}"
        verdict.append(f"{unclear} ({_first_names(vague)}): more seeds would tell")
    unstable = [quantity.name for quantity in check.quantities.values() if not quantity.stable]
    if unstable:
        return [*verdict, f"not stable: what changes with scale where nothing should: {_first_names(unstable)}"]
    return [*verdict, "stable: the desiderata of maximal scale stability hold"]


def judged_of(check: Check) -> list[Judged]:
    """The quantities that are ``ok`` or ``off``, without those that repeat another quantity."""
    quantities = check.quantities.values()
    return [quantity for quantity in quantities if quantity.verdict in ("ok", "off") and not _is_copy(check, quantity)]


def vague_of(check: Check) -> list[Judged]:
    """The judged quantities whose exponent is so uncertain that the verdict says nothing."""
    judged = judged_of(check)
    return [quantity for quantity in judged if quantity.judged is not None and not quantity.judged.ci <= WIDEST_CI]


def _first_names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown}, …"


def _heading(check: Check) -> list[str]:
    return [
        heading(check),
        f"{check.axis}s {' '.join(map(str, check.sizes))}, {check.steps} updates, {check.seeds} seeds; "
        f"sizes after the last update, exponents over {check.axis} averaged over the updates they are predicted for",
    ]


def table(check: Check, *, everything: bool = False) -> tuple[list[str], dict[str, list[list[str]]]]:
    """The table's header, and its rows by section: a row for each quantity."""
    rows = {}
    for title, families in sections(details=everything).items():
        rows[title] = [
            _row(check, quantity)
            for family in families
            for quantity in check.quantities.values()
            if quantity.name.kind.family == family and (everything or _worth_showing(check, quantity))
        ]
    header = ["", *map(str, check.sizes), "exponent", "expected", "verdict"]
    return header, {title: body for title, body in rows.items() if body}


def _tables(check: Check, everything: bool) -> Iterator[str]:
    header, by_section = table(check, everything=everything)
    header_line, rule, *aligned = align([header, *chain.from_iterable(by_section.values())])
    yield from ("", header_line, rule)
    rows = iter(aligned)
    for section, (title, body) in enumerate(by_section.items()):
        yield from ["", title] if section else [title]
        yield from islice(rows, len(body))


def _is_copy(check: Check, quantity: Judged) -> bool:
    """Whether a quantity is one part of a term and equals it, as the part of ΔW4 does where the initial W4 is zero."""
    name = quantity.name
    return name.part == BY_UPDATE and name.kind(name.of, BY_START) not in check.quantities


def _worth_showing(check: Check, quantity: Judged) -> bool:
    if _is_copy(check, quantity):
        return False
    return quantity.verdict in ("ok", "off") or (quantity.verdict == "unpredicted" and quantity.name.kind.always)


def _row(check: Check, quantity: Judged) -> list[str]:
    values = [number(quantity.values[size][-1]) for size in check.sizes]
    exponent = quantity.judged if quantity.judged is not None else quantity.exponents[-1]
    shown = "" if exponent is None else exponent.text(2)
    verdict = quantity.verdict + ("" if quantity.stable else ", not stable")
    return [quantity.name, *values, shown, _expected(quantity), verdict]


def _expected(quantity: Judged) -> str:
    if quantity.expected is None or quantity.expected_power is None:
        return ""
    power = quantity.expected_power
    low = power - float(quantity.expected.slack)
    text = f"{power:.2g}" if low == power else f"{low:.2g} … {power:.2g}"
    simulated = any(prediction is not None and prediction.source == "simulated" for prediction in quantity.predicted)
    return text.replace("-", "−") + (" (simulated)" if simulated else "")
