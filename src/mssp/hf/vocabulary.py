"""What the parameters of Hugging Face models are called, and what they are: a vocabulary, and nothing beyond it.

Some sixty families share a few dozen names. A name that is not here is not understood, and the model that has it is
refused by that name; a new family is taught by a new line. Stacks of experts are not here: their class says what they
are (``fused_experts``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mssp.planning.parameter import OWN, ParamInfo

# Names inside a block, after "layers.<number>."
_MOE = r"(?:mlp|block_sparse_moe|feed_forward)"
_FFN = rf"(?:{_MOE}|{_MOE}\.shared_experts?|shared_mlp)"
_EXPERT = rf"{_MOE}\.experts\.\d+"

_LINEAR = ParamInfo("hidden", layout="out in")
_BIAS = ParamInfo("bias")
_GAIN = ParamInfo("norm")
# A gain on a head or on a low rank: by its size, a "qk_norm" where that is fixed and a "norm" where it grows.
_SMALL_GAIN = ParamInfo("qk_norm")

_IN_BLOCKS: dict[str, ParamInfo] = {
    # Attention, with few or many key heads; the gates of its output; low ranks (MLA).
    r"self_attn\.[qkvog]_proj\.weight": _LINEAR,
    r"self_attn\.[qkvo]_proj\.bias": _BIAS,
    r"self_attn\.gate_proj\.weight": _LINEAR,
    r"self_attn\.(?:q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj)\.weight": _LINEAR,
    r"self_attn\.(?:q_a_proj|kv_a_proj_with_mqa)\.bias": _BIAS,
    r"self_attn\.(?:q_norm|k_norm|q_layernorm|k_layernorm|q_a_layernorm|kv_a_layernorm)\.weight": _SMALL_GAIN,
    # One logit for each head, of which a token may attend to nothing: its gradient is that of a bias.
    r"self_attn\.sinks": _BIAS,
    # Linear attention (gated delta rule): what is one number for each head starts as its authors say.
    r"linear_attn\.(?:in_proj_(?:qkvz|ba|qkv|z|b|a)|out_proj)\.weight": _LINEAR,
    r"linear_attn\.(?:dt_bias|A_log)": ParamInfo("bias", start=OWN),
    r"linear_attn\.norm\.weight": _SMALL_GAIN,
    # Dense layers and shared experts.
    rf"{_FFN}\.(?:gate|up|down)_proj\.weight": _LINEAR,
    rf"{_FFN}\.(?:gate|up|down)_proj\.bias": _BIAS,
    r"shared_mlp\.input_linear\.weight": ParamInfo("hidden", layout="(2 out) in"),
    r"shared_mlp\.output_linear\.weight": _LINEAR,
    rf"{_MOE}\.shared_expert_gate\.weight": ParamInfo("shared_gate", layout="out in"),
    # Routers, and experts that are modules of their own (in memory, or on disk).
    rf"{_MOE}\.(?:gate|router|router\.gate|router\.layer|gate\.wg)\.weight": ParamInfo("router", layout="out in"),
    rf"{_MOE}\.(?:gate|router)\.bias": ParamInfo("router_bias"),
    # What is added to scores for the choice alone: it has no gradient, and is frozen until a checkpoint is read.
    rf"{_MOE}\.(?:expert_bias|gate\.(?:moe_statics\.)?e_score_correction_bias)": ParamInfo("router_bias", start=OWN),
    rf"{_EXPERT}\.(?:gate_proj|up_proj|w1|w3)\.weight": ParamInfo("expert_in", layout="out in"),
    rf"{_EXPERT}\.(?:down_proj|w2)\.weight": ParamInfo("expert_out", layout="out in"),
    rf"{_EXPERT}\.(?:gate_proj|up_proj|w1|w3)\.bias": ParamInfo("expert_in_bias"),
    rf"{_EXPERT}\.(?:down_proj|w2)\.bias": ParamInfo("expert_out_bias"),
    # Norms of the stream.
    r"(?:input|post_attention|post_self_attn|(?:pre|post)_(?:mlp|feedforward))_layernorm\.weight": _GAIN,
    r"(?:input|post_attention|post_self_attn|(?:pre|post)_(?:mlp|feedforward))_layernorm\.bias": _BIAS,
}
_OUTSIDE_BLOCKS: dict[str, ParamInfo] = {
    r"(?:embed_tokens|embeddings)\.weight": ParamInfo("embedding", layout="vocab out"),
    r"(?:norm|norm_f|final_layernorm)\.weight": ParamInfo("final_norm"),
    # It adds to the coordinates that the gain multiplies, and its gradient is that of the gain.
    r"(?:norm|norm_f|final_layernorm)\.bias": ParamInfo("final_norm", start=0.0),
    r"lm_head\.weight": ParamInfo("readout", layout="out in"),
}
_CONVOLUTION = re.compile(r"linear_attn\.conv1d\.weight")
_BLOCK = re.compile(r"(?:model\.)?(?:language_model\.)?layers\.(\d+)\.(.+)")
_TRUNK = re.compile(r"(?:model\.)?(?:language_model\.)?(.+)")
_NUMBERED_EXPERT = re.compile(r"(?<=\.experts\.)\d+(?=\.)")


@dataclass(frozen=True)
class Place:
    """Where a parameter stands: its name inside the block (or the model), and the number of the block."""

    local: str
    block: int | None

    @classmethod
    def of(cls, name: str) -> Place:
        inside = _BLOCK.fullmatch(name)
        if inside is not None:
            return cls(inside[2], int(inside[1]))
        outside = _TRUNK.fullmatch(name)
        return cls(name if outside is None else outside[1], None)


def info_of(name: str, shape: tuple[int, ...]) -> ParamInfo | None:
    """What a parameter is by its name, None where the vocabulary does not hold it; ``shape`` is for convolutions alone.

    >>> info_of("model.layers.3.mlp.gate.weight", (8, 64)).role
    'router'
    >>> info_of("model.layers.3.mlp.experts.7.w2.weight", (64, 32)).tied_as
    'model.layers.3.mlp.experts.{expert}.w2.weight'
    """
    place = Place.of(name)
    words = _OUTSIDE_BLOCKS if place.block is None else _IN_BLOCKS
    if place.block is not None and _CONVOLUTION.fullmatch(place.local):
        # Each channel has a kernel of its own: as many inputs as the kernel is long, which does not grow.
        return ParamInfo("hidden", fan_in=shape[-1], fan_out=shape[0], base_fan_in=shape[-1])
    found = next((info for pattern, info in words.items() if re.fullmatch(pattern, place.local)), None)
    if found is not None and _NUMBERED_EXPERT.search(name):
        return ParamInfo(found.role, layout=found.layout, tied_as=_NUMBERED_EXPERT.sub("{expert}", name))
    return found


def for_all_blocks(name: str) -> str:
    """A name that stands for the same parameter of every block and expert.

    >>> for_all_blocks("model.layers.3.mlp.experts.7.w2.weight")
    'model.layers.*.mlp.experts.*.w2.weight'
    """
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", name)
