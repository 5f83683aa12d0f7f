"""Why each rule is what it is, and where the paper says so: ``mssp explain``.

Throughout, N is the width, N_e the expert width, M the experts, K the active ones, L the depth. "Order 1" means
neither vanishing nor growing as the model grows. The gradient that reaches the residual stream has entries of order
1/N; inside a block the 1/L residual multiplier makes it 1/(NL).
"""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass, field

from mssp._constraints import one_of
from mssp._tables import align, markdown_table
from mssp.planning.power import Factor
from mssp.planning.rules import BIASES, GAINS, Rule
from mssp.planning.setting import (
    ADAM,
    ANY,
    II,
    III,
    JIANG,
    MSSP,
    MUP,
    MUP_HEURISTIC,
    NTP,
    SCHEMES_OWN,
    SGD,
    SP,
    I,
    Optimizer,
    Regime,
    Scheme,
    Setting,
    regime_named,
    scheme_named,
    title_of,
)  # fmt: skip


@dataclass(frozen=True)
class Reason:
    """The reasons for a role's rule: what the role is, why it is scaled so, what each regime adds, where to read on."""

    what: str
    why: str
    where: str
    by_regime: dict[Regime, str] = field(default_factory=dict)


REASONS: dict[str, Reason] = {
    "embedding": Reason(
        what="from the input to the residual stream (D -> N); D is 1 for token lookups",
        why="Its input has a fixed size, so each entry of the stream gets a sum of D terms: std D^-1/2 makes it order "
        "1. The gradient of an entry is of order 1/N, which is Adam's eps, and what SGD must undo with lr N.",
        where="Table 1, rows Emb.",
    ),
    "norm": Reason(
        what="gain of a norm inside a block, full-width qk-norms included",
        why="A gain multiplies one coordinate of order 1, so it must move by order 1: Adam lr 1. Its gradient is that "
        "of one coordinate, 1/(NL).",
        where="Table 1, rows Pre-LN; docs/errata.md for the factor L of SGD",
    ),
    "qk_norm": Reason(
        what="gain of a fixed size: of a per-head norm of queries or keys, shared by all heads",
        why="All N / d_head heads share the gain, so its gradient sums over width: order 1 (times 1/L), not 1/N. With "
        "the eps of a full-width norm, eps would lose its part as the width grows. Any gain of a fixed size, such as "
        "that of a norm on a low rank, is of this kind.",
        where="derived; docs/errata.md has the measured gradient scale",
    ),
    "hidden": Reason(
        what="a matrix between wide layers: attention, dense FFN, shared experts",
        why="std fan_in^-1/2 keeps activations of order 1. The update is aligned with the input, so it adds up over "
        "fan_in terms rather than sqrt(fan_in): Adam lr 1/fan_in. Each matrix uses its own sides.",
        where="Table 1, rows Hidden; Section 'Background on Width-scaling Parameterizations'",
    ),
    "bias": Reason(
        what="bias of a hidden layer",
        why="It adds to one coordinate of order 1, so it must move by order 1. Its gradient is 1/(NL) like that of the "
        "gain beside it; the table prints SGD lr 1, with which it would not move in a wide network.",
        where="Table 1, rows Hidden Bias; docs/errata.md",
    ),
    "router": Reason(
        what="from the stream to one logit per expert (N -> M)",
        why="A logit must be, and must change by, order 1. Its gradient goes through one expert's weight in the sum, "
        "which the aggregation multiplier makes 1/K. A load-balancing loss beside it keeps its coefficient if it is 1 "
        "at uniform routing at every size; that of one which is K there, as in transformers, goes with 1/K.",
        where="Table 1, rows Router; Section 'A More Fundamental Desideratum', Regime I",
        by_regime={
            I: "M is fixed, so the router is a readout: std 1/N in muP. MSSP starts it at zero: the part of the "
            "stream's update that comes through the experts is weakly correlated with the router's initial weights and "
            "would vanish as N^-1/2 beside the part that comes through the router itself. Top-K then needs noise.",
            II: "M grows with N: the router is a wide matrix, std N^-1/2. Each logit's gradient is 1/M.",
            III: "M grows with N: the router is a wide matrix, std N^-1/2. Each logit's gradient is 1/M.",
            ANY: "What comes back through the router's start is a sum over the K experts that it weighs: where N grows "
            "faster than K, a start of N^-1/2 would let it grow. So the start falls with (k/n)^1/2 as well, never to "
            "zero: with top-K all tokens would choose the same experts.",
        },
    ),
    "router_bias": Reason(
        what="a trained bias on the router's logits",
        why="It adds to a logit of order 1: Adam lr 1. Its gradient is that of the logit, 1 in Regime I and 1/M when "
        "the number of experts grows (times 1/L).",
        where="derived; docs/errata.md has the measured gradient scale",
    ),
    "expert_in": Reason(
        what="first matrix of each expert, gate included (N -> N_e)",
        why="std N^-1/2 keeps the expert's hidden layer at order 1. How fast it must move for SGD depends on how much "
        "of the gradient reaches one expert.",
        where="Table 1, rows Expert Layer 1; Section 'A More Fundamental Desideratum'; Definition of MSSP, Regime III",
        by_regime={
            I: "Experts are a fixed number of ordinary networks: as a hidden matrix.",
            II: "The hidden layer has a fixed size N_e, so the gradient at each of its units is 1/M, not 1/(MN).",
            III: "MSSP draws one matrix and gives it to all experts. Independent experts would average out: what "
            "they start with contributes only M^-1/2 to their mean, while what they learn contributes order 1. Equal "
            "experts add up coherently, and the router makes them differ. Boosting the variance, as in Regime II, "
            "would make the backward pass diverge here.",
            ANY: "An expert sees K/M of the tokens, so its gradient is 1/M, and 1/N_e of that at each hidden unit. "
            "Where κ = k n_e/n is above 1, experts share as much of their start as keeps their mean from vanishing.",
        },
    ),
    "expert_in_bias": Reason(
        what="bias of an expert's hidden layer",
        why="It adds to one hidden unit of order 1: Adam lr 1. Its gradient is that of the hidden unit: 1/N in Regime "
        "I, 1/M in II, 1/(MN) in III (times 1/L).",
        where="derived; docs/errata.md has the measured gradient scale",
    ),
    "expert_out": Reason(
        what="second matrix of each expert (N_e -> N)",
        why="The sum over experts is multiplied by 1/K. Learned parts of the experts point the same way and survive "
        "the mean; independent random parts cancel to M^-1/2 of it. MSSP balances the two.",
        where="Table 1, rows Expert Layer 2; App. 'Justification of MSSP in Regime II'; Definition of MSSP, Regime III",
        by_regime={
            I: "A fixed number of experts: nothing cancels, as a hidden matrix with fan-in N_e.",
            II: "MSSP multiplies the std by M^1/2, so that initial and propagating terms of the mean over experts "
            "stay at order 1 forwards and backwards. One expert's output then grows as M^1/2, which is harmless "
            "because only the mean is ever used: fold the gate in before this product and it is never formed.",
            III: "MSSP draws one matrix and gives it to all experts (tied at the start only): equal experts do not "
            "cancel. The larger std of Regime II would make the backward pass diverge, since N_e grows too.",
            ANY: "The mean over K independent experts falls as k^-1/2, and a larger start makes up for it. It may not "
            "exceed (n/n_e)^1/2, at which what one expert sends back is as large as what it sends forward.",
        },
    ),
    "expert_out_bias": Reason(
        what="bias of an expert's output",
        why="It adds to one coordinate of order 1: Adam lr 1. Its gradient is 1/N of the stream, times 1/M where the "
        "mean is over a growing number of experts (times 1/L).",
        where="derived; docs/errata.md has the measured gradient scale",
    ),
    "shared_gate": Reason(
        what="gate of a shared expert (N -> 1)",
        why="One output of fixed number: what the router is in Regime I, in every regime.",
        where="derived from the router's row in Regime I",
    ),
    "final_norm": Reason(
        what="gain of the norm before the readout",
        why="As a norm inside a block, but outside the residual multiplier: no factor L.",
        where="Table 1, rows Final-LN",
    ),
    "readout": Reason(
        what="from the stream to the logits (N -> classes or vocabulary)",
        why="It must add up N aligned terms to a logit of order 1, so both its size and its update are 1/N. It starts "
        "at zero by default, as in the paper's experiments: 1/N noise in the logits helps nothing.",
        where="Table 1, rows Unemb.; Section 'Experimental Setup'",
    ),
    "readout_bias": Reason(
        what="bias of the readout, one number for each logit",
        why="It adds to a logit of order 1, so it must move by order 1: Adam lr 1. Its gradient is the mean over "
        "tokens of how far the probability of its class is off, which no size of the model changes: eps 1, SGD lr 1. "
        "With the rates of a hidden bias, SGD's would grow as N L. Few models have one: a plan lists its numbers with "
        "the parameters of a model, not by role.",
        where="derived; records/2026-11-19-families.md has the measured gradient",
    ),
}

