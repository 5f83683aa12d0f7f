"""What a Hugging Face config says of a model: its sizes, whatever its family calls them, and its gates.

A config is the content of a ``config.json``: a mapping of names to values. Sizes that contradict each other are
refused here, before any model is built.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from mssp._constraints import positive_int
from mssp._documents import refuse_deep, unique
from mssp.planning.config_changes import changed_factors

Config = Mapping[str, Any]

# The more specific name is first. Where a config has several, the later ones mean something else (dense layers' width).
_SIZES = {
    "width": ("hidden_size", "d_model"),
    "expert_width": (
        "moe_intermediate_size",
        "expert_ffn_hidden_size",
        "ffn_config.ffn_hidden_size",
        "intermediate_size",
    ),
    "experts": (
        "n_routed_experts",
        "num_local_experts",
        "num_experts",
        "moe_num_experts",
        "ffn_config.moe_num_experts",
    ),
    "active": (
        "num_experts_per_tok",
        "num_experts_per_token",
        "moe_topk",
        "moe_k",
        "top_k_experts",
        "ffn_config.moe_top_k",
    ),
    "depth": ("num_hidden_layers", "num_layers", "n_layers"),
}
# Families of dense models. A config of another family without experts is refused: it may have experts under names that
# are not known here.
DENSE_FAMILIES = ("gemma3_text", "llama", "mistral", "olmo2", "qwen2", "qwen3")
_FOR_TEXT = ("text_config", "thinker_config")  # the part for text of a multimodal model's config
_PARTS_OF_CONFIGS = ("attn_config", "ffn_config")  # configs inside of configs
_SIZES_OF_EXPERTS = ("expert_width", "experts", "active")
FAMILY, QUANTIZATION = "model_type", "quantization_config"
STORED = "mssp"  # the entry of a model's config that holds plan and base, and is saved with checkpoints
REPLACED = "numbers"  # a part of it, in checkpoints: other entries that hold factors of the plan, and what these were
# Entries that no plan depends on, and that would need packages, weights or names of labels before a model is built.
NOT_SIZES = (
    "transformers_version", FAMILY, QUANTIZATION, "_attn_implementation", "num_labels", "id2label", "label2id",
)  # fmt: skip
_LONGEST = 10**8  # characters of a file; configs have some thousand
# All names of these sizes mean one thing: two of them in one config must agree.
_SYNONYMS = ("experts", "active")
# Families whose gates are shares of one unless a flag says otherwise.
_SHARES_OF_ONE = frozenset({
    "afmoe", "aria_text", "cohere2_moe", "dbrx", "deepseek_v3", "ernie4_5_moe", "exaone_moe", "flint", "gemma4_text",
    "glm4_moe", "glm4_moe_lite", "glm4v_moe_text", "gpt_oss", "granitemoe", "granitemoe_swa", "granitemoehybrid",
    "granitemoeshared", "hunyuan_v1_moe", "hy_v3", "inkling_text", "laguna", "mellum", "mimo_v2_flash", "minimax_m2",
    "minimax_m3_vl_text", "mistral_large4_text", "mixtral", "nemotron_h", "qwen3_5_moe_text", "qwen3_next",
    "qwen3_omni_moe_text", "qwen3_vl_moe_text", "solar_open", "step3p5",
})  # fmt: skip
_BLOCKS = "layers_block_type"  # a list of what every block is
_BY_LAYER = ("moe_intermediate_size", "moe_topk")  # may be lists with one size for each layer
_SHARES_FLAGS = ("norm_topk_prob", "moe_renormalize", "route_norm")
_NUMBERS_OF_SHARED_EXPERTS = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
_SHARED_EXPERTS = (
    *_NUMBERS_OF_SHARED_EXPERTS, "shared_expert_intermediate_size", "shared_intermediate_size",
    "moe_shared_expert_intermediate_size", "share_expert_dim",
)  # fmt: skip
RENORMALISED_NOTE = (
    "gates are renormalised to sum to one: the paper's theory is for gates of their own (sigmoid) and an aggregation "
    "factor; such gates need no factor, and what moves the router is how experts differ from their mean"
)
_DENSE_LAYERS = ("first_k_dense_replace", "num_dense_layers")
# Entries on which the sides of matrices depend, by words of their names.
_SIDE = re.compile(r"intermediate|ffn|_rank$|share_expert_dim|num_(?:attention|linear|swa|sliding)\w*_heads$")


def read_config(path: str | Path) -> dict[str, Any]:
    """The content of a ``config.json``, given by its own path or by its folder's."""
    file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    try:
        with file.open(encoding="utf-8") as stream:
            text = stream.read(_LONGEST + 1)  # a device may have no end
        if len(text) > _LONGEST:
            raise ValueError("it is far longer than a config")
        content = json.loads(text, object_pairs_hook=unique)
        refuse_deep(content)
    except FileNotFoundError:
        raise ValueError(f"{file}: there is no such file") from None
    except UnicodeDecodeError:
        raise ValueError(f"{file}: expected JSON in UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{file}: expected a JSON object")
    return content


