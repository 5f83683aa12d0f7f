"""A check for people: one table per kind of quantity, the verdicts in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mssp._tables import align, number
from mssp.coordcheck.judgement import WIDEST, Judged
from mssp.measure.quantities import BY_START, BY_UPDATE, sections
from mssp.planning.setting import ZERO

if TYPE_CHECKING:
    from mssp.coordcheck.result import Check


def lines(check: Check, *, everything: bool = False) -> list[str]:
    """The whole report; without ``everything``, what is neither predicted nor a desideratum is left out."""
    return [*_heading(check), *_tables(check, everything), "", *verdict_lines(check)]


def headings(check: Check) -> list[str]:
    """Lines to be emphasised."""
    return [heading(check), *sections(), *(line for line in verdict_lines(check) if line.startswith(("pass", "FAIL")))]


def heading(check: Check) -> str:
    setting = check.setting
    regime = f" · Regime {setting.regime}" if setting.regime else ""
    readout = "" if setting.readout == ZERO else f" · readout {setting.readout}"
    return f"{setting.scheme.title}{regime} · {setting.optimizer.title}{readout}"


def verdict_lines(check: Check) -> list[str]:
    """The answers to both questions, and what is behind them."""
    judged = judged_of(check)
    off = [each for each in check.off if each in judged]
    if not off:
        found = [f"pass: all {len(judged)} predicted quantities scale as the theory says of this scheme"]
    else:
        found = [f"FAIL: {len(off)} of {len(judged)} predicted quantities are off"]
        if check.causes:
            found += [f"  likely cause: {cause.text}" for cause in check.causes[:3]]
        if not any(cause.setting == "divergence" for cause in check.causes):
            found += [f"  {each.name} {each.reason}" for each in off[:_SHOWN]]
            found += [f"  and {len(off) - _SHOWN} more" if len(off) > _SHOWN else ""]
    vague = [each.name for each in vague_of(check)]
    if vague:
        known = f"unclear: {len(vague)} exponents are known to no better than ±{WIDEST:g}"
        found += [f"{known} ({_some(vague)}): more seeds would tell"]
    unstable = [each.name for each in check.quantities.values() if not each.stable]
    found += [
        "stable: the desiderata of maximal scale stability hold"
        if not unstable
        else f"not stable: what changes with scale where nothing should: {_some(unstable)}"
    ]
    return [line for line in found if line]


def judged_of(check: Check) -> list[Judged]:
    """The quantities that have a verdict, each once."""
    return [each for each in check.quantities.values() if each.verdict in ("ok", "off") and not _is_copy(check, each)]


def vague_of(check: Check) -> list[Judged]:
    """Those of which so little is known that their verdict says nothing."""
    return [each for each in judged_of(check) if each.judged is not None and not each.judged.ci <= WIDEST]


_SHOWN = 6


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown}, …"


def _heading(check: Check) -> list[str]:
    return [
        heading(check),
        f"{check.axis}s {' '.join(map(str, check.sizes))}, {check.steps} updates, {check.seeds} seeds; "
        f"sizes after the last update, exponents over {check.axis} averaged over the updates they are predicted for",
    ]


def table(check: Check, *, everything: bool = False) -> tuple[list[str], dict[str, list[list[str]]]]:
    """The header, and rows by section: a quantity each."""
    found = {}
    for title, families in sections(details=everything).items():
        there = [each for family in families for each in check.quantities.values() if each.name.kind.family == family]
        chosen = [each for each in there if everything or _worth_showing(check, each)]
        if chosen:
            found[title] = [_row(check, each) for each in chosen]
    return ["", *map(str, check.sizes), "exponent", "expected", "verdict"], found


def _tables(check: Check, everything: bool) -> Iterator[str]:
    header, by_section = table(check, everything=everything)
    rows: list[list[str]] = []
    starts: dict[int, str] = {}
    for title, body in by_section.items():
        starts[len(rows)] = title
        rows += body
    header_line, rule, *aligned = align([header, *rows])
    yield from ("", header_line, rule)
    for index, line in enumerate(aligned):
        if index in starts:
            yield from ([starts[index]] if not index else ["", starts[index]])
        yield line


def _is_copy(check: Check, each: Judged) -> bool:
    """Whether it is all of a term: what ΔW4 sends, where there is no W4_0."""
    return each.name.part == BY_UPDATE and each.name.kind(each.name.of, BY_START) not in check.quantities


def _worth_showing(check: Check, each: Judged) -> bool:
    if _is_copy(check, each):
        return False
    return each.verdict in ("ok", "off") or (each.verdict == "unpredicted" and each.name.kind.always)


def _row(check: Check, each: Judged) -> list[str]:
    values = [number(each.values[size][-1]) for size in check.sizes]
    exponent = each.judged if each.judged is not None else each.exponents[-1]
    shown = "" if exponent is None else exponent.text(2)
    verdict = each.verdict + ("" if each.stable else ", not stable")
    return [each.name, *values, shown, _expected(each), verdict]


def _expected(each: Judged) -> str:
    if each.expected is None or each.expected.power is None:
        return ""
    power = float(each.expected.power)
    low = power - float(each.expected.slack)
    text = f"{power:.2g}" if low == power else f"{low:.2g} … {power:.2g}"
    simulated = any(prediction is not None and prediction.source == "simulated" for prediction in each.predicted)
    return text.replace("-", "−") + (" (simulated)" if simulated else "")
