"""The house: imports go one way, rooms stay small, learners know no labels, public names are there."""

import ast
import importlib
import re
from collections.abc import Iterable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import apportion

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "apportion"
FILES = sorted(SOURCE.rglob("*.py"))
KERNELS = {"transport/exact.py", "transport/newton.py"}  # compiled, each in one file for numba; read last
READING = (
    "pipeline", "bags", "losses", "first_stage/dllp", "transport/__init__", "labelling", "second_stage",
    "train",
)  # fmt: skip
LEARNERS = {
    "bags",
    "losses",
    "labelling",
    "learner",
    "first_stage",
    "second_stage",
    "train",
    "pipeline",
    "transport",
}


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imported(path: Path) -> Iterator[str]:
    """The modules of apportion that a file imports, wherever the import stands."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "apportion")
        elif isinstance(node, ast.ImportFrom) and node.module == "apportion":
            yield from (f"apportion.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("apportion."):
            yield node.module


def imported_modules(path: Path, known: Iterable[str]) -> Iterator[str]:
    """The same, module by module: a name from a folder is its module of that name, if there is one."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            parts = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (part if part in known else node.module for part in parts)


def rooms_imported(path: Path) -> set[str]:
    return {module.split(".")[1] for module in imported(path) if "." in module} - {room_of(path)}


def rows() -> dict[str, int]:
    """The row of every room, from the table of the design."""
    text = (ROOT / "docs" / "design.md").read_text().split("| row | rooms |")[1].split("\n\n")[0]
    lines = re.findall(r"^\| (\d+) \| (.*) \|$", text, re.MULTILINE)
    return {room: int(number) for number, rooms in lines for room in re.findall(r"`(\w+)`", rooms)}


# --- imports


def test_every_room_has_its_row_in_the_design():
    rooms = {room_of(path) for path in FILES} - {"__init__", "__main__"}
    assert set(rows()) == rooms


@pytest.mark.parametrize("path", [p for p in FILES if room_of(p)[:2] != "__"], ids=name_of)
def test_imports_go_one_way(path):
    row = rows()
    for room in rooms_imported(path):
        assert row[room] < row[room_of(path)], f"{name_of(path)} may not import {room}"


def test_a_room_stands_in_the_first_row_that_its_imports_allow():
    row = rows()
    needed = {
        room: max(
            (row[r] for path in FILES if room_of(path) == room for r in rooms_imported(path)), default=0
        )
        + 1
        for room in row
    }
    assert {room: row[room] for room in row} == needed


def test_no_two_modules_import_each_other_inside_a_room_either():
    modules = {
        ".".join(("apportion", *path.relative_to(SOURCE).with_suffix("").parts)): path for path in FILES
    }
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    graph = {
        name: {other for other in imported_modules(path, modules) if other not in (name, "apportion")}
        for name, path in modules.items()
        if name != "apportion"
    }
    assert len(list(TopologicalSorter(graph).static_order())) == len(graph)  # a circle raises CycleError


def test_settings_and_folders_stop_at_the_door():
    for path in FILES:
        if room_of(path) in LEARNERS | {"evaluate", "backbones", "schedules", "bagging", "intake"}:
            assert not rooms_imported(path) & {"recipes", "grid", "runs", "experiment", "data"}, name_of(path)


def test_imports_are_absolute():
    relative = [
        name_of(path)
        for path in FILES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []


# --- honesty


@pytest.mark.parametrize("path", [p for p in FILES if room_of(p) in LEARNERS], ids=name_of)
def test_what_learns_does_not_know_of_hidden_labels(path):
    words = {node.attr for node in ast.walk(tree_of(path)) if isinstance(node, ast.Attribute)}
    words |= {node.id for node in ast.walk(tree_of(path)) if isinstance(node, ast.Name)}
    words |= {node.arg for node in ast.walk(tree_of(path)) if isinstance(node, ast.arg)}
    assert not words & {"hidden", "test_x", "test_y", "y"}


# --- size and shape


def test_a_core_file_has_at_most_150_lines():
    long = {
        name_of(path): len(path.read_text().splitlines()) for path in FILES if name_of(path) not in KERNELS
    }
    assert {name: lines for name, lines in long.items() if lines > 150} == {}


def test_the_body_of_a_function_has_at_most_40_lines():
    long = {}
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef) and name_of(path) not in KERNELS:
                lines = (node.body[-1].end_lineno or 0) - node.body[0].lineno + 1
                if lines > 40:
                    long[f"{name_of(path)}:{node.name}"] = lines
    assert long == {}


def test_a_newcomer_reads_at_most_600_lines():
    texts = [(SOURCE / f"{name}.py").read_text() for name in READING]
    assert sum(len(text.splitlines()) for text in texts) <= 600


def test_every_module_opens_by_saying_what_it_is():
    silent = [name_of(path) for path in FILES if not (ast.get_docstring(tree_of(path)) or "").strip()]
    assert silent == []


def calls(path: Path) -> Iterator[str]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


def test_only_the_command_line_prints():
    assert [name_of(path) for path in FILES if room_of(path) != "cli" and "print" in calls(path)] == []


def test_nothing_asks_whether_an_attribute_is_there():
    assert [name_of(path) for path in FILES if "hasattr" in calls(path)] == []


def test_nothing_hides_a_number_that_is_not_one():
    hiding = re.compile(r"nan_to_num|nansum|nanmean|warnings\.warn|except Exception|except:")
    assert [name_of(path) for path in FILES if hiding.search(path.read_text())] == []


def test_dataclasses_are_frozen():
    loose, filled_later = [], {"_Asked"}  # a pickle's objects get their state after they are made
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                marks = [ast.unparse(mark) for mark in node.decorator_list]
                loose += [
                    node.name for mark in marks if mark.startswith("dataclass") and "frozen=True" not in mark
                ]
    assert set(loose) - filled_later == set()


# --- the public names


def test_every_public_name_can_be_imported_and_is_its_modules_own():
    assert list(apportion.__all__) == sorted(apportion.__all__)
    for home, names in apportion._HOMES.items():
        for name in names:
            assert getattr(apportion, name) is getattr(importlib.import_module(f"apportion.{home}"), name)
    assert sorted(apportion._HOME) == sorted(apportion.__all__)


def test_what_type_checkers_see_is_what_is_there():
    block = next(node for node in tree_of(SOURCE / "__init__.py").body if isinstance(node, ast.If))
    seen = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == {name: f"apportion.{home}" for name, home in apportion._HOME.items()}


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'apportion' has no attribute 'nonsense'"):
        apportion.nonsense  # noqa: B018


def test_the_package_shows_its_public_names_and_no_helper():
    assert dir(apportion) == sorted([*apportion.__all__, "__version__"])
    assert not {name for name in vars(apportion) if name in ("import_module", "Any")}
