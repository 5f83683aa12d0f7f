"""A sweep's results as tables for people and as JSON for programs, and how that JSON is read back.

The package contains one such file, the sweep over all regimes on TinyImageNet, so that reports can show it beside the
results of small runs (records/2026-11-16-transfer-tinyimagenet.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import Any

from mssp._constraints import shown
from mssp._estimates import Estimate, finite, quantile, slope_of
from mssp._forms import Form
from mssp._tables import align, markdown_table
from mssp.planning.setting import Setting
from mssp.sweep.metrics import METRICS
from mssp.sweep.transfer import Contender, Outcome, RecordedTransfer, Transfer, WidthSummary

FORM = Form("sweep file", "mssp.sweep", "transfer.schema.json")
_TREND_SENTENCES = {
    "yes": "yes",
    "no": "no: some wider model is significantly worse",
    "stalls": "stalls: the widest is not significantly better than the narrowest",
    "unclear": "unclear: it takes two widths and two seeds, the narrowest of which trains",
}


def lines(outcomes: Mapping[Contender, Outcome]) -> list[str]:
    """Results for a terminal: for each contender a heading, a table and the verdicts."""
    text: list[str] = []
    for contender, outcome in outcomes.items():
        text += [""] if text else []
        text += [heading(contender, outcome), "", *align(cells(outcome)), "", *verdicts(outcome)]
    return text


def markdown(outcomes: Mapping[Contender, Outcome]) -> list[str]:
    """The text of :func:`lines` as Markdown."""
    text: list[str] = []
    for contender, outcome in outcomes.items():
        header, *body = cells(outcome)
        text += [""] if text else []
        text += [f"### {heading(contender, outcome)}", "", *markdown_table(header, body), ""]
        text += [f"- {verdict}" for verdict in verdicts(outcome)]
    return text


def heading(contender: Contender, outcome: Outcome) -> str:
    seeds = f"{outcome.seeds} seed{'s' if outcome.seeds > 1 else ''}"
    return f"{contender}: {outcome.metric.label}, {seeds}, mean ± 95% CI"


def cells(outcome: Outcome) -> list[list[str]]:
    """The table of one contender: a header and a row per width."""
    narrowest = outcome.summaries[0].width
    header = ["N", "best lr", "log2 best lr", "best", f"at N={narrowest}'s lr", "regret", "largest stable lr"]
    return [header, *map(_row, outcome.summaries)]


def _row(summary: WidthSummary) -> list[str]:
    edge = " (edge)" if summary.at_edge else ""
    return [
        str(summary.width),
        f"{2**summary.best_lr.value:.3g}{edge}" if math.isfinite(summary.best_lr.value) else "none",
        estimate_text(replace(summary.best_lr, ci=math.nan) if summary.at_edge else summary.best_lr, 2),
        estimate_text(summary.best, 4),
        estimate_text(summary.transferred, 4),
        estimate_text(summary.regret, 4),
        "none" if summary.largest_stable_lr is None else f"{summary.largest_stable_lr:.4g}",
    ]


def estimate_text(estimate: Estimate, digits: int) -> str:
    """The estimate with its interval; ``-`` for NaN, ``diverges`` for infinity."""
    if math.isnan(estimate.value):
        return "-"
    return "diverges" if math.isinf(estimate.value) else estimate.text(digits)


def verdicts(outcome: Outcome) -> list[str]:
    """The three answers about one contender, a sentence each."""
    drift = f"{estimate_text(outcome.drift, 2)} doublings per doubling of N"
    return [
        f"best lr {outcome.drift_verdict}: {outcome.why_unclear or drift}",
        f"wider is better, each at its own best lr: {_TREND_SENTENCES[outcome.wider_is_better]}",
        f"wider is better, all at the narrowest's lr: {_TREND_SENTENCES[outcome.wider_is_better_transferred]}",
    ]


def as_json(outcomes: Mapping[Contender, Outcome]) -> list[dict[str, Any]]:
    """A JSON object for each contender, which :func:`read` reads back."""
    documents = []
    for contender, outcome in outcomes.items():
        words = contender.setting.words() | {"active": contender.active}
        documents.append(
            {
                **{name: words[name] for name in ("optimizer", "regime", "scheme", "active", "readout")},
                "metric": outcome.metric.name,
                "seeds": outcome.seeds,
                "widths": {str(summary.width): _summary_json(summary) for summary in outcome.summaries},
                "drift": _estimate_json(outcome.drift),
                "drift_verdict": outcome.drift_verdict,
                "why_unclear": outcome.why_unclear or None,
                "wider_is_better": outcome.wider_is_better,
                "wider_is_better_transferred": outcome.wider_is_better_transferred,
            }
        )
    return documents


def _summary_json(summary: WidthSummary) -> dict[str, Any]:
    return {
        "log2_best_lr": _estimate_json(summary.best_lr),
        "best_grid_lr": summary.best_grid_lr,
        "at_edge": summary.at_edge,
        "best": _estimate_json(summary.best),
        "transferred": _estimate_json(summary.transferred),
        "regret": _estimate_json(summary.regret),
        "largest_stable_lr": summary.largest_stable_lr,
        "diverged": summary.diverged,
    }


def _estimate_json(estimate: Estimate) -> dict[str, float | None]:
    return {"value": finite(estimate.value), "ci": finite(estimate.ci)}


@dataclass(frozen=True)
class RecordedSweep:
    """A sweep that was read from a file.

    Args:
        experiment: the data, steps and batch, in words.
        made: when and on which device it was made, in words; empty where the file does not say.
        command: the command that made it; empty where the file does not say.
    """

    experiment: str
    outcomes: Mapping[Contender, RecordedTransfer]
    made: str = ""
    command: str = ""


def read(document: Mapping[str, Any]) -> RecordedSweep:
    """The sweep that ``mssp sweep --json`` wrote.

    A ValueError names what is not as ``transfer.schema.json`` says, or what contradicts the rest of the document.
    """
    FORM.refuse_unfit(document)
    outcomes: dict[Contender, RecordedTransfer] = {}
    for number, entry in enumerate(document["settings"]):
        place = f"settings.{number}"
        try:
            contender = _contender(entry)
        except ValueError as error:
            raise FORM.corrupt(f"{place}: {error}") from None
        if contender in outcomes:
            raise FORM.corrupt(f"{place} is {contender} a second time")
        outcomes[contender] = _outcome(entry)
        _refuse_contradictions(place, outcomes[contender])
    metrics = {outcome.metric.name for outcome in outcomes.values()}
    if len(metrics) > 1:
        raise FORM.corrupt(f"settings must have one metric, got {', '.join(sorted(metrics))}")
    return RecordedSweep(document["experiment"], outcomes, document.get("made", ""), document.get("command", ""))


@cache
def tinyimagenet() -> RecordedSweep:
    """The recorded sweep on TinyImageNet: 1,792 runs on one H200.

    >>> tinyimagenet().outcomes[Contender(Setting.of("mup", "II", "sgd"))].drift_verdict
    'drifts up'
    """
    return read(json.loads(files("mssp.sweep").joinpath("tinyimagenet.json").read_text(encoding="utf-8")))


def _contender(entry: Mapping[str, Any]) -> Contender:
    words = {name: entry[name] for name in ("scheme", "regime", "optimizer", "readout")}
    return Contender(Setting.of(**words).checked(), entry["active"])


def _outcome(entry: Mapping[str, Any]) -> RecordedTransfer:
    return RecordedTransfer(
        METRICS[entry["metric"]],
        entry["seeds"],
        [_summary(int(width), numbers) for width, numbers in entry["widths"].items()],
        _estimate(entry["drift"]),
        entry["drift_verdict"],
        entry["why_unclear"] or "",
        entry["wider_is_better"],
        entry["wider_is_better_transferred"],
    )


def _summary(width: int, numbers: Mapping[str, Any]) -> WidthSummary:
    regret = _estimate(numbers["regret"])
    return WidthSummary(
        width,
        _estimate(numbers["log2_best_lr"]),
        math.nan if numbers["best_grid_lr"] is None else numbers["best_grid_lr"],
        numbers["at_edge"],
        _estimate(numbers["best"]),
        _estimate(numbers["transferred"]),
        # JSON has no infinity: a regret without a number belongs to a rate at which training diverged.
        Estimate(math.inf, math.nan) if math.isnan(regret.value) else regret,
        numbers["largest_stable_lr"],
        numbers["diverged"],
    )


def _estimate(numbers: Mapping[str, float | None]) -> Estimate:
    return Estimate(*(math.nan if (value := numbers[name]) is None else value for name in ("value", "ci")))


# -- contradictions in a file ------------------------------------------------------------------------------------------

_LARGEST_LOG2 = 1000.0  # of a learning rate and its interval, which are drawn as powers of two
_ROUNDING = 0.01  # of records, whose numbers have a few digits


def _refuse_contradictions(place: str, outcome: RecordedTransfer) -> None:
    """A ValueError names an answer that does not follow from the numbers beside it."""
    widths = [summary.width for summary in outcome.summaries]
    if widths != sorted(set(widths)):
        raise FORM.corrupt(f"{place}.widths must be in growing order, got {shown(widths)}")
    if len({math.isnan(summary.best_grid_lr) for summary in outcome.summaries}) > 1:
        raise FORM.corrupt(f"{place}.widths must have their best_grid_lr, or all of them null")
    for summary in outcome.summaries:
        _refuse_summary(f"{place}.widths.{summary.width}", summary, outcome)
    narrowest = outcome.summaries[0]
    if not _same(narrowest.transferred, narrowest.best) or narrowest.regret.value not in (0.0, math.inf):
        raise FORM.corrupt(f"{place}.widths.{narrowest.width}.transferred must be best, at the narrowest's own rate")
    enough = len(widths) > 1 and outcome.seeds > 1
    _refuse_interval(f"{place}.drift", outcome.drift, outcome.seeds if len(widths) > 1 else 1)
    _refuse_drift(place, outcome)
    # The rules of the drift's verdict are those of a sweep that has its scores: here it is given its drift.
    answers = Transfer(outcome.metric, ())
    vars(answers).update(drift=outcome.drift, summaries=outcome.summaries)
    FORM.agree(f"{place}.drift_verdict", outcome.drift_verdict, answers.drift_verdict)
    FORM.agree(f"{place}.why_unclear", outcome.why_unclear, answers.why_unclear)
    own = [None if summary.diverged else summary.best.value for summary in outcome.summaries]
    transferred = [None if math.isinf(each.regret.value) else each.transferred.value for each in outcome.summaries]
    for name, answer, scores in (
        ("wider_is_better", outcome.wider_is_better, own),
        ("wider_is_better_transferred", outcome.wider_is_better_transferred, transferred),
    ):
        if not _can_be(answer, scores if outcome.metric.higher_is_better else _negative(scores), enough):
            raise FORM.corrupt(f"{place}.{name} is {answer}, and the scores of its widths say otherwise")


def _refuse_summary(place: str, summary: WidthSummary, outcome: RecordedTransfer) -> None:
    if summary.diverged > outcome.seeds:
        raise FORM.corrupt(f"{place}.diverged is {shown(summary.diverged)}, of {outcome.seeds} seeds")
    trained = outcome.seeds - summary.diverged
    if math.isnan(summary.best.value) != (trained == 0) and not (summary.diverged and trained):
        raise FORM.corrupt(f"{place}.best must be a score where a seed trained, and null where all diverged")
    place_of_rate, ci = summary.best_lr.value, summary.best_lr.ci
    if abs(place_of_rate) > _LARGEST_LOG2 or ci > _LARGEST_LOG2 or abs(place_of_rate) + ci > _LARGEST_LOG2:
        raise FORM.corrupt(f"{place}.log2_best_lr is {shown(place_of_rate)}, which is the rate of no optimizer")
    if math.isnan(place_of_rate) and not math.isnan(summary.best.value):
        raise FORM.corrupt(f"{place}.log2_best_lr must be a number where a seed trained")
    _refuse_interval(f"{place}.log2_best_lr", summary.best_lr, outcome.seeds)
    _refuse_interval(f"{place}.best", summary.best, trained)
    _refuse_interval(f"{place}.transferred", summary.transferred, outcome.seeds)
    _refuse_interval(f"{place}.regret", summary.regret, outcome.seeds)
    lost = abs(summary.best.value - summary.transferred.value)
    slack = _spread(summary.best, outcome) + _spread(summary.transferred, outcome)
    if math.isfinite(summary.regret.value) and abs(abs(summary.regret.value) - lost) > slack + _ROUNDING:
        raise FORM.corrupt(f"{place}.regret.value is {shown(summary.regret.value)}, where {lost:.4g} is lost")
    for name in ("best", "transferred"):
        score = getattr(summary, name).value
        if outcome.metric.higher_is_better and not (math.isnan(score) or 0 <= score <= 1):
            raise FORM.corrupt(f"{place}.{name}.value must be a share from 0 to 1, got {shown(score)}")


def _refuse_drift(place: str, outcome: RecordedTransfer) -> None:
    """A ValueError names a drift that is not the slope of the best rates over the widths."""
    places = [math.log2(summary.width) for summary in outcome.summaries]
    rates = [summary.best_lr.value for summary in outcome.summaries]
    if math.isnan(outcome.drift.value) or not all(map(math.isfinite, rates)):
        return
    if len(places) < 2:
        raise FORM.corrupt(f"{place}.drift must be null: it takes two widths")
    slack = sum(
        abs(slope_of(places, [float(other == number) for other in range(len(places))]))
        * _spread(summary.best_lr, outcome)
        for number, summary in enumerate(outcome.summaries)
    )
    slope = slope_of(places, rates)
    if abs(outcome.drift.value - slope) > slack + _ROUNDING:
        raise FORM.corrupt(
            f"{place}.drift.value is {shown(outcome.drift.value)}, and its best rates drift by {slope:.4g}"
        )


def _spread(estimate: Estimate, outcome: RecordedTransfer) -> float:
    """How far the mean over some of the seeds may be from the mean over all: a sweep may miss some of its runs."""
    if outcome.seeds < 2 or math.isnan(estimate.ci):
        return 0.0
    return estimate.ci * (outcome.seeds - 1) / quantile(0.975, outcome.seeds - 1)


def _refuse_interval(place: str, estimate: Estimate, seeds: int) -> None:
    """A ValueError names an interval of no number, or of so few seeds that there is none."""
    if math.isfinite(estimate.ci) and (not math.isfinite(estimate.value) or seeds < 2):
        raise FORM.corrupt(f"{place}.ci must be null: an interval takes a number and two seeds")


def _same(first: Estimate, second: Estimate) -> bool:
    return [finite(first.value), finite(first.ci)] == [finite(second.value), finite(second.ci)]


def _negative(scores: Sequence[float | None]) -> list[float | None]:
    return [None if score is None else -score for score in scores]


def _can_be(answer: str, scores: Sequence[float | None], enough: bool) -> bool:
    """Whether tests between seeds can give this answer for these means, which are None where a run diverged.

    A test finds an increase or a fall only where the means have it, and one that diverged is worse than any other.
    """
    if not enough or scores[0] is None:
        return answer == "unclear"
    worst = [-math.inf if score is None else score for score in scores]
    if answer == "no":
        return any(after < before for before, after in pairwise(worst))
    if any(before > -math.inf and after == -math.inf for before, after in pairwise(worst)):
        return answer == "unclear"  # a fall for certain, if there are two seeds of every width
    return answer != "yes" or worst[-1] > worst[0]
