"""Beside ``mup``, the reference implementation of μP: where both agree on a dense Transformer, and where they differ.

The numbers of ``mup`` come from the package itself, and are compared parameter by parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mup
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mssp
import mssp.hf
from tests.hf.tiny_models import DENSE_BASE, DENSE_TARGET, dense_config_of, initialized, model_of

HEAD, DEPTH, VOCABULARY, LENGTH = 16, 2, 50, 12
BASE, TARGET = mssp.Shape(width=64, depth=DEPTH), mssp.Shape(width=256, depth=DEPTH)
FFN = {64: 192, 128: 384, 256: 896}  # three widths at the base, three and a half at the target
LR, DECAY, STD, EPS = 3e-3, 0.1, 0.02, 1e-8
TOLERANCE = 1e-6
CLAIMS: Mapping[str, mssp.ParamInfo | str] = {
    "tokens.weight": mssp.ParamInfo("embedding", layout="vocab out"),
    "positions.weight": mssp.ParamInfo("embedding", layout="vocab out"),
    "blocks.*.norm?.weight": "norm",
    "blocks.*.norm?.bias": "bias",
    "blocks.*.attention.*.weight": mssp.ParamInfo("hidden", layout="out in"),
    "blocks.*.attention.*.bias": "bias",
    "blocks.*.up.weight": mssp.ParamInfo("hidden", layout="out in", base_fan_out=192),
    "blocks.*.up.bias": "bias",
    "blocks.*.down.weight": mssp.ParamInfo("hidden", layout="out in", base_fan_in=192),
    "blocks.*.down.bias": "bias",
    "norm_out.weight": "final_norm",
    "readout.weight": mssp.ParamInfo("readout", layout="out in"),
}


class Block(nn.Module):
    """A block of a Transformer with biases, whose norms stand before attention and before the FFN."""

    def __init__(self, width: int, key_width: int) -> None:
        super().__init__()
        outputs = {"q": width, "k": key_width, "v": key_width, "o": width}
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.ModuleDict({name: nn.Linear(width, size) for name, size in outputs.items()})
        self.up, self.down = nn.Linear(width, FFN[width]), nn.Linear(FFN[width], width)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm1(x)
        q, k, v = (self.attention[name](normed).unflatten(-1, (-1, HEAD)).transpose(1, 2) for name in "qkv")
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.attention["o"](mixed.transpose(1, 2).flatten(2))
        y: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return y


class Transformer(nn.Module):
    """A dense Transformer, in float64. ``readout`` makes its last layer."""

    def __init__(self, width: int, readout: Callable[..., nn.Module] = nn.Linear, key_width: int | None = None) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, key_width or width) for _ in range(DEPTH))
        self.norm_out = nn.LayerNorm(width, bias=False)
        self.readout = readout(width, VOCABULARY, bias=False)
        self.double()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.readout(self.norm_out(x))
        return logits


def of_mup(key_width: int | None = None, **settings: Any) -> Transformer:
    """The target as ``mup`` wants it: with its readout, and marked by comparing three widths."""
    target, base, other = (Transformer(width, mup.MuReadout, key_width) for width in (256, 64, 128))
    mup.set_base_shapes(target, base, delta=other, **settings)
    return target


def planned(**settings: Any) -> mssp.Plan:
    """A plan whose readout is muP's: the default is to start it at zero, as mup's documentation advises too."""
    return mssp.plan(TARGET, BASE, **{"lr": LR, "init_std": STD, "readout": "mup", **settings})


def groups_by_name(model: nn.Module, groups: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(parameter)]: group for group in groups for parameter in group["params"]}


def both(optimizer: str, peer: Callable[..., torch.optim.Optimizer], **settings: Any) -> list[tuple[Any, ...]]:
    """Of every parameter: its name, mup's group, and ours."""
    plan, ours, theirs = planned(optimizer=optimizer, **settings), Transformer(256), of_mup()
    mine = groups_by_name(ours, mssp.param_groups(ours, plan, CLAIMS))
    settings = {"lr": LR, **({"weight_decay": DECAY} if settings else {})}
    peers = groups_by_name(theirs, peer(theirs.parameters(), **settings).param_groups)
    assert mine.keys() == peers.keys()
    assert len(mine) == 2 + DEPTH * 16 + 2
    return [(name, peers[name], mine[name]) for name in mine]


