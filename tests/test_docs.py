"""The documentation agrees with the code: what it shows runs, parses, exists and leads somewhere."""

import ast
import importlib
import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HISTORY = [ROOT / "docs" / "log.md", *(ROOT / "docs" / "decisions").glob("*.md")]  # may name what is gone
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")})
CURRENT = [page for page in PAGES if page not in HISTORY and page.name != "CHANGELOG.md"]
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path) -> list[tuple[str, str]]:
    """Fenced blocks as (language, text), without the indentation of tabs."""
    found = []
    for indent, language, text in FENCE.findall(read(page)):
        found.append((language, "\n".join(line.removeprefix(indent) for line in text.splitlines())))
    return found


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


# --- code


def test_the_readme_prints_what_it_says(capsys):
    shown = blocks(ROOT / "README.md")
    first = [language for language, _ in shown].index("python")
    names: dict[str, object] = {}
    for i, (language, code) in enumerate(shown):
        if language != "python":
            continue
        exec(compile(code, "README.md", "exec"), names)  # noqa: S102
        if i == first:
            assert capsys.readouterr().out.strip() == shown[first + 1][1].strip()


@pytest.mark.parametrize("page", CURRENT, ids=name_of)
def test_python_in_pages_imports_what_exists(page):
    for language, code in blocks(page):
        if language != "python":
            continue
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "apportion":
                for alias in node.names:
                    assert exists(f"{node.module}.{alias.name}"), f"{node.module}.{alias.name}"


def exists(path: str) -> bool:
    """Whether a dotted path is a module, or an attribute of one."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        return True
    return False


def test_every_entry_of_the_api_reference_exists_and_stands_once():
    names = re.findall(r"^::: (\S+)$", read(ROOT / "docs" / "api.md"), re.MULTILINE)
    assert len(names) > 40
    assert [name for name in names if not exists(name)] == []
    assert len(set(names)) == len(names)


def test_the_api_reference_has_every_public_name():
    import apportion

    listed = read(ROOT / "docs" / "api.md")
    assert [name for name in apportion.__all__ if f"::: apportion.{name}\n" not in listed] == []


# --- commands


def commands(page: Path) -> list[list[str]]:
    """The arguments of every `apportion` command line in the fenced blocks of a page."""
    found = []
    for language, text in blocks(page):
        if language not in ("", "sh", "bash"):
            continue
        for line in text.replace("\\\n", " ").splitlines():
            command = re.match(
                r"(?:\$ )?(?:\S*/)?(?:apportion|(?:torchrun|python) .*-m apportion) (.*)", line.strip()
            )
            if command:
                arguments, _, _ = command[1].partition(" > ")  # a file that the shell writes
                found.append(shlex.split(arguments, comments=True))
    return found


@pytest.mark.parametrize("page", [page for page in CURRENT if commands(page)], ids=name_of)
def test_command_lines_in_pages_parse(page):
    typer = pytest.importorskip("typer")
    from apportion.cli.app import app

    group = typer.main.get_command(app)
    for words in commands(page):
        command = group.get_command(None, words[0])
        assert command is not None, words
        command.make_context(words[0], words[1:])  # raises UsageError for unknown options and missing ones


# --- links


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as the site and GitHub make them."""
    text = FENCE.sub("", read(page))
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    titles = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles]
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", title).strip()) for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", read(page))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and there.suffix == ".md" and anchor not in anchors(there)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", CURRENT, ids=name_of)
def test_scripts_and_tests_in_pages_exist(page):
    files = set(re.findall(r"\b(?:benchmarks|examples|tests)/[a-z_]+\.py", read(page)))
    assert [name for name in sorted(files) if not (ROOT / name).exists()] == []


def test_links_to_the_repository_name_files_that_exist():
    pattern = r"https://github\.com/apportion/apportion/(?:blob|tree)/main/([^)\s#]+)"
    files = {name for page in CURRENT for name in re.findall(pattern, read(page))}
    assert [name for name in sorted(files) if not (ROOT / name).exists()] == []


def test_the_menu_has_every_page():
    menu = read(ROOT / "mkdocs.yml").split("\nnav:")[1]
    pages = {str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/**/*.md")}
    listed = set(re.findall(r"[\w/-]+\.md", menu))
    assert listed <= pages
    assert {page for page in pages - listed if not page.startswith("decisions/")} == set()
