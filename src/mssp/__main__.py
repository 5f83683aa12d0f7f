"""``mssp`` and ``python -m mssp``."""

from __future__ import annotations

import sys

from mssp.cli import main

if __name__ == "__main__":
    sys.exit(main())
