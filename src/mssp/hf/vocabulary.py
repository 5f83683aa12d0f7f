"""What Hugging Face models call their modules and parameters: names as plain data, and functions that read names.

Some sixty families share a few dozen names. A model with a parameter whose name is not here is refused. Stacks of
experts need no names where their class says what they are (``STACK_FLAGS``); others are in ``STACK_LAYOUTS``.

Adding a family
---------------
1. Here: write one ``Names`` with the names that no other family has yet, and put it into ``ENTRIES``. Its fields say
   which names are needed: the modules of a block (a plan multiplies the outputs of those that write to the residual
   stream), the router, and every parameter with its role. If no field names a module of a block, models of the family
   can be planned at the depth of the base (the small model that was tuned) alone.
2. In ``mssp.planning.configs``: an entry in ``_SIZES`` for each key that only this family's configs have, and the
   family in ``_SHARES_OF_ONE`` if its gates sum to one without a flag that says so.
3. In ``tests/hf/families``: an entry with its sizes, for which the tests of all families then run. What a router does
   and where gains are neutral needs no entry: both are found out by running the modules.

A family of dense models has its name in ``DENSE_FAMILIES`` of ``configs`` and its sizes in ``DENSE_FAMILIES`` of
``tiny_models``, for which ``tests/hf/test_dense.py`` runs.

``tests/hf/test_new_family.py`` follows these steps for a family that does not exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from typing import Any

from mssp.planning.parameter import OWN, ParamInfo


@dataclass(frozen=True, eq=False)
class Names:
    """The names of a family, or of several, by what they name. Patterns are regular expressions for whole names.

    Args:
        trunks: prefixes of all names in a model that is part of a larger one.
        blocks: the list of blocks.
        attentions, mlps: modules of a block whose outputs are added to the residual stream.
        norms_before_attention, norms_after_attention, norms_before_mlp, norms_after_mlp: the norms of these modules'
            inputs and outputs. The output of a norm after a module is added to the stream in place of the module's. One
            after an MLP may be a part of it. A convolution may stand there too, which adds to the module's output.
        norms_after_attention_or_before_mlp: norms whose name does not tell which they are. They stand after attention
            in blocks with another norm before the MLP or with none before attention, and else before the MLP.
        final_norms: the norm between the last block and the readout.
        routers: the router of an MoE layer.
        expert_lists: the list of an MoE layer's experts, if they are modules of their own.
        last_matrices: the last matrix of attention, of a dense layer or of an expert: the output is linear in it.
        head_sizes: attributes of attention modules that hold the size of a head.
        norms_of_queries_and_keys: pairs of the norms of queries and of keys, which are over all heads or over one.
        parameters: the descriptions of a block's parameters, by the pattern of their names inside the block. Matrices
            of attention and of dense layers say which part of ``hidden`` they are.
        parameters_outside: those of parameters outside of blocks.
        containers: modules of a block that only hold other modules, which count as the block's own. So do lists.
        inside: modules of a block that do not write to the stream: others take in what they put out.
        kernels: patterns of a block's convolutions in which each channel has a kernel of its own.
        unconfirmed: why no rule is confirmed for a parameter, by its pattern. It is refused where its shape has grown,
            and in any shape if ``parameters`` has no role for it.
    """

    trunks: Sequence[str] = ()
    blocks: Sequence[str] = ()
    attentions: Sequence[str] = ()
    mlps: Sequence[str] = ()
    norms_before_attention: Sequence[str] = ()
    norms_after_attention: Sequence[str] = ()
    norms_before_mlp: Sequence[str] = ()
    norms_after_mlp: Sequence[str] = ()
    norms_after_attention_or_before_mlp: Sequence[str] = ()
    final_norms: Sequence[str] = ()
    routers: Sequence[str] = ()
    expert_lists: Sequence[str] = ()
    last_matrices: Sequence[str] = ()
    head_sizes: Sequence[str] = ()
    norms_of_queries_and_keys: Sequence[tuple[str, str]] = ()
    parameters: Mapping[str, ParamInfo] = field(default_factory=dict)
    parameters_outside: Mapping[str, ParamInfo] = field(default_factory=dict)
    containers: Sequence[str] = ()
    inside: Sequence[str] = ()
    kernels: Sequence[str] = ()
    unconfirmed: Mapping[str, str] = field(default_factory=dict)

    @property
    def children_of_blocks(self) -> frozenset[str]:
        """The names of all modules that a block may have, if its structure is to be known."""
        norms_at_attention = (*self.norms_before_attention, *self.norms_after_attention)
        norms_at_mlp = (*self.norms_before_mlp, *self.norms_after_mlp, *self.norms_after_attention_or_before_mlp)
        return frozenset({*self.attentions, *self.mlps, *norms_at_attention, *norms_at_mlp, *self.inside})

    @cached_property
    def patterns(self) -> Patterns:
        """The regular expressions that these names are compiled to."""
        return Patterns.of(self)


_LINEAR = ParamInfo("hidden", layout="out in")
# The matrices of attention and of dense layers that multipliers of a plan may name. Those of linear attention under
# names of its own, of state spaces and of gates are none of these.
_ATTENTION_IN, _ATTENTION_OUT = replace(_LINEAR, part="attention_in"), replace(_LINEAR, part="attention_out")
_FFN_IN, _FFN_OUT = replace(_LINEAR, part="ffn_in"), replace(_LINEAR, part="ffn_out")
_GATE_AND_UP = replace(_FFN_IN, layout="(2 out) in")
_BIAS = ParamInfo("bias")
_GAIN = ParamInfo("norm")
# A gain on a head or on a low rank. If its size grows, it is planned as a "norm".
_SMALL_GAIN = ParamInfo("qk_norm")

_MOE = r"(?:mlp|block_sparse_moe|feed_forward|mixer)"
# Some blocks have several attentions and norms of a kind, in lists.
_ATTENTION = r"self_attn(?:\.\d+)?"
_FFN = rf"(?:{_MOE}|{_MOE}\.shared_experts?|{_MOE}\.shared_mlp)"
_MIXER = r"(?:mamba|mixer)"
_EXPERT = rf"{_MOE}\.experts\.\d+"

# Llama's names, which nearly all families use, with experts in place of the dense layer.
_USUAL = Names(
    trunks=("model", "language_model"),
    blocks=("layers",),
    attentions=("self_attn",),
    mlps=("mlp", "block_sparse_moe", "feed_forward"),
    norms_before_attention=("input_layernorm",),
    norms_after_attention=("post_self_attn_layernorm",),
    norms_before_mlp=("pre_mlp_layernorm", "pre_feedforward_layernorm"),
    norms_after_mlp=("post_mlp_layernorm", "post_feedforward_layernorm"),
    norms_after_attention_or_before_mlp=("post_attention_layernorm",),
    final_norms=("norm", "norm_f", "final_layernorm"),
    routers=("gate", "router"),
    expert_lists=("experts",),
    last_matrices=("o_proj", "down_proj", "w2"),
    head_sizes=("head_dim",),
    norms_of_queries_and_keys=(("q_norm", "k_norm"), ("query_layernorm", "key_layernorm")),
    parameters={
        # Attention, with few or many key heads; the gates of its output; low ranks (MLA).
        rf"{_ATTENTION}\.[qkv]_proj\.weight": _ATTENTION_IN,
        rf"{_ATTENTION}\.o_proj\.weight": _ATTENTION_OUT,
        rf"{_ATTENTION}\.g_proj\.weight": _LINEAR,
        rf"{_ATTENTION}\.[qkvo]_proj\.bias": _BIAS,
        rf"{_ATTENTION}\.gate_proj\.weight": _LINEAR,
        rf"{_ATTENTION}\.(?:q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj)\.weight": _ATTENTION_IN,
        rf"{_ATTENTION}\.(?:q_a_proj|kv_a_proj_with_mqa)\.bias": _BIAS,
        rf"{_ATTENTION}\.(?:[qk]_norm|(?:q|k|query|key|q_a|kv_a)_layernorm)\.weight": _SMALL_GAIN,
        # One number for each head, the logit of attending to nothing or that of the head's gate: its gradient is like
        # that of a bias.
        rf"{_ATTENTION}\.(?:sinks|gate_bias)": _BIAS,
        # Dense layers and shared experts.
        rf"{_FFN}\.(?:gate|up)_proj\.weight": _FFN_IN,
        rf"{_FFN}\.down_proj\.weight": _FFN_OUT,
        rf"{_FFN}\.(?:gate|up|down)_proj\.bias": _BIAS,
        rf"{_FFN}\.gate_up_proj\.weight": _GATE_AND_UP,
        rf"{_MOE}\.shared_expert_gate\.weight": ParamInfo("shared_gate", layout="out in"),
        # Routers, and experts that are modules of their own (in memory, or on disk).
        rf"{_MOE}\.(?:gate|router|router\.gate|router\.layer|gate\.wg)\.weight": ParamInfo("router", layout="out in"),
        rf"{_MOE}\.(?:gate|router)\.bias": ParamInfo("router_bias"),
        # Added to the scores when experts are chosen: it has no gradient, and is frozen until a checkpoint is read.
        rf"{_MOE}\.(?:expert_bias|gate\.(?:moe_statics\.)?e_score_correction_bias)": ParamInfo(
            "router_bias", start=OWN
        ),
        rf"{_EXPERT}\.(?:gate_proj|up_proj|w1|w3)\.weight": ParamInfo("expert_in", layout="out in"),
        rf"{_EXPERT}\.(?:down_proj|w2)\.weight": ParamInfo("expert_out", layout="out in"),
        rf"{_EXPERT}\.(?:gate_proj|up_proj|w1|w3)\.bias": ParamInfo("expert_in_bias"),
        rf"{_EXPERT}\.(?:down_proj|w2)\.bias": ParamInfo("expert_out_bias"),
        # Norms of the residual stream.
        r"(?:input|post_attention|post_self_attn|(?:pre|post)_(?:mlp|feedforward))_layernorm(?:\.\d+)?\.weight": _GAIN,
        r"(?:input|post_attention|post_self_attn|(?:pre|post)_(?:mlp|feedforward))_layernorm\.bias": _BIAS,
        rf"{_MOE}\.post_mlp_layernorm\.weight": _GAIN,  # of what the layer writes, inside it
    },
    parameters_outside={
        r"(?:embed_tokens|embeddings)\.weight": ParamInfo("embedding", layout="vocab out"),
        r"(?:norm|norm_f|final_layernorm)\.weight": ParamInfo("final_norm"),
        # It adds to the coordinates that the gain multiplies, and its gradient is that of the gain.
        r"(?:norm|norm_f|final_layernorm)\.bias": ParamInfo("final_norm", start=0.0),
        r"lm_head\.weight": ParamInfo("readout", layout="out in"),
        r"lm_head\.bias": ParamInfo("readout_bias"),
    },
)
# What a state-space or linear-attention layer has for each head or channel: how fast its memory fades, and how much of
# the input passes by the memory. Each is one number of order 1 that keeps the model's own start.
_DECAY = ParamInfo("bias", start=OWN)

# Linear attention (gated delta rules): Qwen's, whose layers have a name of their own, and Kimi's, whose layers have the
# name of attention, and a gate of each channel's memory that may go through a low rank.
_LINEAR_ATTENTION = Names(
    attentions=("linear_attn",),
    last_matrices=("out_proj",),
    parameters={
        r"linear_attn\.(?:in_proj_(?:qkvz|ba|qkv|z|b|a)|out_proj)\.weight": _LINEAR,
        r"linear_attn\.(?:dt_bias|A_log)": _DECAY,
        r"linear_attn\.norm\.weight": _SMALL_GAIN,
        r"self_attn\.(?:b_proj|g_[ab]_proj|forget_gate\.f(?:_[ab])?_proj)\.weight": _LINEAR,
        r"self_attn\.forget_gate\.(?:dt_bias|A_log)": _DECAY,
        r"self_attn\.o_norm\.weight": _SMALL_GAIN,
    },
    kernels=(r"(?:linear_attn|self_attn)\.conv1d\.weight",),
)
# State-space layers (Mamba 1 and 2), and blocks whose only layer is called a mixer, whatever it is (Nemotron-H).
_STATE_SPACES = Names(
    attentions=("mamba", "mixer"),
    norms_before_attention=("norm",),
    norms_before_mlp=("pre_ff_layernorm",),
    last_matrices=("out_proj",),
    parameters={
        rf"{_MIXER}\.(?:in_proj|x_proj|dt_proj|out_proj)\.weight": _LINEAR,
        rf"{_MIXER}\.(?:in_proj|out_proj|conv1d)\.bias": _BIAS,
        rf"{_MIXER}\.(?:A_log|D|dt_bias|dt_proj\.bias)": _DECAY,
        rf"{_MIXER}\.norm\.weight": _GAIN,
        rf"{_MIXER}\.(?:dt|b|c)_layernorm\.weight": _SMALL_GAIN,
        r"mixer\.[qkv]_proj\.weight": _ATTENTION_IN,
        r"mixer\.o_proj\.weight": _ATTENTION_OUT,
        r"mixer\.[qkvo]_proj\.bias": _BIAS,
        r"(?:norm|pre_ff_layernorm)\.weight": _GAIN,
    },
    kernels=(rf"{_MIXER}\.conv1d\.weight",),
    unconfirmed={
        rf"{_MIXER}\.x_proj\.weight": (
            "a state-space parameter (Mamba 1), for which no rule is confirmed: all channels share the few numbers "
            "that it makes, and the gradients that come back through them do not fall with the width"
        ),
    },
)
# Short convolutions in place of attention (LFM2).
_SHORT_CONVOLUTIONS = Names(
    attentions=("conv",),
    norms_before_attention=("operator_norm",),
    norms_before_mlp=("ffn_norm",),
    final_norms=("embedding_norm",),
    last_matrices=("out_proj",),
    parameters={
        r"conv\.(?:in_proj|out_proj)\.weight": _LINEAR,
        r"self_attn\.out_proj\.weight": _ATTENTION_OUT,
        r"feed_forward\.w[13]\.weight": _FFN_IN,
        r"feed_forward\.w2\.weight": _FFN_OUT,
        r"conv\.(?:in_proj|out_proj|conv)\.bias": _BIAS,
        r"(?:operator|ffn)_norm\.weight": _GAIN,
    },
    parameters_outside={r"embedding_norm\.weight": ParamInfo("final_norm")},
    kernels=(r"conv\.conv\.weight",),
)
# Short convolutions beside the usual layers, attention to relative positions, shared experts in stacks, and gains that
# are one number (Inkling). A convolution after a module adds to what the module gives, and writes in its place.
_CONVOLUTIONS_AFTER_MODULES = Names(
    norms_after_attention=("attn_sconv",),
    norms_after_mlp=("mlp_sconv",),
    parameters={
        r"self_attn\.r_proj\.weight": _LINEAR,
        # From what a head makes of a token to its logits at all distances: heads share it, as channels do low ranks.
        r"self_attn\.rel_logits_proj\.proj": ParamInfo("hidden", layout="in out"),
        rf"{_MOE}\.(?:gate\.)?global_scale": _SMALL_GAIN,  # its gradient is a sum over channels, as of a shared gain
        rf"{_MOE}\.shared_experts\.(?:gate|up|down)_proj": ParamInfo("hidden", expert_axis=0, layout="out in"),
    },
    # The stream comes from this norm, once: its gradient is that of the gain of the norm at the stream's end.
    parameters_outside={r"embed_tokens\.embed_norm\.weight": ParamInfo("final_norm")},
    kernels=(r"(?:self_attn\.[kv]|attn|mlp)_sconv\.conv1d\.weight",),
)
# Indexers of sparse attention (DeepSeek), which choose the tokens that attention sees. Choosing passes no gradient.
_INDEXERS = Names(
    parameters={
        r"self_attn\.indexer\.(?:wq_b|wk|weights_proj)\.weight": _LINEAR,
        r"self_attn\.indexer\.k_norm\.weight": _SMALL_GAIN,
        r"self_attn\.indexer\.k_norm\.bias": _BIAS,
        # Norms with a gate of low rank, and queries that come with gates (A.X K2).
        r"self_attn\.q_gate_proj\.weight": _LINEAR,
        r"(?:input|post_attention)_layernorm\.norm\.weight": _GAIN,
        # A norm of the indexer's own, and a number and a slope over positions for each head (Mistral Large 4).
        r"self_attn\.indexer\.q_input_norm\.weight": _GAIN,
        r"self_attn\.indexer\.q_input_norm\.bias": _BIAS,
        r"self_attn\.(?:indexer\.)?softmax_scaling\.(?:scale|bias)": _DECAY,
        r"(?:input|post_attention)_layernorm\.mlp\.fc[12]\.weight": _LINEAR,
    },
)
# MiniMax's lightning attention: queries, keys and values of a head lie together in one matrix.
_LIGHTNING_ATTENTION = Names(
    last_matrices=("out_proj",),
    parameters={
        r"self_attn\.qkv_proj\.weight": _ATTENTION_IN,
        r"self_attn\.output_gate\.weight": _LINEAR,
        r"self_attn\.out_proj\.weight": _ATTENTION_OUT,
        r"self_attn\.norm\.weight": _SMALL_GAIN,
    },
)
# Several residual streams, of which every block reads one mixture and writes to all (hyper-connections).
_HYPER_CONNECTIONS = Names(
    unconfirmed={
        r"(?:attn|ffn)_hc\.(?:fn|base|scale)": (
            "a weight of hyper-connections, for which no rule is confirmed: its gradient falls more slowly with the "
            "width than that of a hidden matrix, and the zero start of a shared expert's gate would keep all residual "
            "streams equal"
        ),
        r"(?:attn|mlp)_hyper_connection\.block_inject_weight\.weight": (
            "a gate of hyper-connections, which reads several residual streams at once: a shared expert's gate reads "
            "one, and no layout says how many streams there are"
        ),
    },
)
# A shared expert that stands outside of the MoE layer (Granite).
_SHARED_MLP = Names(
    mlps=("shared_mlp",),
    last_matrices=("output_linear",),
    parameters={
        r"shared_mlp\.(?:gate|up)_proj\.weight": _FFN_IN,
        r"shared_mlp\.down_proj\.weight": _FFN_OUT,
        r"shared_mlp\.(?:gate|up|down)_proj\.bias": _BIAS,
        r"shared_mlp\.input_linear\.weight": _GATE_AND_UP,
        r"shared_mlp\.output_linear\.weight": _FFN_OUT,
    },
)
# Attention and its norms in a module of their own, queries, keys and values in one matrix (DBRX).
_FUSED_ATTENTION = Names(
    trunks=("transformer",),
    blocks=("blocks",),
    containers=("norm_attn_norm",),
    attentions=("attn",),
    mlps=("ffn",),
    norms_before_attention=("norm_1",),
    norms_before_mlp=("norm_2",),
    last_matrices=("out_proj",),
    parameters={
        r"norm_attn_norm\.attn\.Wqkv\.weight": _ATTENTION_IN,
        r"norm_attn_norm\.attn\.out_proj\.weight": _ATTENTION_OUT,
        r"norm_attn_norm\.norm_[12]\.weight": _GAIN,
        r"ffn\.router\.layer\.weight": ParamInfo("router", layout="out in"),
    },
    parameters_outside={r"wte\.weight": ParamInfo("embedding", layout="vocab out")},
)
# A router and experts beside a dense layer in one block, with norms of their own (Gemma 4).
_BESIDE_A_DENSE_LAYER = Names(
    inside=(
        "router", "experts", "pre_feedforward_layernorm_2", "post_feedforward_layernorm_1",
        "post_feedforward_layernorm_2",
    ),
    parameters={
        r"router\.proj\.weight": ParamInfo("router", layout="out in"),
        r"router\.scale": _GAIN,
        # Each gate is multiplied by a number of its expert's own, whose gradient is that of the gate.
        r"router\.per_expert_scale": ParamInfo("router_bias", start=1.0),
        r"(?:pre|post)_feedforward_layernorm_[12]\.weight": _GAIN,
    },
)  # fmt: skip
# Two attentions and two dense layers in one block, and experts beside them (LongCat).
_TWICE_IN_A_BLOCK = Names(
    mlps=("mlps",),
    parameters={
        r"mlps\.\d+\.(?:gate|up)_proj\.weight": _FFN_IN,
        r"mlps\.\d+\.down_proj\.weight": _FFN_OUT,
        rf"{_MOE}\.router\.classifier\.weight": ParamInfo("router", layout="out in"),
    },
)
# Attention of which each expert has its own queries and outputs, beside experts as usual (JetMoe).
_EXPERTS_OF_ATTENTION = Names(
    unconfirmed={
        r"(?:self_attn|self_attention|attention|attn)\.experts\..+": (
            "a part of experts of attention: their width is the size of all key heads, that of the experts in the MLP "
            "another, and a plan has one width of experts"
        ),
    },
)
# The sums of the stream and of what branches give, each with gains and biases (Zaya).
_SCALED_SUMS = Names(inside=("post_attention_residual_scale", "post_mlp_residual_scale"))
ENTRIES: tuple[Names, ...] = (
    _USUAL, _LINEAR_ATTENTION, _LIGHTNING_ATTENTION, _STATE_SPACES, _SHORT_CONVOLUTIONS, _CONVOLUTIONS_AFTER_MODULES,
    _INDEXERS, _HYPER_CONNECTIONS, _SHARED_MLP, _FUSED_ATTENTION, _BESIDE_A_DENSE_LAYER, _TWICE_IN_A_BLOCK,
    _EXPERTS_OF_ATTENTION, _SCALED_SUMS,
)  # fmt: skip

# The flags that every class of stacked experts has in transformers: how many experts there are, whether they are gated,
# have biases, keep inputs first, and keep gate and up in halves rather than interleaved.
STACK_FLAGS = ("num_experts", "has_gate", "has_bias", "is_transposed", "is_concatenated")
# The tensors of such a class; a bias has the name of its stack with the suffix.
GATED_FIRST, PLAIN_FIRST, SECOND, BIAS_SUFFIX = "gate_up_proj", "up_proj", "down_proj", "_bias"


@dataclass(frozen=True)
class StackLayout:
    """How a class of stacked experts that has no such flags keeps its tensors.

    Args:
        first: the stacks of the layer before the activation, with their axes: one of gate and up, or gate and up.
        second: the stack of the layer after it, whose axes are ``axes``.
        flat: whether experts lie one after another along the first axis. If not, the first axis runs over experts.
    """

    first: Mapping[str, str]
    second: str
    axes: str
    flat: bool = False

    @property
    def tensors(self) -> Iterator[tuple[str, str, str]]:
        """Every tensor with its role and its axes."""
        yield from ((name, "expert_in", axes) for name, axes in self.first.items())
        yield self.second, "expert_out", self.axes


# One name may stand in several layouts: gate and up together have twice the size of what comes after them, so that
# sizes tell which it is.
STACK_LAYOUTS = (
    StackLayout({GATED_FIRST: "in (2 out)"}, SECOND, "in out"),
    StackLayout({GATED_FIRST: "(2 out) in"}, SECOND, "out in"),
    StackLayout({"w1": "out in", "v1": "out in"}, "w2", "in out", flat=True),
)
# Attributes of such classes: how many experts there are, and the activation.
EXPERT_COUNTS = ("num_experts", "moe_num_experts")
ACTIVATIONS = ("act_fn", "activation_fn")
# The activation of a class with flags, with gates or without, and the flag of a norm after each expert.
GATED_ACTIVATION, PLAIN_ACTIVATION, NORM_AFTER_EXPERT = "_apply_gate", "act_fn", "has_post_expert_norm"
# Signs that a model is not trained from scratch: an attribute, a part of modules' names and a package of their classes
# (adapters), and a flag.
ADAPTERS, ADAPTER_MODULE, PEFT, QUANTISED = "peft_config", "lora_", "peft", "is_quantized"


def names() -> Names:
    """The names of all entries together."""
    return _merged(ENTRIES)


@cache
def _merged(entries: tuple[Names, ...]) -> Names:
    merged: dict[str, Any] = {}
    for name in (item.name for item in fields(Names)):
        values = [getattr(entry, name) for entry in entries]
        if isinstance(values[0], Mapping):
            merged[name] = {pattern: info for value in values for pattern, info in value.items()}
        else:
            merged[name] = tuple(item for value in values for item in value)
    return Names(**merged)


@dataclass(frozen=True)
class Patterns:
    """The regular expressions that an entry's names are compiled to."""

    block: re.Pattern[str]
    trunk: re.Pattern[str]
    kernels: Sequence[re.Pattern[str]]
    unconfirmed: Mapping[re.Pattern[str], str]
    expert_number: re.Pattern[str]
    block_numbers: re.Pattern[str]
    parameters: Mapping[re.Pattern[str], ParamInfo]
    parameters_outside: Mapping[re.Pattern[str], ParamInfo]

    @classmethod
    def of(cls, entry: Names) -> Patterns:
        trunk = "".join(rf"(?:{name}\.)?" for name in entry.trunks)
        blocks, lists = "|".join(entry.blocks), "|".join(entry.expert_lists)
        return cls(
            block=re.compile(rf"{trunk}(?:{blocks})\.(\d+)\.(.+)"),
            trunk=re.compile(rf"{trunk}(.+)"),
            kernels=[re.compile(pattern) for pattern in entry.kernels],
            unconfirmed={re.compile(pattern): reason for pattern, reason in entry.unconfirmed.items()},
            expert_number=re.compile(rf"(?P<list>\.(?:{lists})\.)\d+(?=\.)"),
            block_numbers=re.compile(rf"(?P<list>(?:{blocks})\.)\*"),
            parameters={re.compile(pattern): info for pattern, info in entry.parameters.items()},
            parameters_outside={re.compile(pattern): info for pattern, info in entry.parameters_outside.items()},
        )


