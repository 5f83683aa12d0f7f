"""Hugging Face configs of many families, as `mssp plan --base-config` and `--target-config` read them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import mssp
from mssp.planning.configs import read_config
from tests.fuzz.cases import Case, Kind, Outcome
from tests.fuzz.mutations import OF_BYTES, OF_DOCUMENTS, Step, drawn, file_after
from tests.hf.tiny_models import BASE, FAMILIES, TARGET, config_of

_BY_NAME = 0.15  # of the cases: they build a model, without memory
_SIZES = (
    "hidden_size", "intermediate_size", "moe_intermediate_size", "num_experts", "num_local_experts", "n_routed_experts",
    "num_experts_per_tok", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
    "n_group", "topk_group", "q_lora_rank", "kv_lora_rank", "first_k_dense_replace", "n_shared_experts",
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    0,
    1,
    2,
    3,
    7,
    64,
    96,
    500,
    501,
    10**6,
    2**31,
    2**53,
    2**70,
    -1,
    1.5,
    64.0,
    True,
    "64",
    None,
    [64],
    {},
)
_ENTRIES = {
    "model_type": (*FAMILIES, "bert", "llama", "nonsense", "", None, 3, [], {}, "a\nb", "../../x", "deepseek_v4"),
    "architectures": (["AutoModel"], "x", 3, None, [None]),
    "torch_dtype": ("float16", "nonsense", 3, []),
    "auto_map": ({"AutoConfig": "evil.Config"}, "x", 3),
    "quantization_config": ({}, {"quant_method": "fp8"}, {"quant_method": "nonsense"}, 3),
    "text_config": ({}, 3, {"hidden_size": 3}, {"model_type": "bert"}),
    "hidden_act": ("gelu", "nonsense", 3, None, []),
    "tie_word_embeddings": (True, "yes", None),
    "rope_scaling": ({"type": "linear", "factor": 2.0}, {"type": "nonsense"}, 3, {"factor": None}),
    "layer_types": ([], ["full_attention"], ["nonsense"] * 3, 3, "x"),
    "mlp_layer_types": ([], ["dense"] * 3, 3),
    "norm_topk_prob": ("x", None, 2),
    "num_labels": (10**9, -1, "x"),
    "attn_implementation": ("flash_attention_2", "nonsense"),
    "_attn_implementation": ("flash_attention_2", "nonsense", 3),
    "_name_or_path": ("/etc/passwd", 3),
    "pad_token_id": (-1, 10**9, "x"),
    "to_dict": (3,),
    "__class__": ("x",),
}  # fmt: skip


@cache
def sound(family: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configs of a base and of a target, as their library writes them."""
    small, large = (json.loads(config_of(family, shape).to_json_string()) for shape in (BASE, TARGET))
    return small, large


def _size(random: Random, config: Any) -> Any:
    there = [name for name in _SIZES if isinstance(config, dict) and name in config]
    name = random.choice(there) if there and random.random() < 0.8 else random.choice(_SIZES)
    return {**config, name: random.choice(_VALUES)} if isinstance(config, dict) else config


def _entry(random: Random, config: Any) -> Any:
    name = random.choice(sorted(_ENTRIES))
    return {**config, name: random.choice(_ENTRIES[name])} if isinstance(config, dict) else config


_OF_CONFIGS = {**OF_DOCUMENTS, "size": _size, "entry": _entry}


def _draw(random: Random) -> list[Step]:
    steps = [step for _ in range(random.choice((1, 1, 2, 3))) for step in drawn(random, _family_of_names(random), [1])]
    return [*steps, *(drawn(random, OF_BYTES, [1]) if random.random() < 0.1 else [])]


def _family_of_names(random: Random) -> Sequence[str]:
    return random.choice((["size"], ["entry"], sorted(OF_DOCUMENTS)))


def _make(random: Random, steps: Sequence[Step], folder: Path) -> Case:
    families = sorted(FAMILIES)
    family = random.choice(families)
    other = random.choice(families) if random.random() < 0.1 else family
    contents = [sound(other)[0], sound(family)[1]]
    place = random.choice((0, 1, 1))
    for number, name in enumerate(("small.json", "large.json")):
        broken = steps if number == place else ()
        (folder / name).write_bytes(file_after(contents[number], broken, _OF_CONFIGS))
    printed = ["--json", "--by-name"] if random.random() < _BY_NAME else ["--json"]
    base = ["--base-config", "small.json"] if place == 0 or random.random() < 0.8 else []
    words = ["plan", "--lr", "0.01", "--regime", "III", *base, "--target-config", "large.json", *printed]
    return Case(words, partial(_read, folder / ("small.json", "large.json")[place]), _finite)


def _finite(outcome: Outcome) -> None:
    """The plan that is printed has finite numbers, and is read as one."""

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} in what was printed")

    document = json.loads(outcome.out, parse_constant=refuse)
    assert all(math.isfinite(number) for number in _numbers(document))
    plan = document.get("plan", document)
    mssp.Plan.from_json(json.dumps(plan))


def _numbers(document: Any) -> list[float]:
    if isinstance(document, dict | list):
        parts = document.values() if isinstance(document, dict) else document
        return [number for part in parts for number in _numbers(part)]
    return [document] if isinstance(document, float | int) else []


def _read(path: Path) -> None:
    config = read_config(path)
    shape = mssp.Shape.from_config(config)
    assert 1 <= shape.active <= shape.experts
    assert mssp.Shape.from_config(dict(config)) == shape


KIND = Kind("configs", _draw, _make)
