"""The paper's families of MLP MoEs: one width names a whole shape, and what grows with it is the regime.

    I    M = 8,     N_e = N        width and expert width grow
    II   M = N/16,  N_e = 16       width and the number of experts grow
    III  M = N/16,  N_e = N        all of them grow

At N = 128 the three have eight experts each, and there their hyperparameters are tuned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mssp._constraints import kind_of, one_of, optional, positive_int, takes
from mssp.planning.setting import II, REGIMES, I, Regime, regime_named
from mssp.planning.shape import Shape

if TYPE_CHECKING:  # the commands' flags name widths of the families, and wait for no torch
    import torch

    from mssp.data.dataset import Dataset
    from mssp.nn.mlp import MLPConfig
    from mssp.replicas.mlp import MLPProgram
    from mssp.replicas.training import Feed

TUNED_WIDTH = 128
_TUNED_EXPERTS = 8  # at the tuned width
_NARROW = 16  # N_e where it does not grow, and N/M where the number of experts grows


@takes(regime=one_of(REGIMES), width=positive_int, inputs=optional(positive_int), active=optional(positive_int))
def family(regime: str | Regime, width: int, inputs: int | None = None, active: int | None = None) -> Shape:
    """The shape of the member of a regime's family that has this width.

    >>> family("II", 512, inputs=12288)
    Shape(N=512, N_e=16, M=32, K=32, L=1, D=12288)
    >>> family("III", 512, inputs=12288, active=2)
    Shape(N=512, N_e=512, M=32, K=8, L=1, D=12288)

    Args:
        active: the number of active experts where there are eight, in proportion where there are more; None for all.
    """
    regime = regime_named(regime)
    experts = _TUNED_EXPERTS if regime is I else width // _NARROW
    if regime is not I and width % _NARROW:
        raise ValueError(f"Regime {regime} has an expert for every {_NARROW} of width: {width} is no multiple of it")
    scaled_active = experts if active is None else active * experts // _TUNED_EXPERTS
    if active is not None and (active > _TUNED_EXPERTS or scaled_active * _TUNED_EXPERTS != active * experts):
        share = f"{active} of {_TUNED_EXPERTS} experts active"
        raise ValueError(f"{share} is no whole number of the {experts} at width {width}")
    return Shape(width, _NARROW if regime is II else width, experts, scaled_active, 1, inputs)


def config_of(shape: Shape, outputs: int, *, soft: bool, residual: bool = False, **choices: Any) -> MLPConfig:
    """The configuration of the MLP MoE that has this shape.

    >>> small = config_of(family("II", 64, inputs=12), 10, soft=True, activation="identity")
    >>> small.active, small.blocks, small.activation, small.shape
    (None, 1, 'identity', Shape(N=64, N_e=16, M=4, K=4, L=1, D=12))

    Args:
        soft: use all experts for every input, without choosing. All of them are then active in the shape.
        residual: add the block's output to its input, also if there is only one block. Several blocks always do so.
        choices: other fields of :class:`mssp.nn.MLPConfig`.
    """
    from mssp.nn.mlp import MLPConfig

    if shape.inputs is None:
        raise ValueError(f"an MLP MoE has inputs of one size, and {shape} does not say which")
    return MLPConfig(
        inputs=shape.inputs,
        outputs=outputs,
        width=shape.width,
        expert_width=shape.expert_width,
        experts=shape.experts,
        active=None if soft else shape.active,
        blocks=shape.depth,
        residual=residual or shape.depth > 1,
        **choices,
    )


@takes(
    regime=one_of(REGIMES),
    data=kind_of("mssp.data.dataset.Dataset"),
    active=optional(positive_int),
    blocks=optional(positive_int),
)
@dataclass(frozen=True)
class MLPLadder:
    """A family of MLP MoEs on a data set: a :class:`mssp.ladders.ladder.Ladder`.

    >>> from mssp.data import load
    >>> from mssp.planning.setting import II
    >>> ladder = MLPLadder(II, load("clusters"), active=2)
    >>> ladder.shape(256), ladder.words()
    (Shape(N=256, N_e=16, M=16, K=4, L=1, D=64), {'active': 2})
    >>> ladder.deep(4).shape(256).depth
    4

    Args:
        regime: what grows with the width.
        active: the number of active experts where there are eight (see :func:`family`); None for soft routing to all.
        blocks: the number of residual blocks; None for a single MoE layer without a residual connection.
    """

    regime: Regime
    data: Dataset
    active: int | None = None
    blocks: int | None = None

    @property
    def name(self) -> str:
        return "mlp"

    def deep(self, blocks: int) -> MLPLadder:
        return replace(self, blocks=positive_int("blocks", blocks))

    def shape(self, width: int) -> Shape:
        return replace(family(self.regime, width, self.data.inputs, self.active), depth=self.blocks or 1)

    def config(self, width: int) -> MLPConfig:
        residual = self.blocks is not None
        return config_of(self.shape(width), self.data.classes, soft=self.active is None, residual=residual)

    def program(self, width: int) -> MLPProgram:
        from mssp.replicas.mlp import MLPProgram

        return MLPProgram(self.config(width))

    def feed(self, device: torch.device) -> Feed:
        from mssp.replicas.training import Feed

        return Feed(self.data, device)

    def words(self) -> dict[str, Any]:
        """The choices that tell ladders apart. The depth is left out where it is None, which keeps the keys of runs."""
        return {"active": self.active} | ({} if self.blocks is None else {"blocks": self.blocks})
