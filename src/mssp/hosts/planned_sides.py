"""The sides of a host's matrices as a plan over configs has them, by what such a matrix is in Hugging Face models."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mssp.planning.plans import Plan
    from mssp.planning.sides import Sides

_ATTENTION = r"\.self_attn\."
_DENSE = r"^\w+\.(?:\*|\d+)\.(?:mlp|feed_forward|block_sparse_moe)\."
_SHARED = r"\.shared_(?:experts?|mlp)\."
# Regular expressions for the places of matrices and gains in a plan over configs.
LIKE = {
    "query": rf"{_ATTENTION}q_proj\.weight$",
    "key": rf"{_ATTENTION}k_proj\.weight$",
    "value": rf"{_ATTENTION}v_proj\.weight$",
    "attention output": rf"{_ATTENTION}(?:o|out)_proj\.weight$",
    "query to rank": rf"{_ATTENTION}q_a_proj\.weight$",
    "query from rank": rf"{_ATTENTION}q_b_proj\.weight$",
    "key to rank": rf"{_ATTENTION}kv_a_proj_with_mqa\.weight$",
    "key from rank": rf"{_ATTENTION}kv_b_proj\.weight$",
    "dense input": rf"{_DENSE}(?:gate_proj|up_proj|w1|w3)\.weight$",
    "dense output": rf"{_DENSE}(?:down_proj|w2)\.weight$",
    "shared input": rf"{_SHARED}(?:gate_proj|up_proj|input_linear)\.weight$",
    "shared output": rf"{_SHARED}(?:down_proj|output_linear)\.weight$",
    "query norm": rf"{_ATTENTION}q_(?:norm|layernorm)\.weight$",
    "key norm": rf"{_ATTENTION}k_(?:norm|layernorm)\.weight$",
    "query rank norm": rf"{_ATTENTION}q_a_layernorm\.weight$",
    "key rank norm": rf"{_ATTENTION}kv_a_layernorm\.weight$",
    # torchtitan has one name for the norm of queries and for that of their low rank.
    "query or rank norm": rf"{_ATTENTION}q_(?:norm|layernorm|a_layernorm)\.weight$",
}
# The part of hidden that a matrix is, by which multipliers of a plan may name it.
PARTS = {
    "query": "attention_in", "key": "attention_in", "value": "attention_in",
    "query to rank": "attention_in", "query from rank": "attention_in",
    "key to rank": "attention_in", "key from rank": "attention_in", "attention output": "attention_out",
    "dense input": "ffn_in", "shared input": "ffn_in", "dense output": "ffn_out", "shared output": "ffn_out",
}  # fmt: skip
# The matrix of whose input the side of this name is the size.
_READS = {
    "attention_width": "attention output", "ffn_width": "dense output", "shared_width": "shared output",
    "q_rank": "query from rank", "kv_rank": "key from rank",
}  # fmt: skip


def sides_like(plan: Plan, like: str) -> Sequence[Sides]:
    """The sides of all matrices of the plan's model that are of a kind of :data:`LIKE`, without repetitions."""
    places = [place for place in plan.sides if like and re.search(LIKE[like], place)]
    for place in places:
        sides = plan.sides[place]
        if sides.fan_out is None:
            raise ValueError(
                f"the plan does not know the sides of {place} at its target: extend it to a config "
                "(mssp plan --extend PLAN --target-config CONFIG), or plan over configs"
            )
        if plan.base is not None and sides.base_fan_out is None:
            raise ValueError(
                f"the plan does not know the sides of {place} at its base: plan over two configs "
                "(mssp plan --base-config CONFIG --target-config CONFIG)"
            )
    return list(dict.fromkeys(plan.sides[place] for place in places))


def planned_side(plan: Plan, name: str) -> tuple[int, int | None] | None:
    """The size of a side by the name of its flag, at the target and at the base; None if it has none, or several."""
    found = {(sides.fan_in, sides.base_fan_in) for sides in sides_like(plan, _READS[name])}
    sizes = found.pop() if len(found) == 1 else (None, None)
    return None if sizes[0] is None else (sizes[0], sizes[1])
