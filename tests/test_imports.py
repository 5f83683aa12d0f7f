"""What imports what: planning stays free of torch, and imports point one way."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import mssp

PACKAGE = Path(mssp.__file__).parent
# From the ground up: a module may import those that stand before it.
ORDER = [
    "model_config", "shape", "power", "rules", "regime", "settings", "fans", "plan_json", "plan_text", "values",
    "planning", "reasons", "explain", "families", "tuned", "statistics", "param_info", "description", "draws",
    "initial", "apply", "nn", "data", "adapters", "hf", "measure", "replicas", "theory", "dmft", "sweep", "coordcheck",
    "report", "cli", "__main__",
]  # fmt: skip


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def imported(path: Path) -> set[str]:
    """Our modules that a file imports at run time (not for type checking only)."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("mssp.")}
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "mssp":
            rest = (node.module or "").split(".")[1:]
            found |= {rest[0]} if rest else {alias.name for alias in node.names} & set(ORDER)
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    module = module_of(path)
    if module == "__init__":
        return
    assert module in ORDER, f"{module} has no place in the order of modules"
    allowed = set(ORDER[: ORDER.index(module)]) | ({module} if (PACKAGE / module).is_dir() else set())
    assert imported(path) <= allowed


# The same, inside the packages.
ORDER_WITHIN = {
    "adapters": [
        "config_plans", "probing", "fused_experts", "forward_factors", "names", "configs", "parameters",
        "model_factors", "transformers", "folding", "by_name", "reading_back", "trainer",
    ],
    "nn": [
        "activations", "backend", "triton_kernels", "pairs", "grouped_products", "sorted_experts", "expert_paths",
        "dispatch", "path_timing", "router", "experts", "multipliers", "moe", "mlp", "gpt",
    ],
    "data": [
        "arguments", "streams", "whole_files", "dataset", "clusters", "spectra", "text", "image_files", "images",
        "downloads",
    ],
    "measure": [
        "magnitudes", "linear_maps", "experts", "routing", "mlp", "recording", "moe_layers", "modules",
        "writers", "monitor",
    ],
    "replicas": [
        "replica", "kernels", "optimizers", "program", "mlp", "module", "metrics", "lockstep", "watching", "memory",
        "training",
    ],
    "dmft": [
        "experiment", "constants", "kernels", "processes", "fields", "pointwise", "gates", "run", "experts", "features",
        "readout", "regime_one", "regime_two", "regime_three", "observables", "solver", "solution", "finite",
        "comparison", "examples", "text", "overlay",
    ],
    "theory": ["propagation", "scaling", "shares", "expected", "simulation"],
    "coordcheck": ["series", "fit", "judgement", "causes", "result", "text", "numerics", "mlp_runs", "module_runs"],
    "sweep": [
        "owner", "database", "store", "export", "trial", "transfer", "learning_rates", "transfer_text", "execution",
        "on_ray", "progress", "grids", "tuning", "tuning_text", "evaluation", "recorded",
    ],
    "report": [
        "canvas", "figures", "check_figures", "dmft_figures", "panels", "reflow", "dark", "figure_data", "page",
        "saving", "agreement_figures", "contents", "findings", "sections",
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("package", "name"), [(package, name) for package in ORDER_WITHIN for name in ORDER_WITHIN[package]]
)
def test_imports_inside_packages_point_one_way(package: str, name: str) -> None:
    order = ORDER_WITHIN[package]
    text = (PACKAGE / package / f"{name}.py").read_text(encoding="utf-8")
    found = set(re.findall(rf"^from mssp\.{package}\.(\w+) import", text, re.MULTILINE))
    for names in re.findall(rf"^from mssp\.{package} import (.+)$", text, re.MULTILINE):
        found |= set(names.split(", "))
    assert found <= set(order[: order.index(name)])
    assert {path.stem for path in (PACKAGE / package).glob("*.py")} == {*order, "__init__"}


def test_data_import_nothing_of_ours() -> None:
    assert set().union(*(imported(path) for path in (PACKAGE / "data").glob("*.py"))) <= {"data"}


@pytest.mark.parametrize(
    "code",
    [
        "import mssp; mssp.plan(mssp.Shape(8, 8, 2, 2, 1), regime='III', lr=1.0).json()",
        "import mssp; mssp.ParamInfo('router', layout='out in')",
        "from mssp.cli import main; main('plan --target.width 8 --target.expert-width 8 --target.experts 2 "
        "--target.active 2 --target.depth 1 --regime III --lr 1 --json'.split())",
        "from mssp.cli import main; main(['explain', 'router'])",
    ],
)
def test_planning_does_not_import_torch(code: str) -> None:
    check = f"{code}\nimport sys; assert not {{'torch', 'numpy', 'rich'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, stdout=subprocess.DEVNULL)


def test_functions_are_not_shadowed_by_modules() -> None:
    for name in mssp.__all__:
        assert (PACKAGE / f"{name}.py").exists() == isinstance(getattr(mssp, name), ModuleType)
    with pytest.raises(AttributeError, match="module 'mssp' has no attribute 'nothing'"):
        _ = mssp.nothing
    assert set(mssp.__all__) <= set(dir(mssp))
