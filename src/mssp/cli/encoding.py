"""Output in encodings that lack some of our characters: they are spelt, as ``N^-1/2`` for N⁻¹ᐟ², and never left out."""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_HANDLER = "mssp.spelt"
_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻ᐟᵀᵗ", "0123456789-/Tt", strict=True))
_SPELT = {
    **_SUPERSCRIPTS, **dict(zip("₀₁₂₃₄ₑ", "01234e", strict=True)), **dict(zip("─│╭╮╰╯", "-|++++", strict=True)),
    "·": "|", "×": "x", "±": "+-", "−": "-", "–": "-", "—": "-", "…": "...", "’": "'", "√": "sqrt ", "≈": "~",
    "≤": "<=", "→": "->", "←": "<-", "∞": "inf", "∂": "d", "μ": "mu", "σ": "sigma", "Δ": "Delta", "Σ": "Sigma",
    "φ": "phi", "Φ": "Phi", "ψ": "psi", "κ": "kappa", "η": "eta", "β": "beta", "✓": "yes", "✗": "no", "⟨": "<",
    "⟩": ">",
}  # fmt: skip


@contextmanager
def any_encoding() -> Iterator[None]:
    """Spells, in a block, what the encodings of the output and of the error stream lack, instead of an error."""
    codecs.register_error(_HANDLER, _spelt)
    # A stream that was put in place of these, by a test for example, may not be able to.
    streams = [stream for stream in (sys.stdout, sys.stderr) if hasattr(stream, "reconfigure")]
    before = [stream.errors for stream in streams]
    for stream in streams:
        stream.reconfigure(errors=_HANDLER)
    try:
        yield
    finally:
        for stream, errors in zip(streams, before, strict=True):
            with suppress(OSError, ValueError):  # nothing can be written any more: the stream is closed, or its reader
                stream.reconfigure(errors=errors)


def _spelt(error: UnicodeError) -> tuple[str, int]:
    """What stands for characters that an encoding lacks: our spelling, or else the escape that Python and JSON know.

    >>> codecs.register_error(_HANDLER, _spelt)
    >>> "N⁻¹ᐟ² × 3, M⁻¹; ☃".encode("ascii", _HANDLER)
    b'N^-1/2 x 3, M^-1; \\\\u2603'
    """
    assert isinstance(error, UnicodeEncodeError)
    text, before = "", error.object[error.start - 1 : error.start]
    for character in error.object[error.start : error.end]:
        if character in _SUPERSCRIPTS and before not in _SUPERSCRIPTS:
            text += "^"
        text += _SPELT.get(character) or json.dumps(character)[1:-1]
        before = character
    return text, error.end
