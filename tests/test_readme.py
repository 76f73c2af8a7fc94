"""The README's first Python block is run as it stands."""

import re
from pathlib import Path
from typing import Any

import torch

README = Path(__file__).parents[1] / "README.md"


def first_block() -> str:
    found = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def test_the_readmes_code_finds_the_secret_votes(capsys):
    names: dict[str, Any] = {}
    exec(compile(first_block(), str(README), "exec"), names)
    secret = torch.from_numpy(names["secret"])[names["bags"].source]
    assert (names["vote"] == secret).float().mean() > 0.99
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("first 1 {'proportion':")
    assert lines[-1].startswith("second 40 {'labels':")


def test_the_readmes_files_exist():
    text = README.read_text()
    later = {"docs/images/moons.png", "docs/results.md"}  # made by the demo and by the report
    linked = set(re.findall(r"\]\((?!https?:)([^)#]+)\)", text)) - later
    assert [name for name in sorted(linked) if not (README.parent / name).exists()] == []


def test_the_readmes_tree_names_every_module_and_no_other():
    house = README.parent / "src" / "apportion"
    found = {path.name for path in house.glob("*.py") if not path.name.startswith("__")}
    found |= {f"{path.name}/" for path in house.iterdir() if (path / "__init__.py").exists()}
    tree = README.read_text().split("## The tree")[1].split("## ")[0]
    named = set(re.findall(r"│   [├└]── (\S+)", tree))
    assert named == found
