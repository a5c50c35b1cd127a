"""The house keeps its order: imports run downwards, public names exist, `import gduq` is light."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import gduq

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"

# DESIGN, "Layout and direction": a module imports from its own layer or from earlier ones.
LAYERS = (
    ("errors",),
    ("functional", "metrics"),
    ("graph",),
    ("anchors", "anchored_linear"),
    ("nn",),
    ("anchored", "anchoring", "auto", "baselines", "owners", "tempering"),
    ("prediction",),
    ("calibration", "conformal", "ood", "generalization", "abstention"),
    ("data", "shifts"),
    ("training", "bundle", "evaluation", "plots"),
    ("experiments",),
    ("report",),
    ("cli", "__main__"),
)
LAYER = {room: depth for depth, rooms in enumerate(LAYERS) for room in rooms}

# Slow to import or optional: only inside the functions that need them.
HEAVY = {
    "jinja2",
    "matplotlib",
    "pandas",
    "pyarrow",
    "ray",
    "rdkit",
    "skimage",
    "sklearn",
    "spacy",
    "transformers",
}
NEVER = {"torchvision", "torch_sparse", "torch_scatter", "pyg_lib", "dill"}


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}
MODULES = [name for name in FILES if name not in ("gduq", "gduq.__main__")]


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def statements(tree: ast.AST, deep: bool) -> Iterator[ast.AST]:
    """Nodes that run; with ``deep=False`` only those that run on import."""
    for node in ast.iter_child_nodes(tree):
        if is_type_checking(node):
            yield from (n for part in node.orelse for n in statements(part, deep))
            continue
        yield node
        if deep or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from statements(node, deep)


def imports(name: str, deep: bool = True) -> set[str]:
    """Full names of the modules (and of what is taken from them) that a module imports."""
    found: set[str] = set()
    package = name if FILES[name].name == "__init__.py" else name.rpartition(".")[0]
    for node in statements(ast.parse(FILES[name].read_text()), deep):
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
    return parts[1] if parts[0] == "gduq" and len(parts) > 1 and parts[1] in LAYER else None


@pytest.mark.parametrize("name", MODULES)
def test_every_module_lives_in_a_known_layer(name):
    assert name.split(".")[1] in LAYER, f"give {name} a layer in DESIGN §4 and in LAYERS"


@pytest.mark.parametrize("name", MODULES)
def test_imports_run_downwards(name):
    here = LAYER[room(name)]
    upward = {m for m in imports(name) if room(m) is not None and LAYER[room(m)] > here}
    assert not upward, f"{name} imports upwards: {sorted(upward)}"


def test_imports_have_no_circles():
    graph = {
        name: {m for m in imports(name, deep=False) if m in FILES} - {"gduq", name}
        for name in MODULES
    }
    for name, found in graph.items():  # a package's front door stands on its own rooms
        graph[name] = {m for m in found if not name.startswith(f"{m}.")}
    assert len(list(TopologicalSorter(graph).static_order())) >= len(graph)


def test_the_direction_test_sees_imports(tmp_path, monkeypatch):
    code = (
        "from gduq import cli\nif x:\n    import gduq.errors\ndef f():\n    from ..nn import gnn\n"
    )
    (tmp_path / "probe.py").write_text(code)
    monkeypatch.setitem(FILES, "gduq.data.probe", tmp_path / "probe.py")
    assert {"gduq.cli", "gduq.errors", "gduq.nn.gnn"} <= imports("gduq.data.probe")
    assert "gduq.nn.gnn" not in imports("gduq.data.probe", deep=False)


@pytest.mark.parametrize("name", MODULES)
def test_heavy_packages_are_imported_when_needed(name):
    top = {m.split(".")[0] for m in imports(name, deep=False)}
    assert not top & HEAVY, "import these inside the functions that need them"
    assert not {m for m in imports(name) if m in NEVER or m.split(".")[0] in NEVER}


@pytest.mark.parametrize("name", MODULES)
def test_nothing_is_read_that_could_run_code(name):
    calls = [n for n in ast.walk(ast.parse(FILES[name].read_text())) if isinstance(n, ast.Call)]
    for call in calls:
        function, options = (
            ast.unparse(call.func),
            {k.arg: ast.unparse(k.value) for k in call.keywords},
        )
        assert function not in ("pickle.load", "pickle.loads", "joblib.load", "eval", "exec")
        assert function != "torch.load" or options.get("weights_only") == "True"
        assert options.get("allow_pickle", "False") == "False"


@pytest.mark.parametrize("name", ["gduq", *MODULES])
def test_public_names_exist(name):
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} has no docstring"
    assert hasattr(module, "__all__"), f"{name} has no __all__"
    assert len(set(module.__all__)) == len(module.__all__)
    missing = [public for public in module.__all__ if not hasattr(module, public)]
    assert not missing
    hidden = [public for public in module.__all__ if public.startswith("_")]
    assert not hidden


def test_the_front_door_lists_what_it_hands_out():
    assert set(gduq._HOME) <= set(gduq.__all__)
    assert set(gduq.__all__) <= set(dir(gduq))
    with pytest.raises(AttributeError, match="no_such_name"):
        gduq.no_such_name  # noqa: B018


def test_there_is_no_room_for_odds_and_ends():
    assert not [name for name in FILES if re.search(r"\.(utils?|helpers?|common|misc)$", name)]


def test_importing_gduq_is_light():
    code = "import sys, gduq; print(sorted({m.split('.')[0] for m in sys.modules}))"
    env = {k: v for k, v in os.environ.items() if not k.startswith("COV")}
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    ).stdout
    loaded = set(ast.literal_eval(out))
    assert "gduq" in loaded
    assert not loaded & (HEAVY | {"torch", "torch_geometric", "numpy", "scipy", "typer", "rich"})


# -- papers ------------------------------------------------------------------------------------


def text(name: str) -> str:
    return (ROOT / name).read_text()


def test_one_version_everywhere():
    version = gduq.__version__
    assert f'\nversion = "{version}"\n' in text("pyproject.toml")
    assert f"\nversion: {version}\n" in text("CITATION.cff")
    assert f"\n## [{version}]" in text("CHANGELOG.md")


def test_the_citation_names_the_paper():
    citation, paper = text("CITATION.cff").split("preferred-citation:")
    assert "license: Apache-2.0" in citation
    title = "Accurate and Scalable Estimation of Epistemic Uncertainty for Graph Neural Networks"
    assert f'title: "{title}"' in paper
    authors = ["Trivedi", "Heimann", "Anirudh", "Koutra", "Thiagarajan"]
    assert re.findall(r"family-names: (\w+)", paper) == authors
    assert "year: 2024" in paper


def test_every_make_target_is_explained():
    targets = re.findall(r"^([a-z-]+):.*## ", text("Makefile"), flags=re.MULTILINE)
    assert {"demo", "test", "test-all", "lint", "bench", "clean"} <= set(targets)
    for target in set(targets) - {"help"}:
        assert f"make {target}`" in text("CONTRIBUTING.md"), f"say in CONTRIBUTING what {target} is"