@dataclass(frozen=True)
class Place:
    """Where a parameter stands: its name inside its block (or inside the model), and the number of the block."""

    local: str
    block: int | None

    @classmethod
    def of(cls, name: str) -> Place:
        patterns = names().patterns
        inside = patterns.block.fullmatch(name)
        if inside is not None:
            return cls(inside[2], int(inside[1]))
        outside = patterns.trunk.fullmatch(name)
        return cls(name if outside is None else outside[1], None)


def info_of(name: str, shape: tuple[int, ...]) -> ParamInfo | None:
    """The description of a parameter by its name, None if the vocabulary does not have it.

    ``shape`` is read for convolutions alone.

    >>> info_of("model.layers.3.mlp.gate.weight", (8, 64)).role
    'router'
    >>> info_of("model.layers.3.mlp.experts.7.w2.weight", (64, 32)).tied_as
    'model.layers.3.mlp.experts.{expert}.w2.weight'
    """
    place, patterns = Place.of(name), names().patterns
    parameters = patterns.parameters_outside if place.block is None else patterns.parameters
    if is_kernel(name):
        # Each channel has a kernel of its own: as many inputs as the kernel is long, which does not grow.
        return ParamInfo("hidden", fan_in=shape[-1], fan_out=shape[0], base_fan_in=shape[-1])
    info = next((info for pattern, info in parameters.items() if pattern.fullmatch(place.local)), None)
    if info is not None and patterns.expert_number.search(name):
        tied_as = patterns.expert_number.sub(r"\g<list>{expert}", name)
        return ParamInfo(info.role, layout=info.layout, tied_as=tied_as)
    return info