# For schemes that do not follow the reasoning above: what they do instead, and where to read on.
SCHEME_NOTES: dict[Scheme, tuple[str, str]] = {
    SP: (
        "Standard parameterization: std fan_in^-1/2, one learning rate and one eps for everything. Wide layers then "
        "move more and more with width, so nothing tuned small carries over.",
        "Section 'Background on Width-scaling Parameterizations', the table of abc-parameterizations",
    ),
    NTP: (
        "Neural tangent parameterization: std fan_in^-1/2 and SGD lr 1/fan_in. Stable, but features stop being learned "
        "as the width grows.",
        "Section 'Background on Width-scaling Parameterizations', the table of abc-parameterizations",
    ),
    MUP_HEURISTIC: (
        "muP by shape alone: input-like, matrix-like or output-like by which sides grow. For the paper's roles it "
        "agrees with muP in Regime I; it is wrong for routers and experts once their number grows.",
        "Section 'Background on Width-scaling Parameterizations', the table of the muP heuristic",
    ),
    JIANG: (
        "Jiang et al. 2026, derived for signSGD and used with Adam: muP in Regime III with a router std of 1/N and one "
        "global eps.",
        "Section 'Introduction', independent and concurrent work; Jiang et al., Hyperparameter Transfer with "
        "Mixture-of-Expert Layers (arXiv 2601.20205)",
    ),
}


