"""Rehearsals: runs of a model with stand-ins for its weights, which record how large the numbers are at every place.

A place is what a matrix, the experts or attention multiply, what comes into a block, what its branches write to the
residual stream, and the logits. The branches write nothing in a rehearsal, so that the stream is the same before every
block, or else given vectors, so that it can be read from what leaves a block how much of each is added.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mssp.hf.factors import blocks_of, stream_writers
from mssp.hf.stand_ins import NotRunnableError, Stage, StandIn, stand_ins
from mssp.hf.vocabulary import for_all_blocks, of_all_blocks

_TOKENS = 8
_SMALL = 1e-3  # products of queries and keys that may be zero up to rounding
_MASKED = -1e6  # logits of attention below this are those of tokens that are not attended to
STREAM, WRITTEN, KEPT, LOGITS = "stream", "written", "kept", "logits"
_TINY = 1e-12  # what zeros may be off by
_REST = 1e-3  # the part of what leaves a block that rounding may leave unexplained


@dataclass(frozen=True)
class Size:
    """How large the numbers are at one place: ``place`` stands for the same place in every block."""

    place: str
    block: int | None
    rms: float
    ran: int  # how many modules had finished then


@dataclass(frozen=True)
class Factor:
    """A factor on the output of a module, or of the same one in every block.

    It may stand for one on what the module's matrix multiplies: then the numbers that come in count as multiplied.
    """

    module: str
    value: float
    stands_for_input: bool = False


@dataclass(frozen=True)
class Flow:
    """What a block makes of the stream: ``kept`` times what comes in, and ``added`` times what each writer gives.

    ``rest`` is the part of what comes out that is neither, and ``on_stream`` the modules by whose output it is
    explained.
    """

    path: str
    kept: float
    added: Mapping[str, float]
    rest: float
    on_stream: Sequence[str]

    @property
    def is_sum(self) -> bool:
        return self.rest <= _REST


@dataclass(frozen=True)
class Ran:
    """What a model computed in one run: how large numbers were, place by place, and what left blocks and the model."""

    places: Sequence[tuple[str, int | None]]
    sizes: Tensor
    outputs: Sequence[Tensor]

    def is_close(self, other: Ran, tolerance: float) -> bool:
        """Whether another run came to the same, up to a part of each size and of each output."""
        return (
            self.places == other.places
            and bool(((self.sizes - other.sizes).abs() <= tolerance * self.sizes.abs() + _TINY).all())
            and all(
                bool((mine - theirs).norm() <= tolerance * mine.norm())
                for mine, theirs in zip(self.outputs, other.outputs, strict=True)
            )
        )


class Rehearsal:
    """Runs one model, any number of times, in the context :func:`rehearsal`."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._paths = {module: path for path, module in model.named_modules()}
        self._blocks = list(blocks_of(model))
        self._writers = {block: stream_writers(block) for block in self._blocks}
        self._log: list[tuple[str, int | None, Tensor, int]] = []
        self._running: list[str] = []
        self._block: list[int] = []
        self._flows: list[Flow] = []
        self.finished: list[str] = []  # modules with parameters, in order, by their names for all blocks
        self.linear = {
            of_all_blocks(path)
            for path, module in model.named_modules()
            if type(module).forward is nn.Linear.forward and module.bias is None
        }
        self._factors: Mapping[str, float] = {}
        self.stage = Stage(self.log)

    @property
    def paths(self) -> Set[str]:
        """The paths of all modules."""
        return set(self._paths.values())

    def log(self, name: str, x: Tensor) -> None:
        """Note how large numbers are that come to a parameter or a module."""
        owner = name.rpartition(".")[0]
        runs = self._running[-1:] == [owner]  # and not another module that shares the parameter
        self._note(name, x, self._factors.get(of_all_blocks(owner), 1.0) if runs else 1.0)

    def _note(self, place: str, x: Tensor, factor: float = 1.0) -> None:
        if x.is_floating_point():
            size = x.float().square().mean().sqrt() * factor
            block = self._block[-1] if self._block else None
            self._log.append((for_all_blocks(place), block, size, len(self.finished)))

    def sizes(self, factors: Sequence[Factor] = (), pattern: int = 0) -> list[Size]:
        """Run with branches that write nothing, and with factors on outputs of modules."""
        on_outputs = {factor.module: factor.value for factor in factors}
        self._factors = {factor.module: factor.value for factor in factors if factor.stands_for_input}
        self.stage.pattern = pattern
        into: dict[nn.Module, Tensor] = {}
        names = {module: of_all_blocks(path) for module, path in self._paths.items()}
        writers = {writer for of_block in self._writers.values() for writer in of_block}

        def finished(module: nn.Module, output: Any) -> Any:
            if (factor := on_outputs.get(names[module])) is not None:
                output = _with_first(output, _first(output) * factor)
            if module in into:  # nobody knows what writes to the stream in this block
                return _with_first(output, into.pop(module))
            if module not in writers:
                return output
            self._note(f"{self._paths[module]}.{WRITTEN}", _first(output))
            return _with_first(output, torch.zeros_like(_first(output)))

        def entered(block: nn.Module, x: Tensor) -> None:
            self._note(f"{self._paths[block]}.{STREAM}", x)
            if not self._writers[block]:
                into[block] = x

        with _Watch(self._note_of_function):
            logits = self._run(entered, finished)
        self._note(LOGITS, logits)
        return self._taken()

    def ran(self, factors: Mapping[str, float], pattern: int = 0) -> Ran:
        """Run as the model itself does, with branches that write, and with factors on outputs of modules, by path."""
        self.stage.pattern, self.stage.runs_experts, self._factors = pattern, True, {}

        blocks, outputs = set(self._blocks), []

        def finished(module: nn.Module, output: Any) -> Any:
            factor = factors.get(self._paths[module])
            output = output if factor is None else _with_first(output, _first(output) * factor)
            if module in blocks:
                outputs.append(_first(output).clone())
            return output

        try:
            with _Watch(self._note_of_function):
                outputs.append(self._run(lambda block, x: None, finished))
        finally:
            self.stage.runs_experts = False
        places, sizes = [(place, block) for place, block, _, _ in self._log], [size for _, _, size, _ in self._log]
        return Ran(places, torch.stack(sizes), outputs)

    def flows(self, moved: Collection[str] | None = None, written: float = 1.0) -> list[Flow]:
        """Run with gains that are drawn at random, and with given vectors in place of what branches write.

        With ``moved``, names for all blocks, only these gains are drawn. ``written`` is the size of the vectors.
        Nothing is known where it is not known which modules write.
        """
        if not all(self._writers.values()):
            return []
        generator = torch.Generator("cpu").manual_seed(0)
        vectors = self._vectors()
        before = {parameter: parameter.clone() for parameter in vectors}
        for parameter, name in vectors.items():
            if moved is None or name in moved:
                parameter.add_(torch.rand(parameter.shape, generator=generator) - 0.5)
        writer_of = {writer: block for block, writers in self._writers.items() for writer in writers}
        into: dict[nn.Module, Tensor] = {}
        outputs: dict[str, Tensor] = {}

        def finished(module: nn.Module, output: Any) -> Any:
            if module in writer_of:
                given = torch.randn(_first(output).shape, generator=generator) * written
                output = _with_first(output, given)
            y = _first(output)
            if module in into:
                self._flows.append(self._flow(module, into.pop(module), y, outputs))
                outputs.clear()
            elif into and isinstance(y, Tensor):
                outputs[self._paths[module]] = y
            return output

        self._flows = []
        self._run(lambda block, x: into.update({block: x.clone()}), finished)
        for parameter, value in before.items():
            parameter.copy_(value)
        return self._flows

    def _vectors(self) -> dict[Tensor, str]:
        """Gains, biases and other parameters that have numbers here, and their names for all blocks."""
        return {
            parameter: for_all_blocks(f"{path}.{name}" if path else name)
            for module, path in self._paths.items()
            for name, parameter in module._parameters.items()
            if parameter is not None and not isinstance(parameter, StandIn)
        }

    def on_stream(self) -> list[str]:
        """Gains that change the stream where branches write nothing, by their names for all blocks.

        None where neutral gains change it too.
        """
        if not _are_sums(self.flows(moved=())):
            return []
        names = dict.fromkeys(self._vectors().values())
        return [name for name in names if not _are_sums(self.flows(moved={name}, written=0.0))]

    def _flow(self, block: nn.Module, x: Tensor, y: Tensor, outputs: Mapping[str, Tensor]) -> Flow:
        """What came out of a block as a sum of what came in and of what its writers gave."""
        writers = [self._paths[writer] for writer in self._writers[block] if self._paths[writer] in outputs]
        terms = [x, *(outputs[path] for path in writers)]
        shares, rest = _as_sum(y, terms)
        on_stream: Sequence[str] = ()
        if rest > _REST:
            fits = {
                path: _as_sum(y, [*terms, output])[1]
                for path, output in outputs.items()
                if path not in writers and output.shape == y.shape
            }
            on_stream = [path for path, left in fits.items() if left <= _REST]
        added = {of_all_blocks(path): share for path, share in zip(writers, shares[1:], strict=True)}
        return Flow(self._paths[block], shares[0], added, rest, on_stream)

    def _taken(self) -> list[Size]:
        log = self._log
        values = torch.stack([size for _, _, size, _ in log]).tolist() if log else []
        if not all(map(math.isfinite, values)):
            first = next(entry for entry, value in zip(log, values, strict=True) if not math.isfinite(value))
            raise NotRunnableError(f"what comes to {first[0]} is not finite")
        return [Size(place, block, value, ran) for (place, block, _, ran), value in zip(log, values, strict=True)]

    def _note_of_function(self, name: str, x: Tensor) -> None:
        self._note(".".join([*self._running[-1:], name]), x)

    def _run(self, entered: Callable[[nn.Module, Tensor], None], finished: Callable[[nn.Module, Any], Any]) -> Tensor:
        numbers = {block: number for number, block in enumerate(self._blocks)}

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._running.append(self._paths[module])
            if module in numbers:
                self._block.append(numbers[module])
                entered(module, _entering(args, kwargs))

        def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            result = finished(module, output)
            self._running.pop()
            if module in numbers:
                self._block.pop()
            if module._parameters or any(True for _ in module.children()):
                self.finished.append(of_all_blocks(self._paths[module]))
            return result

        self._running, self._block, self._log, self.finished = [], [], [], []
        handles = []
        for module in self._paths:
            handles += [module.register_forward_pre_hook(before, with_kwargs=True), module.register_forward_hook(after)]
        try:
            takes = inspect.signature(type(self.model).forward).parameters
            quiet = {"use_cache": False} if "use_cache" in takes else {}
            tokens = torch.arange(1, 1 + _TOKENS, device="cpu").view(1, _TOKENS)
            output = self.model(tokens, **quiet)
        except NotRunnableError:
            raise
        except Exception as error:  # whatever the code of a model raises
            reason = " ".join(str(error).splitlines()[:1]) or type(error).__name__
            raise NotRunnableError(f"{type(self.model).__name__} does not run with stand-ins: {reason}") from error
        finally:
            for handle in handles:
                handle.remove()
        found = getattr(output, "logits", None)
        logits: Tensor = (output if isinstance(output, Tensor) else output[0]) if found is None else found
        return logits


