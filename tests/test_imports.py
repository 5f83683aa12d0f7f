"""What imports what: four storeys in one direction, planning on the standard library alone, lazy packages."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import pytest
from package_map import PAGE, PICTURE, STOREYS, page, picture

import mssp

PACKAGE = Path(mssp.__file__).parent
PRIVATE = ["_constraints", "_files", "_documents", "_forms", "_tables", "_estimates", "_environment", "_lazy"]
# From the ground up: a package may import those that stand before it, in its functions too.
ORDER = [*PRIVATE, *(package for storey in STOREYS.values() for package in storey), "__main__"]


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def at_run_time(path: Path) -> ast.Module:
    """A file without what it imports for type checking only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    return tree


def imported(path: Path) -> set[str]:
    """Our modules that a file imports at run time (not for type checking only)."""
    found = set()
    for node in ast.walk(at_run_time(path)):
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


def modules_imported(path: Path) -> set[str]:
    """Our modules that a file imports at run time, in full: ``mssp.nn.mlp``."""
    found = set()
    for node in ast.walk(at_run_time(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "mssp":
            for alias in node.names:
                inside = f"{node.module}.{alias.name}"
                found.add(inside if inside in MODULES else home_of(node.module or "", alias.name))
    return found


def home_of(package: str, name: str) -> str:
    """The module that a name comes from, of those that a package exports lazily."""
    homes: Mapping[str, Sequence[str]] = getattr(importlib.import_module(package), "_HOMES", {})
    return next((f"{package}.{module}" for module, names in homes.items() if name in names), package)


def dotted(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {dotted(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def test_imports_inside_packages_point_one_way() -> None:
    """No module imports itself through others, functions included: a circle cannot be read from the ground up."""
    waiting = {name: modules_imported(path) & set(MODULES) - {name} for name, path in MODULES.items()}
    while free := [name for name, needs in waiting.items() if not needs & set(waiting)]:
        for name in free:
            del waiting[name]
    assert waiting == {}


def test_data_import_nothing_of_ours() -> None:
    assert set().union(*(imported(path) for path in (PACKAGE / "data").glob("*.py"))) <= {
        "data", "_constraints", "_documents", "_files", "_lazy"
    }  # fmt: skip


@pytest.mark.parametrize(
    "code",
    [
        "import mssp; mssp.plan(mssp.Shape(8, 8, 2, 2, 1), regime='III', lr=1.0).json()",
        "import mssp; mssp.ParamInfo('router', layout='out in')",
        "from mssp.cli import main; main('plan --target.width 8 --target.expert-width 8 --target.experts 2 "
        "--target.active 2 --target.depth 1 --regime III --lr 1 --json'.split())",
        "from mssp.cli import main; main(['explain', 'router'])",
        "from mssp.hf.vocabulary import info_of; info_of('model.layers.0.mlp.gate.weight', (8, 64))",
    ],
)
def test_planning_does_not_import_torch(code: str) -> None:
    check = f"{code}\nimport sys; assert not {{'torch', 'transformers', 'numpy', 'rich'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, stdout=subprocess.DEVNULL)


def test_planning_needs_the_standard_library_alone() -> None:
    """All that it imports, step by step; and it works where nothing is installed."""
    waiting, seen = [name for name in MODULES if name.startswith("mssp.planning")], set[str]()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        for node in ast.walk(at_run_time(MODULES[name])):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {module.split(".")[0] for module in modules} <= {"mssp", *sys.stdlib_module_names}, name
        waiting += [module for module in modules_imported(MODULES[name]) if module in MODULES and module not in seen]
    assert {name.split(".")[1] for name in seen if name != "mssp"} <= {"planning", *PRIVATE}
    code = (
        f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); import mssp\n"
        "from mssp.planning.explanation import explain\n"
        "small = {'hidden_size': 64, 'intermediate_size': 32, 'num_experts': 8, 'num_experts_per_tok': 8,"
        " 'num_hidden_layers': 4}\n"
        "plan = mssp.plan(mssp.Shape(128, 64, 8, 8, 4), mssp.Shape.from_config(small), lr=1.0)\n"
        "assert mssp.Plan.from_json(plan.json()) == plan and str(plan) and str(explain('router'))"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("__init__.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_init_is_lazy(path: Path) -> None:
    """It says what the package is, and imports nothing but what makes its exports lazy."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert len((ast.get_docstring(tree) or "").splitlines()) >= 1
    imports = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert imports <= {"__future__", "typing", "mssp._lazy"}
    rest = [node for node in tree.body if not isinstance(node, ast.ImportFrom)]
    assert {type(node) for node in rest} <= {ast.Expr, ast.Assign, ast.If}
    if imports:
        package = importlib.import_module(dotted(path))
        exported = {name for names in package._HOMES.values() for name in names}
        assert exported - {"__version__"} == set(package.__all__) - {"hf"}
        assert all(getattr(package, name) is not None for name in exported)


def test_documents_and_examples_use_what_packages_offer() -> None:
    """The models' own modules of ``mssp.nn`` are documented, and public too."""
    root = PACKAGE.parents[1]
    texts = [*root.glob("*.md"), *(root / "docs").glob("*.md"), *(root / "examples").glob("*.py")]
    found = [line for path in texts for line in re.findall(r"(?:from|import) (mssp[\w.]*)", path.read_text("utf-8"))]
    assert {module for module in found if module.count(".") > 1} <= {"mssp.nn.mlp"}
    assert len(found) > 20


def test_the_map_is_that_of_the_docstrings() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python docs/package_map.py"


def test_the_picture_is_that_of_the_storeys() -> None:
    assert PICTURE.read_text(encoding="utf-8") == picture(), "run python docs/package_map.py"


def test_functions_are_not_shadowed_by_modules() -> None:
    """With lazy exports a name is the function once, and the module for ever after it was imported."""
    for init in PACKAGE.rglob("__init__.py"):
        package = importlib.import_module(dotted(init))
        for name in getattr(package, "__all__", ()):
            inside = (init.parent / f"{name}.py").exists() or (init.parent / name).is_dir()
            assert inside == isinstance(getattr(package, name), ModuleType), f"{package.__name__}.{name}"
    with pytest.raises(AttributeError, match="module 'mssp' has no attribute 'nothing'"):
        _ = mssp.nothing
    assert set(mssp.__all__) <= set(dir(mssp))
