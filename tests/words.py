"""The words of flags and files, for tests that try all of them."""

from __future__ import annotations

from mssp.planning import setting

SCHEMES = tuple(scheme.name for scheme in setting.SCHEMES)
OPTIMIZERS = tuple(optimizer.name for optimizer in setting.OPTIMIZERS)
REGIMES = tuple(regime.name for regime in setting.REGIMES)
