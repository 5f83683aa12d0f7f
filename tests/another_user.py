"""Code that runs as a user who is neither root nor the owner of the tests' files."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ANOTHER = 54321  # a user and a group whom no system knows

needs_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="takes root to be two users")


def as_another_user(code: str) -> str:
    """What Python prints that runs as another user."""
    # The package is imported by root, since other users may have no way into its folder.
    script = f"""
import mssp._files, mssp.cli.commands, mssp.report.sections, mssp.store, os, sys
from pathlib import Path
os.setgroups([]); os.setgid({ANOTHER}); os.setuid({ANOTHER})
{code}
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
