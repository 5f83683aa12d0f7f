"""Where the program runs: its version, the host, the device."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from mssp._constraints import Constraint, UnfitError
from mssp._files import text_at

if TYPE_CHECKING:
    import torch

__version__ = "0.1.0"


def _device_name(came: Any) -> str:
    if not isinstance(came, str) or not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", came):
        raise UnfitError
    return came


device_name = Constraint("auto, cpu, cuda or cuda:1", _device_name)


@cache
def this_host() -> str:
    """A hash that stands for the host and its process numbers: a container has process numbers of its own."""
    namespace = os.readlink("/proc/self/ns/pid") if os.path.lexists("/proc/self/ns/pid") else ""
    return hashlib.sha256(f"{platform.node()} {text_at('/etc/machine-id')} {namespace}".encode()).hexdigest()[:16]


def environment(device: str) -> dict[str, Any]:
    """The versions and the machine that results may depend on, besides their settings; they are kept with every run."""
    return {
        "python": platform.python_version(),
        "numpy": _installed("numpy"),
        "torch": _installed("torch"),
        "mssp": __version__,
        "host": this_host(),
        "device": device,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _installed(package: str) -> str | None:
    from importlib import metadata  # slow, and not needed for help

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def pick_device(name: str = "auto") -> torch.device:
    """The torch device that a name stands for; ``auto`` is a GPU if there is one, else the CPU."""
    import torch

    if device_name("device", name) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r} cannot be used here: there is cpu")
    return device


def device_text(device: str) -> str:
    """A device in words: the name of the GPU, or the number of CPU threads."""
    import torch

    picked = pick_device(device)
    return torch.cuda.get_device_name(picked) if picked.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