def is_vector(name: str) -> bool:
    return name.endswith("bias") or "norm" in name


def same(number: float) -> Any:
    return pytest.approx(number, rel=TOLERANCE)


# -- learning rates, weight decay, eps ---------------------------------------------------------------------------------


def test_adams_learning_rates_are_those_of_mup() -> None:
    """All of them; of the readout, the learning rate of what the activations are multiplied by."""
    rates = {}
    for name, peer, mine in both("adam", mup.MuAdam):
        # mup keeps the readout's rate and divides its input by the growth of the width, here 4.
        assert mine["lr"] == same(peer["lr"] / 4 if name == "readout.weight" else peer["lr"]), name
        rates[name.replace("blocks.0.", "")] = mine["lr"]
    literal = {
        "tokens.weight": 3e-3,
        "norm1.weight": 3e-3,
        "attention.q.weight": 7.5e-4,
        "attention.q.bias": 3e-3,
        "up.weight": 7.5e-4,
        "down.weight": 3e-3 * 192 / 896,
        "norm_out.weight": 3e-3,
        "readout.weight": 7.5e-4,
    }
    assert {name: rates[name] for name in literal} == {name: same(rate) for name, rate in literal.items()}


def test_sgds_learning_rates_are_those_of_mup() -> None:
    """All but those of biases whose size grows otherwise than the width: ours are by the width of the model."""
    rates = {}
    for name, peer, mine in both("sgd", mup.MuSGD):
        if name.endswith("up.bias"):
            assert (peer["lr"], mine["lr"]) == (same(LR * 896 / 192), same(LR * 4))
            continue
        # A readout with input / 4 has gradient / 4 too: its rate x4 counts as x 4 / 4² on what multiplies activations.
        assert mine["lr"] == same(peer["lr"] / 16 if name == "readout.weight" else peer["lr"]), name
        rates[name.replace("blocks.0.", "")] = mine["lr"]
    literal = {
        "tokens.weight": 1.2e-2,
        "norm1.weight": 1.2e-2,
        "attention.q.weight": 3e-3,
        "up.weight": 3e-3 * (896 / 192) / 4,
        "down.weight": 3e-3 * 4 / (896 / 192),
        "readout.weight": 7.5e-4,
    }
    assert {name: rates[name] for name in literal} == {name: same(rate) for name, rate in literal.items()}


def test_weight_decay_differs_on_gains_and_biases_alone() -> None:
    """What counts in AdamW is the learning rate times the decay, which both keep for every matrix."""
    for name, peer, mine in both("adamw", mup.MuAdamW, weight_decay=DECAY):
        assert peer["lr"] * peer["weight_decay"] == same(LR * DECAY), name
        expected = 0.0 if is_vector(name) else LR * DECAY
        assert mine["lr"] * mine["weight_decay"] == same(expected), name


def test_eps_differs() -> None:
    """mup has one eps; ours falls as gradients do. At equal depth these powers of the width are all of it."""
    for name, peer, mine in both("adam", mup.MuAdam):
        assert peer["eps"] == EPS
        assert mine["eps"] == same(EPS if name == "readout.weight" else EPS / 4), name


# -- initial weights ---------------------------------------------------------------------------------------------------


def drawn_std(parameter: Tensor, draw: Callable[[Tensor], Any]) -> float:
    """The standard deviation that a function draws with, by what it makes of known normal numbers."""
    torch.manual_seed(0)
    draw(parameter)
    torch.manual_seed(0)
    return float((parameter.detach() / torch.empty_like(parameter).normal_()).median())


