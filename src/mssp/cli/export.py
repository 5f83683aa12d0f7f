"""``mssp export``: a plan as a Python file in the native form of a training framework, the host."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from typing import Annotated

import tyro

from mssp._files import write_whole
from mssp.cli import flags
from mssp.hosts import export
from mssp.hosts.rows import Sizes


@dataclass
class HostSizes:
    attention_width: flags.MaybeSize = None
    """query heads times head size"""
    ffn_width: flags.MaybeSize = None
    """hidden units of dense FFN blocks"""
    shared_width: flags.MaybeSize = None
    """hidden units of shared experts, all together"""
    q_rank: flags.MaybeSize = None
    """low rank of queries (multi-head latent attention)"""
    kv_rank: flags.MaybeSize = None
    """low rank of keys and values"""


@dataclass
class ExportCommand:
    """Write a plan as torchtitan, megatron, olmo-core or nanogpt takes it: one Python file that does not need mssp.

    A plan over configs knows the sides of all matrices. For a plan over sizes alone, sides that are not said grow with
    the width, and low ranks stay; the file says what was assumed and refuses a model that differs.
    """

    host: flags.Host
    """torchtitan, megatron, olmo-core or nanogpt"""
    plan: flags.MaybePlan = None
    """the plan file, as `mssp plan --json` writes it"""
    output: Annotated[flags.MaybeTarget, tyro.conf.arg(aliases=["-o"])] = None
    """the file to write; printed if left out, or -"""
    qk_norm: flags.MaybeQkNorm = None
    """for olmo-core: norms of queries and keys over the full width (full, the default) or one head (head)"""
    target: HostSizes = field(default_factory=HostSizes)
    base: HostSizes = field(default_factory=HostSizes)

    def run(self) -> int:
        if self.plan is None:
            raise ValueError("--plan is missing: give the file that `mssp plan --json` wrote")
        target, base = (
            {name: size for name, size in asdict(said).items() if size is not None} for said in (self.target, self.base)
        )
        sizes = Sizes(target, base)
        exported = export(self.plan, self.host, sizes, self.qk_norm)
        guessed = sizes.guessed(self.plan)
        if guessed:
            print(f"mssp: warning: {guessed}", file=sys.stderr)
        if self.output is None:
            print(exported, end="")
        else:
            write_whole(self.output, exported)
        return 0
