"""The house keeps its order: imports run downwards, names are true, the map of it is right."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import gduq

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"

# DESIGN §4: a module imports from its own room or from earlier layers. What predictions are made of
# comes before the models that make them, `predict` after.
LAYERS = (
    ("errors",),
    ("_io", "_torch"),
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
OWED = {("prediction", "prediction.predicting")}  # `predict`, a lazy name

# Nobody outside of the package that defines a model asks whether something is one.
MODELS = {"Anchored": "anchoring", "GNN": "nn"} | dict.fromkeys(
    ("Ensemble", "HeadEnsemble", "LastLayerLaplace", "MCDropout", "Neighbours", "Network", "Stack"),
    "models",
)
KINDS = {"'classes'", "'labels'", "'values'"}  # of targets, which `prediction` alone tells apart

# Slow to import or optional: only inside the functions that need them.
HEAVY = {
    "fastapi", "jinja2", "matplotlib", "pandas", "pyarrow", "ray", "rdkit", "skimage", "sklearn",
    "spacy", "starlette", "transformers", "uvicorn",
}  # fmt: skip
NEVER = {"torchvision", "torch_sparse", "torch_scatter", "pyg_lib", "dill"}

# Words that only we would understand, as parts of the names of functions, classes and modules.
DIALECT = re.compile(
    r"(^|_)(told|tell|telling|said|say|asked|meant|heard|whole|forged|lesson|judged|weighed|undone"
    r"|listed|seen|supply|pencil|door|blame|heat|rooms?|house|bars?|settled|completed|moments"
    r"|places|news|allowance|half_and_half|head_start|side_by_side)($|_)",
    re.IGNORECASE,
)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


FILES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}
MODULES = [name for name in FILES if name not in ("gduq", "gduq.__main__")]
PAGES = {name: (ROOT / "docs" / name).read_text() for name in ("architecture.md", "extend.md")}


@cache
def tree(name: str) -> ast.Module:
    """A module as its syntax, parsed once for all tests."""
    return ast.parse(FILES[name].read_text(encoding="utf-8"))


def run_on_import(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from run_on_import(node)


def imports(name: str, on_import: bool = False) -> set[str]:
    """Full names of the modules (and of what is taken from them) that a module imports."""
    found: set[str] = set()
    for node in run_on_import(tree(name)) if on_import else ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{name}: no relative imports"
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def room(module: str) -> str | None:
    """The part of the house a module of ours lives in; ``None`` for the package itself."""
    top, *parts = module.split(".")
    names = [".".join(parts[:2]), *parts[:1]] if top == "gduq" else []
    return next((name for name in names if name in LAYER), None)


def upward(name: str) -> set[tuple[str, str]]:
    """Pairs of rooms (here, there) for all imports that do not run downwards."""
    here = room(name)
    # its own package's front door, of which it takes a neighbour, is no room
    found = {room(m) for m in imports(name) if not name.startswith(f"{m}.")} - {None, here}
    above = {there for there in found if LAYER[there] >= LAYER[here]}
    package = here.split(".")[0]  # rooms of one package that share a layer are one
    return {(here, t) for t in above if LAYER[t] > LAYER[here] or t.split(".")[0] != package}


def compared(name: str) -> set[str]:
    """Names and texts that a module compares something with, or the type of something."""
    parts: list[ast.AST] = []
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            parts += node.args[1:]
        elif isinstance(node, ast.Compare) and re.search(r"type\(|kind", ast.unparse(node)):
            parts += [node.left, *node.comparators]
        elif isinstance(node, ast.MatchClass):
            parts.append(node.cls)
    inside = [n for part in parts for n in ast.walk(part)]
    names = {getattr(n, "id", getattr(n, "attr", "")) for n in inside}
    return names | {repr(n.value) for n in inside if isinstance(n, ast.Constant)}


# -- imports -------------------------------------------------------------------------------------


def test_imports_run_downwards():
    homeless = [name for name in MODULES if room(name) is None]
    assert not homeless, "give them a layer in DESIGN §4 and in LAYERS"
    assert {pair for name in MODULES for pair in upward(name)} == OWED


def test_heavy_packages_are_imported_when_needed():
    for name in MODULES:
        top = {m.split(".")[0] for m in imports(name, on_import=True)}
        heavy = HEAVY - {"sklearn"} if name == "gduq.sklearn" else HEAVY
        assert not top & heavy, f"{name}: import these inside the functions that need them"
        assert not {m.split(".")[0] for m in imports(name)} & NEVER, name


def test_importing_gduq_is_light():
    code = "import sys, gduq; print(*{m.split('.')[0] for m in sys.modules})"
    env = {k: v for k, v in os.environ.items() if not k.startswith("COV")}
    loaded = set(subprocess.check_output([sys.executable, "-c", code], text=True, env=env).split())
    assert "gduq" in loaded
    assert not loaded & (HEAVY | {"torch", "torch_geometric", "numpy", "scipy", "typer", "rich"})


def test_nothing_is_read_that_could_run_code():
    for name in MODULES:
        for call in (n for n in ast.walk(tree(name)) if isinstance(n, ast.Call)):
            function = ast.unparse(call.func)
            options = {k.arg: ast.unparse(k.value) for k in call.keywords}
            assert function not in ("pickle.load", "pickle.loads", "joblib.load", "eval", "exec")
            assert function != "torch.load" or options.get("weights_only") == "True", name
            assert options.get("allow_pickle", "False") == "False", name


# -- who asks for what ---------------------------------------------------------------------------


def test_kinds_and_models_are_known_by_what_they_do():
    for name in MODULES:
        package = name.split(".")[1]
        known = {model for model, home in MODELS.items() if home == package}
        known |= KINDS if package == "prediction" else set()
        assert not compared(name) & (MODELS.keys() | KINDS) - known, name


# -- names ---------------------------------------------------------------------------------------


def test_public_names_exist():
    for name in ["gduq", *MODULES]:
        module = importlib.import_module(name)
        assert module.__doc__, f"{name} has no docstring"
        public = module.__all__
        assert len(set(public)) == len(public), name
        assert not [one for one in public if one.startswith("_") or not hasattr(module, one)], name
    assert set(gduq.__all__) <= set(dir(gduq))
    with pytest.raises(AttributeError):
        gduq.no_such_name  # noqa: B018


def test_editors_find_every_name_where_python_does():
    """Names are imported on first use; editors and type checkers read the block for them."""
    block = next(node for node in tree("gduq").body if isinstance(node, ast.If))
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    imported = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: node.module for node in imported for alias in node.names}
    assert set(homes) == set(gduq.__all__)
    for name, home in homes.items():
        assert getattr(gduq, name) is getattr(importlib.import_module(home), name), name


def test_names_are_plain_and_classes_have_one_home():
    homes: dict[str, str] = {}
    for module in FILES:
        assert not DIALECT.search(module.rpartition(".")[2]), module
        for node in ast.walk(tree(module)):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                assert not DIALECT.search(node.name), f"{module}: {node.name}"
        public = [node.name for node in tree(module).body if isinstance(node, ast.ClassDef)]
        for name in public:
            assert name[0] == "_" or homes.setdefault(name, module) == module, name


# -- what docs/architecture.md and docs/extend.md name -------------------------------------------


def test_what_is_named_is_there():
    pairs = {m for page in PAGES.values() for m in re.findall(r"`([\w/]+\.py)::([\w.]+)`", page)}
    for file, name in sorted(pairs):
        lab = file.startswith("gduq_reproduction/")
        path = ROOT / ("reproduction" if lab else "src/gduq") / file
        assert path.is_file(), f"{file} has moved"
        module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        found = importlib.import_module(module if lab else f"gduq.{module}")
        for part in name.split("."):
            assert hasattr(found, part), f"{file}::{name}"
            found = getattr(found, part)
    for page in PAGES.values():
        for path in re.findall(r"`((?:tests|docs|src|reproduction)/[\w./]+)`", page):
            assert (ROOT / path).exists(), path


def test_the_table_has_every_package():
    shown = set(re.findall(r"^\| ([\w.]+) \|", PAGES["architecture.md"], re.MULTILINE))
    tops = {name.split(".")[1] for name in FILES if name.count(".")} - {"__main__"}
    assert tops <= {name.split(".")[0] for name in shown}