def test_initial_stds_are_those_of_mup() -> None:
    theirs, ours = of_mup(), Transformer(256)
    values = planned().resolve(mssp.describe(ours, CLAIMS))
    stds = {}
    for name, parameter in theirs.named_parameters():
        if is_vector(name):
            continue
        std = drawn_std(parameter, lambda weight: mup.init.normal_(weight, std=STD))
        assert values[name].init_std == same(std / 4 if name == "readout.weight" else std), name
        stds[name.replace("blocks.0.", "")] = std
    literal = {
        "tokens.weight": 0.02,
        "attention.q.weight": 0.01,
        "down.weight": 0.02 * (192 / 896) ** 0.5,
        "readout.weight": 0.02,
    }
    assert {name: stds[name] for name in literal} == {name: same(std) for name, std in literal.items()}


def test_how_the_readout_starts_differs() -> None:
    """mup draws it unless told otherwise, and ours starts at zero unless told otherwise."""
    assert of_mup().get_parameter("readout.weight").any()
    assert mssp.plan(TARGET, BASE, lr=LR).roles["readout"].zero
    assert not mup.MuReadout(256, VOCABULARY, readout_zero_init=True).weight.any()


def test_how_biases_start_differs() -> None:
    """torch draws them, and mup makes up for the width in that; ours start at zero."""
    torch.manual_seed(0)
    bias = of_mup().get_parameter("blocks.0.up.bias").detach().abs().max().item()
    assert bias == pytest.approx(1 / 64**0.5, rel=0.02)  # torch's bound at the base, in a layer with 256 inputs
    model = Transformer(256)
    mssp.initialize(model, planned(), CLAIMS)
    assert not model.get_parameter("blocks.0.up.bias").any()


# -- training ----------------------------------------------------------------------------------------------------------


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 5) -> Tensor:
    """Logits after some steps on fixed tokens."""
    tokens = torch.randint(0, VOCABULARY, (4, LENGTH + 1), generator=torch.Generator().manual_seed(0))
    for _ in range(steps):
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
    with torch.no_grad():
        final: Tensor = model(tokens[:, :-1])
    return final


@pytest.mark.parametrize(("eps", "agree"), [(1e-30, True), (1e-3, False)])
def test_both_train_alike_unless_eps_matters(eps: float, agree: bool) -> None:
    plan, ours, theirs = planned(weight_decay=DECAY, eps=eps), Transformer(256), of_mup()
    mssp.initialize(ours, plan, CLAIMS)
    # The same function: mup's readout divides its input by 4. Its gains and biases get a group without decay.
    weights = {name: 4 * weight if name == "readout.weight" else weight for name, weight in ours.state_dict().items()}
    theirs.load_state_dict(weights)
    kinds: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, parameter in theirs.named_parameters():
        kinds[is_vector(name)].append(parameter)
    groups = [{"params": kinds[False], "weight_decay": DECAY}, {"params": kinds[True], "weight_decay": 0.0}]
    after = trained(theirs, mup.MuAdamW(groups, lr=LR, eps=eps))
    mine = trained(ours, torch.optim.AdamW(mssp.param_groups(ours, plan, CLAIMS)))
    assert after.std() > 0.1  # they have learned something
    assert ((mine - after).abs().max() / after.std() < TOLERANCE) == agree


# -- what mup does not take --------------------------------------------------------------------------------------------


def test_key_heads_that_do_not_grow() -> None:
    """mup takes a matrix with a fixed output for a readout, and refuses it. Ours divides by its fan-in as elsewhere."""
    with pytest.raises(AssertionError, match=r"k has infinite fan-in and finite fan-out dimensions but is not type"):
        of_mup(key_width=32)
    theirs = of_mup(key_width=32, do_assert=False)
    peers = groups_by_name(theirs, mup.MuAdam(theirs.parameters(), lr=LR).param_groups)
    std = drawn_std(theirs.get_parameter("blocks.0.attention.k.weight"), lambda k: mup.init.normal_(k, std=STD))
    assert (peers["blocks.0.attention.k.weight"]["lr"], std) == (LR, same(STD))
    ours = Transformer(256, key_width=32)
    fixed = mssp.ParamInfo("hidden", layout="out in", base_fan_in=64, base_fan_out=32)
    claims = {pattern: claim for pattern, claim in CLAIMS.items() if pattern != "blocks.*.attention.*.weight"}
    claims |= {f"blocks.*.attention.{name}.weight": fixed for name in "kv"}
    claims |= {f"blocks.*.attention.{name}.weight": mssp.ParamInfo("hidden", layout="out in") for name in "qo"}
    mine = groups_by_name(ours, mssp.param_groups(ours, planned(), claims))
    values = planned().resolve(mssp.describe(ours, claims))["blocks.0.attention.k.weight"]
    assert (mine["blocks.0.attention.k.weight"]["lr"], values.init_std) == (same(LR / 4), same(STD / 2))


