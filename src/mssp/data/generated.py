"""Datasets that are computed from a seed, for runs without a download: clusters and spectra.

Everything is computed one number at a time, by operations that IEEE arithmetic defines to the last bit, so that
checksums are the same on every machine. There are no matrix products, whose sums depend on the processor. An example
does not depend on how many examples there are.

Clusters
--------
    x = a_s + R_s (b_k + m_kj) + noise        s: superclass, k: class in it, j: mode, all centres normal

There are three levels: the superclasses, the classes around the centre of their superclass, and the modes of a class.
Modes come in opposite pairs m and -m, so the mean of a class says little about it, and a linear classifier learns
little more than superclasses. All superclasses share one arrangement of classes and modes, which R_s (a permutation of
the axes, and signs) turns differently for each superclass. So what distinguishes classes near one superclass is of no
use near another, which is why experts help.

Spectra, like those of natural images
-------------------------------------
    x = H (s * (signal * c_k + noise))        k: class, c_k and noise normal, s_f = f^-3/4 for frequencies f = 1, 2, ...

The power of a frequency falls as f^-3/2, in the signal and in the noise, as it falls in images: a few coarse directions
are learned at once, and many faint ones later. A model is limited by how fast it learns the faint ones, not by its
size, so a wider model is better only if its hyperparameters let it learn as well as a narrow one. H, the
Walsh-Hadamard transform, mixes all frequencies into every input, as they are mixed in every pixel.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from mssp._constraints import at_least, between, positive_int, whole
from mssp.data.dataset import Dataset, Split
from mssp.data.streams import exact_normals, order, words

# Standard deviations of the centres of superclasses and of classes, where that of modes is 1.
SUPERCLASS_SPREAD = 0.3
CLASS_SPREAD = 0.15
MODES = 4
# Standard deviations of the noise, at difficulty 0 and at difficulty 1.
LEAST_NOISE, MOST_NOISE = 0.5, 3.0


def clusters(
    examples: int = 50_000,
    validation: int = 5_000,
    classes: int = 100,
    inputs: int = 64,
    superclasses: int = 10,
    difficulty: float = 0.5,
    seed: int = 0,
) -> Dataset:
    """Three levels of clusters: superclasses, classes and modes. Every coordinate has mean 0 and mean square 1.

    >>> data = clusters(examples=200, validation=100, classes=4, inputs=8, superclasses=2)
    >>> data.train.inputs.shape, data.train.targets[:6].tolist()
    ((200, 8), [0, 1, 2, 3, 0, 1])

    Args:
        difficulty: how strong the noise is, from 0 (any small network distinguishes all classes) to 1 (hardly any
            network does).
        seed: decides the centres, the modes and the noise.
    """
    classes, inputs = at_least(2)("classes", classes), positive_int("inputs", inputs)
    superclasses, seed = positive_int("superclasses", superclasses), whole("seed", seed)
    if superclasses > classes:
        raise ValueError(f"{superclasses} superclasses cannot be made of {classes} classes: use at most {classes}")
    noise = LEAST_NOISE + (MOST_NOISE - LEAST_NOISE) * between(0, 1)("difficulty", difficulty)
    centres = _centres(classes, inputs, superclasses, seed)
    means = _column_means(centres)
    # The RMS of the distribution, not of the sample: so an example stays the same when more examples are drawn.
    rms = np.sqrt(_column_means(np.square(centres - means)) + noise * noise)
    centres_CJD = ((centres - means) / rms).astype(np.float32).reshape(classes, MODES, inputs)
    noise_D = (noise / rms).astype(np.float32)
    return Dataset(
        name="clusters",
        classes=classes,
        train=_clusters_split("train", positive_int("examples", examples), centres_CJD, noise_D, seed),
        validation=_clusters_split("validation", positive_int("validation", validation), centres_CJD, noise_D, seed),
        source=f"made by mssp: {superclasses} superclasses, difficulty {difficulty:g}, seed {seed}",
    )


def _centres(classes: int, inputs: int, superclasses: int, seed: int) -> npt.NDArray[np.float64]:
    """The centre of every mode of every class, [classes · MODES, inputs]."""
    in_superclass = -(-classes // superclasses)  # classes of one superclass, rounded up
    superclass_centres = SUPERCLASS_SPREAD * _normal_table(superclasses, inputs, "superclasses", seed)
    class_centres = CLASS_SPREAD * _normal_table(in_superclass, inputs, "classes", seed)
    modes = _normal_table(in_superclass * MODES // 2, inputs, "modes", seed).reshape(in_superclass, MODES // 2, inputs)
    arrangement = class_centres[:, None] + np.concatenate([modes, -modes], axis=1)
    centres = np.empty((classes, MODES, inputs))
    for superclass in range(superclasses):
        axes = order(inputs, "axes", superclass, seed)
        signs = 1.0 - 2.0 * (words(inputs, "signs", superclass, seed) & np.uint64(1))
        # Class c belongs to superclass c mod S, so that the first classes are from all superclasses.
        members = centres[superclass::superclasses]
        members[:] = superclass_centres[superclass] + (arrangement[..., axes] * signs)[: len(members)]
    return centres.reshape(-1, inputs)


def _normal_table(rows: int, columns: int, name: str, seed: int) -> npt.NDArray[np.float64]:
    return exact_normals(rows * columns, name, seed).astype(np.float64).reshape(rows, columns)


def _column_means(table: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The mean of every column, by exact sums: numpy's sums depend on the processor."""
    return np.array([math.fsum(column) / len(table) for column in table.T.tolist()])


