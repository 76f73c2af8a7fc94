"""The README's Python blocks are run as they stand."""

import re
from pathlib import Path
from typing import Any

import torch

README = Path(__file__).parents[1] / "README.md"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def run(*codes: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for code in codes:
        exec(compile(code, str(README), "exec"), names)  # noqa: S102
    return names


def test_the_readmes_estimator_finds_the_secret_votes(capsys):
    names = run(blocks()[0])
    truth = names["classifier"].classes_[names["secret"]]
    assert (names["vote"] == truth).mean() > 0.99
    assert capsys.readouterr().out.startswith("['")


def test_the_readmes_stages_find_the_secret_votes(capsys):
    estimator, stages = blocks()
    data = estimator.split("classifier = ")[0]  # the estimator need not be trained again
    names = run(data, stages)
    secret = torch.from_numpy(names["secret"])[names["bags"].source]
    assert (names["vote"] == secret).float().mean() > 0.99
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("first 1 {'proportion':")
    assert lines[-1].startswith("second 40 {'labels':")


def test_the_readmes_files_exist():
    text = README.read_text()
    linked = set(re.findall(r"\]\((?!https?:)([^)#]+)\)", text))
    assert [name for name in sorted(linked) if not (README.parent / name).exists()] == []


def test_the_readmes_tree_names_every_module_and_no_other():
    house = README.parent / "src" / "apportion"
    found = {path.name for path in house.glob("*.py") if not path.name.startswith("__")}
    found |= {f"{path.name}/" for path in house.iterdir() if (path / "__init__.py").exists()}
    tree = README.read_text().split("## The tree")[1].split("## ")[0]
    named = set(re.findall(r"│   [├└]── (\S+)", tree))
    assert named == found


def test_the_readmes_tables_are_rows_of_the_results_under_the_same_heads():
    results = (README.parent / "docs" / "results.md").read_text()
    tables = re.findall(r"(?:^\|.*\n)+", README.read_text().split("## Results")[1].split("\n## ")[0], re.M)
    assert len(tables) == 5
    for table in tables:
        head, _, *rows = table.splitlines()
        homes = [home for home in re.findall(r"(?:^\|.*\n)+", results, re.M) if home.startswith(head)]
        assert any(set(rows) <= set(home.splitlines()) for home in homes)


def test_what_the_readme_says_of_two_views_on_cifar_100_is_in_the_results():
    results = (README.parent / "docs" / "results.md").read_text()
    table = results.split("## Beyond the paper: two views, CIFAR-100")[1].split("\n## ")[0]
    (row,) = [line for line in table.splitlines() if line.startswith("| two views, ResNet-9 |")]
    said = re.search(r"with ResNet-9 has ([\d.]+) at bags of 16 and ([\d.]+) at 64\.", README.read_text())
    assert re.findall(r"\*\*([\d.]+) \(", row) == list(said.groups())
    assert "| bags of 16 | bags of 64 |" in table


def test_what_the_readme_says_of_muon_is_in_the_results():
    results = (README.parent / "docs" / "results.md").read_text()
    adam, muon = results.split("## Table 1: ")[1].split("\n## ")[0].split("With Muon")
    told = README.read_text().split("CIFAR-10 by Muon has")[1].split("\n\n")[0]
    pairs = re.findall(r"([\d.]+)(?:\s+at \d+)? with [\w-]+(?: after it)? \(([\d.]+)", told)
    assert len(pairs) == 3
    for by_muon, by_adam in pairs:
        assert f"**{by_muon} (" in muon
        assert f"**{by_adam} (" in adam
    said = re.search(r"takes (\d+) seconds at bags of 16 and (\d+) at 128", README.read_text())
    for size, seconds in zip((16, 128), said.groups(), strict=True):
        assert re.search(rf"`table2-muon/dllp/{size}` \|.*\| {seconds} \| 0 \|", results)


def test_what_the_method_page_says_of_two_views_is_in_the_results():
    results = (README.parent / "docs" / "results.md").read_text()
    cifar_10 = results.split("two views, CIFAR-10\n")[1].split("\n## ")[0]
    rows = {line.split(" | ")[0].strip("| "): line for line in cifar_10.splitlines()}
    page = (README.parent / "docs" / "methods" / "two-views.md").read_text()
    told = {line.split(" | ")[0].strip("| "): line for line in page.splitlines() if " s |" in line}
    assert len(told) == 9
    for name, line in told.items():
        for number, seconds in re.findall(r"([\d.]+), (\d+) s", line):
            assert re.search(rf"\*\*{number} \([^)]*\)\*\*, {seconds} s", rows[name])
