"""Models of transformers, without the network and without its messages."""

from __future__ import annotations

import os

# Before anything imports transformers, which reads them once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
