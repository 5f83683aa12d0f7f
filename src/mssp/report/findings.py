"""Findings: for each setting the answers of its sweep and of its check, as a sentence and as a row of a table."""

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
_NO_ANSWER = "—"
_MAX_VAGUE = 1 / 3  # of the judged quantities: if more of them are hardly known, an answer is not yes but unclear


@dataclass(frozen=True)
class Finding:
    """What is known of one setting on one data set, from a sweep, a check or both.

    Args:
        more: other details by which findings differ, such as routing, readout or multipliers; mostly empty.
        outcome: the result of the sweep.
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
        """All answers, with uncertainties."""
        return f"{self.name}: {' '.join((*_check_sentences(self.check), *_sweep_sentences(self.outcome)))}"

    @property
    def row(self) -> Row:
        """The row in the table of the summary."""
        sizes = self.check.sizes if self.outcome is None and self.check is not None else ()
        if self.outcome is not None:
            sizes = tuple(each.width for each in self.outcome.summaries)
        symbol = "N" if self.check is None else self.check.symbol
        answers = [Cell(_NO_ANSWER)] * 2 if self.check is None else [implemented(self.check), stable(self.check)]
        cells: list[str | Cell] = [f"{self.name} · {symbol} = {min(sizes)} to {max(sizes)}", *answers]
        if self.outcome is None:
            return Row([*cells, _NO_ANSWER, _NO_ANSWER, _NO_ANSWER], self.tags)
        verdict = self.outcome.drift_verdict
        drift = "" if verdict == "unclear" else f" {self.outcome.drift.text(2)}"
        cells.append(Cell(f"{verdict}{drift}", _DRIFT[verdict]))
        cells.append(Cell(self.outcome.wider_is_better, _TREND[self.outcome.wider_is_better]))
        at_edge = self.outcome.summaries[-1].at_edge
        lr = lr_at_the_widest(self.outcome).replace("95 %: ", "")  # the caption says that intervals are those of 95 %
        return Row([*cells, Cell(lr, "unsure" if at_edge else "")], self.tags)


_DRIFT = {"stays": "good", "drifts up": "bad", "drifts down": "bad", "unclear": "unsure"}
# A stall is not bad but unsure: that no gain can be shown does not prove that there is none.
_TREND = {"yes": "good", "no": "bad", "stalls": "unsure", "unclear": "unsure"}


def tags(setting: Setting, data: str) -> dict[str, str]:
    """The tags by which a reader filters the page, without empty ones."""
    regime = "" if setting.regime is None else setting.regime.name
    values = {"regime": regime, "optimizer": setting.optimizer.title, "data": data}
    return {name: value for name, value in values.items() if value}


@takes(contents=kind_of("mssp.report.contents.Contents"))
def findings_of(contents: Contents) -> list[Finding]:
    """The findings of a report: sweeps with the checks of the same models, the other checks, and recorded sweeps."""
    findings = []
    used: list[Checked] = []
    for sweep in contents.sweeps:
        for swept in sweep.swept:
            own = [checked for checked in contents.checks if checked.is_of(swept, sweep.data)][:1]
            used += own
            check = own[0].check if own else None
            contender = swept.contender
            findings.append(Finding(contender.setting, sweep.data, contender.details, swept.outcome, check))
    for checked in contents.checks:
        if not any(checked is other for other in used):
            check, more = checked.check, _details(checked)
            findings.append(Finding(check.setting, checked.data, more, None, check))
    for recorded in contents.recorded:
        data = recorded.experiment.partition(",")[0]
        for contender, outcome in recorded.outcomes.items():
            more = " · ".join(filter(None, (contender.details, "recorded")))
            findings.append(Finding(contender.setting, data, more, outcome))
    return findings


def _details(checked: Checked) -> str:
    return " · ".join(filter(None, (checked.check.setting.details, checked.details)))


def overview(findings: list[Finding]) -> Table:
    """The table of the summary, with a row per finding."""
    caption = "Best lr: doublings of the best learning rate per doubling of N. Intervals are those of 95 %."
    return Table(HEADER, [finding.row for finding in findings], "overview", caption)


def implemented(check: Check) -> Cell:
    """The answer to "Is it implemented right?": do all quantities scale as the theory says of the scheme?"""
    return _answer(check, check.passed, "{vague} of {judged} unclear")


def stable(check: Check) -> Cell:
    """The answer to "Is it stable?": does nothing change with size that should not?"""
    return _answer(check, check.stable, "unclear")


def _answer(check: Check, holds: bool, unclear: str) -> Cell:
    judged, vague = len(judged_of(check)), len(vague_of(check))
    if not judged:
        return Cell(_NO_ANSWER)
    if not holds:
        return Cell("no", "bad")
    if vague > _MAX_VAGUE * judged:
        return Cell(unclear.format(vague=vague, judged=judged), "unsure")
    return Cell("yes", "good")


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


def _check_sentences(check: Check | None) -> Iterator[str]:
    if check is None:
        return
    judged, vague = judged_of(check), len(vague_of(check))
    right = sum(quantity.verdict == "ok" for quantity in judged)
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
    """The exponent of an unstable quantity after the last update: of the sum over experts if it is one of them."""
    unstable = {name: quantity.exponents[-1] for name, quantity in check.quantities.items() if not quantity.stable}
    for name in (AGGREGATE("init"), *unstable):
        exponent = unstable.get(name)
        if exponent is not None:
            return f": after {check.steps} updates {name} goes as {check.symbol}^({exponent.text(2)})"
    return f": {', '.join(list(unstable)[:3])}"


def _sweep_sentences(outcome: Outcome | None) -> Iterator[str]:
    if outcome is None:
        return
    first, last = outcome.summaries[0], outcome.summaries[-1]
    if not math.isfinite(first.best.value) or not math.isfinite(last.best.value):
        diverged = first if not math.isfinite(first.best.value) else last
        yield f"At N = {diverged.width} all runs diverged: use smaller learning rates."
        return
    why = outcome.why_unclear or f"{outcome.drift.text(2)} doublings per doubling of N"
    drift = {"unclear": "may or may not stay"}.get(outcome.drift_verdict, outcome.drift_verdict)
    yield f"The best learning rate {drift} ({why})."
    digits = 3 if outcome.metric.higher_is_better else 4
    yield (
        f"Wider is better: {outcome.wider_is_better}, {first.best.text(digits)} at N = {first.width} and "
        f"{last.best.text(digits)} at N = {last.width} ({outcome.metric.label})."
    )
    yield f"At N = {last.width} use lr {lr_at_the_widest(outcome)}; {regret(outcome, digits)}."


def regret(outcome: Outcome, digits: int) -> str:
    """What the narrowest model's best learning rate costs at the widest."""
    first, last = outcome.summaries[0], outcome.summaries[-1]
    transferred = f"the best one of N = {first.width}"
    if math.isinf(last.regret.value):
        return f"{transferred} diverges there"
    if math.isnan(last.regret.value):
        return f"{transferred} was not tried there"
    return f"{transferred} loses {last.regret.text(digits)}"
