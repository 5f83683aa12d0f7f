"""Proxies: small models to tune, whose sizes are chosen so that the growth from them to a large model is clean.

People know the large model that they want. A proxy of it has the size of its heads, its vocabulary and all else that
the theory holds fixed. Width, heads, dense layers and low ranks are divided by one number. Experts can shrink in
several ways, which are counted and compared: by what they cost, and by κ, which is 1 where all terms keep their
balance (``planning/growth.py``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeGuard

from mssp._constraints import a_config, optional, positive_int, shown, takes
from mssp._tables import align, number
from mssp.hf.hub import config_file, is_on_the_hub
from mssp.hf.meta import ConfigError, config_of, on_meta
from mssp.planning.configs import QUANTIZATION, entries_of, keys_of_sizes, read_config, with_entries, with_parts
from mssp.planning.growth import Growth
from mssp.planning.setting import ANY, III, REGIME, REGIMES, Regime
from mssp.planning.shape import Shape

_RANKS = ("q_lora_rank", "kv_lora_rank", "o_lora_rank")
# Hidden sizes beside those of routed experts, and ranks: they are divided as the width is. A key that states the width
# of routed experts in a family is none of these there.
_DIVIDED = (
    "intermediate_size", "intermediate_size_mlp", "dense_intermediate_size", "prefix_dense_intermediate_size",
    "ffn_hidden_size", "shared_expert_intermediate_size", "shared_intermediate_size",
    "moe_shared_expert_intermediate_size", "share_expert_dim", *_RANKS, "mamba_n_heads", "linear_num_heads",
    "num_sliding_attention_heads",
)  # fmt: skip
# Numbers of heads, and of those that they share. The second divides the first.
_HEADS = (
    ("num_attention_heads", "num_key_value_heads"), ("linear_num_value_heads", "linear_num_key_heads"),
    ("swa_num_attention_heads", "swa_num_key_value_heads"), ("n_heads", "attn_config.kv_n_heads"),
)  # fmt: skip
_MOST_HEADS = 2**16  # all divisors of so many are tried in a moment
_HEAD_SIZES = ("head_dim", "v_head_dim")
_GROUPS = ("n_group", "num_expert_group")
_LIKE_EXPERTS = ("zero_expert_num",)  # experts that compute nothing, in proportion to those that do
_DENSE_FIRST = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
_LAST_LAYER = ("moe_layer_end_index",)
_LAYER_NUMBERS = ("mlp_only_layers", "moe_layers")
# Entries that name the large model, its code, or how its weights are stored.
_NOT_ITS_OWN = ("_name_or_path", "auto_map", QUANTIZATION)
_ROUTED = re.compile(r"(?:^|\.)experts\.")
_GRAINS = (64, 32, 16, 8, 4, 2)
# A size may be off by so much to be a multiple of a power of two: one in κ, or a number of experts, which is not in it.
_EXACT, _ROUGH = 0.02, 0.1
_CLOSE = 1.05  # the farthest from 1 that κ of a clean growth may be, either way
# So many parameters train on one GPU of 40 GB: with gradients and Adam's moments in float32 each takes 16 bytes.
_SMALL = 2e9


@dataclass(frozen=True)
class Alternative:
    """One small model: its config, the growth from it to the target, and what it has and costs.

    ``cost`` is that of training it on a token, over that of the target: the quotient of their active parameters.
    """

    config: Mapping[str, Any]
    growth: Growth
    parameters: int
    active_parameters: int
    cost: float

    @property
    def shape(self) -> Shape:
        return self.growth.base

    @property
    def stability(self) -> str:
        """Whether all terms of the dynamics stay of order 1 from this model to the target, in a few words."""
        growth, kappa = self.growth, self.growth.kappa
        if growth.regime is not ANY:
            return "stable: tied" if growth.regime is III else "stable"
        if abs(kappa - 1) <= _EXACT:
            return "stable"
        if kappa < 1:
            return f"unstable: κ^-1/2 = {kappa**-0.5:.2g}"
        if growth.share == 0 or kappa > growth.base.active * _CLOSE:
            return f"unstable: κ^1/2 = {kappa**0.5:.2g}"
        return f"stable: share {growth.share:.2g}"


@dataclass(frozen=True)
class Proxy:
    """A small model for a large one, the alternatives to it, and the ladder of models between the two."""

    target: Shape
    parameters: int
    active_parameters: int
    alternatives: Sequence[Alternative]
    rungs: Sequence[Alternative]
    notes: Sequence[str] = ()

    @property
    def chosen(self) -> Alternative:
        return self.rungs[0]

    @property
    def config(self) -> Mapping[str, Any]:
        """The config of the small model."""
        return self.chosen.config

    def __str__(self) -> str:
        title = f"Proxies of width {self.chosen.shape.width} for a model of {_sizes(self.target)}"
        lines = [f"{title}: {_many(self.parameters)} parameters, {_many(self.active_parameters)} active", ""]
        header = ["", *_symbols(self.target), "regime", "κ", "parameters", "active", "cost", "stability"]
        lines += align([header, *(self._row(each) for each in self.alternatives)])
        if len(self.rungs) > 1:
            lines += ["", "The ladder from the chosen one to the target"]
            lines += align([header, *(self._row(each) for each in self.rungs)])
        return "\n".join([*lines, *([""] if self.notes else []), *self.notes])

    def _row(self, each: Alternative) -> list[str]:
        growth, chosen = each.growth, each is self.chosen
        return [
            "→" if chosen else "", *(f"{each.shape.dims[symbol]:.0f}" for symbol in _symbols(self.target)),
            str(growth.regime), number(growth.kappa), _many(each.parameters), _many(each.active_parameters),
            f"{each.cost:.1%}", each.stability,
        ]  # fmt: skip


@takes(
    config=a_config,
    width=positive_int,
    regime=optional(REGIME),
    depth=optional(positive_int),
    experts=optional(positive_int),
    rungs=positive_int,
)
def proxy(
    config: Any,
    width: int,
    *,
    regime: str | Regime | None = None,
    depth: int | None = None,
    experts: int | None = None,
    rungs: int = 1,
) -> Proxy:
    """The small model to tune for a large one, with the alternatives to it.

    >>> large = {"model_type": "olmoe", "hidden_size": 2048, "intermediate_size": 1024, "num_experts": 64,
    ...          "num_experts_per_tok": 8, "num_hidden_layers": 16, "num_attention_heads": 16, "vocab_size": 50304}
    >>> small = proxy(large, 512)
    >>> small.chosen.shape, small.chosen.growth.kappa, small.config["num_attention_heads"]
    (Shape(N=512, N_e=256, M=64, K=8, L=16, D=1), 1.0, 4)

    Args:
        config: of the large model: an object, a mapping, the path of its file or folder, or its name on the Hub.
        width: of the small model.
        regime: how the small model grows to the large one: I, II, III, or ``any`` for another growth. If it is left
            out, experts stay as many as they are while the model is small enough, and else become fewer.
        depth: of the small model, if not that of the large one.
        experts: the number of routed experts of the small model.
        rungs: how many models there are, with the small one: the others stand between it and the large one.
    """
    large = _large(config)
    _refuse_unfit(large, width, depth, experts)
    shapes = _small_shapes(large, width, depth or large.shape.depth, experts)
    alternatives = [large.alternative(shape) for shape in dict.fromkeys(shapes)]
    chosen = _chosen(large.shape, alternatives, regime)
    between = [large.alternative(shape) for shape in _ladder(large, chosen.growth, rungs)]
    return Proxy(
        target=large.shape,
        parameters=large.parameters,
        active_parameters=large.active_parameters,
        alternatives=alternatives,
        rungs=[chosen, *between],
        notes=_notes(chosen.growth),
    )


def at_half_width(entries: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config of the same model at half the width, with half the heads, and with low ranks as they are."""
    large = _Large(entries)
    ranks = {key: entries[key] for key in _RANKS if entries.get(key) is not None}
    return {**large.alternative(replace(large.shape, width=large.shape.width // 2)).config, **ranks}


class _Large:
    """The large model, from which small ones are made."""

    def __init__(self, entries: Mapping[str, Any]) -> None:
        config = config_of(entries)
        self.entries = entries
        self.shape = Shape.from_config(entries)
        self._complete: Mapping[str, Any] = with_parts(config.to_dict())  # with the family's defaults
        self._other_names: Mapping[str, str] = type(config).attribute_map
        self.parameters, self.active_parameters = _counted(entries, self.shape)

    def experts_close_to(self, count: Fraction, active: int, tolerance: float) -> int:
        """A number of experts: groups of equal size, of which those chosen have enough of them."""
        groups = next((found for key in _GROUPS if _is_count(found := self._complete.get(key))), 1)
        chosen = self._complete.get("topk_group")
        in_a_group = Fraction(active, min(chosen, groups) if _is_count(chosen) else groups)
        # The score of a group is that of its two best experts.
        least = max(math.ceil(in_a_group), 2 if groups > 1 else 1)
        close = count / groups if groups > 1 else Fraction(_rounded(count, tolerance))
        return min(groups * max(round(close), least), self.shape.experts)

    @property
    def head_of_width(self) -> int:
        """What the width must be a multiple of: the size of a head, where heads share out the width, and else 1."""
        stated = any(self.entries.get(key) is not None for key in _HEAD_SIZES)
        heads = self._complete.get("num_attention_heads", self._complete.get("n_heads"))
        return 1 if stated or not isinstance(heads, int) else self.shape.width // heads

    def alternative(self, small: Shape) -> Alternative:
        reason = None
        for dividing in (False, True):  # some families refuse numbers of heads that do not divide the width
            config = self._config(small, dividing)
            try:
                parameters, active = _counted(config, small)
            except ConfigError as error:
                reason = reason or error
                continue
            return Alternative(config, Growth(small, self.shape), parameters, active, active / self.active_parameters)
        raise ValueError(f"a proxy with {_sizes(small)} cannot be built: {reason}")

    def _config(self, small: Shape, dividing: bool) -> dict[str, Any]:
        """The config of a small model of the same family."""
        changes = {**self._sizes(small), **self._heads(small, dividing), **self._layers(small)}
        result = {key: value for key, value in self.entries.items() if key not in _NOT_ITS_OWN}
        known_as = {self._other_names.get(key, key): key for key in result}  # a config may use another name of a key
        return with_entries(result, {known_as.get(key, key): value for key, value in changes.items()})

    def _sizes(self, small: Shape) -> dict[str, Any]:
        stated = {self._other_names.get(key, key): name for name, keys in self._keys().items() for key in keys}
        sizes = {key: getattr(small, name) for key, name in stated.items()}
        factor = Fraction(self.shape.width, small.width)
        for key in _DIVIDED:
            if key not in sizes and _is_count(size := self._complete.get(key)):
                sizes[key] = _divided(size, factor)
        for key in _LIKE_EXPERTS:
            if _is_count(count := self._complete.get(key)):
                sizes[key] = max(1, round(count * small.experts / self.shape.experts))
        return sizes

    def _keys(self) -> Mapping[str, Sequence[str]]:
        return keys_of_sizes(self.entries)

    def _heads(self, small: Shape, dividing: bool) -> dict[str, int]:
        """Heads of the same size, in proportion to the width."""
        factor = Fraction(self.shape.width, small.width)
        counts = {}
        for many, few in _HEADS:
            if not _is_count(heads := self._complete.get(many)):
                continue
            if heads > _MOST_HEADS:
                raise ValueError(f"{many} must be at most {_MOST_HEADS:,} for a proxy, got {shown(heads)}")
            counts[many] = _divisor(small.width, heads / factor) if dividing else max(1, round(heads / factor))
            if _is_count(shared := self._complete.get(few)):
                counts[few] = _divisor(counts[many], shared / factor)
        return counts

    def _layers(self, small: Shape) -> dict[str, Any]:
        """What depends on the depth. Dense layers stay as many as they are where half of the layers have experts."""
        factor = Fraction(self.shape.width, small.width)
        kept = self._kept_layers(small.depth)
        changes: dict[str, Any] = {}
        for key, value in self.entries.items():
            if isinstance(value, Mapping) and value and all(str(layer).isdecimal() for layer in value):
                own = {int(layer): entry for layer, entry in value.items()}
                changes[key] = {new: _narrowed(own[old], factor) for new, old in enumerate(kept) if old in own}
        if small.depth == self.shape.depth:
            return changes
        for key in _DENSE_FIRST:
            if _is_count(dense := self._complete.get(key)) and 2 * dense > small.depth:
                share = round(dense * small.depth / self.shape.depth)
                changes[key] = min(max(1, share), small.depth - 1)
        for key in _LAST_LAYER:
            if _is_count(last := self._complete.get(key)):
                changes[key] = min(last, small.depth - 1)
        for key, value in self.entries.items():
            if isinstance(value, list) and key in _LAYER_NUMBERS:
                changes[key] = [layer for layer in value if layer < small.depth]
            elif isinstance(value, list) and len(value) == self.shape.depth:
                changes[key] = _some_layers(value, small.depth)
        return changes

    def _kept_layers(self, depth: int) -> list[int]:
        """The numbers of the layers that the small model has: those of which the lists of their kinds are kept."""
        of_words = [
            value
            for value in self.entries.values()
            if isinstance(value, list)
            and len(value) == self.shape.depth
            and all(isinstance(each, str) for each in value)
        ]
        rows = [*zip(*of_words, strict=True)] or [*range(self.shape.depth)]
        return list(range(depth)) if _are_the_first(rows, depth) else _far_apart(list(range(len(rows))), depth)


# -- sizes -------------------------------------------------------------------------------------------------------------


def _small_shapes(large: _Large, width: int, depth: int, experts: int | None) -> Iterator[Shape]:
    """The sizes of small models, of which each grows in another way."""
    target = large.shape
    if target.is_dense:
        yield Shape(width, depth=depth)
        return
    factor = Fraction(target.width, width)
    least = min(target.active, 2)  # one chosen expert of several has a gate of 1 if gates sum to one: nothing to learn

    def shape(active: int, number: int, expert_width: int) -> Shape:
        return Shape(width, expert_width, number, active, depth)

    narrow = _divided(target.expert_width, factor)
    if experts is not None:
        fewer = max(least, round(target.active * experts / target.experts))
        if experts > target.active:
            yield shape(target.active, experts, narrow)
        balanced = _divided(target.expert_width, factor * fewer / target.active)
        yield shape(fewer, experts, min(balanced, target.expert_width))
        yield shape(fewer, experts, target.expert_width)
        yield shape(fewer, experts, narrow)
        return
    fewer = max(least, round(target.active / factor))
    share = large.experts_close_to(Fraction(target.experts * fewer, target.active), fewer, _EXACT)
    few = large.experts_close_to(max(target.experts / factor, Fraction(2 * target.active)), target.active, _ROUGH)
    yield shape(target.active, target.experts, narrow)
    yield shape(fewer, share, target.expert_width)
    yield shape(fewer, share, narrow)
    yield shape(target.active, few, narrow)
    yield shape(target.active, target.experts, target.expert_width)


def _narrowed(entry: Any, factor: Fraction) -> Any:
    """What a config says of one layer alone, with its sizes divided as those of all layers are."""
    if not isinstance(entry, Mapping):
        return entry
    divided = {*_DIVIDED, *(name for names in _HEADS for name in names)}
    return {key: _divided(size, factor) if key in divided and _is_count(size) else size for key, size in entry.items()}


def _divisor(number: int, wanted: Fraction) -> int:
    """The divisor of a number that is closest to what is wanted."""
    smaller = [count for count in range(1, math.isqrt(number) + 1) if number % count == 0]
    divisors = [*smaller, *(number // count for count in smaller)]
    return min(divisors, key=lambda count: abs(math.log(count / wanted)))


def _divided(size: int, factor: Fraction) -> int:
    """A size over a factor: a whole number if it is one, or else a multiple of a power of two close to it."""
    exact = size / factor
    return int(exact) if exact.denominator == 1 else _rounded(exact, _EXACT)


def _rounded(exact: Fraction, tolerance: float) -> int:
    """A multiple of the largest power of two that leaves it so close to what it was."""
    rounded = (max(1, round(exact / grain)) * grain for grain in _GRAINS)
    return next((each for each in rounded if abs(each / exact - 1) <= tolerance), max(1, round(exact)))


def _ladder(large: _Large, growth: Growth, rungs: int) -> Iterator[Shape]:
    """The sizes of the models between a small one and the large one: each is larger than the last by one factor."""
    small, target, factors = growth.base, growth.target, growth.factors
    grain = large.head_of_width if large.head_of_width > 1 else math.gcd(small.width, target.width, 64)
    keeps_share = math.isclose(factors["M"], factors["K"], rel_tol=_CLOSE - 1)
    active_as_width = math.isclose(factors["K"], factors["N"], rel_tol=_CLOSE - 1)
    last = small.width
    for index in range(1, rungs):
        sizes = {name: _between(small, target, name, index / rungs) for name in ("width", "experts", "active", "depth")}
        depth, active = round(sizes["depth"]), round(sizes["active"])
        wanted = target.width * active / target.active if active_as_width else sizes["width"]
        width = grain * round(wanted / grain)
        if not last < width < target.width:
            raise ValueError(
                f"rungs: from a width of {small.width} to one of {target.width} there is no room for {rungs} models "
                f"whose widths are multiples of {grain}"
            )
        last = width
        if target.is_dense:
            yield Shape(width, depth=depth)
            continue
        count = Fraction(target.experts * active, target.active) if keeps_share else Fraction(sizes["experts"])
        experts = large.experts_close_to(count, active, _EXACT if keeps_share else _ROUGH)
        kappa = Fraction(growth.kappa ** (1 - index / rungs)).limit_denominator(1000)
        factor = kappa * Fraction(target.width * active, width * target.active)
        expert_width = _divided(target.expert_width, factor)
        yield Shape(width, min(expert_width, target.expert_width), experts, active, depth)


def _between(small: Shape, target: Shape, name: str, part: float) -> float:
    """A size that is this part of the way from the small model to the target, in factors."""
    return float(getattr(small, name) ** (1 - part) * getattr(target, name) ** part)


def _some_layers(kinds: list[Any], depth: int) -> list[Any]:
    """The kinds of the first layers, or of layers far apart where the first ones lack some kind."""
    return kinds[:depth] if _are_the_first(kinds, depth) else _far_apart(kinds, depth)


def _are_the_first(kinds: list[Any], depth: int) -> bool:
    return depth == 1 or all(kind in kinds[:depth] for kind in kinds)


def _far_apart(kinds: list[Any], depth: int) -> list[Any]:
    return [kinds[round(layer * (len(kinds) - 1) / (depth - 1))] for layer in range(depth)]


# -- choosing ----------------------------------------------------------------------------------------------------------


def _chosen(target: Shape, alternatives: Sequence[Alternative], regime: str | Regime | None) -> Alternative:
    fitting = alternatives
    if regime is not None:
        fitting = [each for each in alternatives if each.growth.regime is regime]
    elif alternatives[0].parameters <= _SMALL:
        fitting = alternatives[:1]
    if not fitting:
        raise ValueError(_why_none(target, alternatives[0].shape, regime))
    return min(fitting, key=lambda each: (max(_distance(each), math.log(_CLOSE)), each.parameters))


def _distance(alternative: Alternative) -> float:
    """How far κ is from 1."""
    return abs(math.log(alternative.growth.kappa))


def _why_none(target: Shape, small: Shape, regime: Any) -> str:
    factor = target.width / small.width
    if regime is ANY or regime is REGIMES[0] or target.active == 1:
        return f"regime {regime} is not the growth of any proxy of width {small.width}"
    widths = [target.width * active // target.active for active in range(2, target.active)]
    some = f"a width of {' or '.join(map(str, widths[:4]))} has" if widths else "no smaller width has"
    return (
        f"regime {regime} divides the width and the {target.active} active experts by one number: at a width of "
        f"{small.width} there would be {target.active / factor:.3g} of them, where two are the fewest that a router "
        f"chooses between; {some} a whole number"
    )


def _notes(growth: Growth) -> list[str]:
    if growth.base.is_dense or abs(math.log(growth.kappa)) <= math.log(_CLOSE):
        return []
    small, target = growth.base, growth.target
    exact = small.width * target.active * target.expert_width / (target.width * small.active)
    return [
        f"κ is {number(growth.kappa)}: with {small.active} active experts it is 1 at an expert width of {exact:.4g}, "
        f"and this growth has {small.expert_width}"
    ]


def _refuse_unfit(large: _Large, width: int, depth: int | None, experts: int | None) -> None:
    target = large.shape
    sizes = (("width", width, target.width), ("depth", depth, target.depth), ("experts", experts, target.experts))
    for name, size, largest in sizes:
        if size is not None and size > largest:
            raise ValueError(f"{name} must be at most that of the large model, {largest}, got {size}")
    if width % large.head_of_width:
        raise ValueError(f"width must be a multiple of the size of a head, {large.head_of_width}, got {width}")
    if experts is not None and experts < min(target.active, 2):
        raise ValueError(f"experts must be 2 or more for a router to choose between, got {experts}")


# -- reading and counting ----------------------------------------------------------------------------------------------


def _large(source: Any) -> _Large:
    """The model of a config that is given as an object, by its path, or by its model's name on the Hub."""
    if not isinstance(source, str | Path):
        return _Large(entries_of(source))
    content = read_config(config_file(str(source)) if is_on_the_hub(str(source)) else source)
    try:
        return _Large(entries_of(content))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def _counted(config: Mapping[str, Any], shape: Shape) -> tuple[int, int]:
    """The parameters of a model, and those that a token meets. The model is built without memory."""
    parameters = on_meta(config_of(config)).named_parameters()
    counts = [(bool(_ROUTED.search(name)), parameter.numel()) for name, parameter in parameters]
    total, routed = (sum(count for is_routed, count in counts if is_routed or every) for every in (True, False))
    return total, total - routed * (shape.experts - shape.active) // shape.experts


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _symbols(shape: Shape) -> tuple[str, ...]:
    return ("N", "L") if shape.is_dense else ("N", "N_e", "M", "K", "L")


def _sizes(shape: Shape) -> str:
    return "  ".join(f"{symbol} {shape.dims[symbol]:.0f}" for symbol in _symbols(shape))


def _many(count: int) -> str:
    """A number of parameters in billions or millions."""
    return f"{count / 1e9:.3g} B" if count >= 1e9 else f"{count / 1e6:.3g} M"
