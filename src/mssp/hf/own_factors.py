"""What a model's own forward pass multiplies numbers by, if that depends on sizes.

Plans know the factors that they set themselves. A model may have more: embeddings times the root of the width, queries
times the root of the width over a rank. A rehearsal at the target and one at the base show where numbers differ in
size, though nothing but the sizes of the models does. Such a factor is taken out by one on the output of a module: the
model is then, in its parameters, the model that has the base's factor, and a further rehearsal shows that it is.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

from torch import nn

from mssp.hf.factors import EMBEDDINGS, PlannedFactor
from mssp.hf.meta import config_of, on_meta
from mssp.hf.proxies import at_half_width
from mssp.hf.rehearsal import KEPT, LOGITS, STREAM, WRITTEN, Factor, Flow, Rehearsal, Size, rehearsal
from mssp.hf.stand_ins import NotRunnableError, StandIn
from mssp.hf.starts import spread
from mssp.hf.stream import flows_of_sums
from mssp.hf.vocabulary import for_all_blocks, of_all_blocks
from mssp.planning.configs import entries_of, kinds_of_blocks
from mssp.planning.plans import Plan
from mssp.planning.recipe import PlanWarning

_TOLERANCE = 0.03  # rounding is 1e-6, and the least factor a root of a size, which grows by a tenth or more
_MOST_CANDIDATES = 16
_CONSTANT = re.compile("scale|scaling|factor|multiplier")  # entries that may be written without a decimal point
_PATTERNS = 5
_LEAST = 1e-6  # the size of numbers that are zero up to rounding


def own_factors(model: nn.Module, small: nn.Module | None = None) -> dict[nn.Module, PlannedFactor]:
    """The factors that take out what a model's forward pass multiplies by more than the base's does.

    ``small`` is the base, on any device. Without it the model is compared with one of half its width, and all that can
    be taken out is the root of the width on embeddings. A norm on the residual stream is refused.
    """
    looked_at = "factors that depend on sizes, or norms on the residual stream,"
    try:
        with rehearsal(model) as at_target:
            flows = flows_of_sums(at_target)
            looked_at = "factors that depend on sizes"
            with rehearsal(_reference(model, small)) as at_reference:
                _spread_counted_starts(model, at_reference.model)
                found = _found(_Comparison(at_target, flows, at_reference))
                growth = _width(model) / _width(at_reference.model)
    except NotRunnableError as error:
        warnings.warn(f"{error}: whether its forward pass has {looked_at} is not known", PlanWarning, stacklevel=4)
        return {}
    planned = {factor.module: _planned(model, factor, growth, small is not None) for factor in found}
    return {module: planned[name] for path, module in model.named_modules() if (name := of_all_blocks(path)) in planned}


def _reference(model: nn.Module, small: nn.Module | None) -> nn.Module:
    """The base with the target's constants; without a base the target at half its width."""
    entries = entries_of(model.config)
    if small is None:
        try:
            return on_meta(config_of(at_half_width(entries), like=model), like=model)
        except ValueError as error:
            raise NotRunnableError(
                f"no model of half the width of this {type(model).__name__} can be built (pass base): {error}"
            ) from None
    before = entries_of(small.config)
    changed = {
        key: value
        for key, value in entries.items()
        if key in before and before[key] != value and all(_is_constant(key, each) for each in (value, before[key]))
    }
    return on_meta(config_of({**before, **changed}, like=model), like=model) if changed else small


def _spread_counted_starts(model: nn.Module, reference: nn.Module) -> None:
    """Give vectors that count their entries (decay rates of heads) the reference's values, as initial weights do.

    Both models have stand-ins, where whatever is drawn is its mean: other vectors have one number in all entries.
    """
    vectors = {
        for_all_blocks(name): each.flatten()
        for name, each in reference.named_parameters()
        if not isinstance(each, StandIn) and each.numel() == max(each.shape, default=0) > 1
    }
    counted = {name: each for name, each in vectors.items() if bool((each != each.max()).any())}
    for name, vector in model.named_parameters():
        start = counted.get(for_all_blocks(name))
        if start is not None and not isinstance(vector, StandIn) and vector.numel() != start.numel():
            vector.copy_(spread(start, vector.numel()).view(vector.shape))


def _is_constant(key: str, value: Any) -> bool:
    """Whether an entry of a config is a constant of the forward pass: a plan warns of it where it changes."""
    return isinstance(value, bool | float) or (isinstance(value, int) and bool(_CONSTANT.search(key)))


