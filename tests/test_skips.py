"""What requirements.lock pins is imported and never skipped: tests that may be left out stand here, with the reason."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("tests", "src", "examples", "docs")
SKIPPING = re.compile(r"importorskip|skipif|\bskip\(|mark\.skip\b|xfail|skipUnless|skipIf|\+SKIP|collect_ignore")
# Each of these files skips in one place.
REASONS = {
    "tests/another_user.py": "only root can become another user",
    "tests/hosts/test_host_examples.py": "Megatron, OLMo-core and torchtitan are made for Linux",
    "tests/nn/experts/test_triton.py": "there is no Triton outside Linux",
    "tests/nn/test_experts.py": "it says what is missing without a GPU",
    "tests/replicas/test_on_gpu.py": "it needs a GPU",
    "tests/report/test_page_in_browser.py": "a person may have no Chromium, CI has one",
    "tests/store/test_ownership.py": "locks that other containers see are Linux's",
    "tests/test_gpu.py": "it needs a GPU",
}


def test_nothing_else_is_skipped() -> None:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if path != Path(__file__)]
    skipping = [
        path.relative_to(ROOT).as_posix()
        for path in files
        for line in path.read_text(encoding="utf-8").splitlines()
        if SKIPPING.search(line)
    ]
    assert sorted(skipping) == list(REASONS)