@contextmanager
def rehearsal(model: nn.Module) -> Iterator[Rehearsal]:
    """A model that can be run with stand-ins, on the CPU, whatever the settings of the caller."""
    run = Rehearsal(model)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with (
            torch.no_grad(),
            nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu"),  # which takes time
            torch.autocast("cpu", enabled=False),
            torch.random.fork_rng(devices=[]),
            stand_ins(model, run.stage),
        ):
            yield run
    finally:
        torch.set_default_dtype(default)


class _Watch(TorchFunctionMode):
    """Notes the operands of products of two tensors (queries, keys, values), and what comes between these and softmax.

    How large products of queries and keys are says little, since it depends on the patterns of stand-ins. What they are
    multiplied by is compared with the size of a head to the power of -1/2: growth is for heads of one size.
    """

    def __init__(self, note: Callable[[str, Tensor], None]) -> None:
        super().__init__()
        self._note = note
        self._product: Tensor | None = None
        self._head = 1.0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name, kwargs = getattr(func, "__name__", ""), dict(kwargs or {})
        if name == "softmax":
            self._note_softmax(args[0] if args else kwargs["input"])
        if name not in _OPERANDS:
            return func(*args, **kwargs)
        operands = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
        result = func(*args, **kwargs)
        if any(isinstance(each, StandIn) for each in operands):
            return result
        for place, operand in enumerate(operands[: _OPERANDS[name]]):
            if not _is_attention(operand):
                self._note(f"{name} {place}", operand)
        if name == "scaled_dot_product_attention":
            scale = kwargs.get("scale")
            relative = 1.0 if scale is None else float(scale) * operands[0].shape[-1] ** 0.5
            self._note(f"{name} scale", torch.tensor(relative))
        self._product, self._head = result, float(operands[0].shape[-1])
        return result

    def _note_softmax(self, x: Tensor) -> None:
        before, self._product = self._product, None
        if x.dim() < 4:
            self._note("softmax", x[x > _MASKED])
        elif before is not None and before.shape == x.shape:
            attended = x > _MASKED
            size = before[attended].square().mean().sqrt()
            if size > _SMALL:
                self._note("softmax", x[attended].square().mean().sqrt() / size * self._head**0.5)