def _width(model: nn.Module) -> int:
    return int(model.get_input_embeddings().weight.shape[1])  # type: ignore[operator]


# -- the residual stream -----------------------------------------------------------------------------------------------


def _effective(sizes: Sequence[Size], flows: Sequence[Flow]) -> list[Size]:
    """Sizes with those of what is added to the stream, in place of what branches give; and how much a block keeps."""
    shares: dict[tuple[int | None, str], float] = {}
    kept = []
    for number, flow in enumerate(flows):
        kept.append(Size(f"{of_all_blocks(flow.path)}.{KEPT}", number, abs(flow.kept), 0))
        shares.update({(number, path): share for path, share in flow.added.items()})
    return kept + [
        replace(size, rms=size.rms * abs(shares.get((size.block, size.place.removesuffix(f".{WRITTEN}")), 1.0)))
        for size in sizes
    ]


# -- factors that depend on sizes --------------------------------------------------------------------------------------


_Places = dict[str, list[Size]]


@dataclass(frozen=True)
class _Difference:
    """A place where numbers at the target are ``ratio`` times those at the reference; None if blocks disagree."""

    place: str
    ratio: float | None
    ran: int

    @property
    def title(self) -> str:
        owner, _, last = self.place.rpartition(".")
        titles = {
            STREAM: f"the residual stream that comes into {owner}",
            KEPT: f"the part of the residual stream that {owner} keeps",
            WRITTEN: f"what {owner} adds to the residual stream",
            LOGITS: "what is a logit",
        }
        return titles.get(last, f"what {owner if last == 'weight' else self.place} gets")


class _Comparison:
    """A rehearsal at the target, compared with one at the reference."""

    def __init__(self, at_target: Rehearsal, flows: Sequence[Flow], at_reference: Rehearsal) -> None:
        self.at_target, self._flows, self._at_reference = at_target, flows, at_reference
        self._reference_flows = at_reference.flows()
        self._kinds, self._kinds_of_reference = (
            kinds_of_blocks(each.model.config) for each in (at_target, at_reference)
        )
        self._references: dict[int, dict[str, dict[int | None, _Places]]] = {}
        # Some models rescale the stream by the number of the block: then blocks of one number are compared.
        self._is_uniform = all(
            max(values) - min(values) <= _TOLERANCE
            for values in zip(*map(_numbers, [*self._flows, *self._reference_flows]), strict=False)
        )

    def differences(self, factors: Sequence[Factor]) -> dict[str, _Difference]:
        """The places of different sizes, in the order in which they are come to.

        Where vectors do not fit the patterns of stand-ins, sizes depend on these, and what remains is looked at with
        other patterns: a factor is the same with all of them.
        """
        logs = {seen: [value] for seen, value in self._logs(factors, 0).items()}
        if all(abs(log) <= _TOLERANCE for [(log, _)] in logs.values()):
            return {}
        for pattern in range(1, _PATTERNS):
            for seen, value in self._logs(factors, pattern).items():
                logs[seen].append(value)
        ratios: dict[str, list[float | None]] = {}
        first: dict[str, int] = {}
        for (place, *_), values in logs.items():
            ratio = _common([log for log, _ in values])
            if ratio != 1.0:
                ratios.setdefault(place, []).append(ratio)
                first[place] = min(first.get(place, values[0][1]), values[0][1])
        return {
            place: _Difference(place, _agreed(ratios[place]), first[place])
            for place in sorted(first, key=first.__getitem__)
        }

    def _logs(self, factors: Sequence[Factor], pattern: int) -> dict[tuple[str, int | None, int], tuple[float, int]]:
        """The logarithm of each size over that at the reference, and how many modules had run before."""
        if pattern not in self._references:
            sizes = self._at_reference.sizes(pattern=pattern)
            self._references[pattern] = _by_part(_effective(sizes, self._reference_flows))
        reference, logs = self._references[pattern], {}
        target = _by_part(_effective(self.at_target.sizes(factors, pattern), self._flows))
        for part, blocks in target.items():
            for block, places in blocks.items():
                alike = {
                    number: each for number, each in reference.get(part, {}).items() if each.keys() == places.keys()
                }
                kind = self._kinds.get(block)
                of_kind = [number for number in alike if self._kinds_of_reference.get(number) == kind] or [*alike]
                partner = block if block in of_kind else next(iter(of_kind), None)
                before = alike.get(partner, {})
                for place, sizes in places.items():
                    if place not in before or (self._of_number(place) and block not in alike):
                        continue
                    for number, size in enumerate(sizes):
                        old = before[place][min(number, len(before[place]) - 1)]
                        log = math.log(max(size.rms, _LEAST) / max(old.rms, _LEAST))
                        logs[place, block, number] = log, size.ran
        return logs

    def _of_number(self, place: str) -> bool:
        """Whether a size may depend on the number of the block."""
        return not self._is_uniform and place.rpartition(".")[2] in (STREAM, KEPT, WRITTEN)


