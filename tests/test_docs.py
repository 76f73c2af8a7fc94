"""The documentation site: every page is in its menu, every name of the API is there."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
from typer.main import get_command

from apportion.cli import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LABELLERS = {"hard_labels", "soft_labels", "predicted_labels", "argmax_labels"}  # of one entry
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

    shown = {name.rsplit(".", 1)[1] for name in NAMES} | LABELLERS
    assert set(apportion.__all__) - shown == {"make_optimizer"}  # a helper of the README's example


def commands() -> list[str]:
    """The lines of fenced blocks that begin with apportion, those that go on after a backslash as one."""
    found = set()
    for page in (ROOT / "README.md", *DOCS.rglob("*.md")):
        for block in re.findall(r"^ *```\w*\n(.*?)^ *```", page.read_text(), re.MULTILINE | re.DOTALL):
            lines = block.replace("\\\n", " ").splitlines()
            found |= {line.strip() for line in lines if re.match(r" *apportion [a-z-]", line)}
    return sorted(found)


@pytest.mark.parametrize("line", commands())
def test_a_command_of_the_pages_has_the_words_that_the_command_line_takes(line):
    words, command = shlex.split(line, comments=True)[1:], get_command(app)
    while hasattr(command, "commands"):
        name, *words = words
        command = command.commands[name]
    with command.make_context("apportion", words) as context:
        assert context.args == []


def test_the_pages_have_commands():
    assert len(commands()) > 20
