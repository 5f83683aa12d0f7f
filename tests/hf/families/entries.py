"""What is written down of a family of MoE models: its sizes in tests, and what its tests and its row of the table say.

From BASE to TARGET everything grows, and by factors that tell roles apart: N x2, N_e x3, M x2, K x2, L x1.5. Heads keep
their size and grow in number. One matrix of one expert has 128 x 96 entries, enough to measure a standard deviation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mssp

BASE = mssp.Shape(width=64, expert_width=32, experts=4, active=2, depth=2)
TARGET = mssp.Shape(width=128, expert_width=96, experts=8, active=4, depth=3)
VOCABULARY = 128
HEAD = 16
Sizes = dict[str, Any]
# What may be special about a family, and is read off the tiny model by a test.
SPECIAL = (TIED, DENSE_LAYERS, SHARED_EXPERTS, OWN_STARTS, SCALED_EMBEDDINGS) = (
    "readout tied to the embedding", "dense layers", "shared experts", "parameters that keep the model's own start",
    "embeddings times the root of the width",
)  # fmt: skip

# Why families with several residual streams are refused.
HYPER_CONNECTIONS = (
    "hyper-connections: the few numbers that weigh its residual streams have gradients like those of a gate, but a "
    "gate's zero start keeps all streams equal ([record](../records/2026-11-19-families.md))"
)


@dataclass(frozen=True)
class Planned:
    """A family that is planned, for which all of ``test_families.py`` runs.

    Args:
        sizes: the entries of its config at a shape, beside those that almost every config has.
        gates: as the router of the installed library makes them, read by hand.
        special: what the tiny model has, of ``SPECIAL``.
        own: endings of the names of trained parameters that keep the model's own start.
        spread: endings of the names of those that take the base's start, spread over the heads.
        blocks: how many blocks of the tiny model stand for each layer of a shape.
        writers: modules of all blocks of the target that write to the residual stream.
        rescales: whether blocks multiply the stream by a number.
        larger: the model type of the multimodal model that holds it, if it is there only inside that.
        beside: the entries of that model's config beside the text model's.
        taken_out: factors that take out what the model's own forward pass multiplies by, of all three blocks.
        active: how many experts a token is sent to, where that does not follow the shape.
        note: what else a reader of the table should know.
    """

    sizes: Callable[[mssp.Shape], Sizes]
    gates: str
    special: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    spread: tuple[str, ...] = ()
    blocks: int = 1
    writers: int = 6
    rescales: bool = False
    larger: str = ""
    beside: Callable[[mssp.Shape], Sizes] | None = None
    taken_out: tuple[float, ...] = ()
    active: int = 0
    note: str = ""


@dataclass(frozen=True)
class Refused:
    """A family that ``adapt`` refuses, for a reason that is in the model.

    Args:
        sizes: as of a planned family.
        message: a part of what ``adapt`` says.
        reason: why there is no rule, for readers of the table.
        larger, beside: as of a planned family.
    """

    sizes: Callable[[mssp.Shape], Sizes]
    message: str
    reason: str
    larger: str = ""
    beside: Callable[[mssp.Shape], Sizes] | None = None
