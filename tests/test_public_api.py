"""The public names, what may import what, and what the library alone needs."""

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import apportion
from apportion.__main__ import EXTRAS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "apportion"

# Each may import from its own layer and from those above it.
LAYERS = (
    ("errors", "_untrusted"),
    ("_writing", "_random", "_graphs", "_device", "_register", "_scratch", "_sources"),
    ("transport", "networks", "encoding"),
    ("bags",),
    ("losses", "pseudo_labels", "optim", "augment", "checkpoints"),
    ("methods",),
    ("training", "evaluate", "pipeline", "defaults", "distributed"),
    ("selection", "conditioning", "decisions"),
    ("tabulation",),
    ("fitting",),
    ("estimator",),
    ("saving", "testing"),
    ("tables",),
    ("datasets",),
    ("experiments",),
    ("report",),
    ("cli", "__main__", "__init__"),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
RESEARCH = ("datasets", "experiments", "report")  # which the library does not import


def run(code: str) -> str:
    """What a fresh Python prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def imported_parts(path: Path) -> Iterator[str]:
    """The parts of this package that a file imports, also within functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "apportion":
            names = [f"apportion.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [str(node.module)]
        for name in names:
            parts = name.split(".")
            if parts[0] == "apportion" and len(parts) > 1:
                yield parts[1]


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("part", sorted({part_of(path) for path in FILES}))
def test_imports_go_one_way(part):
    for path in (path for path in FILES if part_of(path) == part):
        for other in imported_parts(path):
            place = f"{path.relative_to(SOURCE)} imports {other}"
            assert RANK[other] <= RANK[part], place
            if other in RESEARCH and part not in (*RESEARCH, "cli"):
                raise AssertionError(place)


def test_public_names_are_there_and_few():
    assert len(apportion.__all__) <= 18
    assert apportion.__all__ == sorted(apportion.__all__)
    assert set(dir(apportion)) == {*apportion.__all__, "__version__"}
    for name in apportion.__all__:
        found = getattr(apportion, name)
        assert getattr(importlib.import_module(found.__module__), name) is found
    with pytest.raises(AttributeError, match="no attribute 'fit'"):
        _ = apportion.fit


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, apportion; print(*{name.split('.')[0] for name in sys.modules})"
    assert not {"torch", "numpy", "sklearn", "scipy"} & set(run(code).split())


MISSING = {*(module for modules in EXTRAS.values() for module in modules), "pandas"}
MISSING -= {"jinja2", "filelock"}  # torch needs these two
BLOCK = f"""
import sys
from importlib.machinery import ModuleSpec

class Missing:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name in {MISSING} else None
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        raise ModuleNotFoundError(module.__name__, name=module.__name__)

sys.meta_path.insert(0, Missing())
"""
USE = """
import tempfile
import numpy as np
import torch
from apportion import ProportionClassifier, load, save
from apportion.transport import assign
torch.set_num_threads(1)
random = np.random.default_rng(0)
x, bags = random.normal(size=(40, 2)), np.arange(40) // 10
shares = {bag: [0.5, 0.5] if bag % 2 else [0.2, 0.8] for bag in range(4)}
model = ProportionClassifier(epochs=1, student_epochs=1, random_state=0).fit(x, bags=bags, proportions=shares)
with tempfile.TemporaryDirectory() as folder:
    save(model, folder)
    assert (load(folder).predict_proba(x) == model.predict_proba(x)).all()
print("done")
"""


def test_the_library_works_without_any_extra():
    assert run(f"{BLOCK}\n{USE}") == "done\n"


@pytest.mark.parametrize("command", ["", "fit people.csv", "--help"])
def test_the_command_without_its_extra_says_in_a_line_what_to_install(command):
    code = (
        f"{BLOCK}\nsys.argv = ['apportion', *{command.split()}]\nfrom apportion.__main__ import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "pip install 'apportion[cli]'" in done.stderr


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_examples_compile_and_import_names_that_exist(path):
    pytest.importorskip("typer")  # some stories run the command line
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("apportion"):
            module = importlib.import_module(str(node.module))
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
