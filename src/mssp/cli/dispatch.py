"""``mssp dispatch``: measures which way of computing experts is the fastest on this machine."""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass

from mssp._environment import pick_device
from mssp.cli import flags


@dataclass
class DispatchCommand:
    """Measure the ways of computing experts on this machine, for ``dispatch="auto"`` to choose by.

    Takes a few minutes. Use the table by setting MSSP_DISPATCH_TABLE to its path.
    """

    table: flags.Table
    """the file to write; what it says of other devices stays"""
    device: flags.Device = "auto"
    """auto (a GPU if there is one), cpu, cuda or cuda:1"""

    def run(self) -> int:
        from mssp.nn.experts.choice import load, save
        from mssp.nn.experts.timing import measure_device

        device = pick_device(self.device)
        if self.table.exists():
            load(self.table)  # refuses a broken table before minutes of measuring; its entries of other devices stay
        machines = measure_device(device, lambda line: print(line, file=sys.stderr))
        save(self.table, machines)
        for machine in machines:
            regrets = sorted(machine.regrets())
            print(
                f"{machine.name}, {machine.dtype}: {len(regrets)} shapes. A shape that was not measured would take "
                f"{statistics.mean(regrets):.1%} longer than its best path on average, "
                f"{regrets[int(0.95 * (len(regrets) - 1))]:.0%} in the worst twentieth."
            )
        print(f"export MSSP_DISPATCH_TABLE={self.table.resolve()}")
        return 0
