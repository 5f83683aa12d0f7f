"""What was found, setting by setting: a sweep and a check of one setting, side by side, in sentences and in a table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from mssp._constraints import kind_of, takes
from mssp.coordcheck.judgement import WIDEST_CI
from mssp.coordcheck.result import Check
from mssp.coordcheck.text import judged_of, vague_of
from mssp.measure.quantities import AGGREGATE
from mssp.planning.setting import Setting
from mssp.report.contents import Checked, Contents
from mssp.report.page.document import Cell, Row, Table
from mssp.sweep.transfer import Outcome

HEADER = ("setting", "implemented right", "stable", "best lr", "wider is better", "lr at the widest")
_NOT_LOOKED_AT = "—"
_VAGUE = 1 / 3  # of what is judged: if so much is hardly known, nothing is said for sure


@dataclass(frozen=True)
class Finding:
    """One setting: its sweep, its check, or both.

    Args:
        more: what else tells it apart: routing, readout, multipliers, that it is recorded; mostly nothing.
    """

    setting: Setting
    data: str
    more: str = ""
    outcome: Outcome | None = None
    check: Check | None = None

    @property
    def name(self) -> str:
        """As ``MSSP · Regime II · SGD · spectra``."""
        return " · ".join(filter(None, (self.setting.title, self.data, self.more)))

    @property
    def tags(self) -> dict[str, str]:
        return tags(self.setting, self.data)

    @property
    def sentence(self) -> str:
        """All of it, with uncertainties."""
        return f"{self.name}: {' '.join((*_told_by_check(self.check), *_told_by_sweep(self.outcome)))}"

    @property
    def row(self) -> Row:
        sizes = self.check.sizes if self.outcome is None and self.check is not None else ()
        if self.outcome is not None:
            sizes = tuple(each.width for each in self.outcome.summaries)
        symbol = "N" if self.check is None else self.check.symbol
        checked = [Cell(_NOT_LOOKED_AT)] * 2 if self.check is None else [implemented(self.check), stable(self.check)]
        cells: list[str | Cell] = [f"{self.name} · {symbol} = {min(sizes)} to {max(sizes)}", *checked]
        if self.outcome is None:
            return Row([*cells, _NOT_LOOKED_AT, _NOT_LOOKED_AT, _NOT_LOOKED_AT], self.tags)
        word = self.outcome.drift_verdict
        drift = "" if word == "unclear" else f" {self.outcome.drift.text(2)}"
        cells.append(Cell(f"{word}{drift}", _DRIFT[word]))
        cells.append(Cell(self.outcome.wider_is_better, _TREND[self.outcome.wider_is_better]))
        at_edge = self.outcome.summaries[-1].at_edge
        lr = lr_at_the_widest(self.outcome).replace("95 %: ", "")  # which the caption says of all
        return Row([*cells, Cell(lr, "unsure" if at_edge else "")], self.tags)


_DRIFT = {"stays": "good", "drifts up": "bad", "drifts down": "bad", "unclear": "unsure"}
# That no gain can be shown is no proof that there is none.
_TREND = {"yes": "good", "no": "bad", "stalls": "unsure", "unclear": "unsure"}


def tags(setting: Setting, data: str) -> dict[str, str]:
    """What filters go by."""
    regime = "" if setting.regime is None else setting.regime.name
    found = {"regime": regime, "optimizer": setting.optimizer.title, "data": data}
    return {name: value for name, value in found.items() if value}


@takes(contents=kind_of("mssp.report.contents.Contents"))
def findings_of(contents: Contents) -> list[Finding]:
    """Sweeps in their order, each with the check of the same models; checks of others; and what was recorded."""
    found = []
    used: list[Checked] = []
    for sweep in contents.sweeps:
        for each in sweep.swept:
            mine = next((checked for checked in contents.checks if checked.is_of(each, sweep.data)), None)
            used += [] if mine is None else [mine]
            check = None if mine is None else mine.check
            contender = each.contender
            found.append(Finding(contender.setting, sweep.data, contender.details, each.outcome, check))
    for checked in contents.checks:
        if not any(checked is other for other in used):
            check, more = checked.check, _details(checked)
            found.append(Finding(check.setting, checked.data, more, None, check))
    for kept in contents.recorded:
        data = kept.experiment.partition(",")[0]
        for contender, outcome in kept.outcomes.items():
            more = " · ".join(filter(None, (contender.details, "recorded")))
            found.append(Finding(contender.setting, data, more, outcome))
    return found


def _details(checked: Checked) -> str:
    return " · ".join(filter(None, (checked.check.setting.details, checked.details)))


def overview(found: list[Finding]) -> Table:
    caption = "Best lr: doublings of the best learning rate per doubling of N. Intervals are those of 95 %."
    return Table(HEADER, [each.row for each in found], "overview", caption)


def implemented(check: Check) -> Cell:
    """Whether it behaves as the theory says of its scheme, as far as that is known."""
    return _answer(check, check.passed, "{vague} of {judged} unclear")


def stable(check: Check) -> Cell:
    return _answer(check, check.stable, "unclear")


def _answer(check: Check, holds: bool, unclear: str) -> Cell:
    judged, vague = len(judged_of(check)), len(vague_of(check))
    if not judged:
        return Cell(_NOT_LOOKED_AT)
    if not holds:
        return Cell("no", "bad")
    return (
        Cell("yes", "good") if vague <= _VAGUE * judged else Cell(unclear.format(vague=vague, judged=judged), "unsure")
    )


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
    judged, vague = judged_of(check), len(vague_of(check))
    right = sum(each.verdict == "ok" for each in judged)
    if not judged:
        yield "nothing is predicted of what was measured."
        return
    if check.passed:
        known = f", of which {vague} are known to no better than ±{WIDEST_CI:g}" if vague else ""
        yield f"implemented right (all {right} predicted quantities scale as the theory says of it{known})"
    else:
        cause = f": {check.causes[0].text}" if check.causes else ""
        yield f"not as the theory says of it ({len(judged) - right} of {len(judged)} quantities are off{cause})"
    yield "and stable." if check.stable else f"but not stable{_what_changes(check)}."


def _what_changes(check: Check) -> str:
    """The plainest of what is not stable, with its exponent after the last update."""
    unstable = {name: each.exponents[-1] for name, each in check.quantities.items() if not each.stable}
    for name in (AGGREGATE("init"), *unstable):
        exponent = unstable.get(name)
        if exponent is not None:
            return f": after {check.steps} updates {name} goes as {check.symbol}^({exponent.text(2)})"
    return f": {', '.join(list(unstable)[:3])}"


def _told_by_sweep(outcome: Outcome | None) -> Iterator[str]:
    if outcome is None:
        return
    first, last = outcome.summaries[0], outcome.summaries[-1]
    if not math.isfinite(first.best.value) or not math.isfinite(last.best.value):
        lost = first if not math.isfinite(first.best.value) else last
        yield f"At N = {lost.width} all runs diverged: use smaller learning rates."
        return
    why = outcome.why_unclear or f"{outcome.drift.text(2)} doublings per doubling of N"
    yield f"The best learning rate {_IS.get(outcome.drift_verdict, outcome.drift_verdict)} ({why})."
    digits = 3 if outcome.metric.higher_is_better else 4
    yield (
        f"Wider is better: {outcome.wider_is_better}, {first.best.text(digits)} at N = {first.width} and "
        f"{last.best.text(digits)} at N = {last.width} ({outcome.metric.label})."
    )
    yield f"At N = {last.width} use lr {lr_at_the_widest(outcome)}; {regret(outcome, digits)}."


_IS = {"unclear": "may or may not stay"}


def regret(outcome: Outcome, digits: int) -> str:
    """What the narrowest model's best learning rate costs at the widest."""
    first, last = outcome.summaries[0], outcome.summaries[-1]
    carried = f"the best one of N = {first.width}"
    if math.isinf(last.regret.value):
        return f"{carried} diverges there"
    if math.isnan(last.regret.value):
        return f"{carried} was not tried there"
    return f"{carried} loses {last.regret.text(digits)}"
