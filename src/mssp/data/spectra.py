"""A classification problem with the spectrum of natural images, made of nothing but a seed.

    x = H (s * (signal * c_k + noise))        k: class, c_k and noise normal, s_f = f^-3/4 for frequencies f = 1, 2, ...

The power of a frequency falls as f^-3/2, for what tells classes apart and for what does not, as it falls in images: a
few coarse directions are easy and learned at once, many fine ones are faint and come later. How fast a model gets to
them, and not its size, limits it, so that a wider model is better only where it learns as well as a narrow one. H, the
Walsh-Hadamard transform, mixes frequencies into inputs as pixels mix them.

As in ``clusters.py``, every operation is one that IEEE arithmetic defines to the last bit, one number at a time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mssp._numbers import between, whole
from mssp.data.dataset import Dataset, Split
from mssp.data.streams import normals


def spectra(
    examples: int = 50_000,
    validation: int = 5_000,
    classes: int = 100,
    inputs: int = 64,
    signal: float = 0.4,
    seed: int = 0,
) -> Dataset:
    """Classes that differ in their mean, over a spectrum that falls; inputs have mean 0 and mean square 1.

    >>> data = spectra(examples=200, validation=100, classes=4, inputs=8)
    >>> data.train.inputs.shape, data.train.targets[:6].tolist()
    ((200, 8), [0, 1, 2, 3, 0, 1])

    Args:
        inputs: a power of two.
        signal: how far apart classes lie, in units of the noise: from 0 to 10.
        seed: of everything: the classes and the noise.
    """
    classes, inputs = whole("classes", classes, least=2), whole("inputs", inputs, least=2)
    if inputs & (inputs - 1):
        raise ValueError(f"inputs must be a power of two, got {inputs}")
    signal, seed = between("signal", signal, 0, 10), whole("seed", seed, least=None)
    centres = signal * normals(classes * inputs, "centres", seed).astype(np.float64).reshape(classes, inputs)
    return Dataset(
        name="spectra",
        classes=classes,
        train=_split("train", whole("examples", examples), centres, signal, seed),
        validation=_split("validation", whole("validation", validation), centres, signal, seed),
        source=f"made by mssp: signal {signal:g}, seed {seed}",
    )


def _split(part: str, count: int, centres: npt.NDArray[np.float64], signal: float, seed: int) -> Split:
    classes, inputs = centres.shape
    # Classes take turns: every beginning of the examples has as many of each.
    targets = np.arange(count, dtype=np.int64) % classes
    x = normals(count * inputs, f"spectra {part}", seed).reshape(count, inputs) + centres[targets]
    amplitudes = _amplitudes(inputs)
    # The mean square that inputs have: the transform sums all frequencies into each.
    rms = np.sqrt(sum((amplitudes * amplitudes).tolist()) * (1 + signal * signal))
    return Split(_transformed(x * (amplitudes / rms)).astype(np.float32), targets)


def _amplitudes(inputs: int) -> npt.NDArray[np.float64]:
    """f^-3/4, by square roots, which are exact to the last bit where powers need not be."""
    root: npt.NDArray[np.float64] = np.sqrt(np.arange(1.0, inputs + 1))
    return np.reciprocal(root * np.sqrt(root))


def _transformed(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Walsh and Hadamard's transform of every row: sums and differences of pairs, pairs of pairs, and so on.

    >>> _transformed(np.array([[1.0, 0.0], [0.0, 1.0]])).tolist()
    [[1.0, 1.0], [1.0, -1.0]]
    """
    rows, inputs = x.shape
    half = 1
    while half < inputs:
        pairs = x.reshape(rows, inputs // (2 * half), 2, half)
        x = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2).reshape(rows, inputs)
        half *= 2
    return x
