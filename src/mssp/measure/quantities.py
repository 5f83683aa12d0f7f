"""The vocabulary of what is measured: every kind of quantity, once, and the names that quantities have in files.

A name such as ``backward/A4.1`` is written and read here alone. Elsewhere a quantity is made by its kind,
``EFFECTIVE("router")``, and asked for its ``kind``, its role or term ``of`` and its ``part``. A quantity is also a
string, so that JSON and dictionaries take it as it is.

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
from dataclasses import KW_ONLY, dataclass
from functools import cache, cached_property

# Headings of the tables. Details are shown only on request.
_TOLD = "what the layers were told"
_UPDATES = "updates, layer by layer"
_AGGREGATE = "the sum over experts"
_GRADIENTS = "gradients"
_BACKWARD = "backward"
_ACTIVATIONS = "activations"
_DETAILS = "details"
_NOWHERE = ""

_SINGLE = ("",)  # the terms of a kind with one quantity, which is of nothing in particular


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of quantity: how it is named, where it is shown, and what a miss of it means.

    Args:
        name: how the names of its quantities begin, or all of the name where there is but one.
        section: the heading of its table.
        meaning: one sentence for people.
        terms: what it may be of; where there are none, it is of a role.
        parts: the parts that a term may be split into.
        pairs: whether names are NAME-TERM-PART, with no part missing; otherwise they are NAME/TERM or NAME/TERM.PART.
        title: the heading of its panel in figures; of terms, the title of their legend too.
        accuses: the setting that a miss accuses, with ``{role}`` in it; empty for a symptom, which accuses nothing.
        told: whether it is a number that the model or its optimizer was given, and not a measurement.
        always: whether tables show it even if nothing is predicted of it.
    """

    name: str
    section: str
    meaning: str
    _: KW_ONLY
    terms: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    pairs: bool = False
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
    def of_roles(self) -> bool:
        return not self.terms

    @property
    def is_single(self) -> bool:
        """Whether a model has one quantity of it, which is of nothing in particular."""
        return self.terms == _SINGLE

    @property
    def family(self) -> str:
        """What tables keep together: all that comes back is one family."""
        return self.name.partition("/")[0]

    @property
    def legend(self) -> str:
        """The title of the legend that its lines stand in."""
        return "layer" if self.of_roles else self.title

    @property
    def pattern(self) -> str:
        """Its names, for people.

        >>> EFFECTIVE.pattern, AGGREGATION.pattern, TO_HIDDEN.pattern
        ('`effective/ROLE`', '`aggregation`', '`backward/h2-init-init`, `init-update`, `update-init`, `update-update`')
        """
        first, *rest = self._members or [f"{self.name}/ROLE"]
        return ", ".join(f"`{name}`" for name in (first, *(name[len(self.name) + 1 :] for name in rest)))

    @cached_property
    def _members(self) -> Mapping[str, tuple[str, str]]:
        """The term and the part of each of its quantities, by name; empty where it is of roles."""
        parts = self.parts if self.pairs else ("", *self.parts)
        return {self.write(term, part): (term, part) for term in self.terms for part in parts}

    def write(self, of: str, part: str) -> str:
        before, between = ("-", "-") if self.pairs else ("/", ".")
        return self.name + (before + of if of else "") + (between + part if part else "")

    def read(self, name: str) -> tuple[str, str] | None:
        """The role or term and the part that a name of this kind has; None for a name of another kind."""
        if not self.of_roles:
            return self._members.get(name)
        role = name.removeprefix(f"{self.name}/")
        return (role, "") if role != name and self.admits(role, "") else None

    def admits(self, of: str, part: str) -> bool:
        """Whether there is such a quantity. Which roles there are is not asked: models have more than the rules do."""
        return of.isidentifier() and not part if self.of_roles else (of, part) in self._members.values()


