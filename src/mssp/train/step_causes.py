"""The likely causes of a step that is not that of one device, by factor and by role."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import torch
from torch import Tensor

from mssp.train.step_result import Reported, RoleStep, in_words

_EXPERTS = ("expert_in", "expert_in_bias", "expert_out", "expert_out_bias")
_CLOSE = 0.005  # of factors that are said with two digits


@dataclass(frozen=True)
class RowWeights:
    """Gradients as weighted sums of the gradients of rows, each weight over what it should be.

    Args:
        names: of each column: empty for rows, or the auxiliary loss.
        rows: the rows of the first columns.
        shares: of each column, the share of all predicted tokens.
        weights: [process][column].
        roles: by role, in each process: the factor beside what the weights explain, and what they leave unexplained.
        rest: what the weights leave unexplained of the gradient that they were found from, in each process.
    """

    names: tuple[str, ...]
    rows: tuple[slice, ...]
    shares: tuple[float, ...]
    weights: tuple[tuple[float, ...], ...]
    roles: Mapping[str, tuple[tuple[float, float], ...]]
    rest: tuple[float, ...]

    @classmethod
    def found(
        cls,
        matrices: Mapping[str, tuple[np.ndarray, np.ndarray]],
        names: tuple[str, ...],
        rows: tuple[slice, ...],
        shares: tuple[float, ...],
    ) -> RowWeights:
        """In this process, from the gradients of columns [entries, columns] and the gradient here, by role."""
        sized = sorted(matrices, key=lambda role: (role in _EXPERTS, -len(matrices[role][1])))
        best, best_rest = np.zeros(len(names)), math.inf
        for role in sized:
            columns, own = matrices[role]
            size = float(np.linalg.norm(own))
            if not size or not math.isfinite(size) or len(own) < 2 * len(names):
                continue
            weights = np.linalg.lstsq(columns, own, rcond=None)[0]
            rest = float(np.linalg.norm(columns @ weights - own)) / size
            if rest < best_rest:
                best, best_rest = weights, rest
            if rest < _CLOSE:
                break
        factors = {role: _beside(columns @ best, own) for role, (columns, own) in matrices.items()}
        usual = median([factor for factor, _ in factors.values()] or [1.0])
        if usual and math.isfinite(usual):  # the role that weights were found from may be the one that is off
            best = best * usual
            factors = {role: (factor / usual, rest) for role, (factor, rest) in factors.items()}
        roles = {role: (beside,) for role, beside in factors.items()}
        return cls(names, rows, shares, (tuple(best.tolist()),), roles, (best_rest,))

    def everywhere(self, gathered: Callable[[Tensor], Tensor]) -> RowWeights:
        """Those of all processes."""
        beside = [number for pairs in self.roles.values() for number in pairs[0]]
        numbers = torch.tensor([*self.weights[0], self.rest[0], *beside], dtype=torch.float64)
        table = gathered(numbers).tolist()
        count = len(self.names)
        roles = {
            role: tuple((each[count + 1 + 2 * place], each[count + 2 + 2 * place]) for each in table)
            for place, role in enumerate(self.roles)
        }
        weights = tuple(tuple(each[:count]) for each in table)
        return replace(self, weights=weights, roles=roles, rest=tuple(each[count] for each in table))


def _beside(explained: np.ndarray, own: np.ndarray) -> tuple[float, float]:
    """The factor of a gradient beside what explains it, and what is left of it, relative to the larger of both."""
    square = float(explained @ explained)
    if not square:
        return (1.0, 0.0) if not own.any() else (math.inf, 1.0)
    factor = float(own @ explained) / square
    size = max(math.sqrt(square), float(np.linalg.norm(own)))
    return factor, float(np.linalg.norm(own - factor * explained)) / size


@dataclass(frozen=True)
class Findings:
    """What a comparison found, for its causes.

    Args:
        squares, local_squares: of the gradients of each role, in each process: of whole ones, and of what lies there.
    """

    roles: Mapping[str, RoleStep]
    loss: Reported
    norm: Reported
    processes: int
    clip: float | None
    row_weights: RowWeights | None
    squares: Mapping[str, tuple[float, ...]]
    local_squares: Mapping[str, tuple[float, ...]]
    tolerance: float


def causes(found: Findings) -> tuple[str, ...]:
    """Sentences, the likeliest cause first."""
    gradients = list(_of_gradients(found))
    rest = [*_of_norm(found), *_of_updates(found), *_of_decay(found)]
    if found.loss.verdict == "off" and not gradients:
        rest.append("the reported loss is not the mean over the predicted tokens of the whole batch")
    off = [role for role, step in found.roles.items() if not step.same]
    if off and not gradients and not rest:
        rest.append(f"{_listed(off)} differ, and nothing known explains it")
    return (*gradients, *rest)


# -- gradients ---------------------------------------------------------------------------------------------------------


def _of_gradients(found: Findings) -> Iterator[str]:
    weights = found.row_weights
    if weights is None:
        return
    if max(weights.rest) > 20 * found.tolerance:
        off = [role for role, step in found.roles.items() if step.gradient.verdict == "off"]
        yield (
            f"gradients of {_listed(off)} differ in direction, and are no weighted sum of the gradients of rows: look "
            "for parts that compute something else, such as another order of experts"
        )
        return
    count = len(weights.rows)
    by_process = np.array(weights.weights)
    rows, first = by_process[:, :count], by_process[0]
    unlike = np.abs(rows - rows[0]).max() > _CLOSE * np.abs(rows).max()
    if unlike:
        yield (
            f"processes step with different gradients, each with those of its own rows: gradients are not summed over "
            f"the {found.processes} processes"
        )
    else:
        yield from _of_rows(found, first[:count], weights)
        yield from _of_auxiliary_losses(weights, first)
    yield from _of_roles(found, weights)


def _of_rows(found: Findings, factors: np.ndarray, weights: RowWeights) -> Iterator[str]:
    # The weights of all tokens together: 1 for a mean over tokens, and for a mean of the means of parts.
    total = float(factors @ np.array(weights.shares[: len(factors)]))
    if abs(total - 1) > _CLOSE:
        yield _of_one_factor(found, total)
    if abs(total) < _CLOSE:
        return
    factors = factors / total
    low, high = float(factors.min()), float(factors.max())
    without = [part for part, factor in zip(weights.rows, factors, strict=True) if abs(factor) < _CLOSE * high]
    if 2 * len(without) >= len(factors):
        yield (
            f"{_rows_listed(without)} of the batch do not count, and the others up to {high:.2f} times: the same rows "
            "go to several processes or micro-batches, where each should have rows of its own"
        )
    elif without:
        yield f"{_rows_listed(without)} of the batch do not count: they are left out, or their part of the step is"
    elif high - low > _CLOSE * high:
        yield (
            f"rows count from {low:.2f} to {high:.2f} times, by the part that they are in: gradients are a mean of the "
            "means of parts with unequal numbers of tokens; divide each part's sum of losses by the tokens of the "
            "whole step"
        )


def _of_one_factor(found: Findings, factor: float) -> str:
    said = f"all gradients are {factor:.2f} times the one-device ones"
    whole = round(factor)
    if whole > 1 and abs(factor - whole) < _CLOSE * whole:
        several = f"{whole} processes or micro-batches" if whole == found.processes else f"{whole} micro-batches"
        return f"{said}: they are summed over {several}, each of which gives a mean, and not divided by their number"
    inverse = round(1 / factor) if factor > 0 else 0
    if inverse > 1 and abs(factor * inverse - 1) < _CLOSE:
        return f"{said}: they are divided twice by the number of {inverse} processes or micro-batches"
    if found.clip is None and 0 < factor < 1:
        return f"{said}: if the step clips gradients, say clip="
    return f"{said}: the loss has a factor"


def _of_auxiliary_losses(weights: RowWeights, factors: np.ndarray) -> Iterator[str]:
    counted: dict[str, float] = defaultdict(float)  # 1 where parts count by their shares of tokens
    for name, share, factor in zip(weights.names, weights.shares, factors, strict=True):
        counted[name] += share * float(factor)
    loss = counted.pop("")
    for name, count in counted.items():
        beside = count / loss if loss else math.inf
        if abs(beside - 1) > _CLOSE:
            why = "it is added once for each part (process or micro-batch), and not by the part's share of tokens"
            said = f"the auxiliary loss {name!r} counts {beside:.2f} times beside the loss"
            yield f"{said}: {why}" if beside > 1 else said


def _of_roles(found: Findings, weights: RowWeights) -> Iterator[str]:
    """Roles whose gradients have factors of their own, beside what is said of all."""
    by_factor: dict[str, list[str]] = defaultdict(list)
    for role, beside in weights.roles.items():
        factors, rests = zip(*beside, strict=True)
        if found.roles[role].gradient.verdict != "off":
            continue
        if max(rests) > 20 * found.tolerance and any(abs(factor) > _CLOSE for factor in factors):
            by_factor["another direction"].append(role)
        elif max(abs(factor - 1) for factor in factors) > _CLOSE:
            by_factor[in_words(factors)].append(role)
    for factor, roles in by_factor.items():
        yield _of_role_factor(found, factor, roles)


def _of_role_factor(found: Findings, factor: str, roles: list[str]) -> str:
    gradient = f"the gradient of {_listed(roles)}"
    if factor == "another direction":
        return f"{gradient} has a direction that it does not have on one device"
    if factor == "0.00":
        return f"no gradient arrives at {_listed(roles)}: frozen, or cut off from the loss"
    if all(role in _EXPERTS for role in roles):
        return (
            f"{gradient} is {factor} times the one-device one, beside the others: experts' gradients are summed over "
            "processes that the others are averaged over, or the reverse"
        )
    return f"{gradient} is {factor} times the one-device one, beside the others"


# -- the norm ----------------------------------------------------------------------------------------------------------


def _of_norm(found: Findings) -> Iterator[str]:
    if found.norm.verdict != "off" or found.norm.values is None:
        return
    norms = found.norm.values
    near = _near_in_all(norms, found.tolerance)
    experts = [role for role in found.squares if role in _EXPERTS]
    others = [role for role in found.squares if role not in _EXPERTS]
    whole = _summed(found.squares, [*experts, *others])
    dense = _summed(found.squares, others)
    if experts and near(dense):
        yield f"the clip norm leaves out the experts: it is {_ratio(norms, whole)} times the norm of all gradients"
    elif near(_summed(found.local_squares, [*experts, *others])):
        yield (
            f"each process clips by the norm of what lies in it, {_ratio(norms, whole)} times the norm of all "
            "gradients: sum the squares over processes"
        )
    elif near([a + b for a, b in zip(dense, _summed(found.local_squares, experts), strict=True)]):
        yield (
            f"each process clips by a norm with its own experts alone, {_ratio(norms, whole)} times the norm of all "
            "gradients: sum the squares of experts over processes"
        )
    elif left_out := next((role for role in others if near(_without(found, role))), None):
        yield f"the clip norm leaves out {left_out}: it is {_ratio(norms, whole)} times the norm of all gradients"
    elif near([square * found.processes for square in whole]):
        yield f"the clip norm counts gradients once for each of the {found.processes} processes that have them"
    elif max(norms) - min(norms) > found.tolerance * max(norms):
        yield f"processes clip by different norms, {_ratio(norms, whole)} times the norm of all gradients"
    else:
        yield f"the clip norm is {_ratio(norms, whole)} times the norm of all gradients"


def _near_in_all(norms: Sequence[float], tolerance: float) -> Callable[[Sequence[float]], bool]:
    def near(squares: Sequence[float]) -> bool:
        pairs = zip(norms, squares, strict=True)
        return all(abs(norm - math.sqrt(square)) <= tolerance * norm for norm, square in pairs)

    return near


def _summed(squares: Mapping[str, tuple[float, ...]], roles: Sequence[str]) -> list[float]:
    return [sum(each) for each in zip(*(squares[role] for role in roles), strict=True)]


def _without(found: Findings, role: str) -> list[float]:
    return _summed(found.squares, [other for other in found.squares if other != role])


def _ratio(norms: Sequence[float], squares: Sequence[float]) -> str:
    return in_words([norm / math.sqrt(square) for norm, square in zip(norms, squares, strict=True)])


# -- updates and decay -------------------------------------------------------------------------------------------------


def _of_updates(found: Findings) -> Iterator[str]:
    off = {role: step.update for role, step in found.roles.items() if step.update.verdict == "off"}
    by_factor: dict[str, list[str]] = defaultdict(list)
    for role, update in off.items():
        by_factor[in_words(update.values)].append(role)
    for factor, roles in by_factor.items():
        if factor == "0.00":
            yield f"{_do(roles, 'does')} not move: not in the optimizer, or frozen"
        elif len(roles) == len(found.roles):
            yield f"all updates are {factor} times what the plan's optimizer makes of these gradients: a schedule?"
        else:
            yield (
                f"{_do(roles, 'moves')} {factor} times as far as planned: the optimizer or its groups are not those of "
                "the plan"
            )


def _of_decay(found: Findings) -> Iterator[str]:
    by_factor: dict[tuple[bool, str], list[str]] = defaultdict(list)
    for role, step in found.roles.items():
        if step.decay is not None and step.decay.verdict == "off":
            by_factor[step.is_decayed, in_words(step.decay.values)].append(role)
    for (is_planned, factor), roles in by_factor.items():
        if not is_planned:
            yield f"{_do(roles, 'decays')} by {factor} times the learning rate, and the plan has no decay there"
        elif factor == "0.00":
            yield f"{_do(roles, 'does')} not decay, and the plan has decay there"
        else:
            yield f"{_do(roles, 'decays')} {factor} times as fast as planned"


def _rows_listed(parts: Sequence[slice]) -> str:
    """Rows in words: ``rows 2-3, 6``."""
    numbers = [row for part in parts for row in range(part.start, part.stop)]
    runs: list[list[int]] = []
    for row in numbers:
        if runs and runs[-1][1] == row - 1:
            runs[-1][1] = row
        else:
            runs.append([row, row])
    return "rows " + ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _listed(roles: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(roles[:-1]), roles[-1])))


def _do(roles: Sequence[str], verb: str) -> str:
    """Roles with what they do: ``router does``, ``norm and qk_norm do``."""
    return f"{_listed(roles)} {verb if len(roles) == 1 else {'does': 'do'}.get(verb, verb.removesuffix('s'))}"