_WIDTH = 100


@dataclass(frozen=True)
class Explanation:
    """The rule of one role: a table with a row for each quantity and a column for each regime, and its reasons."""

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


def explain(role: str, regime: str | Regime | None = None, scheme: str | Scheme = MSSP) -> Explanation:
    """The rule of a role in one regime, or in all of them.

    >>> print(explain("expert_out", "II").rows[0])
    ['init std', 'M¹ᐟ²N_e⁻¹ᐟ² (μP: N_e⁻¹ᐟ²)']
    """
    explained, chosen = scheme_named(scheme), None if regime is None else regime_named(regime)
    one_of(list(REASONS))("role", role)
    regimes: tuple[Regime | None, ...] = explained.regimes if explained.regime_free or chosen is None else (chosen,)
    optimizers = [optimizer for optimizer in (SGD, ADAM) if optimizer in explained.optimizers] or [ADAM]
    _setting(explained, regimes[0], optimizers[-1]).checked()
    rows = [["init std", *(_init_row_cell(role, explained, column, optimizers[-1]) for column in regimes)]]
    if SGD in optimizers:
        rows.append(["SGD lr", *(_sgd(role, explained, column) for column in regimes)])
    if ADAM in optimizers:
        adam = [_setting(explained, column, ADAM).rule(role) for column in regimes]
        rows.append(["Adam lr", *(_shown(rule, rule.lr) for rule in adam)])
        rows.append(["Adam eps", *(_shown(rule, rule.eps) for rule in adam)])
    reason = REASONS[role]
    why, where = [reason.why], reason.where
    why += [f"{title_of(column)}: {text}" for column, text in reason.by_regime.items() if column in regimes]
    if explained in SCHEME_NOTES:
        why, where = [SCHEME_NOTES[explained][0]], SCHEME_NOTES[explained][1]
    return Explanation(
        role=role,
        scheme=explained.name,
        header=[explained.title, *(title_of(column) or "any regime" for column in regimes)],
        rows=rows,
        what=reason.what,
        why=why,
        where=where,
    )


def _setting(scheme: Scheme, regime: Regime | None, optimizer: Optimizer, as_printed: bool = False) -> Setting:
    return Setting(scheme=scheme, regime=regime, optimizer=optimizer, readout=SCHEMES_OWN, as_printed=as_printed)


def _init_row_cell(role: str, scheme: Scheme, regime: Regime | None, optimizer: Optimizer) -> str:
    if role in GAINS:
        return "1 (constant)"
    if role in BIASES:
        return "0"
    text = _init_cell(_setting(scheme, regime, optimizer).rule(role))
    if scheme is MSSP:
        mup = _init_cell(_setting(MUP, regime, optimizer).rule(role))
        text += f" (μP: {mup})" if mup != text else ""
    return text + (" (zero by default)" if role == "readout" else "")


def _init_cell(rule: Rule) -> str:
    if rule.shared is None:
        return f"{_shown(rule, rule.init_std)}, shared in part"
    shared = ", tied" if rule.shared == 1 else f", shared {rule.shared:g}" if rule.shared else ""
    return "0" if rule.init_std is None else _shown(rule, rule.init_std) + shared


def _sgd(role: str, scheme: Scheme, regime: Regime | None) -> str:
    if not _setting(scheme, regime, SGD).has_rates:
        return "not measured"
    rule, printed = (_setting(scheme, regime, SGD, as_printed).rule(role) for as_printed in (False, True))
    note = f" (printed: {_shown(printed, printed.lr)})" if rule.source == "erratum" else ""
    return _shown(rule, rule.lr) + note


def _shown(rule: Rule, factor: Factor | None) -> str:
    assert factor is not None
    return str(rule.in_model_symbols(factor))