class Quantity(str):
    """One quantity. As a string it is its name in files.

    >>> sent = Quantity.named("backward/A4.1")
    >>> sent.kind is BACKWARD, sent.of, sent.part
    (True, 'A4', '1')
    """

    kind: Kind
    of: str
    part: str

    def __new__(cls, kind: Kind, of: str = "", part: str = "") -> Quantity:
        name = kind.write(of, part)
        if not kind.admits(of, part):
            raise ValueError(f"{name!r} is not the name of a quantity: of this kind there is {kind.pattern}")
        quantity = super().__new__(cls, name)
        quantity.kind, quantity.of, quantity.part = kind, of, part
        return quantity

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

WEIGHTS = Kind("weights", _TOLD, "The size of a layer's initial weights.", accuses="the initial weights of {role}")
RATE = Kind(
    "rate",
    _TOLD,
    "The learning rate, as the weights show it: the size of Adam's update, or of SGD's over its gradients.",
    accuses="the learning rate of {role}",
)
EPS = Kind(
    "eps", _TOLD, "Adam's eps, as a gradient of the plain loss meets it.", accuses="Adam's eps of {role}", told=True
)
AGGREGATION = Kind(
    "aggregation",
    _TOLD,
    "The factor on the sum over experts.",
    terms=_SINGLE,
    accuses="the aggregation factor",
    told=True,
)
EXPERT_DISTANCE = Kind(
    "experts/distance",
    _TOLD,
    "How far an expert's weights are from the next one's: exactly zero for tied experts.",
    terms=_SINGLE,
    accuses="experts",
    always=True,
)

# -- updates, layer by layer -------------------------------------------------------------------------------------------

EFFECTIVE = Kind(
    "effective", _UPDATES, "What a layer's own update does to its output, ΔW x.", title="effective updates"
)
PROPAGATING = Kind(
    "propagating",
    _UPDATES,
    "What the updates before a layer do to its output, through its initial weights, W₀ Δx.",
    title="propagating updates",
)

# -- the sum over experts ----------------------------------------------------------------------------------------------

AGGREGATE = Kind(
    "aggregate",
    _AGGREGATE,
    (
        "The pieces of the sum over experts: of initial weights and features, of changed features, of changed weights, "
        "of both; `A21` and `A22` are the propagating sum, made upstream and made by the experts' first layer."
    ),
    terms=("init", "propagating", "effective", "cross", "A21", "A22"),
    title="sum over experts",
)
FEATURE_CHANGE = Kind(
    "features/delta", _AGGREGATE, "How far the features before the readout have moved.", terms=_SINGLE
)
LOGIT_CHANGE = Kind("router/delta", _AGGREGATE, "How far the router's logits have moved.", terms=_SINGLE)
HIGHEST_SCORE = Kind(
    "router/highest",
    _AGGREGATE,
    "The paper's router concentration: the highest score of a token, in the mean.",
    terms=_SINGLE,
    always=True,
)
LOWEST_SCORE = Kind(
    "router/lowest",
    _AGGREGATE,
    "The paper's router concentration: the lowest score of a token, in the mean.",
    terms=_SINGLE,
    always=True,
)
LARGEST_LOAD = Kind(
    "router/load", _AGGREGATE, "The largest load of an expert over the mean load.", terms=_SINGLE, always=True
)

# -- gradients ---------------------------------------------------------------------------------------------------------

GRADIENT = Kind("gradient", _GRADIENTS, "The size of a layer's gradient.", title="gradients")
FAITHFULNESS = Kind("faithfulness", _GRADIENTS, "Adam's eps over the gradient.")

# -- backward ----------------------------------------------------------------------------------------------------------

# What W4_0, the readout's initial weights, sent, and what their update sent.
BY_START, BY_UPDATE = "1", "2"
INIT, UPDATED = "init", "update"

