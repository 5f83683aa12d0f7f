"""Alarms of a long run: what is judged, from which number on, why there, what is likely the cause, and what to try.

``ALARMS`` is the whole table. It was fixed before the runs on which it was tried, which
``benchmarks/bench_router_health.py`` repeats. A limit has an absolute meaning, or is relative to what the plan says.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

IN_A_ROW = 3  # so many observed steps must agree, for an alarm to be raised and for one to be over


@dataclass(frozen=True, kw_only=True)
class AlarmKind:
    """What is judged by one number of a layer.

    Args:
        kind: its name.
        number: what is compared with the limit; a sentence for people.
        limit: from here on it is an alarm; of the kinds whose layers have limits of their own, the share of the range.
        above: whether larger numbers are worse.
        after: the first step that is judged.
        settled: whether it is judged only where the router has moved for a while (``SETTLED``).
        why: why the limit stands where it stands.
        cause, remedy: the likely cause and what to try, where the run itself shows none.
    """

    kind: str
    number: str
    limit: float
    above: bool
    after: int
    settled: bool = False
    why: str
    cause: str
    remedy: str


ALARMS = (
    AlarmKind(
        kind="rate",
        number="a group's learning rate over the planned one, or its inverse, after the schedule's factor",
        limit=1.05,
        above=True,
        after=0,
        why="schedules multiply all groups by one factor, up to rounding; five percent is no rounding",
        cause="a schedule, a resumed optimizer or a line of the loop has set this group alone",
        remedy="let the schedule multiply every group's initial_lr by one factor (mssp.check_schedule)",
    ),
    AlarmKind(
        kind="small updates",
        number="the RMS of a step over the planned learning rate",
        limit=0.03,
        above=False,
        after=20,
        why="gradients that are pure noise give 0.23 with beta1 = 0.9; an eighth of that is not noise",
        cause="the gradient is small beside eps, or there is none",
        remedy="lower eps, or plan with grad_scale=True (docs/faithfulness.md)",
    ),
    AlarmKind(
        kind="large updates",
        number="the RMS of a step over the planned learning rate",
        limit=2.0,
        above=True,
        after=20,
        why="Adam's steps are at most the learning rate, but for single bursts after silence",
        cause="gradients come in bursts, or something else than the plan's optimizer writes to the weights",
        remedy="clip gradients, raise beta2's horizon, and look at the batches of these steps",
    ),
    AlarmKind(
        kind="weights",
        number="the RMS of a router's weights over the largest that planned steps and decay can make it",
        limit=1.25,
        above=True,
        after=0,
        why="no entry moves by more than the sum of the learning rates; a quarter more is not Adam's",
        cause="something else than the plan's optimizer writes to the router's weights, or the decay is negative",
        remedy="look for code that scales or loads weights, and compare the groups with the plan (mssp.verify)",
    ),
    AlarmKind(
        kind="logits",
        number="the RMS of a router's logits",
        limit=8.0,
        above=True,
        after=0,
        why="a sigmoid of 8 is 0.9997, and bfloat16 steps by 0.03 there: gates no longer follow logits",
        cause="nothing holds the logits, and the router's learning rate is high for a run of this length",
        remedy="lower lr_mult of the router, decay its weights, or add a z-loss of 1e-3",
    ),
    AlarmKind(
        kind="z",
        number="the root of the z-loss, above log M: how far the logits' log-sum-exp is from uniform routing",
        limit=8.0,
        above=True,
        after=0,
        why="all logits have moved by 8 in one direction, or one of them has: see logits",
        cause="what all logits of a token share does not change where it goes, and nothing holds it",
        remedy="add a z-loss of 1e-3, or decay the router's weights",
    ),
    AlarmKind(
        kind="saturated",
        number="how much gates follow logits: 4 gate (1 - gate) of sigmoids, 1 - the sum of squares of softmax gates",
        limit=0.05,
        above=False,
        after=60,
        settled=True,
        why="the router's gradient is less than a twentieth of what it is at logits of zero: it no longer learns",
        cause="the logits are large: the router's learning rate or its start is too high",
        remedy="lower lr_mult or init_mult of the router, or add a z-loss of 1e-3",
    ),
    AlarmKind(
        kind="collapsed",
        number="between how many experts a token's scores are spread (the exponential of their entropy), less one",
        limit=0.05,
        above=False,
        after=60,
        settled=True,
        why="of K active experts one alone counts, and the others cost time for nothing",
        cause="one logit of each token is far above all others",
        remedy="lower lr_mult of the router, raise its temperature, or activate fewer experts",
    ),
    AlarmKind(
        kind="uniform",
        number="how far the logits of one token are apart (their standard deviation over experts)",
        limit=0.02,
        above=False,
        after=50,
        why="planned updates could have moved them by 5 by now, and gates differ by less than two percent",
        cause="no gradient tells experts apart: experts that are equal under gates that sum to one, or a frozen router",
        remedy="start experts apart (tie them only in part), start the router above zero, or give it noise",
    ),
    AlarmKind(
        kind="dead",
        number="the share of experts that got less than a fiftieth of a fair share of the tokens",
        limit=0.0,
        above=True,
        after=60,
        settled=True,
        why="by chance alone an expert that should have had 200 tokens does not get 4",
        cause="nothing balances the load, and a few experts were preferred from the start",
        remedy="add a load-balancing loss of 1e-2 (or a correction bias), or start the router smaller",
    ),
    AlarmKind(
        kind="overfull",
        number="the load of the fullest expert over a fair one",
        limit=0.8,
        above=True,
        after=60,
        settled=True,
        why="0.8 of the way from a fair load to all tokens, but from 3 to 8 times a fair load: others wait for it",
        cause="nothing balances the load, or the balancing loss is too weak for how fast the router moves",
        remedy="raise the load-balancing loss's coefficient, or lower lr_mult of the router",
    ),
    AlarmKind(
        kind="experts alike",
        number="how far experts that started equal are apart, over how far planned updates could have moved them",
        limit=0.02,
        above=False,
        after=50,
        why="experts with gradients of their own part by a fifth of their updates or more",
        cause="every expert gets the same gradient: all tokens go to all of them with nearly equal gates",
        remedy="tie experts in part only, start the router above zero, or give it noise (docs/growth.md)",
    ),
)
KINDS: Mapping[str, AlarmKind] = {each.kind: each for each in ALARMS}
# Of the load: the least tokens that a fair share must hold, the share of it below which an expert is dead, and the
# observed steps over which tokens are counted, all of them after the router has settled. Of the fullest expert: the
# least and the most times a fair load.
ENOUGH_TOKENS, STARVED, WINDOW, FULLEST = 200, 0.02, 20, (3.0, 8.0)
# In its first steps a router moves as a whole: all logits rise together, and most tokens go to the same experts. This
# was over when planned updates could have moved a logit by 3 to 30, at rates of 0.001 to 0.032, and after sixty steps.
SETTLED = 5.0


@dataclass(frozen=True)
class Alarm:
    """Something in a run that is not as it should be.

    >>> kind = KINDS["logits"]
    >>> print(Alarm(120, "logits", "blocks.1.ffn", 12.31, 8.0, 2, kind.cause, kind.remedy))
    step 120: logits 12.3 (limit 8) in blocks.1.ffn and 1 more. Likely cause: nothing holds the logits, and the \