def is_kernel(name: str) -> bool:
    """Whether a parameter of this name is a convolution in which each channel has a kernel of its own.

    >>> is_kernel("model.layers.3.conv.conv.weight")
    True
    """
    place = Place.of(name)
    return place.block is not None and any(kernel.fullmatch(place.local) for kernel in names().patterns.kernels)


def place_of(name: str) -> str:
    """A name without what stands before the list of blocks, which a part of a larger model has and the part has not.

    >>> place_of("model.language_model.layers.3.self_attn.o_proj.weight")
    'layers.3.self_attn.o_proj.weight'
    """
    match = names().patterns.trunk.fullmatch(name)
    return name if match is None else match[1]


def why_unconfirmed(name: str) -> str | None:
    """The reason why no rule is confirmed for a parameter of this name; None where there is a rule."""
    local, reasons = Place.of(name).local, names().patterns.unconfirmed
    return next((reason for pattern, reason in reasons.items() if pattern.fullmatch(local)), None)


def for_all_blocks(name: str) -> str:
    """A name that stands for the same parameter of every block and expert.

    >>> for_all_blocks("model.layers.3.mlp.experts.7.w2.weight")
    'model.layers.*.mlp.experts.*.w2.weight'
    """
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", name)


def of_all_blocks(path: str) -> str:
    """The same for the path of a module, which may end in a number.

    >>> of_all_blocks("model.layers.3")
    'model.layers.*'
    """
    return for_all_blocks(f"{path}.")[:-1]


def for_blocks(pattern: str, numbers: str) -> str:
    """Narrow a name for all blocks to some of them.

    >>> for_blocks("model.layers.*.mlp.experts.*.w2.weight", "0-3")
    'model.layers.0-3.mlp.experts.*.w2.weight'
    """
    return names().patterns.block_numbers.sub(rf"\g<list>{numbers}", pattern, count=1)
