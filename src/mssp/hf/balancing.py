"""Load-balancing losses of Hugging Face models: what they are at uniform routing, and the coefficients of a plan.

The loss of ``transformers`` is K where routing is uniform, with K active experts, so that one coefficient stands for
more balancing the more experts are active. Others are 1 there, or are summed over layers. No name tells which: the
forward pass of the model runs with everything inside it replaced, so that all router logits are equal, and what its
loss is then shows it, at the target and at the base. The coefficient is the number that this loss is proportional to.
A plan multiplies it by what the loss is at the base over what it is here.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from mssp._tables import number
from mssp.planning.configs import STORED, Config, with_entries, with_parts
from mssp.planning.plans import Plan
from mssp.planning.recipe import PlanWarning

COEFFICIENTS = "mssp_coefficients"  # an attribute of adapted models
_TOKENS = 2  # of which a causal language model predicts one
_PEAK = 3.0  # the logit of one expert, where routing is not uniform
_DIGITS = 6  # of a loss in float32
_CLOSE, _NOTHING = 1e-3, 1e-9


@dataclass(frozen=True)
class Coefficient:
    """The coefficient of a load-balancing loss.

    Args:
        name: of the number that the forward pass reads: an attribute of the model, or ``config.`` and an entry.
        entry: of the model's config that the number is copied from when the model is built; None if it is not known.
        own: what it is in the model without a plan.
        tuned: what it is at the base; without a base, the model's own.
        uniform: the loss for a coefficient of 1, where routing is uniform.
        uniform_at_base: the same at the base; None if there is none.
    """

    name: str
    entry: str | None
    own: float
    tuned: float
    uniform: float
    uniform_at_base: float | None = None

    def factor(self, plan: Plan) -> float:
        """What the plan multiplies the coefficient by, so that the loss has the weight that it was tuned with.

        Without a base, the coefficient is that of a loss which is 1 at uniform routing.
        """
        if not plan.setting.scheme.averages:
            return 1.0
        if plan.base is None:
            return 1 / self.uniform
        if self.uniform_at_base is not None:
            return self.uniform_at_base / self.uniform
        if self.uniform == plan.target.active:
            return plan.multiplier("load_balance", relative=True)
        if self.uniform == 1:
            return 1.0
        raise ValueError(
            f"the load-balancing loss of {self.name} is {number(self.uniform)} at uniform routing, and what it is at "
            "the base is not known: adapt the model with base="
        )

    def planned(self, plan: Plan) -> float:
        return self.tuned * self.factor(plan)

    def text(self, plan: Plan) -> str:
        """What the plan makes of it, for people."""
        factor, planned = self.factor(plan), self.planned(plan)
        uniform = f"a load-balancing loss that is {number(self.uniform)} at uniform routing"
        return f"{self.name} {number(planned)} = {number(self.tuned)} × {number(factor)}  ({uniform})"

    @property
    def is_attribute(self) -> bool:
        """Whether the model itself holds it, rather than its config alone."""
        return not self.name.startswith(_CONFIG)


def coefficients_of(model: nn.Module, layers: int, experts: int) -> list[Coefficient] | None:
    """The coefficients of a model's load-balancing losses, found by running the model's own forward pass.

    ``layers`` is the number of its MoE layers, ``experts`` that of the routed experts in each of them. Models without
    such a loss have none, and a coefficient of 0 is none. None stands for a loss whose coefficient is not known.
    """
    try:
        stub = _Stub(model, layers, experts)
        of_routing = stub.of_routing({})
    except Exception as error:  # any family's code, which was not made for this
        config: Any = model.config
        if getattr(config.get_text_config(), _FLAG, False):
            _warn(f"the model's load-balancing loss could not be measured ({' '.join(str(error).split())}): {_REMEDY}")
            return None
        return []
    if of_routing == 0:
        return []
    numbers = {name: value for name, value in _numbers(model) if stub.is_coefficient(name, value)}
    found = []
    for name, value in numbers.items():
        if stub.is_of_balance({name: 2 * value}, {name: value}):
            own = _without_plan(model, name, value)
            found.append(Coefficient(name, _entry(model, name, value), own, own, stub.uniform(name)))
    without = dict.fromkeys(numbers, 0.0)
    if abs(stub.of_routing(without)) > _NOTHING and stub.is_of_balance(without):
        _warn(f"the model adds a load-balancing loss, and its coefficient is no number that it holds: {_REMEDY}")
        return None
    return found


def as_tuned(coefficients: Sequence[Coefficient], base: nn.Module, layers: int, experts: int) -> list[Coefficient]:
    """The coefficients as they were tuned at a base, which is a model without weights, or with any."""
    stub, tuned_there = _Stub(base, layers, experts), []
    for each in coefficients:
        tuned, uniform = float(read(base, each.name)), stub.uniform(each.name)
        if not any(math.isclose(each.own, known, rel_tol=_CLOSE) for known in (tuned, tuned * uniform / each.uniform)):
            _warn(
                f"{each.name} is {number(each.own)} in the model and {number(tuned)} at the base, from which it is "
                "carried"
            )
        tuned_there.append(replace(each, tuned=tuned, uniform_at_base=uniform))
    return tuned_there


# -- on the model -----------------------------------------------------------------------------------------------------

_CONFIG = "config."
_KEPT = "coefficients"  # what a model's config keeps of them, beside its plan


def keep_coefficients(model: nn.Module, coefficients: Sequence[Coefficient], plan: Plan) -> None:
    """Set the coefficients by the plan, in the model and in its config, and keep there what they were."""
    kept = {}
    for each in coefficients:
        planned = each.planned(plan)
        for name in _places(each.name, each.entry):
            put(model, name, planned)
        kept[each.name] = {"entry": each.entry, "own": each.own, "planned": planned}
    if kept:
        getattr(model.config, STORED)[_KEPT] = kept


def restore_coefficients(model: nn.Module) -> None:
    """Give a model its own coefficients back, unless somebody has set them since."""
    for name, kept in _kept(model).items():
        for place in _places(name, kept["entry"]):
            if _is(read(model, place), kept["planned"]):
                put(model, place, kept["own"])


def with_own_coefficients(entries: Config) -> Config:
    """The entries of a config that keeps a plan, with the coefficients that the model had before it.

    A coefficient that somebody has set since stays.
    """
    stored, values = entries.get(STORED), with_parts(entries)
    kept = stored.get(_KEPT) if isinstance(stored, Mapping) else None
    own = {}
    for name, each in kept.items() if isinstance(kept, Mapping) else ():
        if isinstance(each, Mapping) and each.keys() >= {"entry", "own", "planned"}:
            entry = each["entry"] or name.removeprefix(_CONFIG)
            if _is(values.get(entry), each["planned"]):
                own[entry] = each["own"]
    return with_entries(entries, own)


def leave_coefficients(model: nn.Module) -> None:
    """Let a model keep the coefficients of its plan when it is released."""
    if _kept(model):
        del getattr(model.config, STORED)[_KEPT]


def read(owner: Any, path: str) -> Any:
    """The number of a name: that of an attribute of a model, or of an entry of its config."""
    holder, _, local = path.rpartition(".")
    return getattr(_holder(owner, holder), local, None)


def put(owner: Any, path: str, value: Any) -> None:
    """Set such a number."""
    holder, _, local = path.rpartition(".")
    setattr(_holder(owner, holder), local, value)


def _holder(owner: Any, path: str) -> Any:
    for part in path.split(".") if path else ():
        owner = getattr(owner, part)
    return owner


def _places(name: str, entry: str | None) -> set[str]:
    """Where a coefficient is to be set: where the forward pass reads it, and where checkpoints have it."""
    return {name} if entry is None else {name, f"{_CONFIG}{entry}"}


def _kept(model: nn.Module) -> Mapping[str, Any]:
    stored = getattr(model.config, STORED, None)
    kept = stored.get(_KEPT) if isinstance(stored, Mapping) else None
    return kept if isinstance(kept, Mapping) else {}


def _without_plan(model: nn.Module, name: str, value: float) -> float:
    """The model's own number, where the present one is that of the plan which its config keeps."""
    kept = _kept(model).get(name)
    return float(kept["own"]) if kept is not None and _is(value, kept["planned"]) else value


