"""The models that goldens plan: sizes, options, and the words that say them to the command line."""

from __future__ import annotations

from typing import Any

import mssp
from mssp import Recipe, Shape

BASE = Shape(width=256, expert_width=128, experts=8, active=8, depth=8)
SOFT = {
    "I": Shape(width=1024, expert_width=512, experts=8, active=8, depth=8),
    "II": Shape(width=1024, expert_width=128, experts=32, active=32, depth=8),
    "III": Shape(width=1024, expert_width=512, experts=32, active=32, depth=8),
}
# By name: the target, and the base or None.
STEPS: dict[str, tuple[Shape, Shape | None]] = {
    "growing as I": (SOFT["I"], BASE),
    "growing as II": (SOFT["II"], BASE),
    "growing as III": (SOFT["III"], BASE),
    "deeper": (Shape(width=2048, expert_width=1000, experts=64, active=64, depth=24), BASE),
    "deeper only": (Shape(width=256, expert_width=128, experts=8, active=8, depth=32), BASE),
    "shrinking": (Shape(width=100, expert_width=64, experts=8, active=8, depth=8), BASE),
    "top-k": (
        Shape(width=3072, expert_width=768, experts=128, active=8, depth=48),
        Shape(width=768, expert_width=192, experts=32, active=2, depth=12),
    ),
    "another share": (
        Shape(width=2048, expert_width=256, experts=64, active=8, depth=16),
        Shape(width=512, expert_width=64, experts=16, active=8, depth=16),
    ),
    "alone": (Shape(width=100, expert_width=30, experts=7, active=7, depth=3), None),
    "alone, dense inputs": (Shape(width=384, expert_width=96, experts=12, active=3, depth=1, inputs=12288), None),
    "dense inputs grow": (
        Shape(width=640, expert_width=80, experts=40, active=20, depth=5, inputs=300),
        Shape(width=64, expert_width=8, experts=4, active=2, depth=5, inputs=30),
    ),
}
OF_A_REGIME = {
    "I": ("growing as I", "deeper", "alone"),
    "II": ("growing as II", "top-k", "alone, dense inputs"),
    "III": ("growing as III", "deeper", "dense inputs grow"),
}

OPTIONS: dict[str, dict[str, Any]] = {
    "readout of muP": {"readout": "mup"},
    "readout of the scheme": {"readout": "scheme"},
    "as printed": {"as_printed": True},
    "scaled gradients": {"grad_scale": True},
    "eps": {"eps": 1e-6},
    "weight decay": {"weight_decay": 0.1},
    "learning rates by role": {"lr_mult": {"router": 4.0, "expert_out": 0.015625, "norm": 2.0}},
    "one init multiplier": {"init_mult": 0.25},
    "init multipliers by role": {"init_mult": {"all": 0.5, "router": 2.0, "expert_in": 0.125}},
    "one std": {"init_std": 0.02},
    "stds by role": {"init_std": {"all": 0.02, "embedding": 0.1, "readout": 0.3}},
    "std and multiplier": {"init_std": {"hidden": 0.03}, "init_mult": 2.0},
    "aggregation": {"aggregation_mult": 8.0},
    "a recipe": {"recipe": Recipe(betas=(0.9, 0.95), batch=512, steps=1000, warmup=0)},
    "another recipe": {
        "recipe": Recipe(batch=512, steps=20000, warmup=10),
        "tuned_with": Recipe(batch=64, steps=1000, warmup=10),
    },
    "other betas": {"recipe": Recipe(betas=(0.9, 0.99)), "tuned_with": Recipe(betas=(0.9, 0.95), steps=100)},
    "all together": {
        "readout": "mup", "grad_scale": True, "eps": 1e-7, "weight_decay": 0.01, "lr_mult": {"embedding": 3.0},
        "init_mult": {"expert_out": 0.7}, "init_std": {"all": 0.01}, "aggregation_mult": 2.0,
        "recipe": Recipe(batch=8),
    },
    "an unknown role": {"lr_mult": {"gate": 1.0}},
    "a std of a gain": {"init_std": {"norm": 0.1}},
    "a rate of zero": {"lr": 0.0},
    "an unknown readout": {"readout": "open"},
    "a rate beyond numbers": {"lr": 1e308, "lr_mult": {"embedding": 1e10}},
}  # fmt: skip


def in_words(which: str, shape: Shape) -> str:
    """A shape as flags."""
    sizes = shape.json()
    given = {name.replace("_", "-"): size for name, size in sizes.items() if size is not None}
    return " ".join(f"--{which}.{name} {size}" for name, size in given.items())


def step(name: str) -> str:
    """A step as flags."""
    target, base = STEPS[name]
    return " ".join([in_words("target", target), *([in_words("base", base)] if base else [])])


def planned(name: str, **options: Any) -> mssp.Plan:
    """The plan of a step."""
    target, base = STEPS[name]
    return mssp.plan(target, base, **{"lr": 4e-3, **options})
