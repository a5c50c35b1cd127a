"""The house keeps its order: imports run downwards, public names exist, `import gduq` is light."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import gduq

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"

# DESIGN §4: a module imports from its own room or from earlier layers. What predictions are made of
# comes before the models that make them, `predict` after.
LAYERS = (
    ("errors",),
    ("_checks", "_io", "_torch"),
    ("graphs",),
    ("nn",),
    ("tracing",),
    ("prediction",),
    ("metrics",),
    ("ood",),
    ("models.predictor",),
    ("anchoring",),
    ("models",),
    ("prediction.predicting",),
    ("calibration", "conformal"),
    ("data.smiles",),
    ("shifts",),
    ("data",),
    ("training", "bundle", "evaluation"),
    ("runs", "sklearn"),
    ("serve", "report"),
    ("cli", "__main__"),
)
LAYER = {room: depth for depth, rooms in enumerate(LAYERS) for room in rooms}

# Neighbours that still import each other.
OWED = {("prediction", "prediction.predicting")}  # `predict`, a lazy name

# Nobody outside of the package that defines a model asks whether something is one.
MODELS = {"Anchored": "anchoring", "GNN": "nn"} | dict.fromkeys(
    ("Ensemble", "HeadEnsemble", "LastLayerLaplace", "MCDropout", "Neighbours", "Network", "Stack"),
    "models",
)

# Slow to import or optional: only inside the functions that need them.
HEAVY = {
    "fastapi", "jinja2", "matplotlib", "pandas", "pyarrow", "ray", "rdkit", "skimage", "sklearn",
    "spacy", "starlette", "transformers", "uvicorn",
}  # fmt: skip
NEVER = {"torchvision", "torch_sparse", "torch_scatter", "pyg_lib", "dill"}


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}
MODULES = [name for name in FILES if name not in ("gduq", "gduq.__main__")]


@cache
def tree(name: str) -> ast.Module:
    """A module as its syntax, parsed once for all tests."""
    return ast.parse(FILES[name].read_text(encoding="utf-8"))


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def statements(tree: ast.AST, deep: bool) -> Iterator[ast.AST]:
    """All nodes; with ``deep=False`` only those that run on import."""
    for node in ast.iter_child_nodes(tree):
        if not deep and is_type_checking(node):
            yield from (n for part in node.orelse for n in statements(part, deep))
            continue
        yield node
        if deep or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from statements(node, deep)


@cache
def imports(name: str, deep: bool = True) -> set[str]:
    """Full names of the modules (and of what is taken from them) that a module imports."""
    found: set[str] = set()
    package = name if FILES[name].name == "__init__.py" else name.rpartition(".")[0]
    for node in statements(tree(name), deep):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *filter(None, [node.module])])
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return found


def room(module: str) -> str | None:
    """The part of the house a module of ours lives in; ``None`` for the package itself."""
    parts = module.split(".")
    if parts[0] != "gduq":
        return None
    inner = ".".join(parts[1:3])
    return inner if inner in LAYER else next((p for p in parts[1:2] if p in LAYER), None)


def upward(name: str) -> set[tuple[str, str]]:
    """Pairs of rooms (here, there) for all imports that do not run downwards."""
    here = room(name)
    # its own package's front door, of which it takes a neighbour, is no room
    found = {room(m) for m in imports(name) if not name.startswith(f"{m}.")} - {None, here}
    above = {there for there in found if LAYER[there] >= LAYER[here]}
    package = here.split(".")[0]  # rooms of one package that share a layer are one
    return {(here, t) for t in above if LAYER[t] > LAYER[here] or t.split(".")[0] != package}


def circle() -> list[str] | None:
    """Modules that import each other on import, if there are any."""
    graph = {
        name: {m for m in imports(name, deep=False) if m in FILES} - {"gduq", name}
        for name in MODULES
    }
    for name, found in graph.items():  # a package's front door stands on its own rooms
        graph[name] = {m for m in found if not name.startswith(f"{m}.")}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return None


def models_asked_for(name: str) -> set[str]:
    """Model classes of other packages that a module compares types with."""
    asked: set[str] = set()
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            parts: list[ast.AST] = list(node.args[1:])
        elif isinstance(node, ast.Compare) and "type(" in ast.unparse(node):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchClass):
            parts = [node.cls]
        else:
            continue
        inside = [n for part in parts for n in ast.walk(part)]
        asked |= {n.id for n in inside if isinstance(n, ast.Name)}
        asked |= {n.attr for n in inside if isinstance(n, ast.Attribute)}
    return {model for model in asked & set(MODELS) if MODELS[model] != name.split(".")[1]}


def test_every_module_lives_in_a_known_layer():
    lost = [name for name in MODULES if room(name) is None]
    assert not lost, "give them a layer in DESIGN §4 and in LAYERS"


def test_imports_run_downwards():
    assert {pair for name in MODULES for pair in upward(name)} == OWED


def test_imports_have_no_circles():
    assert circle() is None


def test_models_are_known_by_what_they_do():
    asked = {name: found for name in MODULES if (found := models_asked_for(name))}
    assert not asked, "ask the Predictor instead"


def test_heavy_packages_are_imported_when_needed():
    for name in MODULES:
        top = {m.split(".")[0] for m in imports(name, deep=False)}
        heavy = HEAVY - {"sklearn"} if name == "gduq.sklearn" else HEAVY
        assert not top & heavy, f"{name}: import these inside the functions that need them"
        assert not {m.split(".")[0] for m in imports(name)} & NEVER, name


def test_nothing_is_read_that_could_run_code():
    for name in MODULES:
        for call in (n for n in ast.walk(tree(name)) if isinstance(n, ast.Call)):
            function = ast.unparse(call.func)
            options = {k.arg: ast.unparse(k.value) for k in call.keywords}
            assert function not in ("pickle.load", "pickle.loads", "joblib.load", "eval", "exec")
            assert function != "torch.load" or options.get("weights_only") == "True", name
            assert options.get("allow_pickle", "False") == "False", name


def test_public_names_exist():
    for name in ["gduq", *MODULES]:
        module = importlib.import_module(name)
        assert module.__doc__, f"{name} has no docstring"
        public = module.__all__
        assert len(set(public)) == len(public), name
        assert not [one for one in public if one.startswith("_") or not hasattr(module, one)], name


def test_the_package_lists_what_it_hands_out():
    assert set(gduq.__all__) <= set(dir(gduq))
    with pytest.raises(AttributeError, match="no_such_name"):
        gduq.no_such_name  # noqa: B018


def test_every_public_class_has_a_name_of_its_own():
    homes: dict[str, list[str]] = {}
    for name in FILES:
        for node in tree(name).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(name)
    assert not {name: where for name, where in homes.items() if len(where) > 1}


def test_importing_gduq_is_light():
    code = "import sys, gduq; print(sorted({m.split('.')[0] for m in sys.modules}))"
    env = {k: v for k, v in os.environ.items() if not k.startswith("COV")}
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    ).stdout
    loaded = set(ast.literal_eval(out))
    assert "gduq" in loaded
    assert not loaded & (HEAVY | {"torch", "torch_geometric", "numpy", "scipy", "typer", "rich"})
