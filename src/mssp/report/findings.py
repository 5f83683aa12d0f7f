"""What was found, setting by setting: a sweep and a check of one setting, side by side, in sentences and in a table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from mssp.coordcheck.result import Check
from mssp.coordcheck.text import judged_of
from mssp.plan_text import OPTIMIZER_NAMES, SCHEME_NAMES
from mssp.report.contents import Contents
from mssp.report.page import Cell, Row, Table
from mssp.sweep.learning_rates import Setting
from mssp.sweep.transfer import Outcome

HEADER = ("", "sizes", "implemented right", "stable", "best lr", "wider is better", "lr at the widest")
_NOT_LOOKED_AT = "—"


@dataclass(frozen=True)
class Finding:
    """One setting: its sweep, its check, or both.

    Args:
        more: what else tells it apart: routing, readout, multipliers; mostly nothing.
    """

    scheme: str
    regime: str
    optimizer: str
    data: str
    more: str = ""
    outcome: Outcome | None = None
    check: Check | None = None

    @property
    def name(self) -> str:
        """As ``MSSP · Regime II · SGD · spectra``."""
        regime = f"Regime {self.regime}" if self.regime else ""
        parts = (SCHEME_NAMES[self.scheme], regime, OPTIMIZER_NAMES[self.optimizer], self.data, self.more)
        return " · ".join(filter(None, parts))

    @property
    def tags(self) -> dict[str, str]:
        return tags(self.regime, self.optimizer, self.data)

    @property
    def sentence(self) -> str:
        """All of it, with uncertainties."""
        return f"{self.name}: {' '.join((*_told_by_check(self.check), *_told_by_sweep(self.outcome)))}"

    @property
    def row(self) -> Row:
        cells: list[str | Cell] = [self.name, self._sizes()]
        if self.check is None:
            cells += [_NOT_LOOKED_AT, _NOT_LOOKED_AT]
        else:
            cells.append(Cell("yes", "good") if self.check.passed else Cell("no", "bad"))
            cells.append(Cell("yes", "good") if self.check.stable else Cell("no", "bad"))
        if self.outcome is None:
            return Row([*cells, _NOT_LOOKED_AT, _NOT_LOOKED_AT, _NOT_LOOKED_AT], self.tags)
        word = self.outcome.drift_verdict
        drift = "" if math.isnan(self.outcome.drift.value) else f" {self.outcome.drift.text(2)}"
        cells.append(Cell(f"{word}{drift}", _DRIFT[word]))
        cells.append(Cell(self.outcome.wider_is_better, _TREND[self.outcome.wider_is_better]))
        at_edge = self.outcome.summaries[-1].at_edge
        return Row([*cells, Cell(lr_at_the_widest(self.outcome), "unsure" if at_edge else "")], self.tags)

    def _sizes(self) -> str:
        symbol = "L" if self.check is not None and self.check.axis == "depth" else "N"
        sizes = {*(self.check.sizes if self.check else ())} | {
            each.width for each in (self.outcome.summaries if self.outcome else ())
        }
        return f"{symbol} {min(sizes)} to {max(sizes)}"


_DRIFT = {"stays": "good", "drifts up": "bad", "drifts down": "bad", "unclear": "unsure"}
_TREND = {"yes": "good", "no": "bad", "stalls": "bad", "unclear": "unsure"}


def tags(regime: str | None, optimizer: str, data: str) -> dict[str, str]:
    """What filters go by."""
    found = {"regime": regime or "", "optimizer": OPTIMIZER_NAMES[optimizer], "data": data}
    return {name: value for name, value in found.items() if value}


def findings(contents: Contents) -> list[Finding]:
    """Sweeps in their order, each with the check of its setting, and then the checks that are left."""
    found = []
    checks = list(contents.checks)
    for name, outcome, setting, data in _sweeps(contents):
        more = name.removeprefix(f"Regime {setting.regime} · {setting.scheme} · {setting.optimizer}").strip(" ·")
        mine = next(
            (
                each
                for each in checks
                if (each.check.scheme, each.check.regime, each.check.optimizer, each.check.axis)
                == (setting.scheme, setting.regime, setting.optimizer, "width")
                and each.data in ("", data)
            ),
            None,
        )
        if mine is not None:
            checks.remove(mine)
        check = None if mine is None else mine.check
        found.append(Finding(setting.scheme, setting.regime, setting.optimizer, data, more, outcome, check))
    for each in checks:
        check = each.check
        more = "over depth" if check.axis == "depth" else ""
        found.append(Finding(check.scheme, check.regime or "", check.optimizer, each.data, more, None, check))
    return found


def _sweeps(contents: Contents) -> Iterator[tuple[str, Outcome, Setting, str]]:
    for sweep in contents.sweeps:
        for name, outcome in sweep.outcomes.items():
            yield name, outcome, sweep.settings[name], sweep.data


def overview(found: list[Finding]) -> Table:
    caption = "Best lr: doublings of the best learning rate per doubling of N, with its 95 % interval."
    return Table(HEADER, [each.row for each in found], "overview", caption)


def lr_at_the_widest(outcome: Outcome) -> str:
    """As ``0.96 (95 %: 0.85 to 1.1)``: the best learning rate of the largest model, and how sure that is."""
    widest = outcome.summaries[-1]
    place, ci = widest.best_lr.value, widest.best_lr.ci
    if not math.isfinite(place):
        return "none: all runs diverged"
    if widest.at_edge:
        return f"{2**place:.2g}, at the end of the grid: the best may lie beyond"
    if math.isnan(ci):
        return f"{2**place:.2g}, by one seed"
    return f"{2**place:.2g} (95 %: {2 ** (place - ci):.2g} to {2 ** (place + ci):.2g})"


def _told_by_check(check: Check | None) -> Iterator[str]:
    if check is None:
        return
    judged = judged_of(check)
    right = sum(each.verdict == "ok" for each in judged)
    if check.passed:
        yield f"implemented right (all {right} predicted quantities scale as the theory says of it)"
    else:
        cause = f": {check.causes[0].text}" if check.causes else ""
        yield f"not as the theory says of it ({len(judged) - right} of {len(judged)} quantities are off{cause})"
    yield "and stable." if check.stable else f"but not stable{_what_changes(check)}."


def _what_changes(check: Check) -> str:
    """The plainest of what is not stable, with its exponent."""
    unstable = {name: each.judged for name, each in check.quantities.items() if not each.stable}
    for name in ("aggregate/init", *unstable):
        exponent = unstable.get(name)
        if exponent is not None:
            symbol = "L" if check.axis == "depth" else "N"
            return f": {name} goes as {symbol}^({exponent.text(2)})"
    return ""


def _told_by_sweep(outcome: Outcome | None) -> Iterator[str]:
    if outcome is None:
        return
    first, last = outcome.summaries[0], outcome.summaries[-1]
    why = outcome.why_unclear or f"{outcome.drift.text(2)} doublings per doubling of N"
    yield f"The best learning rate {_IS[outcome.drift_verdict]} ({why})."
    digits = 3 if outcome.metric.higher_is_better else 4
    yield (
        f"Wider is better: {outcome.wider_is_better}, {first.best.text(digits)} at N = {first.width} and "
        f"{last.best.text(digits)} at N = {last.width} ({outcome.metric.label})."
    )
    yield f"At N = {last.width} use lr {lr_at_the_widest(outcome)}; {_regret(outcome, digits)}."


_IS = {"stays": "stays", "drifts up": "drifts up", "drifts down": "drifts down", "unclear": "may or may not stay"}


def _regret(outcome: Outcome, digits: int) -> str:
    first, last = outcome.summaries[0], outcome.summaries[-1]
    carried = f"the best one of N = {first.width}"
    return f"{carried} diverges" if math.isinf(last.regret.value) else f"{carried} loses {last.regret.text(digits)}"