def _by_part(sizes: Sequence[Size]) -> dict[str, dict[int | None, _Places]]:
    """Sizes by the part of a block that they are in: parts with the same places are of one kind, and are compared."""
    parts: dict[str, dict[int | None, _Places]] = {}
    for size in sizes:
        before, _, inside = size.place.partition("*.")
        part = f"{before}*.{inside.partition('.')[0]}"
        parts.setdefault(part, {}).setdefault(size.block, {}).setdefault(size.place, []).append(size)
    return parts


def _numbers(flow: Flow) -> list[float]:
    return [flow.kept, *flow.added.values()]


def _common(logs: Sequence[float]) -> float | None:
    """The ratio that several patterns show: 1 if they differ by more among themselves, None if it is not clear."""
    mean, spread = sum(logs) / len(logs), max(logs) - min(logs)
    if abs(mean) <= max(_TOLERANCE, spread):
        return 1.0
    return math.exp(mean) if spread <= _TOLERANCE else None


def _agreed(ratios: Sequence[float | None]) -> float | None:
    """The ratio in all blocks, None if they have several."""
    known = [ratio for ratio in ratios if ratio is not None]
    is_one = len(known) == len(ratios) and max(known) <= (1 + _TOLERANCE) * min(known)
    return known[0] if is_one else None


def _found(comparison: _Comparison) -> list[Factor]:
    """The factors on outputs that make all sizes those of the reference."""
    factors: list[Factor] = []
    differences = comparison.differences(factors)
    while differences:
        first = next(iter(differences.values()))
        for factor in _candidates(comparison.at_target, first):
            tried = [*factors, factor]
            left = comparison.differences(tried) if factor.module not in {each.module for each in factors} else None
            if left is not None and left.keys() <= differences.keys() - {first.place}:
                factors, differences = tried, left
                break
        else:
            much = "other numbers than" if first.ratio is None else f"{first.ratio:.4g} times the numbers of"
            raise ValueError(
                f"{first.title} has {much} a model of other sizes: the forward pass has a factor that depends on "
                "sizes, and no factor on the output of a module takes it out"
            )
    return factors


def _candidates(at_target: Rehearsal, difference: _Difference) -> Iterator[Factor]:
    """Factors on outputs of modules: of the one that multiplies at the place of the difference, and those before it."""
    if difference.ratio is None:
        return
    value = _simple(1 / difference.ratio)
    owner, _, last = difference.place.rpartition(".")
    if last == WRITTEN or owner in at_target.linear:
        yield Factor(owner, value, stands_for_input=last != WRITTEN)
    before = dict.fromkeys(name for name in reversed(at_target.finished[: difference.ran]) if name)
    yield from [Factor(name, value) for name in before][:_MOST_CANDIDATES]


def _simple(ratio: float) -> float:
    """The root of a simple fraction, if a ratio is one up to rounding."""
    fraction = Fraction(ratio**2).limit_denominator(4096)
    root = math.sqrt(fraction)
    return root if abs(root / ratio - 1) < 1e-5 else ratio


def _planned(model: nn.Module, factor: Factor, growth: float, has_base: bool) -> PlannedFactor:
    embedding = model.get_input_embeddings()  # type: ignore[operator]
    is_embedding = any(module is embedding for path, module in model.named_modules() if path == factor.module)
    if is_embedding and math.isclose(factor.value, growth**-0.5, rel_tol=_TOLERANCE):
        return EMBEDDINGS
    if not has_base:
        raise ValueError(
            f"the forward pass multiplies what {factor.module} gives by a factor that depends on sizes, "
            f"{1 / factor.value:.4g} times that at half the width: pass base, the config of the model that was tuned"
        )
    return PlannedFactor("scaled embedding" if is_embedding else "own factor", partial(_constant, factor.value))


def _constant(factor: float, plan: Plan) -> float:
    return factor if plan.setting.scheme.averages else 1.0