router's learning rate is high for a run of this length. Try: lower lr_mult of the router, decay its weights, or add \
a z-loss of 1e-3.

    Args:
        step: when it was raised.
        layer: the layer or the parameter that is worst.
        value, limit: the number that was judged, and from where on it is an alarm.
        layers: in how many layers it is an alarm.
    """

    step: int
    kind: str
    layer: str
    value: float
    limit: float
    layers: int
    cause: str
    remedy: str

    def __str__(self) -> str:
        more = f" and {self.layers - 1} more" if self.layers > 1 else ""
        numbers = f"{self.value:.3g} (limit {self.limit:.3g})"
        return (
            f"step {self.step}: {self.kind} {numbers} in {self.layer}{more}. Likely cause: {self.cause}. "
            f"Try: {self.remedy}."
        )


@dataclass(frozen=True)
class Finding:
    """What one layer shows of one kind of alarm.

    Args:
        key: alarms of one key are one alarm: the kind, with the role where it is one of a role.
        cause, remedy: those that the run itself shows; None for the kind's own.
    """

    key: str
    kind: AlarmKind
    layer: str
    value: float
    limit: float
    cause: str | None = None
    remedy: str | None = None

    @property
    def is_bad(self) -> bool:
        if not math.isfinite(self.value):
            return True
        return self.value > self.limit if self.kind.above else self.value < self.limit

    @property
    def badness(self) -> float:
        return math.inf if not math.isfinite(self.value) else self.value if self.kind.above else -self.value


class Judge:
    """Raises every alarm once, and again when it has gone and come back."""

    def __init__(self) -> None:
        self._bad: dict[str, int] = {}
        self._good: dict[str, int] = {}
        self.raised: list[str] = []

    def judge(self, step: int, findings: list[Finding]) -> list[Alarm]:
        return list(self._judged(step, findings))

    def _judged(self, step: int, findings: list[Finding]) -> Iterator[Alarm]:
        by_key: dict[str, list[Finding]] = {}
        for each in findings:
            by_key.setdefault(each.key, []).append(each)
        for key, of_key in by_key.items():
            bad = [each for each in of_key if each.is_bad and step >= each.kind.after]
            self._bad[key] = self._bad.get(key, 0) + 1 if bad else 0
            self._good[key] = 0 if bad else self._good.get(key, 0) + 1
            if key in self.raised and self._good[key] >= IN_A_ROW:
                self.raised.remove(key)
            if key not in self.raised and self._bad[key] >= IN_A_ROW:
                self.raised.append(key)
                worst = max(bad, key=lambda each: each.badness)
                kind, cause, remedy = worst.kind, worst.cause or worst.kind.cause, worst.remedy or worst.kind.remedy
                yield Alarm(step, kind.kind, worst.layer, worst.value, worst.limit, len(bad), cause, remedy)

    def state(self) -> dict[str, Any]:
        return {"bad": dict(self._bad), "good": dict(self._good), "raised": list(self.raised)}

    def load(self, state: Mapping[str, Any]) -> None:
        self._bad, self._good = dict(state["bad"]), dict(state["good"])
        self.raised = list(state["raised"])


def table() -> list[str]:
    """The lines of the table in ``docs/monitoring.md``."""
    rows = [
        f"| **{each.kind}** | {each.number} | {'above' if each.above else 'below'} {each.limit:g} | {each.why} | "
        f"{each.cause} | {each.remedy} |"
        for each in ALARMS
    ]
    return [
        "| alarm | what is judged | limit | why there | likely cause | what to try |",
        "|---|---|---|---|---|---|",
        *rows,
    ]
