"""Hugging Face in one place: ``mssp.hf.adapt(model, base)`` and what goes with it. The work is done in ``adapters``."""

from mssp.adapters.configs import read_config
from mssp.adapters.transformers import adapt, checkpoint_infos, release

__all__ = ["adapt", "checkpoint_infos", "read_config", "release"]
