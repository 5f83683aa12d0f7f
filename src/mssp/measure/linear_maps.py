"""One linear map h = W x against its start: what its own update does, and what updates before it do.

    ΔW x_t     effective: felt by this layer's input, made by this layer's update
    W_0 Δx     propagating: made upstream, passed on by the initial weights
    W_0ᵀ δ, ΔWᵀ δ     the same two, backward

Shapes: R replicas, T tokens, a outputs, b inputs; δ is the gradient of a token's loss at the output.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mssp.measure.magnitudes import Sizes, rms, rms_of_products


@dataclass(frozen=True)
class Layer:
    """A linear map at one moment: its weight [R, a, b] and what entered it [R, T, b]."""

    weight: Tensor
    x: Tensor


def layer_sizes(role: str, start: Layer, now: Layer, back: Tensor | None) -> Sizes:
    """Every size of one layer, by name; without ``back`` [R, T, a], those of the forward pass only."""
    update, change = now.weight - start.weight, now.x - start.x
    sizes = {
        f"effective/{role}": rms(now.x @ update.mT),
        f"propagating/{role}": rms(change @ start.weight.mT),
        **weight_sizes(role, start.weight, update),
        f"input/{role}": rms(now.x),
        f"input-change/{role}": rms(change),
    }
    if back is not None:
        sizes[f"backward/propagating/{role}"] = rms(back @ start.weight)
        sizes[f"backward/effective/{role}"] = rms(back @ update)
        # A batch's loss is the mean over its tokens.
        sizes[f"gradient/{role}"] = rms_of_products(back, now.x) / back.shape[-2]
    return sizes


def weight_sizes(role: str, start: Tensor, update: Tensor) -> Sizes:
    return {f"weights/{role}": rms(start), f"update/{role}": rms(update)}