def _is(value: Any, other: float) -> bool:
    return isinstance(value, float) and math.isclose(value, other, rel_tol=1e-9)


# -- finding them -----------------------------------------------------------------------------------------------------

_FLAG = "output_router_logits"  # of configs: whether the loss is added to that of predictions
_REMEDY = (
    "where such a loss is K at uniform routing, as in transformers, multiply its coefficient by K at the base over K "
    "here"
)


def _numbers(model: nn.Module) -> Iterator[tuple[str, float]]:
    """All numbers that a model's own forward pass may read, by name: its attributes, and entries of its config."""
    yield from ((name, value) for name, value in vars(model).items() if type(value) is float and value)
    yield from ((f"{_CONFIG}{path}", value) for path, value in numbers_of_config(model.config))


def numbers_of_config(config: Any, prefix: str = "") -> Iterator[tuple[str, float]]:
    """The entries of a config, and of the configs in it, that are numbers and not 0."""
    for name, value in vars(config).items():
        if type(value) is float and value:
            yield f"{prefix}{name}", value
        elif hasattr(value, "to_dict"):
            yield from numbers_of_config(value, f"{prefix}{name}.")


def _entry(model: nn.Module, name: str, value: float) -> str | None:
    """The entry of the config that a model has copied a number from: that of its name, or the only one that equals."""
    if name.startswith(_CONFIG):
        return name.removeprefix(_CONFIG)
    equal = [path for path, other in numbers_of_config(model.config) if other == value]
    if name in equal:
        return name
    if len(equal) != 1:
        _warn(
            f"which entry of the config the model has {name} from is not known: set it there too, or a model that is "
            "built from a checkpoint has the old one"
        )
        return None
    return equal[0]