def loaded(config: Any) -> Any:
    """The content of a config that is given by its path; any other config as it is."""
    return read_config(config) if isinstance(config, str | Path) else config


def entries_of(config: Any) -> Config:
    """A config, which is a mapping or has a ``to_dict()``, as a mapping; of a multimodal model its part for text."""
    entries = config.to_dict() if hasattr(config, "to_dict") else config
    if not isinstance(entries, Mapping):
        raise ValueError(f"a model config is a mapping of names to sizes, got a {type(config).__name__}")
    entries = with_own_numbers(entries)
    if not isinstance(entries.get(FAMILY, ""), str):
        raise ValueError(f"a config's {FAMILY} is a name, got {entries[FAMILY]!r}")
    parts = (entries.get(key) for key in _FOR_TEXT)
    text = next((part for part in parts if isinstance(part, Mapping)), None)
    return entries if text is None or (_has_width(entries) and not _has_width(text)) else entries_of(text)


def with_own_numbers(entries: Config) -> Config:
    """The entries of a checkpoint's config without the factors that a plan has put into some of its numbers.

    >>> kept = {"numbers": {"logit_scale": {"own": 1.0, "planned": 0.5}}}
    >>> with_own_numbers({"logit_scale": 0.5, "hidden_size": 64, "mssp": kept})
    {'logit_scale': 1.0, 'hidden_size': 64, 'mssp': {}}
    """
    replaced = replaced_numbers(entries.get(STORED))
    if not replaced:
        return entries
    own: dict[str, Any] = copy.deepcopy(dict(entries))
    for path, (before, planned) in replaced.items():
        *parts, name = path.split(".")
        part: Any = own
        for each in parts:
            part = part.get(each) if isinstance(part, dict) else None
        if isinstance(part, dict) and part.get(name) == planned:
            part[name] = before
    own[STORED] = {key: value for key, value in own[STORED].items() if key != REPLACED}
    return own


def replaced_numbers(stored: Any) -> dict[str, tuple[float, float]]:
    """The entries that hold factors of a plan, by their paths: what they were, and what the plan has made of them.

    ``stored`` is what a config keeps of a plan.
    """
    kept = stored.get(REPLACED) if isinstance(stored, Mapping) else None
    if not isinstance(kept, Mapping):
        return {}
    pairs = {path: (each.get("own"), each.get("planned")) for path, each in kept.items() if isinstance(each, Mapping)}
    return {path: (own, now) for path, (own, now) in pairs.items() if isinstance(own, float) and isinstance(now, float)}


def _has_width(entries: Config) -> bool:
    return any(entries.get(key) is not None for key in _SIZES["width"])


def kinds_of_blocks(config: Any) -> dict[int | None, tuple[str, ...]]:
    """The kind of every block, by its number, in words: those of all lists that have one word for each block.

    >>> kinds_of_blocks({"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"], "eos_token_id": [1, 2]})
    {0: ('conv',), 1: ('full_attention',)}
    >>> kinds_of_blocks({"layers_block_type": ["linear_attention", "moe"]})
    {0: ('linear_attention',), 1: ('moe',)}
    """
    entries = _with_depth(entries_of(config))
    depth = next((entries[key] for key in _SIZES["depth"] if entries.get(key) is not None), None)
    lists = [
        entry
        for entry in entries.values()
        if isinstance(entry, list) and len(entry) == depth and all(isinstance(word, str) for word in entry)
    ]
    return dict(enumerate(zip(*lists, strict=True)))


