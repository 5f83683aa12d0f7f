"""``mssp`` and ``python -m mssp``."""

from __future__ import annotations

import sys

from mssp.cli.commands import main

if __name__ == "__main__":
    sys.exit(main())
