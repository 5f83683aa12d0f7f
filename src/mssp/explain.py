"""One role explained: its rule in the asked regimes, why, and where the paper says so."""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass

from mssp._tables import align, markdown_table
from mssp.plan_text import SCHEME_NAMES
from mssp.power import Power
from mssp.reasons import REASONS, SCHEME_NOTES
from mssp.rules import BIASES, GAINS, REGIME_FREE, REGIMES, Rule, check_cell, check_names, rule

_WIDTH = 100


@dataclass(frozen=True)
class Explanation:
    """The rule of one role as a table (rows by quantity, columns by regime) with the words around it."""

    role: str
    scheme: str
    header: list[str]
    rows: list[list[str]]
    what: str
    why: list[str]
    where: str

    def __str__(self) -> str:
        def paragraph(label: str, words: str) -> str:
            return textwrap.fill(words, _WIDTH, initial_indent=f"{label:<7}", subsequent_indent=" " * 7)

        why = [paragraph("why" if i == 0 else "", words) for i, words in enumerate(self.why)]
        table = ["  " + line for line in align([self.header, *self.rows])]
        return "\n".join([f"{self.role}: {self.what}", "", *table, "", *why, paragraph("where", self.where)])

    def markdown(self) -> str:
        table = markdown_table(self.header, self.rows)
        return "\n".join([f"**{self.role}**: {self.what}", "", *table, "", *self.why, "", f"*{self.where}*"])

    def json(self) -> str:
        cells = {name: dict(zip(self.header[1:], row, strict=True)) for name, *row in self.rows}
        document = {"role": self.role, "scheme": self.scheme, "what": self.what, "rules": cells, "why": self.why}
        return json.dumps({**document, "where": self.where}, indent=2, ensure_ascii=False)


def explain(role: str, regime: str | None = None, scheme: str = "mssp") -> Explanation:
    """The rule of a role in one regime, or in all of them.

    >>> print(explain("expert_out", "II").rows[0])
    ['init std', 'M¹ᐟ²N_e⁻¹ᐟ² (μP: N_e⁻¹ᐟ²)']
    """
    check_names(scheme, "adamw", regime)
    if role not in REASONS:
        raise ValueError(f"unknown role {role!r}: use one of {', '.join(REASONS)}")
    if scheme in REGIME_FREE:
        regimes: tuple[str | None, ...] = (None,)
    else:
        regimes = (regime,) if regime else ("III",) if scheme == "jiang" else REGIMES
    optimizers = [name for name in ("sgd", "adam") if _covered(scheme, regimes[0], name)]
    if not optimizers:
        check_cell(scheme, regimes[0], "adam")
    rows = [["init std", *(_init(role, scheme, column, optimizers[0]) for column in regimes)]]
    if "sgd" in optimizers:
        rows.append(["SGD lr", *(_sgd(role, scheme, column) for column in regimes)])
    if "adam" in optimizers:
        adam = [rule(role, scheme, column, "adam") for column in regimes]
        rows.append(["Adam lr", *(_by_shape(found, found.lr) for found in adam)])
        rows.append(["Adam eps", *(_by_shape(found, found.eps) for found in adam)])
    reason = REASONS[role]
    why, where = [reason.why], reason.where
    why += [f"Regime {name}: {text}" for name, text in reason.by_regime.items() if name in regimes]
    if scheme in SCHEME_NOTES:
        why, where = [SCHEME_NOTES[scheme][0]], SCHEME_NOTES[scheme][1]
    return Explanation(
        role=role,
        scheme=scheme,
        header=[SCHEME_NAMES[scheme], *("any regime" if column is None else f"Regime {column}" for column in regimes)],
        rows=rows,
        what=reason.what,
        why=why,
        where=where,
    )


def _covered(scheme: str, regime: str | None, optimizer: str) -> bool:
    try:
        check_cell(scheme, regime, optimizer)
    except ValueError:
        return False
    return True


def _init(role: str, scheme: str, regime: str | None, optimizer: str) -> str:
    if role in GAINS:
        return "1 (constant)"
    if role in BIASES:
        return "0"
    found = rule(role, scheme, regime, optimizer)
    text = _start(found)
    if scheme == "mssp":
        mup = rule(role, "mup", regime, optimizer)
        text += f" (μP: {_start(mup)})" if _start(mup) != text else ""
    return text + (" (zero by default)" if role == "readout" else "")


def _start(found: Rule) -> str:
    return "0" if found.init_std is None else _by_shape(found, found.init_std) + (", tied" if found.tied else "")


def _sgd(role: str, scheme: str, regime: str | None) -> str:
    found, printed = (rule(role, scheme, regime, "sgd", as_printed) for as_printed in (False, True))
    note = f" (printed: {_by_shape(printed, printed.lr)})" if found.source == "erratum" else ""
    return _by_shape(found, found.lr) + note


def _by_shape(found: Rule, power: Power | None) -> str:
    assert power is not None
    return str(found.by_shape(power))
