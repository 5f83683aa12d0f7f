"""What changes from the base's config to the target's, and is neither a size that grows nor known as harmless.

The theory holds everything but the sizes fixed. Which entries a family has is not known here, so that every number,
switch or word that differs is told of, unless its name is that of a size or of one of the harmless entries below.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

Entries = Mapping[str, Any]

# Sizes that grow with a model, beside those that a plan reads: widths, low ranks, numbers of heads and of layers.
_SIZES = re.compile(
    r"(?:.*_)?(?:hidden_size|intermediate_size|latent_size)(?:_.*)?|d_model|.*rank|"
    r"(?:.*_)?(?:n|num)_(?:.*_)?heads|.*_kv_heads|(?:n|num)(?:_hidden)?_layers|zero_expert_num|share_expert_dims?"
)
_HARMLESS = re.compile(
    # How a model is loaded, stored and run; precision.
    r"_.*|architectures|auto_map|dtype|torch_dtype|.*_cache_dtype|.*_fp32(?:_.*)?|transformers_version|.*_implementation|"
    r"use_cache|return_dict|output_attentions|output_hidden_states|num_logits_to_keep|pretraining_tp|ep_size|problem_type|"
    r"is_encoder_decoder|chunk_size_feed_forward|(?:mamba_)?chunk_size|use_mamba_kernels|use_mambapy|"
    r"use_associative_scan|num_labels|quantization_config|model_type|mssp|"
    # The vocabulary, of which one token is looked up at a time, and lengths that only bound what a model is given.
    r"(?:unpadded_)?vocab_size(?:_.*)?|.*_token_id|max_position_embeddings|max_seq_len|model_max_length|"
    # Rotations, which leave the size of queries and keys as it is.
    r"(?:.*_)?rope_theta|"
    # How parameters start, which a plan decides.
    r"initializer_.*|rescale_prenorm_residual|seed|"
    # Numbers of layers, which follow from the depth: the kinds of layers are compared.
    r"moe_layer_end_index|max_window_layers|"
    # The size of a head, which is told of whether it is an entry or not.
    r"head_dim"
)
# Parts of a config whose entries count one by one; those of other parts are not read.
_PARTS = ("attn_config", "ffn_config", "linear_attn_config")
_MOST = 8  # changes that are told of one by one


def changed_factors(before: Entries, after: Entries, sizes: Collection[str] = ()) -> list[str]:
    """A sentence on every change that the theory does not cover, or one on all where they are many.

    ``sizes`` are entries that may grow, whatever they are called.

    >>> changed_factors({"route_scale": 1.0, "vocab_size": 8}, {"route_scale": 2.5, "vocab_size": 16})
    ['route_scale changes from 1.0 to 2.5: the theory holds it fixed']
    """
    found = [("the size of a head", _head_size(before), _head_size(after))]
    found = [change for change in found if None not in change and change[1] != change[2]]
    found += _changes(before, after, sizes)
    told = [f"{name} changes from {old} to {new}" for name, old, new in found]
    if len(told) > _MOST:
        return [f"{'; '.join(told)}: the theory holds all of these fixed"]
    return [f"{each}: the theory holds it fixed" for each in told]


def _changes(before: Entries, after: Entries, sizes: Collection[str]) -> Iterator[tuple[str, Any, Any]]:
    """The name of each entry that differs, and what it was and is."""
    for part in _PARTS:
        inner = (before.get(part), after.get(part))
        if all(isinstance(entries, Mapping) for entries in inner):
            yield from _changes(*inner, sizes)  # type: ignore[arg-type]
    for key in before:
        if key not in after or _HARMLESS.fullmatch(str(key)):
            continue
        old, new = _comparable(before[key]), _comparable(after[key])
        # A size may grow, but a part that comes or goes is no growth.
        may_grow = key in sizes or _SIZES.fullmatch(str(key))
        differs = (old == "none") != (new == "none") if may_grow else old != new
        if differs and None not in (old, new):
            yield str(key), _said(before[key], old), _said(after[key], new)


def _comparable(value: Any) -> Any:
    """What two entries are compared by: 0, null and false all say that there is none. None for what is not compared."""
    if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
        return frozenset(value)  # the kinds of layers, of which a deeper model has more
    if not isinstance(value, bool | int | float | str | None):
        return None
    return value or "none"


def _said(value: Any, compared: Any) -> Any:
    if isinstance(compared, frozenset):
        return ", ".join(sorted(compared))
    return "none" if value is None or value == "" else value


def _head_size(entries: Entries) -> Any:
    """The size that the config states, or the heads' share of the width. Latent attention states parts of heads."""
    if entries.get("head_dim") is not None or entries.get("v_head_dim") is not None:
        return entries.get("head_dim")
    width, heads = entries.get("hidden_size"), entries.get("num_attention_heads")
    return width // heads if type(width) is int and type(heads) is int and heads else None
