"""How a layer's tokens spread over its experts, as sizes that can be followed over training."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mssp.measure.magnitudes import Sizes
from mssp.nn.router import Routing


def routing_sizes(routings: Sequence[Routing]) -> Sizes:
    """The paper's router concentration, and the largest load times the number of experts (1 where all are equal).

    ``routings`` are those of R replicas.
    """
    each = [routing.statistics() for routing in routings]
    loads = [one.loads.max() * len(one.loads) for one in each]
    found = {
        "router/highest": [one.highest for one in each],
        "router/lowest": [one.lowest for one in each],
        "router/load": loads,
    }
    return {name: torch.stack(values).double() for name, values in found.items()}
