"""Holds the locked versions against the published advisories, as far as the package registry has them.

``./dev lint`` runs it. A version with a known vulnerability is named with the versions that mend it, and fails. Where
the registry does not answer, or has no advisories, a line says so: nothing was audited then.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

_SECONDS = 120.0


def main(locks: Sequence[str]) -> int:
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--no-deps", "--progress-spinner", "off"]
    command += ["--timeout", "10", "--format", "json", *(word for lock in locks for word in ("-r", lock))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        dependencies = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError) as error:
        print(f"audit: nothing was audited, since the advisories cannot be read ({type(error).__name__})")
        return 0
    lines = [*vulnerable(dependencies)]
    print("\n".join([f"audit: {summary(dependencies)}", *lines]))
    return int(bool(lines))


def vulnerable(dependencies: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each advisory on a locked version."""
    for dependency in dependencies:
        for advisory in dependency.get("vulns", ()):
            mended = ", ".join(advisory["fix_versions"]) or "no version yet"
            yield f"audit: {dependency['name']} {dependency['version']}: {advisory['id']}, mended in {mended}"


def summary(dependencies: Sequence[dict[str, Any]]) -> str:
    audited = sum("skip_reason" not in dependency for dependency in dependencies)
    if not audited:
        return f"nothing was audited, since the registry has no advisories on any of {len(dependencies)} packages"
    return f"{audited} of {len(dependencies)} locked packages were held against the registry's advisories"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
