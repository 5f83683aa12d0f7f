"""``mssp proxy``: the small model to tune for a large one, and a ladder of models between the two."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mssp._files import write_whole
from mssp.cli import flags, progress

if TYPE_CHECKING:
    from mssp.hf.proxies import Proxy


@dataclass
class ProxyCommand:
    """Choose the small model to tune for a large one, and write its config.

    It compares small models that grow to the large one in different ways: by regime, by κ, by parameters and cost, and
    says which of these growths are stable. Heads keep their size, and the vocabulary stays.
    """

    config: flags.ModelConfig
    """the config.json of the large model, its folder, or its name on the Hub, as Qwen/Qwen3-30B-A3B"""
    width: flags.MaybeSize = None
    """N of the small model (required)"""
    regime: flags.MaybeGrowth = None
    """how it grows to the large one; if left out, with as many experts while it is small, or else with fewer"""
    depth: flags.MaybeSize = None
    """L of the small model (default: that of the large one)"""
    experts: flags.MaybeSize = None
    """M of the small model"""
    rungs: flags.Size = 1
    """models in the ladder, with the small one and without the large one (default 1)"""
    output: flags.MaybeFolder = None
    """the folder for config.json; for several rungs it has a folder for each, as width-512"""

    def run(self) -> int:
        if self.width is None:
            raise ValueError("--width is missing: say how wide the small model is")
        try:
            import transformers  # noqa: F401
        except ImportError:
            raise ValueError(
                "proxies are counted by building them, for which transformers is missing: mssp[hf]"
            ) from None
        from mssp.hf.proxies import proxy

        found = proxy(
            self.config, self.width, regime=self.regime, depth=self.depth, experts=self.experts, rungs=self.rungs
        )
        files = [] if self.output is None else _files(self.output, found)
        for file in files:
            if file.exists():
                raise ValueError(f"{file} is there already: remove it, or choose another --output")
        for file, rung in zip(files, found.rungs, strict=False):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, json.dumps(rung.config, indent=2, ensure_ascii=False) + "\n")
        lines = str(found).splitlines()
        progress.show_lines(lines, emphasised=lines[:1])
        for file in files:
            print(f"config in {file}", file=sys.stderr)
        return 0


def _files(folder: Path, found: Proxy) -> list[Path]:
    """Where the configs of a ladder are written."""
    if len(found.rungs) == 1:
        return [folder / "config.json"]
    return [folder / f"width-{rung.shape.width}" / "config.json" for rung in found.rungs]