def test_depth_that_grows() -> None:
    """mup compares models parameter by parameter, and takes none of another depth. Ours has 1/L on what blocks add."""
    deeper = Transformer(256, mup.MuReadout)
    deeper.blocks.append(Block(256, 256).double())
    with pytest.raises(AssertionError, match="has extra names"):
        mup.set_base_shapes(deeper, Transformer(64, mup.MuReadout), delta=Transformer(128, mup.MuReadout))
    plan = mssp.plan(mssp.Shape(width=256, depth=4), BASE, lr=LR)
    assert plan.multiplier("residual", relative=True) == 0.5
    assert plan.roles["hidden"].lr == same(LR / 4)


def test_stacks_of_experts_whose_three_sides_grow() -> None:
    stack, small = (nn.ParameterDict({"experts": torch.ones(n, n, n)}) for n in (8, 4))
    mup.set_base_shapes(stack, small)
    with pytest.raises(NotImplementedError, match="more than 2 inf dimensions"):
        mup.MuAdam(stack.parameters(), lr=LR)


def test_a_tied_readout_has_the_same_factor() -> None:
    theirs, small, other = (nn.Embedding(VOCABULARY, width) for width in (256, 64, 128))
    mup.set_base_shapes(theirs, small, delta=other)
    readout = mup.MuSharedReadout(theirs.weight, bias=False)
    # mup's constructor swaps the two sides of the shared weight, and uses the weight alone.
    x = torch.randn(3, 256, generator=torch.Generator().manual_seed(0))
    factor = (readout(x) / F.linear(x, theirs.weight)).median().item()
    assert planned().multiplier("tied_readout", relative=True) == same(factor) == same(0.25)


# -- a model of transformers -------------------------------------------------------------------------------------------


def test_llama_of_transformers() -> None:
    """mup needs a readout of its own in the model; ours takes the model as it is."""
    target, base, other = (
        model_of(dense_config_of("llama", mssp.Shape(width=width, depth=3))) for width in (128, 64, 96)
    )
    ours = model_of(dense_config_of("llama", DENSE_TARGET))
    small = dense_config_of("llama", mssp.Shape(width=DENSE_BASE.width, depth=3))
    plan = mssp.hf.plan(ours.config, small, lr=LR, init_std=STD, weight_decay=DECAY, readout="mup")
    mssp.hf.adapt(ours, base=small)
    initialized(ours, plan)
    values = plan.resolve(mssp.describe(ours))
    with pytest.raises(AssertionError, match="lm_head has infinite fan-in and finite fan-out dimensions"):
        mup.set_base_shapes(target, base, delta=other)
    for model in (target, base, other):
        model.lm_head = mup.MuReadout(model.config.hidden_size, 128, bias=False)  # type: ignore[union-attr]
    mup.set_base_shapes(target, base, delta=other)
    peers = groups_by_name(target, mup.MuAdamW(target.parameters(), lr=LR, weight_decay=DECAY).param_groups)
    mine = groups_by_name(ours, mssp.param_groups(ours, plan))
    assert mine.keys() == peers.keys()
    for name, parameter in target.named_parameters():
        of_readout = 2 if name == "lm_head.weight" else 1
        assert mine[name]["lr"] == same(peers[name]["lr"] / of_readout), name
        if not is_vector(name):
            assert mine[name]["lr"] * mine[name]["weight_decay"] == same(LR * DECAY), name
            std = drawn_std(parameter, lambda weight: mup.init.normal_(weight, std=STD))
            assert values[name].init_std == same(std / of_readout), name
