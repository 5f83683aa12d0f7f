"""How the residual stream answers to what each block adds to it, and to the output of one expert.

Both are measured on weights that are made for it, so that the answers of two models of different sizes compare, and
nothing that a model was initialized with or has learned enters. Matrices and biases are zero, so that no block adds
anything, and the stream passes through the model unchanged:

- Numbers that are put into the output of a matrix then arrive at the end of the stream times the factors on their way.
  Every matrix gets coordinates of its own, and all are measured in one pass.
- In one MoE layer at a time, the weights are such that every hidden unit of every expert has the same known input for
  one token, and expert m puts out the same number in coordinate m of the width. What arrives there is that number times
  the gate and all factors. Routers get logits at which a sigmoid is 1, and at which the chosen experts have all of a
  softmax between them.

Passes run in the model's own precision, in float32 at least, on weights that stand in for the model's.

Shapes: T tokens (rows of any leading axes), N width, M experts.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mssp.apply.description import name_cleaner
from mssp.measure.expert_layers import Layer, Seen, UnclearError, Weights, layers_of
from mssp.measure.modules import Described, check_unsharded
from mssp.measure.products import WatchedProducts
from mssp.measure.recording import undisturbed, wide_copy, with_first
from mssp.planning.rules import GAINS

Run = Callable[[nn.Module], Any]
Source = tuple[str, int]  # a parameter or a module, and the number of its call in a pass
# What is put in is far larger than what is there, so that the rounding of what is there does not show in the answer.
_PUT_IN = 1024.0
# An answer below this share of what was put in is rounding: no model has factors that small.
_NOTHING = 1e-6
# Answers are the same if they differ by less: float32 rounds sums of up to 10^5 terms by less than 1e-4.
_SAME = 1e-3
_OPEN = 8.0  # a logit at which a sigmoid is 1 up to 3e-4, and which takes all of a softmax from logits of -8
# Gates that are shares of one change by a third and more where the other experts' logits fall from 8 to 0.
_SHARE_MOVES = 0.1


@dataclass(frozen=True)
class Writer:
    """A matrix, or a norm, whose output is added to the residual stream.

    Args:
        factor: what a number in its output is multiplied by until it arrives at the end of the stream.
    """

    name: str
    factor: float


@dataclass(frozen=True)
class MoEResponse:
    """How one MoE layer answers, for one token.

    Args:
        name: the module of the layer, or the stack of its experts where no module has both of its parts to itself.
        active: the number of experts on which the token's output depends.
        shares: whether the gate of an expert depends on the other experts' logits, as shares of one do.
        in_sum: what the outputs of the chosen experts make in the output of the layer's module, all together, in units
            that are the same for models of all sizes. None where no module returns the sum.
        in_stream: the same in the residual stream; None where they do not arrive there as they are.
        module_factor: what the output of the layer's module is multiplied by until it arrives in the stream.
    """

    name: str
    active: int
    shares: bool
    in_sum: float | None
    in_stream: float | None
    module_factor: float | None


@dataclass(frozen=True)
class Responses:
    """All that was measured of one model.

    Args:
        blocks: how many parts add to the stream, told apart by the first number in their names, by the first two, and
            so on: where blocks have the first number, the first is the number of blocks.
        unclear: why something could not be measured, by the name of the part.
    """

    writers: Sequence[Writer]
    moes: Sequence[MoEResponse]
    blocks: tuple[int, ...]
    unclear: Mapping[str, str]


def responses(model: nn.Module, described: Described, run: Run) -> Responses:
    """Measure a model, which is left as it was; ``run`` calls the model that it is given on a batch.

    >>> from mssp.apply.description import described_parameters
    >>> from mssp.nn import MLPConfig, MLPMoE
    >>> net = MLPMoE(MLPConfig(inputs=3, outputs=2, width=8, expert_width=4, experts=4, blocks=2, residual=True))
    >>> found = responses(net, described_parameters(net), lambda net: net(torch.ones(2, 3)))
    >>> found.blocks, [(moe.active, moe.shares) for moe in found.moes]
    ((2,), [(4, False), (4, False)])

    A ValueError says what a probe needs and does not find.
    """
    check_unsharded(described)
    if any(parameter.is_meta for _, parameter in described):
        raise ValueError("a probe runs the model, which is on the meta device: give it memory first")
    with undisturbed(model), torch.no_grad():
        return _Probe(model, described, run).responses()


def family(name: str) -> str:
    """A name without its numbers: the same for the same parameter of every block.

    >>> family("blocks.3.moe.w_out")
    'blocks.*.moe.w_out'
    """
    return re.sub(r"\d+", "*", name)


def _numbered(name: str, numbers: int = 1) -> str:
    """A name up to its first number, or to a later one; empty if it has fewer.

    >>> _numbered("blocks.3.experts.5.w_out"), _numbered("embedding")
    ('blocks.3', '')
    """
    match = re.match(rf"(?:.*?\d+){{{numbers}}}", name)
    return match.group() if match else ""


def _counted(sources: Sequence[Source]) -> tuple[int, ...]:
    """How many different parts there are, by the first number in their names, by the first two, and so on."""
    counts: list[int] = []
    while parts := {(part, call) for name, call in sources if (part := _numbered(name, len(counts) + 1))}:
        counts.append(len(parts))
    return tuple(counts)


class _Probe:
    """Measures one model."""

    def __init__(self, model: nn.Module, described: Described, run: Run) -> None:
        self._clean = name_cleaner(model)
        self._run = _Runner(model, described, run)
        self._layers = list(layers_of(described, self._run.raw))
        self._run.modules += [layer.module for layer in self._layers if layer.module]
        self._neutral = self._run()
        self._unclear: dict[str, str] = {}

    def responses(self) -> Responses:
        factors = self._factors()
        moes, adding = [], [source for source in factors if source[0] not in self._run.modules]
        for layer in self._layers:
            try:
                moe, arrives = self._moe(layer, factors.get((layer.module, 0)))
            except UnclearError as error:
                self._unclear.setdefault(self._name(layer.name), str(error))
                continue
            moes.append(moe)
            adding += [(layer.router[0], 0)] if arrives or moe.module_factor is not None else []
        writers = [
            Writer(self._name(name), factor)
            for (name, _), factor in factors.items()
            if _numbered(name) and name not in self._run.modules
        ]
        return Responses(writers, moes, _counted(adding), self._unclear)

    def _name(self, raw: str) -> str:
        return self._clean(raw).removesuffix(".weight")

    # -- what is added to the stream -----------------------------------------------------------------------------------

    def _factors(self) -> dict[Source, float]:
        """The factor on the way to the end of the stream, of every source that arrives there."""
        sources, at_once = self._neutral.sources, max(self._run.width // 2, 1)
        factors: dict[Source, float] = {}
        changed: list[Source] = []
        for start in range(0, len(sources), at_once):
            some = sources[start : start + at_once]
            signs = self._signs(len(some))
            once, twice = (self._arrived(dict(zip(some, times * signs, strict=True))) for times in (1, 2))
            for source, sign in zip(some, signs, strict=True):
                arrived, double = (once * sign)[:, sign != 0], (twice * sign)[:, sign != 0]
                factor = float(arrived.mean())
                spread = max(float((arrived - factor).abs().max()), float((double / 2 - arrived).abs().max()))
                if float(arrived.abs().max()) < _NOTHING:
                    continue
                if spread < _SAME * abs(factor):
                    factors[source] = factor
                else:
                    changed.append(source)
        # Where a norm stands at the end of a branch, it writes to the stream, and what is before it does not.
        behind_norms = {_numbered(name) for name, _ in factors if name in self._run.norms}
        self._unclear |= {
            self._name(name): "its output does not arrive in the residual stream as it is"
            for name, _ in changed
            if _numbered(name) not in behind_norms
        }
        return factors

    def _signs(self, sources: int) -> Tensor:
        """Ones and minus ones in the coordinates of each source, as many of both: the mean of each source is zero."""
        signs = torch.zeros(sources, self._run.width, device=self._stream.device)
        for source in range(sources):
            coordinates = torch.arange(source, self._run.width, sources)
            paired = coordinates[: len(coordinates) // 2 * 2]
            signs[source, paired[::2]], signs[source, paired[1::2]] = 1.0, -1.0
        return signs

    def _arrived(self, put_in: Mapping[Source, Tensor]) -> Tensor:
        """What arrives at the end of the stream of what is put in, in the same units, [T, N]."""
        found = self._run(put_in={source: _PUT_IN * x for source, x in put_in.items()})
        return (found.end - self._stream) / _PUT_IN

    @property
    def _stream(self) -> Tensor:
        return self._neutral.end

    # -- one MoE layer -------------------------------------------------------------------------------------------------

    def _moe(self, layer: Layer, module_factor: float | None) -> tuple[MoEResponse, bool]:
        """How a layer answers, and whether this was seen at the end of the stream."""
        experts, before = layer.experts, self._before(layer)
        if len(layer.second) not in (1, experts):
            raise UnclearError(f"its {experts} experts have {len(layer.second)} second matrices")
        # Under equal logits the layer takes as many experts as it will, also where it takes groups of experts first.
        equal = self._answers(layer, before, torch.full((experts,), _OPEN))
        counted = next((answer for answer in equal if answer is not None and answer.any()), torch.zeros(1))
        chosen = counted.abs().gt(_NOTHING).nonzero().flatten().tolist()
        if not chosen:
            raise UnclearError("what its experts put out does not arrive in the residual stream as it is")
        logits = torch.full((experts,), -_OPEN)
        logits[chosen] = _OPEN
        once, twice = (self._answers(layer, before, logits, times) for times in (1, 2))
        logits[chosen[1:]] = 0.0
        alone = self._answers(layer, before, logits)
        sums: list[float | None] = []
        shares = False
        for answer, double, other in zip(once, twice, alone, strict=True):
            if answer is None or double is None or other is None or not answer.any():
                sums.append(None)
                continue
            in_proportion = float((double / 2 - answer).abs().max()) < _SAME * float(answer.abs().max())
            sums.append(float(answer.sum()) if in_proportion else None)
            shares |= in_proportion and abs(float(other[chosen[0]] / answer[chosen[0]]) - 1) > _SHARE_MOVES
        in_sum, at_end, between = sums
        in_stream = between if at_end is None else at_end
        if in_sum is None and in_stream is None:
            raise UnclearError("what its experts put out does not arrive in the residual stream as it is")
        name = self._name(layer.module if in_sum is not None else layer.second[0][0])
        response = MoEResponse(name, len(chosen), shares, in_sum, in_stream, module_factor)
        return response, at_end is not None

    def _before(self, layer: Layer) -> _Before:
        """A pass in which something enters the layer's router.

        Without a residual stream, nothing does where all layers put out nothing; then the layers before it put out
        something.
        """
        weights: dict[str, Tensor] = {}
        seen = self._seen(layer, self._neutral)
        if seen.by_router.any():
            return _Before(weights, self._neutral, seen)
        for earlier in self._layers[: self._layers.index(layer)]:
            seen = self._seen(earlier, self._run(weights))
            some = range(min(earlier.experts, self._run.width))
            logits = torch.full((earlier.experts,), _OPEN).to(seen.by_router)
            weights |= earlier.weights(logits, some, seen, self._run.neutral, 1.0)
        found = self._run(weights)
        seen = self._seen(layer, found)
        if not seen.by_router.any():
            raise UnclearError("nothing enters its router")
        return _Before(weights, found, seen)

    def _seen(self, layer: Layer, found: _Pass) -> Seen:
        """What the router and the experts see of the first token: experts are handed rows of the router's input."""
        met, width = found.met[layer.router[0]], self._run.width
        if len(met) != 1 or met[0].shape[-1] != width:
            raise UnclearError(f"its router meets {len(met)} inputs of the width in one pass, where one was expected")
        by_router = _rows(met[0])
        of_experts = [x for name, _ in layer.first for x in found.met[name]]
        handed = [_rows(x) for x in of_experts if x.shape[-1] == width]
        if not handed or any(bool((rows == by_router[0]).all(-1).any()) for rows in handed):
            return Seen(by_router[0], by_router[0])
        if len(handed[0]) == len(by_router):
            return Seen(by_router[0], handed[0][0])
        raise UnclearError("its experts see something else than its router does, in another order")

    def _answers(self, layer: Layer, before: _Before, logits: Tensor, times: int = 1) -> list[Tensor | None]:
        """What arrives of each expert's output, [M]: in the layer's module, at the stream's end, and in between.

        In between are the inputs of other layers' routers: without a residual stream a layer is seen there alone. None
        stands for a place where something else arrives.
        """
        at_once = max(min(layer.experts, self._run.width - 1), 1)
        logits, neutral = logits.to(before.seen.by_router), before.found
        tokens = len(_rows(neutral.met[layer.router[0]][0]))
        in_module = (layer.module, 0) in neutral.sources and len(neutral.outputs[layer.module]) == tokens
        parts: list[list[Tensor | None]] = [[], [], []]
        for first in range(0, layer.experts, at_once):
            some = range(first, min(first + at_once, layer.experts))
            weights = layer.weights(logits, some, before.seen, self._run.neutral, _PUT_IN * times)
            found = self._run({**before.weights, **weights})
            changes: list[Tensor | None] = [
                found.outputs[layer.module][0] if in_module else None,
                found.end[0] - neutral.end[0] if len(neutral.end) == tokens else None,
                self._at_other_routers(layer, found, neutral),
            ]
            for part, change in zip(parts, changes, strict=True):
                part.append(None if change is None else _only(change / _PUT_IN, len(some)))
        return [_joined(part) for part in parts]

    def _at_other_routers(self, layer: Layer, found: _Pass, neutral: _Pass) -> Tensor | None:
        """The change in what enters the first other router where there is one."""
        for other in self._layers:
            for now, before in zip(found.met[other.router[0]][:1], neutral.met[other.router[0]][:1], strict=True):
                change = _rows(now)[0] - _rows(before)[0]
                if other is not layer and bool(change.any()):
                    return change
        return None


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    there = [part for part in parts if part is not None]
    return torch.cat(there) if len(there) == len(parts) else None


