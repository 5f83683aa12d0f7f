"""Guesses at what the parameters of any model are, from the types of its modules, names, and sizes of tensors.

A clue may mislead, so that a guess is certain only where all clues agree and no size has two readings. What follows
from guesses is a draft for a person (``suggestions.py``): nothing in the library acts on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from torch import nn

from mssp.hf import vocabulary
from mssp.hf.probing import Probed, neutral_gain
from mssp.hf.structure import Seen, Structure, words_of
from mssp.planning.parameter import ParamInfo

_QUERY_OR_KEY = frozenset({"q", "k", "query", "key", "qk"})
_READOUTS = frozenset({"head", "readout", "output", "unembed", "unembedding", "logits", "classifier"})
_INPUTS = frozenset({"embed", "embedding", "input", "patch", "stem"})
_LAST = frozenset({"final", "f", "last", "out", "output"})
_STATE_SPACE = frozenset({"A_log", "dt_bias", "D"})
_SIDE_PATHS = frozenset({"lora", "adapter", "dt", "ssm"})
_HEAD_COUNTS = ("num_heads", "n_head", "n_heads", "heads")
_WITHOUT_BIAS = {"embedding": "embedding", "shared_gate": "shared expert's gate"}
_BIAS_OF = {
    "hidden": "bias", "router": "router_bias", "expert_in": "expert_in_bias", "expert_out": "expert_out_bias",
    "readout": "readout_bias",
}  # fmt: skip


@dataclass(frozen=True)
class Guess:
    """What a parameter may be, why, and whether all clues agree. Without a claim nothing is known."""

    claim: ParamInfo | None
    reason: str
    certain: bool = True

    def doubted(self, reason: str) -> Guess:
        """The same, with what has to be decided in place of the reason."""
        return replace(self, reason=reason, certain=False)

    def with_claim(self, **changes: object) -> Guess:
        """The same with changes of the claim, if there is one."""
        return self if self.claim is None else replace(self, claim=replace(self.claim, **changes))  # type: ignore[arg-type]


def unknown(reason: str) -> Guess:
    """No claim at all."""
    return Guess(None, reason, certain=False)


def several(layout: str, count: int) -> str:
    """The layout with several matrices along its output axis.

    >>> several("out in", 2)
    '(2 out) in'
    """
    return layout.replace("out", f"({count} out)")


def started(guess: Guess, seen: Seen, neutral: float) -> Guess:
    """A guess at a gain or a bias, in doubt if all its entries are a number that is not the neutral one."""
    values = seen.parameter.detach()
    if values.is_meta or type(seen.parameter) is not nn.Parameter or not values.is_floating_point():
        return guess
    first = float(values.flatten()[0])
    if guess.claim is None or first == neutral or not bool((values == first).all()):
        return guess
    usual = 0.0 if "bias" in guess.claim.role else 1.0
    held = guess.with_claim(start=None if first == usual else first)
    return held.doubted(f"it starts at {first:g}, where {neutral:g} is neutral: say its start")


class ModuleGuesses:
    """Guesses at the parameters of torch's kinds of modules: lookups, convolutions, attention, norms, matrices.

    ``of_matrix`` gives the guess at a matrix, from which follows what its bias is.
    """

    def __init__(self, structure: Structure, of_matrix: Callable[[Seen], Guess]) -> None:
        self._structure, self._of_matrix = structure, of_matrix
        self._width = structure.width
        self._neutral_gains = Probed(neutral_gain)

    def of_attention(self, seen: Seen) -> Guess:
        """Parameters of torch's MultiheadAttention, whose names are its own."""
        reason = f"{seen.local} of {seen.title}"
        if seen.local == "in_proj_bias":
            return started(Guess(ParamInfo("bias"), reason), seen, 0.0)
        layout = {"in_proj_weight": "(3 out) in"}.get(seen.local, "out in" if seen.local.endswith("_weight") else "")
        return Guess(ParamInfo("hidden", layout=layout), reason) if layout else unknown(f"{reason}: no role covers it")

    def of_table(self, seen: Seen) -> Guess:
        """A lookup."""
        rows, size = seen.shape
        guess = Guess(ParamInfo("embedding", layout="vocab out"), f"{seen.title}: a lookup of {rows} rows")
        if seen.block is not None or seen.expert is not None:
            return guess.doubted("a lookup inside a block: no role covers it")
        return guess if size == self._width else guess.doubted(f"a lookup of vectors of {size}: is that the width?")

    def of_convolution(self, seen: Seen) -> Guess:
        """A convolution, which no layout describes."""
        if seen.local != "weight":
            return unknown(f"{seen.local} of {seen.title}: no role covers it")
        fan_in, fan_out = prod(seen.shape[1:]), seen.shape[0]
        if seen.block is None and fan_out == self._width:
            info = ParamInfo("embedding", fan_in=fan_in, fan_out=fan_out)
            return Guess(info, f"{seen.title}: does it embed the input?", certain=False)
        kernel = ParamInfo("hidden", fan_in=fan_in, fan_out=fan_out, base_fan_in=fan_in)
        return Guess(kernel, f"{seen.title}: does its kernel stay as it is while the model grows?", certain=False)

    # -- gains and their biases ----------------------------------------------------------------------------------------

    def of_norm(self, seen: Seen) -> Guess:
        """A gain, or the bias of a norm."""
        if len(seen.shape) != 1:
            return unknown(f"{seen.local} of {seen.title}, with {len(seen.shape)} axes")
        gain = self._gain(seen)
        if not seen.is_bias:
            return self._with_start(gain, seen)
        if gain.claim is None:
            return gain
        if gain.claim.role == "final_norm":
            return Guess(ParamInfo("final_norm", start=0.0), "a bias of the final norm: better built without", False)
        return started(Guess(ParamInfo("bias"), f"bias of {seen.title}", gain.certain), seen, 0.0)

    def _gain(self, seen: Seen) -> Guess:
        """The role of a norm's gain, by the place of the norm and its size."""
        [size] = seen.shape
        if seen.expert is not None or seen.in_experts or "router" in seen.inside:
            return unknown("a norm inside an expert or a router: no role covers it")
        if seen.block is None:
            return self._outer_gain(seen, size)
        if _is_of_queries_or_keys(seen):
            return self._gain_of_head(seen, size)
        if size == self._width:
            return Guess(ParamInfo("norm"), f"gain of {seen.title} in a block, of the width")
        return Guess(ParamInfo("qk_norm"), f"a gain of {size}: qk_norm if that does not grow, norm if it does", False)

    def _gain_of_head(self, seen: Seen, size: int) -> Guess:
        """A gain of queries or keys: shared by all heads (qk_norm), or over all of them (norm)."""
        over_all = Guess(ParamInfo("norm"), "gain of queries or keys, over all heads")
        shared = Guess(ParamInfo("qk_norm"), f"gain of queries or keys, of one head of {size}")
        near = self._structure.near(seen)
        gains = {other.shape for other in near if other.is_of_norm and _is_of_queries_or_keys(other)}
        if len(gains) > 1:  # with fewer key heads than heads, the norms have two sizes only over all heads
            return over_all
        head = self._head_size(self._structure.module(seen.path[:-1]))
        if head is not None and head != self._width:
            agrees = {head: shared, self._width: over_all}
            return agrees.get(size, shared.doubted(f"a gain of {size}, where a head has {head}"))
        outputs = [other.sides[1] for other in near if other.sides is not None]
        all_are_known = len(outputs) > 2 or (self._width is not None and 3 * self._width in outputs)
        if all_are_known and size not in outputs and size != self._width:
            return shared
        return shared.doubted(f"a gain of {size} on queries or keys: qk_norm if it is of one head, norm if of all")

    def _head_size(self, module: nn.Module | None) -> int | None:
        """The size of one head, as a module of attention says it, or as its number of heads gives it."""
        for name in (*vocabulary.names().head_sizes, "head_size", "d_head", "head"):
            if isinstance(size := getattr(module, name, None), int):
                return size
        counts = [count for name in _HEAD_COUNTS if isinstance(count := getattr(module, name, None), int)]
        whole = counts and counts[0] > 0 and self._width is not None and self._width % counts[0] == 0
        return self._width // counts[0] if whole and self._width is not None else None

    def _outer_gain(self, seen: Seen, size: int) -> Guess:
        """A gain outside of blocks: the final norm's, if one norm alone can be the last."""
        final = Guess(ParamInfo("final_norm"), f"gain of {seen.title}: the last norm, before the readout")
        if size != self._width:
            return final.doubted(f"a gain of {size}, which is not the width")
        norms = {other.path for other in self._structure.outside() if other.is_of_norm}
        named = {path for path in norms if path and _LAST & set(words_of(path[-1]))}
        in_order = list(self._structure.parameters.values())
        blocks = [place for place, other in enumerate(in_order) if other.block is not None]
        after = {other.path for other in in_order[blocks[-1] :] if other.path in norms} if blocks else set()
        if blocks and {seen.path} in (norms, named or after):
            return final
        return final.doubted("which norm stands before the readout? that one is final_norm, any other a norm")

    def _with_start(self, guess: Guess, seen: Seen) -> Guess:
        """With the value that a gain starts from, if that is known not to be 1."""
        neutral = 1.0 if type(seen.owner) in (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm) else self._neutral_gain(seen)
        if neutral is None:
            return guess.doubted(f"does {seen.title} multiply by its {seen.local}, or by 1 + that? then say start=0.0")
        if neutral != 1.0:
            guess = replace(guess.with_claim(start=neutral), reason=f"{guess.reason}, times 1 + weight")
        return started(guess, seen, neutral)

    def _neutral_gain(self, seen: Seen) -> float | None:
        try:
            return self._neutral_gains(seen.owner, seen.name) if seen.local == "weight" else None
        except Exception:  # whatever the code of a model raises
            return None

    # -- matrices and their biases -------------------------------------------------------------------------------------

    def of_bias(self, seen: Seen) -> Guess:
        """The bias of a matrix, by the role of the matrix."""
        matrices = [other for other in self._structure.of_module(seen) if other.local == "weight"]
        matrix = self._of_matrix(matrices[0]) if matrices else unknown("")
        if matrix.claim is None:
            return unknown(f"bias of {seen.title}: no role is known for its matrix")
        role, layout = matrix.claim.role, matrix.claim.layout or ""
        if role not in _BIAS_OF:
            return unknown(f"no role covers a bias of the {_WITHOUT_BIAS[role]}: build the model without it")
        halves = "(2 out)" if role == "expert_in" and "(2 out)" in layout else None
        where = "after all blocks" if role == "readout" else "in a block"
        reason = f"bias of {seen.title} {where}" if matrix.certain else "bias of a matrix that is to be decided"
        return started(Guess(ParamInfo(_BIAS_OF[role], layout=halves), reason, matrix.certain), seen, 0.0)

    def of_linear(self, seen: Seen, layout: str) -> Guess:
        """A matrix outside of experts, whose axes are known."""
        if seen.block is None and not seen.is_shared:
            return self._router(seen, layout) or self._outer_matrix(seen, layout)
        return self._router(seen, layout) or self._hidden(seen, layout)

    def _router(self, seen: Seen, layout: str) -> Guess | None:
        """A router or the gate of a shared expert, if it may be one."""
        assert seen.sides is not None
        fan_in, fan_out = seen.sides
        if fan_in != self._width:
            return None
        experts = self._structure.experts_beside(seen)
        if fan_out == 1 and seen.block is not None:
            gate = Guess(ParamInfo("shared_gate", layout=layout), "one output: the gate of a shared expert")
            return gate if seen.is_shared and experts else gate.doubted("one output: the gate of a shared expert?")
        router = Guess(ParamInfo("router", layout=layout), f"a router: an output for each of {fan_out} experts")
        is_called_so = self._structure.may_be_a_router(seen)
        if is_called_so and experts is None and self._leads_back(seen, fan_out):  # half of a gated layer
            return None
        if is_called_so:
            nameless = "it is called a router, and no experts of its number were found beside it"
            return router if experts == fan_out else router.doubted(nameless)
        doubt = "as many outputs as experts: is it the router, or noise of it?"
        return router.doubted(doubt) if experts == fan_out and not seen.is_shared else None

    def _hidden(self, seen: Seen, layout: str) -> Guess:
        """Attention, dense layers and shared experts."""
        assert seen.sides is not None
        hidden = Guess(ParamInfo("hidden", layout=layout), f"{seen.title} in a block")
        fan_in, fan_out = seen.sides
        doubt = self._doubt(seen)
        if doubt or fan_in != self._width:
            return hidden.doubted(doubt) if doubt else hidden
        is_fused = "qkv" in "".join(seen.module_words) or (seen.in_attention and self._is_fused(seen))
        if is_fused and fan_out == 3 * fan_in:
            return replace(hidden.with_claim(layout=several(layout, 3)), reason="query, key and value in one matrix")
        if is_fused:
            return hidden.doubted("query, key and value of several sizes in one matrix: hidden, but for its layout")
        if "kv" in seen.module_words and not seen.module_words & {"a", "down"}:
            return hidden.doubted("key and value in one matrix? then its layout is (2 out) in")
        halves = self._leads_back(seen, fan_out / 2) and not self._leads_back(seen, fan_out) and not seen.in_attention
        return (
            replace(hidden.with_claim(layout=several(layout, 2)), reason="gate and up in one matrix")
            if halves
            else hidden
        )

    def _doubt(self, seen: Seen) -> str:
        """Why a matrix in a block may not be a hidden one."""
        assert seen.sides is not None
        module = self._structure.module(seen.path[:-1])
        names = frozenset() if module is None else frozenset(module._parameters)
        if names & _STATE_SPACE or seen.module_words & _SIDE_PATHS:
            return "a part of a state-space model or of an adapter: is it hidden?"
        if seen.module_words & (_READOUTS - {"output"}):
            return "it is called a readout, and stands in a block: is it hidden?"
        fan_in, fan_out = seen.sides
        if self._width not in (fan_in, fan_out):
            return f"{fan_in} inputs and {fan_out} outputs, and neither is the width: is it hidden?"
        sides = [other.sides for other in self._structure.of_block(seen) if other.sides is not None]
        torchs = any(isinstance(other.owner, nn.MultiheadAttention) for other in self._structure.of_block(seen))
        reads, writes = (any(side[end] == self._width for side in sides) or torchs for end in (0, 1))
        if seen.block is not None and not (reads and writes):
            return "its block does not read the width and write it: embedding, hidden or readout?"
        return ""

    def _is_fused(self, seen: Seen) -> bool:
        """Whether attention has one matrix that reads the stream, beside the one that writes to it."""
        sides = [other.sides for other in self._structure.near(seen) if other.sides is not None and other is not seen]
        assert seen.sides is not None
        return len(sides) == 1 and sides[0][1] == self._width and seen.sides[1] > sides[0][0]

    def _leads_back(self, seen: Seen, size: float) -> bool:
        """Whether a matrix beside this one leads from this size to the width."""
        return any(other.sides == (size, self._width) for other in self._structure.near(seen) if other is not seen)

    def _outer_matrix(self, seen: Seen, layout: str) -> Guess:
        """A matrix outside of blocks."""
        assert seen.sides is not None
        fan_in, fan_out = seen.sides
        readout = Guess(ParamInfo("readout", layout=layout), f"{seen.title} after all blocks: the readout")
        embedding = Guess(ParamInfo("embedding", layout=layout), f"{seen.title} before all blocks: the input")
        outside = self._structure.outside()
        tables = [other.shape[0] for other in outside if other.is_table]
        matrices = [other for other in outside if len(other.shape) == 2 and not other.is_table]
        if self._width is None or not self._structure.has_blocks:
            return unknown(f"{fan_in} inputs, {fan_out} outputs, and no blocks in sight: embedding, hidden or readout?")
        called = bool(seen.module_words & _READOUTS)
        if fan_in == self._width and (called or matrices[-1] is seen):
            known = matrices[-1] is seen and (called or (fan_out in tables and len(matrices) == 1))
            return readout if known else readout.doubted("is it the readout?")
        if fan_out == self._width and not tables and matrices[0] is seen:
            return embedding if seen.module_words & _INPUTS else embedding.doubted("does it embed the input?")
        return embedding.doubted("a matrix outside of blocks: embedding, hidden or readout?")

    # -- plain tensors -------------------------------------------------------------------------------------------------

    def of_plain_matrix(self, seen: Seen) -> Guess:
        """A matrix that no Linear holds: names say what it is, and sizes which axis is which."""
        rows, columns = seen.shape
        layout = "out in" if columns == self._width else "in out"
        experts = self._structure.experts_beside(seen)
        if self._structure.may_be_a_router(seen):
            router = Guess(ParamInfo("router", layout=layout), f"a router: an output for each of {experts} experts")
            if rows == columns:
                return router.doubted("a router with as many experts as the width: which axis is the input?")
            is_known = experts is not None and experts in seen.shape
            return router if is_known else router.doubted("it is called a router: where are its experts?")
        if seen.block is not None:
            doubt = "a matrix that no Linear holds: is it hidden, and which axis is the input?"
            return Guess(ParamInfo("hidden", layout=layout), doubt, certain=False)
        if not self._structure.has_blocks:
            return unknown(f"a matrix {seen.shape} that no Linear holds")
        if set(words_of(seen.local)) & _READOUTS and self._width in seen.shape and rows != columns:
            return Guess(ParamInfo("readout", layout=layout), "called so, outside of blocks, from the width")
        axes = "vocab out" if columns == self._width else "out in"
        return Guess(ParamInfo("embedding", layout=axes), "outside of blocks: a lookup, positions, or an input?", False)

    def of_vector(self, seen: Seen) -> Guess:
        """A vector that neither a norm nor a Linear holds."""
        matrices = [self._of_matrix(other) for other in self._structure.of_module(seen) if len(other.shape) == 2]
        [matrix] = matrices if len(matrices) == 1 else [unknown("")]
        if seen.local == "bias" and matrix.claim is not None and matrix.claim.role == "router":
            return started(Guess(ParamInfo("router_bias"), "bias of a router", matrix.certain), seen, 0.0)
        return unknown("a vector that no norm and no Linear holds: a gain, a bias, or a number for each head?")


def _is_of_queries_or_keys(seen: Seen) -> bool:
    return bool(seen.module_words & _QUERY_OR_KEY) and "a" not in seen.module_words