def with_parts(entries: Config) -> Config:
    """The entries together with those of configs inside the config, under names as ``ffn_config.moe_num_experts``."""
    parts = {key: part for key, part in entries.items() if key in _PARTS_OF_CONFIGS and isinstance(part, Mapping)}
    return {**entries, **{f"{key}.{name}": value for key, part in parts.items() for name, value in part.items()}}


def with_entries(entries: Config, changes: Config) -> dict[str, Any]:
    """A config with other entries, some of which may be in configs inside the config."""
    changed = dict(entries)
    for key, value in changes.items():
        part, dot, name = key.partition(".")
        changed[part] = {**(changed.get(part) or {}), name: value} if dot else value
    return changed


def family_of(config: Any) -> Any:
    """The family that a config names, whether it is a mapping or an object; None where it names none."""
    return config.get(FAMILY) if isinstance(config, Mapping) else getattr(config, FAMILY, None)


def is_dense(config: Any) -> bool:
    """Whether a config is of a family of dense models, and says nothing of experts."""
    entries = entries_of(config)
    return family_of(entries) in DENSE_FAMILIES and not _mentions_experts(entries)


def _mentions_experts(entries: Config) -> bool:
    return any(entries.get(key) is not None for name in _SYNONYMS for key in _SIZES[name])


