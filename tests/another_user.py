"""Code that runs as a user who is neither root nor the owner of the tests' files."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ANOTHER = 54321  # a user and a group whom no system knows

needs_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="takes root to be two users")


def as_another_user(code: str, before: str = "") -> str:
    """What Python prints that runs as another user, after code that root has run in the same process.

    Root imports the package, and whatever it imports only when it is used, for other users may have no way into the
    folders of Python.
    """
    script = f"""
import mssp._files, mssp.cli.commands, mssp.report.sections, mssp.store.table, os, sys
from pathlib import Path
{before}
os.setgroups([]); os.setgid({ANOTHER}); os.setuid({ANOTHER})
{code}
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
