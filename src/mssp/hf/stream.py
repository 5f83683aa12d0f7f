"""Refuses models whose blocks do more to the residual stream than add to it and rescale it as a whole.

A plan's factor on what branches write keeps deep models stable only where a block adds to the residual stream and does
nothing else but rescale it. A norm on the stream has gains whose movement adds up over blocks, which nothing damps, and
so have gains and biases of the stream's own.
"""

from __future__ import annotations

from contextlib import suppress

from torch import nn

from mssp.hf.rehearsal import Flow, Rehearsal, rehearsal
from mssp.hf.stand_ins import NotRunnableError
from mssp.hf.vocabulary import of_all_blocks


def refuse_what_is_on_the_stream(model: nn.Module) -> None:
    """Refuse such a model by what stands on its stream. One that does not run with stand-ins is let pass."""
    with suppress(NotRunnableError), rehearsal(model) as run:
        flows_of_sums(run)


def flows_of_sums(run: Rehearsal) -> list[Flow]:
    """What blocks make of the stream, all of which only add to it."""
    flows = run.flows()
    for flow in flows:
        if not flow.is_sum:
            named = run.on_stream() or list(dict.fromkeys(of_all_blocks(path) for path in flow.on_stream))
            verb = "stand" if len(named) > 1 else "stands"
            stands = f"{', '.join(named)} {verb} on the residual stream"
            raise ValueError(
                f"{of_all_blocks(flow.path)} does not only add to its input what its branches give: "
                f"{stands if named else 'something else changes the residual stream'}, and no residual factor damps "
                "what that does in deep models"
            )
    return flows
