"""Models small enough to write down: their initial weights, the groups of their optimizer, what is measured on them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import mssp
from mssp import Shape

_SIZES: dict[str, Any] = {"I": (32, 16, 4), "II": (32, 8, 8), "III": (32, 16, 8)}
_FIRST = 4


def _seen(model: Any, plan: mssp.Plan, seed: int) -> Any:
    """Every parameter of an initialized model, and how it would be trained."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mssp.initialize(model, plan, seed=seed)
    groups = mssp.param_groups(model, plan)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    optimizer = _optimizer(plan, groups)
    if plan.grad_scale:
        mssp.scale_gradients(optimizer)
    mssp.verify(model, optimizer, plan)
    return {
        "warnings": [str(each.message) for each in caught],
        "parameters": {name: _numbers(parameter) for name, parameter in model.named_parameters(remove_duplicate=False)},
        "tied": [name for name, each in model.named_parameters(remove_duplicate=False) if names[id(each)] != name],
        "factors": {
            f"{path}.{name}": float(getattr(module, name))
            for path, module in model.named_modules()
            for name in ("aggregation", "residual", "logit_scale")
            if isinstance(getattr(module, name, None), float)
        },
        "groups": [{**group, "params": [names[id(each)] for each in group["params"]]} for group in groups],
        "infos": [_info(info) for info in mssp.describe(model)],
    }


def _optimizer(plan: mssp.Plan, groups: list[dict[str, Any]]) -> Any:
    import torch

    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    return kinds[plan.optimizer](groups, lr=plan.lr)


def _info(info: mssp.ParamInfo) -> list[Any]:
    sides = [info.fan_in, info.fan_out, info.base_fan_in, info.base_fan_out]
    experts = [info.expert_axis, info.experts, info.tied_as]
    return [info.name, info.role, *sides, *experts, info.layout, info.tied_readout, info.start]


def _numbers(parameter: Any) -> list[Any]:
    """Shape, the first entries, mean and standard deviation, and whether experts are equal to the bit."""
    entries = parameter.detach().double()
    equal = entries.dim() > 2 and all(bool((each == entries[0]).all()) for each in entries)
    spread = float(entries.std(unbiased=False))
    return [list(parameter.shape), entries.flatten()[:_FIRST].tolist(), float(entries.mean()), spread, equal]


def _mlp(regime: str, seed: int, grown: int = 1, **options: Any) -> Any:
    from mssp.nn import MLPConfig, MLPMoE

    width, expert_width, experts = _SIZES[regime]
    more = {name: options.pop(name) for name in ("active", "blocks", "residual", "noise", "gate") if name in options}
    config = MLPConfig(inputs=12, outputs=5, width=width, expert_width=expert_width, experts=experts, **more)
    return _seen(MLPMoE(config), mssp.plan(config.shape, regime=regime, lr=0.1, **options), seed)


def _gpt(regime: str, seed: int, **options: Any) -> Any:
    from mssp.nn import GPT, GPTConfig

    width, expert_width, experts = _SIZES[regime]
    known = ("active", "moe_every", "gated", "tied", "noise", "gate", "random_bias", "activation")
    more = {name: options.pop(name) for name in known if name in options}
    sizes: dict[str, Any] = {"depth": 2, "vocabulary": 24, "context": 8, "head": 8, **more}
    config = GPTConfig(width=width, expert_width=expert_width, experts=experts, **sizes)
    active = 4 if config.active is None else config.active * 4 // experts
    base = Shape(16, expert_width if regime == "II" else 8, 4, active, 1)
    return _seen(GPT(config), mssp.plan(config.shape, base, regime=regime, lr=4e-3, **options), seed)


_OLMOE = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "num_experts": 2, "num_experts_per_tok": 1, "max_position_embeddings": 16,
    "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
_MIXTRAL = {
    **{name: size for name, size in _OLMOE.items() if name != "num_experts"}, "num_local_experts": 2, "head_dim": 8,
}  # fmt: skip


