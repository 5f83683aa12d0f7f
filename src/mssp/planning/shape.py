"""The dimensions of a Mixture-of-Experts model, with the paper's symbols and our names for them.

=======  ================  ==============  ====================================================
symbol   name              flag            meaning
=======  ================  ==============  ====================================================
N        ``width``         --width         residual stream
N_e      ``expert_width``  --expert-width  hidden units of one expert
M        ``experts``       --experts       routed experts of one layer
K        ``active``        --active        experts that see a token
L        ``depth``         --depth         residual blocks
D        ``inputs``        --inputs        size of a dense input (d_in in the paper); 1 for token lookups
=======  ================  ==============  ====================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from mssp._constraints import optional, positive_int, takes
from mssp.planning.configs import sizes_of

SYMBOLS = {"N": "width", "N_e": "expert_width", "M": "experts", "K": "active", "L": "depth", "D": "inputs"}
# The two sides of a matrix, for rules that follow the matrix rather than the model.
FANS = ("fan_in", "fan_out")


@takes(
    width=positive_int,
    expert_width=positive_int,
    experts=positive_int,
    active=positive_int,
    depth=positive_int,
    inputs=optional(positive_int),
)
@dataclass(frozen=True)
class Shape:
    """The dimensions a parameterization depends on.

    >>> Shape(width=256, expert_width=128, experts=8, active=4, depth=8)
    Shape(N=256, N_e=128, M=8, K=4, L=8, D=1)

    A dense model is the case without experts. It counts as one expert of the model's width:

    >>> Shape(width=256, depth=8)
    Shape(N=256, N_e=256, M=1, K=1, L=8, D=1)

    ``inputs`` may be left out: it is then 1, or, in a base, what the target has.
    """

    width: int
    expert_width: int = 0
    experts: int = 0
    active: int = 0
    depth: int = 0
    inputs: int | None = None

    def __post_init__(self) -> None:
        sizes_of_experts = ("expert_width", "experts", "active")
        if not any(getattr(self, name) for name in sizes_of_experts):
            for name, size in zip(sizes_of_experts, (self.width, 1, 1), strict=True):
                object.__setattr__(self, name, size)
        for name in (*sizes_of_experts, "depth"):
            if not getattr(self, name):
                raise ValueError(
                    f"{name} is missing: all of width, expert_width, experts, active and depth are needed, of a dense "
                    "model width and depth"
                )
        if self.active > self.experts:
            raise ValueError(f"active must be at most experts: a token cannot use {self.active} of {self.experts}")

    @property
    def is_dense(self) -> bool:
        """Whether there is nothing to route: a dense model, or a single expert that sees every token."""
        return self.experts == 1

    @property
    def is_without_experts(self) -> bool:
        """Whether the sizes are those of a model without experts, which counts as one expert of the model's width."""
        return self.is_dense and self.expert_width == self.width

    @property
    def dims(self) -> Mapping[str, float]:
        """The sizes by symbol, at which Powers are evaluated."""
        return {symbol: float(getattr(self, name) or 1) for symbol, name in SYMBOLS.items()}

    def with_inputs(self, inputs: int | None) -> Shape:
        """This shape, with ``inputs`` filled in where it was left out."""
        return self if self.inputs is not None else replace(self, inputs=inputs)

    def json(self) -> dict[str, int | None]:
        return asdict(self)

    @classmethod
    def from_config(cls, config: Any) -> Shape:
        """Read a Hugging Face configuration: a mapping, or anything with ``to_dict()``.

        >>> Shape.from_config({"hidden_size": 64, "intermediate_size": 32, "num_local_experts": 8,
        ...                    "num_experts_per_tok": 2, "num_hidden_layers": 4})
        Shape(N=64, N_e=32, M=8, K=2, L=4, D=1)
        """
        return cls(**sizes_of(config))

    def __repr__(self) -> str:
        return f"Shape({', '.join(f'{symbol}={size:.0f}' for symbol, size in self.dims.items())})"