BACKWARD = Kind(
    "backward",
    _BACKWARD,
    (
        "The pieces of the sum that comes back to the experts' input: of both initial weights, of the second layer's "
        "update, of the first's, of both; `.1` is what the readout's initial weights sent, `.2` what its update sent."
    ),
    terms=("A4", "A5", "A6", "E"),
    parts=(BY_START, BY_UPDATE),
    title="backward terms",
)
TO_HIDDEN = Kind(
    "backward/h2",
    _BACKWARD,
    "What comes back to the experts' hidden units: by which part of the experts, of the readout.",
    terms=(INIT, UPDATED),
    parts=(INIT, UPDATED),
    pairs=True,
    title="backward terms",
)
TO_GATES = Kind(
    "backward/phi",
    _BACKWARD,
    "What comes back to the gates: by which part of the experts, of the readout.",
    terms=(INIT, UPDATED),
    parts=(INIT, UPDATED),
    pairs=True,
    title="backward terms",
)
THROUGH_ROUTER = Kind(
    "backward/router",
    _BACKWARD,
    "What comes back through the router: by which part of the router, of the experts.",
    terms=(INIT, UPDATED),
    parts=(INIT, UPDATED),
    pairs=True,
    title="backward terms",
)
BACKWARD_PROPAGATING = Kind(
    "backward/propagating", _BACKWARD, "What comes back through a layer's initial weights, W₀ᵀ δ."
)
BACKWARD_EFFECTIVE = Kind("backward/effective", _BACKWARD, "What comes back through a layer's own update, ΔWᵀ δ.")

# -- activations -------------------------------------------------------------------------------------------------------

ACTIVATION = Kind("activation", _ACTIVATIONS, "The size of a layer's output, or of the sum over experts (`aggregate`).")

# -- details -----------------------------------------------------------------------------------------------------------

NORMALISED = Kind(
    "normalised",
    _DETAILS,
    "The effective update over the size of the layer's input.",
    title="effective updates, input normalised",
)
GATE_DERIVATIVE = Kind(
    "router/derivative",
    _DETAILS,
    "What gates that sum to one make of what comes back to them: the gradient at the logits over that at the gates.",
    terms=_SINGLE,
)
ALIGNMENT_P = Kind("alignment/p", _DETAILS, "The effective update over the sizes of its factors.")
ALIGNMENT_Q = Kind("alignment/q", _DETAILS, "The propagating update over the sizes of its factors.")
INPUT = Kind("input", _DETAILS, "The size of a layer's input.")
INPUT_CHANGE = Kind("input-change", _DETAILS, "How far a layer's input has moved.")
CHANGE = Kind("change", _DETAILS, "How far a layer's output, or the sum over experts (`aggregate`), has moved.")
UPDATE = Kind("update", _DETAILS, "How far a layer's weights have moved.")
GRADIENT_SUM = Kind("gradient-sum", _DETAILS, "The sum of the sizes of the gradients that a layer was trained on.")

LOSS = Kind("loss", _NOWHERE, "The training loss before each update; it has no exponent and no verdict.", terms=_SINGLE)

KINDS: tuple[Kind, ...] = tuple(kind for kind in list(globals().values()) if isinstance(kind, Kind))

# The settings that a miss accuses, the likeliest culprit first: an eps that dominates shrinks Adam's updates, and looks
# like a small learning rate.
ACCUSING = (EXPERT_DISTANCE, WEIGHTS, AGGREGATION, EPS, RATE)
# Everything that comes back.
WAY_BACK = (BACKWARD, TO_HIDDEN, TO_GATES, THROUGH_ROUTER, BACKWARD_PROPAGATING, BACKWARD_EFFECTIVE)


def sections(*, details: bool = False) -> Mapping[str, tuple[str, ...]]:
    """The families of kinds that stand under each heading, in the order in which one reads them."""
    hidden = (_NOWHERE,) if details else (_NOWHERE, _DETAILS)
    families: dict[str, dict[str, None]] = {}
    for kind in KINDS:
        if kind.section not in hidden:
            families.setdefault(kind.section, {})[kind.family] = None
    return {section: tuple(names) for section, names in families.items()}


def glossary() -> list[str]:
    """The lines of the table in ``docs/glossary.md``."""
    return ["| name | what |", "|---|---|", *(f"| {kind.pattern} | {kind.meaning} |" for kind in KINDS)]
