"""Property tests draw the same examples every time, and never fail for being slow: machines are shared and noisy."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")
