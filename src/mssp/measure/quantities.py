"""The vocabulary of what is measured: every kind of quantity, once, and the names that quantities have in files.

A name as ``backward/A4.1`` is written and read here alone. Elsewhere a quantity is made by its kind,
``EFFECTIVE("router")``, and asked for its ``kind``, its role or term ``of`` and its ``part``. It is a string all the
same, so that JSON and dictionaries take it as it is.

How to add a quantity:

1. Here, add a :class:`Kind` where its rows should stand: kinds are shown in the order in which they are defined. Its
   ``section`` is the heading of its table. If a miss of it means that a setting breaks its rule, say which in
   ``accuses`` and give it a place in ``ACCUSING``.
2. Where it is measured, add its size under its name: ``sizes[TURNING(role)] = rms(...)`` in ``magnitudes.py`` or
   ``moe_terms.py``. What follows from other quantities belongs to ``Series.of`` in ``coordcheck/series.py``.
3. If something is expected of it, say what in ``theory/propagation.py`` (the paper's tables) or ``theory/implied.py``
   (what the rules imply). A quantity without a prediction is measured, but it is neither judged nor shown unless its
   kind says ``always``.

Tables, verdicts, figures and their legends then have it. ``tests/measure/test_quantities.py`` says what is missing, and
prints the table of the glossary (``docs/glossary.md``), which is to be pasted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

# Headings of the tables. What is in the details is shown only where everything is asked for.
_TOLD = "what the layers were told"
_UPDATES = "updates, layer by layer"
_AGGREGATE = "the sum over experts"
_GRADIENTS = "gradients"
_BACKWARD = "backward"
_ACTIVATIONS = "activations"
_DETAILS = "details"
_NOWHERE = ""

_LAYER = "layer"


@dataclass(frozen=True, kw_only=True, eq=False)
class Kind:
    """A kind of quantity: how it is named, where it is shown, and what a miss of it means.

    Args:
        name: how the names of its quantities begin, or all of the name where there is but one.
        section: the heading of its table.
        meaning: one sentence for people.
        terms: what it may be of; where there are none, it is of a role.
        single: there is one such quantity, of nothing in particular.
        parts: the parts that a term may be split into.
        joints: what stands before the term and before the part. After a dash instead of a dot a part has to follow.
        title: the heading of its panel in figures; of terms, the title of their legend too.
        accuses: the setting that a miss accuses, with ``{role}`` in it; empty for a symptom, which accuses nothing.
        told: it is a number that the model or its optimizer was given, and not a measurement.
        always: tables show it even if nothing is predicted of it.
    """

    name: str
    section: str
    meaning: str
    terms: tuple[str, ...] = ()
    single: bool = False
    parts: tuple[str, ...] = ()
    joints: tuple[str, str] = ("/", ".")
    title: str = ""
    accuses: str = ""
    told: bool = False
    always: bool = False

    def __call__(self, of: str = "", part: str = "") -> Quantity:
        """The quantity of a role or a term.

        >>> EFFECTIVE("router"), BACKWARD("A4", part="1"), LARGEST_LOAD()
        ('effective/router', 'backward/A4.1', 'router/load')
        """
        return _quantity(self, of, part)

    def __reduce__(self) -> tuple[object, ...]:
        return _kind, (self.name,)  # kinds are compared by identity, in other processes too

    @property
    def family(self) -> str:
        """What tables keep together: all that comes back is one family."""
        return self.name.partition("/")[0]

    @property
    def legend(self) -> str:
        """The title of the legend that its lines stand in."""
        return _LAYER if self.of_roles else self.title

    @property
    def of_roles(self) -> bool:
        return not self.terms and not self.single

    @property
    def is_detail(self) -> bool:
        """Whether it is shown only where everything is asked for."""
        return self.section == _DETAILS

    @property
    def pattern(self) -> str:
        """Its names, for people.

        >>> EFFECTIVE.pattern, AGGREGATION.pattern, TO_HIDDEN.pattern
        ('`effective/ROLE`', '`aggregation`', '`backward/h2-init-init`, `init-update`, `update-init`, `update-update`')
        """
        if self.single:
            return f"`{self.name}`"
        first, *rest = self._labels() or ["ROLE"]
        return ", ".join(f"`{each}`" for each in (self.name + self.joints[0] + first, *rest))

    def read(self, name: str) -> tuple[str, str] | None:
        """The term and the part that a name of this kind has; None for a name of another kind."""
        if self.single:
            return ("", "") if name == self.name else None
        before, joint = self.joints
        start = self.name + before
        if not name.startswith(start):
            return None
        of, found, part = name.removeprefix(start).partition(joint)
        return (of, part) if self.admits(of, part) and bool(found) == bool(part) else None

    def admits(self, of: str, part: str) -> bool:
        """Whether there is such a quantity. Which roles there are is not asked: models have more than the rules do."""
        if part not in self.parts and (part or self._is_pair):
            return False
        if self.of_roles:
            return of.isidentifier()
        return of in (self.terms or ("",))

    def write(self, of: str, part: str) -> str:
        before, joint = self.joints
        return self.name + (before + of if of else "") + (joint + part if part else "")

    @property
    def _is_pair(self) -> bool:
        return self.joints[1] == "-"

    def _labels(self) -> list[str]:
        joint = self.joints[1]
        if self._is_pair:
            return [f"{term}{joint}{part}" for term in self.terms for part in self.parts]
        return [f"{term}{end}" for end in ("", *(f"{joint}{part}" for part in self.parts)) for term in self.terms]


class Quantity(str):
    """One quantity: its text is its name in files.

    >>> found = Quantity.named("backward/A4.1")
    >>> found.kind is BACKWARD, found.of, found.part
    (True, 'A4', '1')
    """

    kind: Kind
    of: str
    part: str

    def __new__(cls, kind: Kind, of: str = "", part: str = "") -> Quantity:
        if not kind.admits(of, part):
            raise ValueError(
                f"{kind.write(of, part)!r} is not the name of a quantity: of this kind there is {kind.pattern}"
            )
        made = super().__new__(cls, kind.write(of, part))
        made.kind, made.of, made.part = kind, of, part
        return made

    @classmethod
    def named(cls, name: str) -> Quantity:
        """The quantity of a name, as a file has it; ValueError where there is none."""
        return name if isinstance(name, Quantity) else _named(name)

    def __reduce__(self) -> tuple[object, ...]:
        return Quantity.named, (str(self),)

    @property
    def label(self) -> str:
        """Its name in a panel of its kind, and in legends.

        >>> BACKWARD("A4", part="1").label, TO_HIDDEN("init", part="update").label, AGGREGATION().label
        ('A4.1', 'h2-init-update', 'aggregation')
        """
        return self.rpartition("/")[2]

    @property
    def panel(self) -> str:
        """What it shares a panel under: those of one panel differ by their labels alone."""
        return self.rpartition("/")[0] or str(self)


@cache
def _quantity(kind: Kind, of: str, part: str) -> Quantity:
    return Quantity(kind, of, part)


@cache
def _named(name: str) -> Quantity:
    for kind in KINDS:
        read = kind.read(name)
        if read is not None:
            return kind(*read)
    raise ValueError(f"{name!r} is not the name of a quantity: names are like {EFFECTIVE('router')}")


def _kind(name: str) -> Kind:
    return next(kind for kind in KINDS if kind.name == name)


# -- what the layers were told -----------------------------------------------------------------------------------------

WEIGHTS = Kind(
    name="weights",
    section=_TOLD,
    meaning="The size of a layer's initial weights.",
    accuses="the initial weights of {role}",
)
RATE = Kind(
    name="rate",
    section=_TOLD,
    meaning="The learning rate, as the weights show it: the size of Adam's update, or of SGD's over its gradients.",
    accuses="the learning rate of {role}",
)
EPS = Kind(
    name="eps",
    section=_TOLD,
    meaning="Adam's eps, as a gradient of the plain loss meets it.",
    accuses="Adam's eps of {role}",
    told=True,
)
AGGREGATION = Kind(
    name="aggregation",
    section=_TOLD,
    meaning="The factor on the sum over experts.",
    single=True,
    accuses="the aggregation factor",
    told=True,
)
EXPERT_DISTANCE = Kind(
    name="experts/distance",
    section=_TOLD,
    meaning="How far an expert's weights are from the next one's: exactly zero for tied experts.",
    single=True,
    accuses="experts",
    always=True,
)

# -- updates, layer by layer -------------------------------------------------------------------------------------------

EFFECTIVE = Kind(
    name="effective",
    section=_UPDATES,
    meaning="What a layer's own update does to its output, ΔW x.",
    title="effective updates",
)
PROPAGATING = Kind(
    name="propagating",
    section=_UPDATES,
    meaning="What the updates before a layer do to its output, through its initial weights, W₀ Δx.",
    title="propagating updates",
)

# -- the sum over experts ----------------------------------------------------------------------------------------------

AGGREGATE = Kind(
    name="aggregate",
    section=_AGGREGATE,
    meaning=(
        "The pieces of the sum over experts: of initial weights and features, of changed features, of changed weights, "
        "of both; `A21` and `A22` are the propagating sum, made upstream and made by the experts' first layer."
    ),
    terms=("init", "propagating", "effective", "cross", "A21", "A22"),
    title="sum over experts",
)
FEATURE_CHANGE = Kind(
    name="features/delta",
    section=_AGGREGATE,
    meaning="How far the features before the readout have moved.",
    single=True,
)
LOGIT_CHANGE = Kind(
    name="router/delta",
    section=_AGGREGATE,
    meaning="How far the router's logits have moved.",
    single=True,
)
HIGHEST_SCORE = Kind(
    name="router/highest",
    section=_AGGREGATE,
    meaning="The paper's router concentration: the highest score of a token, in the mean.",
    single=True,
    always=True,
)
LOWEST_SCORE = Kind(
    name="router/lowest",
    section=_AGGREGATE,
    meaning="The paper's router concentration: the lowest score of a token, in the mean.",
    single=True,
    always=True,
)
LARGEST_LOAD = Kind(
    name="router/load",
    section=_AGGREGATE,
    meaning="The largest load of an expert over the mean load.",
    single=True,
    always=True,
)

# -- gradients ---------------------------------------------------------------------------------------------------------

GRADIENT = Kind(
    name="gradient",
    section=_GRADIENTS,
    meaning="The size of a layer's gradient.",
    title="gradients",
)
FAITHFULNESS = Kind(
    name="faithfulness",
    section=_GRADIENTS,
    meaning="Adam's eps over the gradient.",
)

# -- backward ----------------------------------------------------------------------------------------------------------

# What W4_0, the readout's initial weights, sent, and what their update sent.
BY_START, BY_UPDATE = "1", "2"
INIT, UPDATED = "init", "update"

BACKWARD = Kind(
    name="backward",
    section=_BACKWARD,
    meaning=(
        "The pieces of the sum that comes back to the experts' input: of both initial weights, of the second layer's "
        "update, of the first's, of both; `.1` is what the readout's initial weights sent, `.2` what its update sent."
    ),
    terms=("A4", "A5", "A6", "E"),
    parts=(BY_START, BY_UPDATE),
    title="backward terms",
)
TO_HIDDEN = Kind(
    name="backward/h2",
    section=_BACKWARD,
    meaning="What comes back to the experts' hidden units: by which part of the experts, of the readout.",
    terms=(INIT, UPDATED),
    parts=(INIT, UPDATED),
    joints=("-", "-"),
    title="backward terms",
)
TO_GATES = Kind(
    name="backward/phi",
    section=_BACKWARD,
    meaning="What comes back to the gates: by which part of the experts, of the readout.",
    terms=(INIT, UPDATED),
    parts=(INIT, UPDATED),
    joints=("-", "-"),
    title="backward terms",
)
THROUGH_ROUTER = Kind(
    name="backward/router",
    section=_BACKWARD,
    meaning="What comes back through the router: by which part of the router, of the experts.",
    terms=(INIT, UPDATED),
    parts=(INIT, UPDATED),
    joints=("-", "-"),
    title="backward terms",
)
BACKWARD_PROPAGATING = Kind(
    name="backward/propagating",
    section=_BACKWARD,
    meaning="What comes back through a layer's initial weights, W₀ᵀ δ.",
)
BACKWARD_EFFECTIVE = Kind(
    name="backward/effective",
    section=_BACKWARD,
    meaning="What comes back through a layer's own update, ΔWᵀ δ.",
)

# -- activations -------------------------------------------------------------------------------------------------------

ACTIVATION = Kind(
    name="activation",
    section=_ACTIVATIONS,
    meaning="The size of a layer's output, or of the sum over experts (`aggregate`).",
)

# -- details -----------------------------------------------------------------------------------------------------------

NORMALISED = Kind(
    name="normalised",
    section=_DETAILS,
    meaning="The effective update over the size of the layer's input.",
    title="effective updates, input normalised",
)
ALIGNMENT_P = Kind(
    name="alignment/p",
    section=_DETAILS,
    meaning="The effective update over the sizes of its factors.",
)
ALIGNMENT_Q = Kind(
    name="alignment/q",
    section=_DETAILS,
    meaning="The propagating update over the sizes of its factors.",
)
INPUT = Kind(name="input", section=_DETAILS, meaning="The size of a layer's input.")
INPUT_CHANGE = Kind(name="input-change", section=_DETAILS, meaning="How far a layer's input has moved.")
CHANGE = Kind(
    name="change",
    section=_DETAILS,
    meaning="How far a layer's output, or the sum over experts (`aggregate`), has moved.",
)
UPDATE = Kind(name="update", section=_DETAILS, meaning="How far a layer's weights have moved.")
GRADIENT_SUM = Kind(
    name="gradient-sum",
    section=_DETAILS,
    meaning="The sum of the sizes of the gradients that a layer was trained on.",
)

LOSS = Kind(
    name="loss",
    section=_NOWHERE,
    meaning="The training loss before each update; it has no exponent and no verdict.",
    single=True,
)

KINDS: tuple[Kind, ...] = tuple(each for each in list(globals().values()) if isinstance(each, Kind))

# The settings that a miss accuses, the likeliest culprit first: an eps that dominates shrinks Adam's updates, and looks
# like a small learning rate.
ACCUSING = (EXPERT_DISTANCE, WEIGHTS, AGGREGATION, EPS, RATE)
# Everything that comes back.
WAY_BACK = (BACKWARD, TO_HIDDEN, TO_GATES, THROUGH_ROUTER, BACKWARD_PROPAGATING, BACKWARD_EFFECTIVE)


def sections(*, details: bool = False) -> Mapping[str, tuple[str, ...]]:
    """The families of kinds that stand under each heading, in the order in which one reads them."""
    found: dict[str, dict[str, None]] = {}
    for kind in KINDS:
        if kind.section != _NOWHERE and (details or not kind.is_detail):
            found.setdefault(kind.section, {})[kind.family] = None
    return {section: tuple(families) for section, families in found.items()}


def glossary() -> list[str]:
    """The lines of the table in ``docs/glossary.md``."""
    return ["| name | what |", "|---|---|", *(f"| {kind.pattern} | {kind.meaning} |" for kind in KINDS)]
