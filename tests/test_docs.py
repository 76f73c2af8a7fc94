"""The documentation site: every page is in its menu, every name of the API is there."""

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NAMES = re.findall(r"^::: (\S+)$", (DOCS / "api.md").read_text(), re.MULTILINE)


def test_the_menu_has_every_page_and_no_other():
    menu = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {
        path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if path.parent.name != "decisions"
    }
    assert menu == pages


def test_links_between_pages_lead_somewhere():
    dead = []
    for page in DOCS.rglob("*.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text()):
            if not (page.parent / target).exists():
                dead.append(f"{page.name}: {target}")
    assert dead == []


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_the_api_is_there(name):
    if name.startswith(("apportion.tables", "apportion.tabular")):
        pytest.importorskip("polars")
    parts = name.split(".")
    for i in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:i]))
        except ModuleNotFoundError:
            continue
        for part in parts[i:]:
            found = getattr(found, part)
        return
    pytest.fail(f"{name} is nowhere")


def test_the_api_has_every_public_name():
    import apportion

    shown = {name.rsplit(".", 1)[1] for name in NAMES} | {"hard_labels", "soft_labels", "predicted_labels"}
    assert set(apportion.__all__) - shown == {"make_optimizer"}  # a helper of the README's example