def _only(change: Tensor, experts: int) -> Tensor | None:
    """The coordinates of the experts; None if others have changed too."""
    largest, others = change.abs().max(), change[experts:].abs()
    return None if others.numel() and bool(others.max() > _SAME * largest) else change[:experts]


# -- one pass ----------------------------------------------------------------------------------------------------------


@dataclass
class _Pass:
    """What was seen in one pass.

    Args:
        end: the end of the residual stream, [T, N].
        met: the activations that parameters met, by name, call by call.
        sources: whose outputs are as wide as the stream: matrices, and norms and modules that put out nothing.
        outputs: what modules of MoE layers put out, [T, N].
    """

    end: Tensor = field(default_factory=lambda: torch.empty(0))
    met: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    sources: list[Source] = field(default_factory=list)
    outputs: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class _Before:
    """A pass in which the layer that is looked at puts out nothing, with the weights of other layers in it."""

    weights: Weights
    found: _Pass
    seen: Seen


class _Runner:
    """Runs a model on weights that stand in for its own, and puts numbers into the outputs of its parts."""

    def __init__(self, model: nn.Module, described: Described, run: Run) -> None:
        self.model, self.described = model, described
        self._run = _OnModel(model, run)
        self.raw = {parameter: name for name, parameter in model.named_parameters()}
        self._of_role: dict[str, list[str]] = defaultdict(list)
        for info, parameter in described:
            self._of_role["tied" if info.tied_readout else info.role].append(self.raw[parameter])
        watched = [self._of_role[role] for role in ("hidden", "router", "expert_in", "readout")]
        self._watched = [name for names in watched for name in names]
        self._matrices, self._readouts = set(watched[0]), set(watched[-1])
        final_norms = {name.rpartition(".")[0] for name in self._of_role["final_norm"]}
        if "" in final_norms:
            raise ValueError("the final norm is no module of its own, and a probe reads the stream where it enters it")
        if not final_norms and not self._readouts:
            raise ValueError("a probe needs the end of the residual stream: no final_norm and no readout is described")
        self._ends = [model.get_submodule(owner) for owner in final_norms]
        # Besides matrices, these are sources: norms, and what the caller adds.
        self.norms = {name.rpartition(".")[0] for name in self._of_role["norm"]} - {""}
        self.modules: list[str] = []
        self.width = self._width()
        self.neutral = self._neutral_weights()

    def _neutral_weights(self) -> dict[str, Tensor]:
        """Embeddings are random and gains neutral; all that blocks do with it is zero."""
        held = (*self.model.named_parameters(), *self.model.named_buffers())
        weights = {name: wide_copy(tensor) for name, tensor in held if tensor.dtype in (torch.bfloat16, torch.float16)}
        generator = torch.Generator().manual_seed(0)
        for info, parameter in self.described:
            dtype, shape = torch.promote_types(parameter.dtype, torch.float32), parameter.shape
            weight = torch.zeros(shape, dtype=dtype, device=parameter.device)
            if info.role in GAINS:
                start = 1.0 if info.start is None else info.start
                weight = wide_copy(parameter) if isinstance(start, str) else weight.fill_(start)
            elif info.role == "embedding":
                weight.copy_(torch.randn(shape, generator=generator) * (info.fan_in or 1) ** -0.5)
            weights[self.raw[parameter]] = weight
        return weights

    def _width(self) -> int:
        width = next((info.fan_in for info, _ in self.described if info.role in ("router", "readout")), None)
        if width is None:
            raise ValueError("a probe needs a router or a readout that is described: it tells how wide the stream is")
        return width

    def __call__(self, weights: Weights | None = None, put_in: Mapping[Source, Tensor] | None = None) -> _Pass:
        """One pass, with ``weights`` in place of the neutral ones. What is in ``put_in`` is added to outputs."""
        seen, calls, put_in, weights = _Pass(), Counter[str](), put_in or {}, {**self.neutral, **(weights or {})}

        def as_source(name: str, output: Tensor) -> Tensor:
            source = (name, calls[name])
            calls[name] += 1
            if name in self._matrices or not output.any():
                seen.sources.append(source)
            return output if source not in put_in else output + put_in[source].to(output.dtype)

        def meeting(names: tuple[str, ...], activations: list[Tensor], output: Tensor) -> Tensor:
            for name in names:
                seen.met[name].append(activations[0])
            if not self._ends and not seen.end.numel() and self._readouts.intersection(names):
                seen.end = _rows(activations[0])
            matrices = [name for name in names if name in self._matrices]
            return as_source(matrices[-1], output) if matrices and self._is_wide(output) else output

        def entering(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = next((each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)), None)
            if not seen.end.numel() and x is not None:
                seen.end = _rows(x)

        def leaving(name: str) -> Callable[[nn.Module, Any, Any], Any]:
            def hook(module: nn.Module, args: Any, output: Any) -> Any:
                y = output[0] if isinstance(output, tuple | list) and output else output
                if not isinstance(y, Tensor) or not self._is_wide(y):
                    return None
                changed = as_source(name, y)
                seen.outputs.setdefault(name, _rows(changed))
                return with_first(output, changed)

            return hook

        with ExitStack() as stack:
            for module in self._ends:
                stack.callback(module.register_forward_pre_hook(entering, with_kwargs=True).remove)
            for name in dict.fromkeys((*self.norms, *self.modules)):
                stack.callback(self.model.get_submodule(name).register_forward_hook(leaving(name)).remove)
            stack.enter_context(WatchedProducts({name: weights[name] for name in self._watched}, meeting))
            torch.manual_seed(0)  # routers may add noise, which is then the same in every pass
            self._run.on(weights)
        if not seen.end.numel() or seen.end.shape[-1] != self.width:
            raise ValueError("a probe reads the stream where it enters the final norm or the readout: nothing did")
        return seen

    def _is_wide(self, output: Tensor) -> bool:
        return output.dim() > 1 and output.shape[-1] == self.width and output.is_floating_point()


class _OnModel(nn.Module):
    """Runs a model on weights that stand in for the model's own."""

    def __init__(self, model: nn.Module, run: Run) -> None:
        super().__init__()
        self.model, self._run = model, run

    def forward(self) -> Any:
        return self._run(self.model)

    def on(self, weights: Weights) -> None:
        functional_call(self, {f"model.{name}": weight for name, weight in weights.items()}, ())


def _rows(x: Tensor) -> Tensor:
    return x.detach().clone().reshape(-1, x.shape[-1])