def _clusters_split(
    part: str, count: int, centres_CJD: npt.NDArray[np.float32], noise_D: npt.NDArray[np.float32], seed: int
) -> Split:
    classes, modes, inputs = centres_CJD.shape
    # Classes take turns, so that the first examples, however many, have equal numbers of every class.
    targets = np.arange(count, dtype=np.int64) % classes
    mode = (words(count, f"{part} modes", seed) % np.uint64(modes)).astype(np.int64)
    x = exact_normals(count * inputs, f"{part} noise", seed).reshape(count, inputs)
    x *= noise_D
    x += centres_CJD[targets, mode]
    return Split(x, targets)


def spectra(
    examples: int = 50_000,
    validation: int = 5_000,
    classes: int = 100,
    inputs: int = 64,
    signal: float = 0.4,
    seed: int = 0,
) -> Dataset:
    """Classes that differ in their means, with a falling spectrum. Inputs have mean 0 and mean square 1.

    >>> data = spectra(examples=200, validation=100, classes=4, inputs=8)
    >>> data.train.inputs.shape, data.train.targets[:6].tolist()
    ((200, 8), [0, 1, 2, 3, 0, 1])

    Args:
        inputs: a power of two.
        signal: the spread of the classes' means over that of the noise, from 0 to 10.
        seed: decides the classes and the noise.
    """
    classes, inputs = at_least(2)("classes", classes), at_least(2)("inputs", inputs)
    if inputs & (inputs - 1):
        raise ValueError(f"inputs must be a power of two, got {inputs}")
    signal, seed = between(0, 10)("signal", signal), whole("seed", seed)
    centres = signal * exact_normals(classes * inputs, "centres", seed).astype(np.float64).reshape(classes, inputs)
    return Dataset(
        name="spectra",
        classes=classes,
        train=_spectra_split("train", positive_int("examples", examples), centres, signal, seed),
        validation=_spectra_split("validation", positive_int("validation", validation), centres, signal, seed),
        source=f"made by mssp: signal {signal:g}, seed {seed}",
    )


def _spectra_split(part: str, count: int, centres: npt.NDArray[np.float64], signal: float, seed: int) -> Split:
    classes, inputs = centres.shape
    # Classes take turns, so that the first examples, however many, have equal numbers of every class.
    targets = np.arange(count, dtype=np.int64) % classes
    x = exact_normals(count * inputs, f"spectra {part}", seed).reshape(count, inputs) + centres[targets]
    amplitudes = _amplitudes(inputs)
    # The RMS that inputs would have without it: the transform sums all frequencies into each input.
    rms = np.sqrt(sum((amplitudes * amplitudes).tolist()) * (1 + signal * signal))
    return Split(_walsh_hadamard(x * (amplitudes / rms)).astype(np.float32), targets)


def _amplitudes(inputs: int) -> npt.NDArray[np.float64]:
    """f^-3/4, by square roots: they are the same bits on every machine, which powers need not be."""
    root: npt.NDArray[np.float64] = np.sqrt(np.arange(1.0, inputs + 1))
    return np.reciprocal(root * np.sqrt(root))


def _walsh_hadamard(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The Walsh-Hadamard transform of every row: sums and differences of pairs, then of pairs of pairs, and so on.

    >>> _walsh_hadamard(np.array([[1.0, 0.0], [0.0, 1.0]])).tolist()
    [[1.0, 1.0], [1.0, -1.0]]
    """
    rows, inputs = x.shape
    half = 1
    while half < inputs:
        pairs = x.reshape(rows, inputs // (2 * half), 2, half)
        x = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2).reshape(rows, inputs)
        half *= 2
    return x
