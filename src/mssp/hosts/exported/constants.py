"""The constants that exported code reads. Every export writes its own; these stand for them where code is checked."""

from __future__ import annotations

from typing import Any

EXPERTS = WIDTH = EXPERT_WIDTH = 8
GROW: tuple[int, ...] = (8,)
SEED = 0
AGGREGATION = AGGREGATION_OF_SUMMING_GATES = RESIDUAL = SHARED = ROUTED_BESIDE_SHARED = 1.0
HEAD_NORMS = GATES_SUM_TO_ONE = False
# Of each parameter: pattern, way to start, standard deviation, shape, axis of the input side.
STARTS: list[tuple[str, str, float, tuple[int | str | None, ...], int | None]] = []
# What the host's optimizer takes for each group.
GROUPS: list[Any] = []
GROUP_OVERRIDES: list[Any] = []
PARAM_GROUPS: list[Any] = []