class _Stub:
    """A model whose forward pass has its own code, and in place of all its modules the same logits for every token."""

    def __init__(self, model: nn.Module, layers: int, experts: int) -> None:
        self._layers, self._experts = layers, experts
        self._outputs, self._repeated = _Outputs(), 1
        self._stub = self._with_outputs(model)

    def uniform(self, name: str) -> float:
        """The loss at uniform routing for a coefficient of 1."""
        with self._in_layers(self._layers):
            share = self.loss(values={name: 2.0}) - self.loss(values={name: 1.0})  # without what else is added
        return float(f"{share:.{_DIGITS}g}")

    def is_coefficient(self, name: str, value: float) -> bool:
        """Whether a part of what routing adds to the loss is proportional to a number."""
        try:
            once, twice = (self.of_routing({name: times * value}) for times in (1.0, 2.0))
            if abs(twice - once) <= _NOTHING:
                return False
            thrice = self.of_routing({name: 3.0 * value})
        except Exception:  # numbers that it cannot be are none that a loss is multiplied by
            return False
        return math.isclose(thrice - twice, twice - once, rel_tol=_CLOSE)

    def is_of_balance(self, values: Mapping[str, float], beside: Mapping[str, float] | None = None) -> bool:
        """Whether what the numbers add (to what the others add) depends on how logits differ, and not on their size."""
        at_0, at_1 = (
            self.loss(shift=shift, values=values) - (0.0 if beside is None else self.loss(shift=shift, values=beside))
            for shift in (0.0, 1.0)
        )
        return math.isclose(at_0, at_1, rel_tol=_CLOSE)

    def of_routing(self, values: Mapping[str, float]) -> float:
        """What the loss is more where tokens prefer one expert than where routing is uniform."""
        return self.loss(_PEAK, values=values) - self.loss(values=values)

    def loss(self, peak: float = 0.0, shift: float = 0.0, values: Mapping[str, float] = MappingProxyType({})) -> float:
        """The loss apart from that of predictions.

        ``peak`` is what the logit of the first expert is larger by than others, which are ``shift``. ``values`` are
        numbers of the model or its config to set first.
        """
        before = {name: read(self._stub, name) for name in values}
        try:
            for name, value in values.items():
                put(self._stub, name, value)
            with torch.no_grad(), torch.device("cpu"), torch.autocast("cpu", enabled=False):
                logits = torch.full((_TOKENS, self._experts), shift, dtype=torch.float32)
                logits[:, 0] += peak
                self._outputs.router_logits = (logits,) * self._repeated
                tokens = torch.zeros(1, _TOKENS, dtype=torch.long)
                forward = type(self._stub).forward
                return float(forward(self._stub, input_ids=tokens, labels=tokens, **{_FLAG: True}).loss)
        finally:
            for name, value in before.items():
                put(self._stub, name, value)

    @contextmanager
    def _in_layers(self, layers: int) -> Iterator[None]:
        """All layers of the model, where only what they come to matters: one is enough to find a coefficient."""
        self._repeated = layers
        try:
            yield
        finally:
            self._repeated = 1

    def _with_outputs(self, model: Any) -> Any:
        """A copy of the model that shares nothing that is set here, and needs no weights."""
        stub = copy.copy(model)
        readout = model.get_output_embeddings()
        vocabulary, width = readout.weight.shape
        self._outputs.last_hidden_state = torch.zeros(1, _TOKENS, width, device="cpu", dtype=torch.float32)
        vars(stub)["_modules"] = {
            name: _Readout(vocabulary)
            if module is readout
            else _Trunk(module, self._outputs)
            if _has_parameters(module)
            else module
            for name, module in model._modules.items()
        }
        vars(stub)["config"] = copy.deepcopy(model.config)
        # Those models that use the library's loss of predictions have none at all; others predict with certainty.
        vars(stub)["_loss_function"] = _no_loss
        return stub


def _has_parameters(module: nn.Module | None) -> bool:
    return module is not None and any(True for _ in module.parameters())


def _no_loss(*args: Any, **kwargs: Any) -> Tensor:
    return torch.zeros((), dtype=torch.float32)


class _Outputs:
    """What the model inside a model for causal language modelling returns; what it might return besides is None."""

    last_hidden_state: Tensor
    router_logits: tuple[Tensor, ...]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)

    def __getitem__(self, place: int) -> Tensor | None:
        return self.last_hidden_state if place == 0 else None


class _Trunk(nn.Module):
    """Returns the same outputs for whatever goes in, and has all other attributes of the module it stands for."""

    def __init__(self, module: nn.Module, outputs: _Outputs) -> None:
        super().__init__()
        vars(self).update(module=module, outputs=outputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["module"], name)

    def forward(self, *args: Any, **kwargs: Any) -> _Outputs:
        outputs: _Outputs = vars(self)["outputs"]
        return outputs


class _Readout(nn.Module):
    """A readout that is certain of the first token."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.weight = torch.zeros(vocabulary, 1, device="meta")
        self.logits = torch.zeros(1, _TOKENS, vocabulary, device="cpu", dtype=torch.float32)
        self.logits[..., 0] = 50.0

    def forward(self, x: Tensor) -> Tensor:
        return self.logits[:, : x.shape[1]].clone()


def _warn(message: str) -> None:
    warnings.warn(message, PlanWarning, stacklevel=5)
