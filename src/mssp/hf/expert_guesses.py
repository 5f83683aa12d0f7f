"""Guesses at the parameters of routed experts: stacks, or one tensor for each expert.

Names tell the first matrix from the second, or a gated first one is twice as large. The width tells the axes apart.

Shapes: N width, M experts, F hidden units of one expert.
"""

from __future__ import annotations

from mssp.hf.guesses import Guess, several, started, unknown
from mssp.hf.structure import Seen, Structure, words_of
from mssp.planning.parameter import ParamInfo

_FIRST = frozenset(
    {"in", "up", "gate", "fc", "fc1", "w1", "w3", "v1", "w12", "w13", "wi", "input", "b1", "b3", "linear1"}
)
_SECOND = frozenset({"out", "down", "fc2", "w2", "wo", "output", "b2", "linear2"})
_NOTHING_SAID = frozenset({"bias", "weight", "b", "w", "c", "linear"})
_IN, _OUT = "expert_in", "expert_out"
_REASONS = {_IN: "first matrix of experts, from the width", _OUT: "second matrix of experts, to the width"}
_HALVES = "gate and up of experts in one tensor"
_WHOSE = "are these routed experts? no router with as many outputs was found"


class ExpertGuesses:
    """Guesses at the parameters of experts."""

    def __init__(self, structure: Structure) -> None:
        self._structure, self._width = structure, structure.width

    def of_linear(self, seen: Seen, layout: str) -> Guess:
        """A matrix of an expert that is a module: its axes are known, and the width tells first from second."""
        assert seen.sides is not None
        fan_in, fan_out = seen.sides
        all_sides = [other.sides for other in self._structure.of_expert(seen) if other.sides is not None]
        inner = {source for source, end in all_sides if end == self._width != source}
        hidden = inner.pop() if len(inner) == 1 else None
        if fan_in == fan_out == self._width:
            role = _role_by_words(seen) or _IN
            halves = role == _IN and hidden is not None and fan_out == 2 * hidden
            guess = self._guess(seen, role, several(layout, 2) if halves else layout)
            return guess.doubted(f"a square matrix of an expert: {_IN} or {_OUT}?")
        if hidden is None or not any(source == self._width for source, _ in all_sides):
            return unknown("a matrix of an expert that has not two layers, from the width and back")
        if (fan_in, fan_out) == (hidden, self._width):
            return self._counted(self._guess(seen, _OUT, layout), seen)
        if fan_in == self._width and fan_out in (hidden, 2 * hidden):
            halves = fan_out == 2 * hidden
            return self._counted(self._guess(seen, _IN, several(layout, 2) if halves else layout), seen)
        return unknown("a matrix of an expert of another size than its others")

    def of_tensor(self, seen: Seen) -> Guess:
        """A plain tensor: a stack [M, ., .], or a matrix for each expert."""
        matrix = self._matrix_shape(seen)
        if seen.is_bias and len([size for size in matrix if size != 1]) <= 1:
            return self._bias(seen, matrix)
        if len(matrix) != 2:
            return unknown(f"a tensor with {len(seen.shape)} axes, in experts")
        if seen.expert is None and not seen.in_experts and self._structure.number_of_experts(seen) is None:
            return unknown("three axes, and nothing says that one of them runs over experts")
        role, count = self._role(seen, matrix)
        if role is None:
            return unknown("neither names nor sizes tell the first matrix of experts from the second")
        guess = self._guess(seen, role, self._layout(role, matrix, count))
        if matrix.count(self._width or 0) != 1:
            return guess.doubted(f"{_REASONS[role]} by name: sizes {seen.shape} do not tell which axis is the input")
        return self._counted(guess, seen)

    def _matrix_shape(self, seen: Seen) -> tuple[int, ...]:
        return seen.shape[1:] if seen.expert is None else seen.shape

    def _role(self, seen: Seen, matrix: tuple[int, ...]) -> tuple[str | None, int]:
        """expert_in or expert_out by sizes, or else by names, and how many matrices lie in the tensor."""
        inner = self._inner_sizes(seen)
        other = [size for size in matrix if size != self._width]
        by_name = self._role_by_names(seen)
        if len(other) == 1 and len(inner) == 2 and max(inner) == 2 * min(inner):
            by_size = _IN if other[0] == max(inner) else _OUT
            alone = self._count_of(seen, other[0]) == 1
            agrees = by_name == by_size or (by_name is None and alone)
            return (by_size if agrees else None), 2 if by_size == _IN else 1
        return (by_name if len(inner) <= 1 else None), 1

    def _layout(self, role: str, matrix: tuple[int, ...], count: int) -> str:
        """The axes, from which of them has the width; as a Linear has them, if both or none have it."""
        at_width, beside = ("in", "out" if count == 1 else f"({count} out)") if role == _IN else ("out", "in")
        first_is_width = matrix[0] == self._width if matrix[0] != matrix[1] else role == _OUT
        return f"{at_width} {beside}" if first_is_width else f"{beside} {at_width}"

    def _inner_sizes(self, seen: Seen) -> set[int]:
        """The sizes beside the width, over all matrices of the experts."""
        shapes = [self._matrix_shape(other) for other in self._structure.of_expert(seen)]
        matrices = [
            shape for shape in shapes if len(shape) == 2 and 1 not in shape and shape.count(self._width or 0) == 1
        ]
        return {size for shape in matrices for size in shape} - {self._width or 0}

    def _count_of(self, seen: Seen, size: int) -> int:
        """How many matrices of the experts have an axis of this size."""
        shapes = [self._matrix_shape(other) for other in self._structure.of_expert(seen)]
        return sum(len(shape) == 2 and size in shape for shape in shapes)

    def _role_by_names(self, seen: Seen) -> str | None:
        """The role by name, if some matrices of the experts are called first, and others second."""
        alike = [other for other in self._structure.of_expert(seen) if len(other.shape) == len(seen.shape)]
        roles = {_role_by_words(other) for other in alike if not other.is_bias and not other.is_of_norm}
        return _role_by_words(seen) if roles == {_IN, _OUT} else None

    def _guess(self, seen: Seen, role: str, layout: str) -> Guess:
        axis = 0 if seen.expert is None else None
        reason = _HALVES if "(2 out)" in layout else _REASONS[role]
        return Guess(ParamInfo(role, layout=layout, expert_axis=axis), reason)

    def _counted(self, guess: Guess, seen: Seen) -> Guess:
        """Certain only if the router has an output for each expert, and no other axis has that size."""
        experts = self._structure.outputs_of_router(seen.layer)
        if seen.expert is not None:
            return guess if self._structure.number_of_experts(seen) == experts else guess.doubted(_WHOSE)
        if seen.shape.count(seen.shape[0]) > 1:
            return guess.doubted(f"which axis of {seen.shape} runs over experts? two have the same size")
        return guess if seen.shape[0] == experts else guess.doubted(_WHOSE)

    def _bias(self, seen: Seen, matrix: tuple[int, ...]) -> Guess:
        """Biases of experts: of the second layer if they have the width, of the first if they have another size."""
        [size] = [size for size in matrix if size != 1] or [1]
        inner = self._inner_sizes(seen)
        hidden = min(inner, default=0)
        is_gated = len(inner) == 2 and max(inner) == 2 * hidden
        by_size = {self._width: _OUT}
        if self._width != hidden and (is_gated or (len(inner) == 1 and self._count_of(seen, hidden) > 1)):
            by_size[2 * hidden if is_gated else hidden] = _IN
        by_name, role = _role_by_words(seen), by_size.get(size)
        axis = 0 if seen.expert is None else None
        if len(by_size) == 1 or role is None or by_name not in (None, role):
            info = None if by_name is None else ParamInfo(f"{by_name}_bias", expert_axis=axis)
            return Guess(info, f"a bias of experts, whose size {size} does not tell of which layer", certain=False)
        halves = "(2 out)" if role == _IN and is_gated and len(matrix) == 1 else None
        reason = f"bias of the {'first' if role == _IN else 'second'} matrix of experts"
        guess = Guess(ParamInfo(f"{role}_bias", layout=halves, expert_axis=axis), reason)
        return started(self._counted(guess, seen), seen, 0.0)


def _role_by_words(seen: Seen) -> str | None:
    """expert_in or expert_out, by the words of a name: the tensor's, or where that says nothing, its module's."""
    in_a_list = seen.expert is not None and seen.expert == len(seen.parts) - 1
    words = frozenset(words_of(seen.parts[-2] if in_a_list else seen.local)) - _NOTHING_SAID or (
        seen.module_words - _NOTHING_SAID
    )
    if words == {"proj"}:  # GPT-2 calls them c_fc and c_proj
        return _OUT
    first, second = bool(words & _FIRST), bool(words & _SECOND)
    return None if first == second else _IN if first else _OUT
