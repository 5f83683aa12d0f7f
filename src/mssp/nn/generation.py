"""Generation: a model goes on with a text token by token, and keeps what attention needs of earlier positions.

Shapes: B batch, H heads, S positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class KeysAndValues:
    """The keys and values of one attention layer at the positions that it has seen, [B, H, S, head]: a KV cache.

    >>> kept = KeysAndValues(room=4)
    >>> keys, _ = kept.extended(torch.ones(1, 2, 3, 8), torch.ones(1, 2, 3, 8))
    >>> keys, _ = kept.extended(torch.zeros(1, 2, 1, 8), torch.zeros(1, 2, 1, 8))
    >>> keys[0, 0, :, 0].tolist(), kept.seen
    ([1.0, 1.0, 1.0, 0.0], 4)

    Args:
        room: the most positions that it will hold.
    """

    def __init__(self, room: int) -> None:
        self.room, self.seen = room, 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def extended(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values so far, with those of the positions that come next."""
        if self._keys is None or self._values is None:
            B, H, _, head = keys.shape
            self._keys, self._values = keys.new_empty(B, H, self.room, head), values.new_empty(B, H, self.room, head)
        start, self.seen = self.seen, self.seen + keys.shape[2]
        assert self.seen <= self.room
        self._keys[:, :, start : self.seen], self._values[:, :, start : self.seen] = keys, values
        return self._keys[:, :, : self.seen], self._values[:, :, : self.seen]


# From tokens [B, S], and what was kept of the tokens before them, to the logits [B, V] of the token after the last.
NextLogits = Callable[[Tensor, Sequence[KeysAndValues] | None], Tensor]


def continued(
    logits_after: NextLogits,
    tokens: Tensor,
    length: int,
    *,
    layers: int,
    context: int,
    choose: Callable[[Tensor], Tensor],
) -> Tensor:
    """The tokens [B, S] with ``length`` more, each chosen by the logits after all that a model can see of them.

    A token costs one position, as long as the text fits into the context. Beyond, the window slides: its first token
    falls out, and all that was kept of the others depends on it. So each token then costs a pass over the window.
    """
    kept = None
    for _ in range(length):
        if tokens.shape[-1] > context:
            logits = logits_after(tokens[..., -context:], None)
        elif kept is None:
            room = min(context, tokens.shape[-1] + length)
            kept = [KeysAndValues(room) for _ in range(layers)]
            logits = logits_after(tokens, kept)
        else:
            logits = logits_after(tokens[..., -1:], kept)
        tokens = torch.cat([tokens, choose(logits)], dim=1)
    return tokens


def sampled(
    logits: Tensor, temperature: float = 1.0, top_k: int | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """A token for each row of logits [B, V], as [B, 1]; temperature 0 takes the likeliest.

    >>> sampled(torch.tensor([[0.0, 3.0, 1.0]]), temperature=0.0)
    tensor([[1]])
    """
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    if top_k is not None:
        smallest = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    shifted = logits - logits.amax(-1, keepdim=True)  # at most 0: no quotient overflows, however low the temperature
    return torch.multinomial((shifted / temperature).softmax(-1), 1, generator=generator)
