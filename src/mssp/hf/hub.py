"""Models on the Hub of Hugging Face: which words name one, and where its config is."""

from __future__ import annotations

import re
from pathlib import Path

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_CONFIG = "config.json"
_LONGEST_QUOTE = 200  # characters of another library's error in ours


def is_on_the_hub(name: str) -> bool:
    """Whether this is the name of a model, an owner and a name, and neither a path that is there nor that of a file.

    >>> is_on_the_hub("Qwen/Qwen3-30B-A3B"), is_on_the_hub("small/config.json"), is_on_the_hub("small")
    (True, False, False)
    """
    return _NAME.fullmatch(name) is not None and not name.endswith(".json") and not Path(name).exists()


def config_file(name: str) -> Path:
    """The config.json of a model on the Hub, downloaded or from the cache; a ValueError says why there is none."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache

    try:
        get_hf_file_metadata(hf_hub_url(name, _CONFIG))  # asks once, where a download would ask for half a minute
        return Path(hf_hub_download(name, _CONFIG))
    except Exception as error:  # no network, no such model, no access: each raises errors of its own
        cached = try_to_load_from_cache(name, _CONFIG)
        if isinstance(cached, str):
            return Path(cached)
        reason = " ".join(str(error).split()) or type(error).__name__
        reason = reason if len(reason) <= _LONGEST_QUOTE else f"{reason[:_LONGEST_QUOTE]} …"
        raise ValueError(f"{name} is no path here, and the Hub does not give its config.json: {reason}") from None
