"""How parameters start, for the files of all hosts: a parameter's line in ``STARTS``, and its numbers."""

import hashlib
from fnmatch import fnmatch

import torch

from mssp.hosts.exported.constants import GROW, SEED, STARTS


def _start(name, shape):
    """How the parameter of this name and whole shape starts: way and standard deviation."""
    found = [line for line in STARTS if _matches(line[0], name)]
    if len(found) != 1:
        raise ValueError(
            f"{name} {tuple(shape)} matches {len(found)} patterns of this export, not one: it has no role, or its size "
            "has to be said to `mssp export` (--target.kv-rank and the like)"
        )
    pattern, way, std, wanted, in_axis = found[0]
    fits = len(shape) == len(wanted) and all(_fits(size, axis) for size, axis in zip(shape, wanted))
    if not fits:
        raise ValueError(
            f"{name} has shape {tuple(shape)}, this export is for {wanted}: it was made for another model, or the "
            f"size has to be said to `mssp export` (--target.attention-width and the like)"
        )
    return ("normal", std * shape[in_axis] ** -0.5) if way == "own fan-in" else (way, std)


def _fits(size, wanted):
    if wanted == "grows":
        return any(size % step == 0 for step in GROW)
    return wanted is None or size == wanted


def _draw(name, shape):
    """Standard normals that depend on the seed and the name alone, so that every rank draws the same."""
    key = hashlib.sha256(f"{SEED}/{name}".encode()).digest()
    return torch.randn(shape, generator=torch.Generator().manual_seed(int.from_bytes(key[:8], "little") >> 1))


def _clean(name):
    """The name without what compile, checkpointing, FSDP and DDP put into it, whichever is outermost."""
    for wrapper in ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module."):
        name = name.replace(wrapper, "")
    while name.startswith("module."):
        name = name.removeprefix("module.")
    return name


def _matches(pattern, name):
    return fnmatch(name, pattern)