def sizes_of(config: Any) -> dict[str, Any]:
    """The dimensions of a model, by their names in :class:`mssp.Shape`; a dense model has two.

    >>> sizes_of({"hidden_size": 64, "intermediate_size": 32, "num_local_experts": 8, "num_experts_per_tok": 2,
    ...           "num_hidden_layers": 4})
    {'width': 64, 'expert_width': 32, 'experts': 8, 'active': 2, 'depth': 4}
    >>> sizes_of({"model_type": "llama", "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 4})
    {'width': 64, 'depth': 4}
    """
    entries = with_parts(_with_depth(entries_of(config)))
    dense = is_dense(entries)
    sizes = {}
    for name, keys in _SIZES.items():
        if dense and name in _SIZES_OF_EXPERTS:
            continue
        used = [key for key in keys if entries.get(key) is not None]
        if not used:
            rest = (
                ""
                if _mentions_experts(entries) or name not in _SYNONYMS
                else (f", or a family that is known to be dense ({', '.join(DENSE_FAMILIES)})")
            )
            raise ValueError(f"the model config has no {name}: expected {' or '.join(keys)}{rest}")
        first = used[0]
        for second in used[1:] if name in _SYNONYMS else ():
            if _size(second, entries) != _size(first, entries):
                raise ValueError(
                    f"the model config contradicts itself: {first} is {entries[first]}, {second} is {entries[second]}"
                )
        sizes[name] = positive_int(first, _size(first, entries))
    _check_divisions(entries)
    groups, chosen = entries.get("n_group"), entries.get("topk_group")
    if type(groups) is int and type(chosen) is int and positive_int("n_group", groups):
        reachable = chosen * (sizes["experts"] // groups)
        if reachable < sizes["active"] <= sizes["experts"]:  # Shape refuses more active experts than there are
            raise ValueError(
                f"the model config contradicts itself: {sizes['active']} experts are active, and topk_group {chosen} "
                f"of n_group {groups} leaves {reachable} to choose from"
            )
    return sizes


def _with_depth(entries: Config) -> Config:
    """The entries with the number of blocks, of a config that lists them and says nowhere how many they are."""
    blocks = entries.get(_BLOCKS)
    stated = any(entries.get(key) is not None for key in _SIZES["depth"])
    return entries if stated or not isinstance(blocks, list) else {**entries, _SIZES["depth"][0]: len(blocks)}


def keys_of_sizes(config: Any) -> dict[str, list[str]]:
    """The entries of a config that state each of its sizes: of the numbers of experts all, of the others one.

    >>> keys_of_sizes({"hidden_size": 64, "moe_intermediate_size": 32, "intermediate_size": 256, "num_experts": 8})
    {'width': ['hidden_size'], 'expert_width': ['moe_intermediate_size'], 'experts': ['num_experts']}
    """
    entries = with_parts(entries_of(config))
    names = [name for name in _SIZES if not (is_dense(entries) and name in _SIZES_OF_EXPERTS)]
    stated = {name: [key for key in _SIZES[name] if entries.get(key) is not None] for name in names}
    return {name: keys if name in _SYNONYMS else keys[:1] for name, keys in stated.items() if keys}


def _size(key: str, entries: Config) -> Any:
    """The entry, or of a list with one size for each layer the size that all layers have."""
    size = entries[key]
    is_one = key in _BY_LAYER and isinstance(size, list) and size and all(each == size[0] for each in size)
    return size[0] if is_one else size


def _check_divisions(entries: Config) -> None:
    """Refuse sizes that should divide others and do not: transformers itself would round them, or fail later."""
    divisions = [("num_attention_heads", "num_key_value_heads"), ("n_routed_experts", "n_group")]
    if entries.get("head_dim") is None and entries.get("v_head_dim") is None:
        divisions.append(("hidden_size", "num_attention_heads"))
    for divided, by in divisions:
        size, count = entries.get(divided), entries.get(by)
        if type(size) is int and type(count) is int and (count < 1 or size % count):
            raise ValueError(f"the model config contradicts itself: {divided} {size} is no multiple of {by} {count}")
    for smaller, larger in (("topk_group", "n_group"), *((key, "num_hidden_layers") for key in _DENSE_LAYERS)):
        less, more = entries.get(smaller), entries.get(larger)
        if type(less) is int and type(more) is int and (less > more or (less == more and larger != "n_group")):
            rest = "" if larger == "n_group" else ": no layer is left for experts"
            raise ValueError(f"the model config contradicts itself: {smaller} is {less} of {larger} {more}{rest}")


def outside_the_paper(base: Any, target: Any, filled: Callable[[Config], Config] = dict) -> list[str]:
    """What the paper does not cover in a target's config, and in the step from the base's if there is one, in words.

    ``filled`` adds what a family has where its config leaves an entry out.
    """
    after = entries_of(target)
    messages = [] if base is None else _changes(entries_of(base), after, filled)
    if any(after.get(key) for key in _SHARED_EXPERTS):
        messages.append("shared experts are outside the paper's theory: they are planned as dense layers are")
    if gates_sum_to_one(after):
        messages.append(RENORMALISED_NOTE)
    return messages


def gates_sum_to_one(config: Any) -> bool:
    """Whether the gates of the chosen experts are shares of one, as far as the config says."""
    entries = entries_of(config)
    flags = [entries[key] for key in _SHARES_FLAGS if entries.get(key) is not None]
    return bool(flags[0]) if flags else family_of(entries) in _SHARES_OF_ONE


def _changes(before: Config, after: Config, filled: Callable[[Config], Config]) -> list[str]:
    messages = []
    # A dense model counts as one expert that sees every token.
    old, new = (sizes.get("experts", 1) / sizes.get("active", 1) for sizes in (sizes_of(before), sizes_of(after)))
    if new > old:
        messages.append(
            f"experts per active one, M/K, grow from {old:g} to {new:g}: "
            "ever sparser routing is a limit that the paper leaves open"
        )
    messages += changed_factors(filled(before), filled(after), {key for keys in _SIZES.values() for key in keys})
    if family_of(before) != family_of(after):
        messages.append(f"base and target are of different families: {family_of(before)}, {family_of(after)}")
    return messages


def refuse_uneven(target: Any, base: Any) -> None:
    """Refuse configs whose hidden sizes and heads grow by several factors, or that do not say by how much."""
    if base is None:
        return
    before, after = entries_of(base), entries_of(target)
    growth = Fraction(sizes_of(after)["width"], sizes_of(before)["width"])
    for key in dict.fromkeys(key for key in (*before, *after) if _SIDE.search(key)):
        old, new = before.get(key), after.get(key)
        if old != new if type(old) is not int or type(new) is not int else new != growth * old:
            raise ValueError(
                f"{key} goes from {old} to {new} while the width grows by {float(growth):g}: what that changes is seen "
                "on the models, for which transformers is missing: install mssp[hf]"
            )