def _is_attention(x: Tensor) -> bool:
    """Whether numbers are the shares of tokens in what others attend to."""
    return x.dim() > 3 and bool((x >= 0).all()) and bool((x.sum(-1) < 1 + _REST).all())


# Functions that multiply tensors, and how many of their arguments are to be noted.
_OPERANDS = {"scaled_dot_product_attention": 3, "matmul": 2, "__matmul__": 2, "bmm": 2, "einsum": 2}


def _are_sums(flows: Sequence[Flow]) -> bool:
    return all(flow.is_sum for flow in flows)


def _as_sum(y: Tensor, terms: Sequence[Tensor]) -> tuple[list[float], float]:
    """The shares of terms in a sum, by least squares, and the part of it that they do not explain."""
    columns = torch.stack([term.double().flatten() for term in terms], 1)
    target = y.double().flatten()
    shares = torch.linalg.lstsq(columns, target, driver="gelsd").solution
    rest = (target - columns @ shares).norm() / target.norm().clamp(min=1e-30)
    return shares.tolist(), float(rest)


def _entering(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    """The stream that comes into a block."""
    for each in (*args, *kwargs.values()):
        if isinstance(each, Tensor) and each.is_floating_point():
            return each
    raise NotRunnableError("a block gets no tensor that could be the residual stream")


def _first(output: Any) -> Any:
    return output[0] if isinstance(output, tuple | list) else output


def _with_first(output: Any, first: Tensor) -> Any:
    return (first, *output[1:]) if isinstance(output, tuple) else first