def _hugging_face(family: str, seed: int, tied: bool = False, **options: Any) -> Any:
    from transformers import AutoModelForCausalLM, MixtralConfig, OlmoeConfig

    make, sizes, experts = {
        "olmoe": (OlmoeConfig, _OLMOE, "num_experts"), "mixtral": (MixtralConfig, _MIXTRAL, "num_local_experts"),
    }[family]  # fmt: skip
    grown = {"hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {"num_key_value_heads": 2, experts: 4, "num_experts_per_tok": 2, "tie_word_embeddings": tied}
    small = make(**sizes, tie_word_embeddings=tied)
    large = make(**{**sizes, **grown, **more})
    plan = mssp.hf.plan(large, small, lr=4e-3, **options)
    model = AutoModelForCausalLM.from_config(large)
    mssp.hf.adapt(model, base=small)
    found = _seen(model, plan, seed)
    import torch

    with torch.no_grad():
        logits = model(torch.arange(8).view(1, 8)).logits
    return {**found, "plan": plan.hash, "logits": logits[0, -1, :_FIRST].tolist()}


def _checked(optimizer: str) -> Any:
    """mssp.check on a model of one's own."""
    import torch

    from mssp.nn import GPT, GPTConfig

    def build(shape: Shape) -> GPT:
        sizes = shape.width, shape.expert_width, shape.experts, shape.active, shape.depth
        return GPT(GPTConfig(*sizes, vocabulary=16, context=6, head=8))

    tokens = torch.randint(16, (2, 4, 7), generator=torch.Generator().manual_seed(0))
    shapes = [Shape(width, 8, width // 8, width // 8, 1) for width in (16, 32)]
    plan = mssp.plan(shapes[0], regime="II", optimizer=optimizer, lr=10.0 if optimizer == "sgd" else 0.01)
    return shortened(mssp.check(build, shapes, [(each[:, :-1], each[:, 1:]) for each in tokens], plan, seeds=1).json())


def shortened(check: dict[str, Any]) -> dict[str, Any]:
    """The JSON of a check with what holds after the last update, of what is predicted."""
    quantities: dict[str, Any] = {}
    for name, each in check["quantities"].items():
        if each["verdict"] in ("zero", "unpredicted"):
            quantities[name] = each["verdict"]
            continue
        fitted = [each["exponents"][-1], each["ci"][-1], each["judged"] and each["judged"]["exponent"]]
        expected = [each["predicted"][-1], each["slack"][-1], each["source"], each["stable"], each["verdict"]]
        values = [values[-1] for values in each["values"].values()]
        quantities[name] = {"exponent": fitted, "expected": expected, "sizes": values}
    return {**check, "quantities": quantities}


MODELS: dict[str, Callable[[], Any]] = {
    "mlp, I, mssp, sgd": partial(_mlp, "I", 0, optimizer="sgd"),
    "mlp, II, mssp, adam": partial(_mlp, "II", 1, optimizer="adam", active=4, noise=0.1),
    "mlp, III, mssp, adamw": partial(_mlp, "III", 2, weight_decay=0.1, blocks=2, residual=True),
    "mlp, II, mup, sgd": partial(_mlp, "II", 0, optimizer="sgd", scheme="mup", readout="mup", gate="softmax"),
    "mlp, II, sp": partial(_mlp, "II", 0, scheme="sp", readout="scheme", grad_scale=True),
    "mlp, III, heuristic": partial(_mlp, "III", 3, scheme="mup-heuristic", readout="scheme", init_mult=0.5),
    "gpt, II, mssp": partial(_gpt, "II", 0, weight_decay=0.1),
    "gpt, III, mssp, top-k": partial(_gpt, "III", 1, active=4, gated=True, activation="silu", moe_every=2, noise=0.1),
    "gpt, I, mssp, tied": partial(_gpt, "I", 2, tied=True, init_std={"embedding": 0.1}),
    "gpt, III, mup, sgd": partial(_gpt, "III", 0, optimizer="sgd", scheme="mup", readout="mup", random_bias=0.1),
    "gpt, III, jiang": partial(_gpt, "III", 5, scheme="jiang", lr_mult={"router": 2.0}, gate="softmax"),
    "olmoe, III, mssp": partial(_hugging_face, "olmoe", 0, weight_decay=0.1),
    "olmoe, III, mup": partial(_hugging_face, "olmoe", 7, scheme="mup", init_std=0.02, readout="mup"),
    "mixtral, III, mssp": partial(_hugging_face, "mixtral", 0, init_std={"all": 0.02}),
    "mixtral, tied, mup": partial(_hugging_face, "mixtral", 1, tied=True, scheme="mup", init_std=0.02),
    "check, adamw": partial(_checked, "adamw"),
    "check, sgd": partial(_checked, "sgd"),
}
