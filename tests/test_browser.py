"""The pages in a real browser: numbers, legend, slider, bags, light and dark, desktop and phone."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from run_folders import SCRIPT, write_run
from test_model_page import BAGS, HOSTILE, command, spec_of, write_town_tables

from apportion.experiments.recipe import FirstStage, Network, SecondStage
from apportion.experiments.recipes import RECIPES
from apportion.experiments.run import run_with_teacher
from apportion.report.model_evidence import ModelEvidence
from apportion.report.model_page import model_page
from apportion.report.page import html_page
from apportion.saving import load

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
)  # fmt: skip
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}


def missing(what: str) -> None:
    """Without a browser these tests are skipped, but never where CI is set."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} is missing; `make browser` installs it")
    pytest.skip(f"{what} is missing; `make browser` installs it")


@pytest.fixture(scope="module")
def chromium():
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        missing("Chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright")
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    """Two moons as trained, and made-up runs whose first class is a script."""
    root = tmp_path_factory.mktemp("browser")
    moons = replace(
        RECIPES["figure2-early/dllp+plot/50"],
        network=Network("mlp", {"widths": (8,)}),
        first=FirstStage(epochs=6),
        second=SecondStage(epochs=6, warmup_epochs=2),
    )
    for _ in run_with_teacher(moons, root / "runs", "figure2-early/dllp+plot/50", device="cpu"):
        pass
    for seed in (1, 2):
        write_run(root / "runs", "digits/dllp/16", seed, epochs=30)
        write_run(root / "runs", "digits/dllp+plot/16", seed, epochs=30)
    (root / "report.html").write_text(html_page(root / "runs"), "utf-8")
    return root / "report.html"


class Visit:
    """The open page; records what it writes to the console and what it requests."""

    def __init__(self, browser, report: Path, size: str = "desktop", scheme: str = "light") -> None:
        width, height = SIZES[size]
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, offline=True
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(120_000)  # milliseconds: patience with a busy machine
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.said.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(report.as_uri())
        self.page.wait_for_selector("html[data-ready=yes]", state="attached", timeout=60_000)

    def close(self, report: Path) -> None:
        """Nothing went wrong, and nothing but the page itself was asked for."""
        assert self.said == []
        assert [url for url in self.asked if not url.startswith("data:")] == [report.as_uri()]
        self.context.close()


def test_the_page_is_read_and_used(chromium, report):
    visit = Visit(chromium, report)
    page = visit.page
    number = page.text_content('tr[data-cell="digits/dllp/16"] .mean')
    assert 89 < float(number) < 92

    assert page.locator("#best tbody tr").count() == 2
    overview = "document.querySelectorAll('#chart-overview .mark-symbol.role-mark path').length"
    assert page.evaluate(overview) == 2  # two methods at one bag size
    page.select_option("#overview-group", "figure2-early")
    size = "document.querySelector('#chart-overview .role-axis-label text').textContent"
    page.wait_for_function(f"() => {size} === '50'")

    lines = "[...document.querySelectorAll('#chart-curves .mark-line path')]"
    faint = f"() => {lines}.map(p => p.getAttribute('opacity'))"
    assert "0.08" not in page.evaluate(faint)
    page.locator("#chart-curves .role-legend-entry .role-legend-symbol path").first.click(force=True)
    page.wait_for_function(f"() => ({faint})().includes('0.08')")

    page.locator("#cells input").first.focus()
    page.keyboard.press("Space")  # by keyboard: a recipe is hidden
    page.wait_for_function("() => document.querySelectorAll('#chart-curves .mark-line path').length === 2")

    before = page.text_content("#caption-moons2")
    slider = page.locator("#chart-moons input[type=range]")
    slider.focus()
    page.keyboard.press("Home")
    page.wait_for_function(
        "before => document.getElementById('caption-moons2').textContent !== before", arg=before
    )
    assert "epoch 1:" in page.text_content("#caption-moons2")
    visit.close(report)


def test_a_bag_is_picked_and_its_labels_follow(chromium, report):
    visit = Visit(chromium, report)
    page = visit.page
    page.select_option("#run", "digits/dllp+plot/16/seed=1")
    page.wait_for_function(
        "() => document.getElementById('bag').selectedOptions[0].textContent.startsWith('<script>')"
    )
    tiles = page.locator("#tiles").inner_text()
    page.select_option("#bag", "3")
    page.wait_for_function("tiles => document.getElementById('tiles').innerText !== tiles", arg=tiles)
    assert page.locator("#tiles .tile").count() == 16
    page.locator("#epoch").focus()
    page.keyboard.press("Home")
    page.wait_for_function("() => document.getElementById('epoch-now').textContent === '1'")
    assert page.locator("#chart-history .role-mark.mark-text text").count() == 16 * 20
    page.click("#copy")
    page.wait_for_function("() => document.getElementById('copied').textContent !== ''")
    assert page.text_content("#command").startswith("apportion run digits/dllp+plot/16 --seeds 1")
    visit.close(report)


def test_the_points_of_one_run_are_gone_when_another_has_none(chromium, report):
    visit = Visit(chromium, report)
    page = visit.page
    shown = "() => getComputedStyle(document.getElementById('chart-points')).display"
    page.select_option("#run", "figure2-early/dllp/50/seed=1")
    page.wait_for_function("() => document.querySelector('#chart-points svg')")
    assert page.evaluate(shown) != "none"
    assert page.text_content("#caption-shares").endswith(": known, predicted.")  # a first stage has no labels
    page.select_option("#run", "digits/dllp+plot/16/seed=1")
    page.wait_for_function("() => document.querySelector('#tiles .tile')")
    assert page.evaluate(shown) == "none"
    assert page.text_content("#caption-shares").endswith(": known, transport labels, predicted.")
    page.wait_for_function(
        "() => [...document.querySelectorAll('#chart-history .role-mark.mark-text text')]"
        ".some(text => text.textContent.startsWith('class 1'))"  # and not 'cla', as every class begins
    )
    visit.close(report)


def test_a_class_named_script_is_text(chromium, report):
    visit = Visit(chromium, report)
    visit.page.select_option("#run", "digits/dllp/16/seed=2")
    visit.page.wait_for_function("() => document.getElementById('command').textContent.includes('--seeds 2')")
    assert SCRIPT in visit.page.text_content("#where")
    assert SCRIPT[:8] in visit.page.text_content("#chart-classes")
    assert visit.page.evaluate("document.querySelectorAll('script').length") == 3
    visit.close(report)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_the_page_fits_and_is_readable_in_light_and_dark(chromium, report, tmp_path, size, scheme):
    visit = Visit(chromium, report, size, scheme)
    page = visit.page
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
    ink = page.evaluate(
        "() => { const s = getComputedStyle(document.body); return [s.color, s.backgroundColor, "
        "document.querySelector('#chart-curves .role-axis-label text').getAttribute('fill')]; }"
    )
    bright = [sum(int(part) for part in text[4:-1].split(",")) > 384 for text in ink[:2]]
    assert bright == ([False, True] if scheme == "light" else [True, False])
    assert ink[2] == ("#1a1d21" if scheme == "light" else "#e8eaed")
    page.screenshot(path=tmp_path / f"{size}-{scheme}.png", full_page=True)
    assert (tmp_path / f"{size}-{scheme}.png").stat().st_size > 20_000
    visit.close(report)


def test_every_control_is_reached_by_tab_and_has_a_name(chromium, report):
    visit = Visit(chromium, report)
    page = visit.page
    controls = page.evaluate(
        "() => [...document.querySelectorAll('select, input, button')].filter(e => e.offsetParent &&"
        " !e.labels?.length && !e.textContent.trim()).map(e => e.id || e.name)"
    )
    assert controls == []
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.type || ''"))
    assert {"group", "quantity", "run", "bag", "epoch", "copy", "checkbox", "range"} <= reached
    visit.close(report)


# --- the page of a model


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """The page of an mlp with bags that were held out; a column and a class have names that are code."""
    folder = tmp_path_factory.mktemp("model")
    write_town_tables(folder, column=HOSTILE, classes=(HOSTILE, "right"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        command("fit", "people.csv", *BAGS, "--model", "mlp", "--epochs", "12", "--drop", "county",
                "--validation-fraction", "0.3", "--out", "model")  # fmt: skip
        classifier = load("model")
        by = [["race"], ["county", "race"]]
        evidence = ModelEvidence(classifier, Path("people.csv"), spec_of(), by=by, replicates=2)
        for _ in evidence.collect():
            pass
        Path("page.html").write_text(model_page(Path("model"), classifier, evidence), "utf-8")
        Path("plain.html").write_text(model_page(Path("model"), classifier), "utf-8")
    return folder / "page.html"


CHARTS = {  # and the marks that each has at least
    "shares": 4, "groups-0": 4, "groups-1": 16, "bags": 80, "calibration": 8, "importance": 3, "losses": 1,
}  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_the_charts_of_a_model_draw_without_network_and_its_page_fits(chromium, model, size, scheme):
    visit = Visit(chromium, model, size, scheme)
    for name, marks in CHARTS.items():
        drawn = visit.page.locator(f"#chart-{name} .role-mark path, #chart-{name} .role-mark line").count()
        assert drawn >= marks, name
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
    assert visit.page.evaluate("document.querySelectorAll('script').length") == 3
    assert visit.page.evaluate("document.querySelectorAll('img').length") == 0
    assert HOSTILE[:28] in visit.page.text_content("#columns")
    visit.close(model)


def test_a_class_of_a_model_is_picked_and_a_bag_is_named(chromium, model):
    visit = Visit(chromium, model)
    page = visit.page
    marks = "document.querySelectorAll('#chart-bags .mark-symbol.role-mark path').length"
    assert page.evaluate(marks) == 80  # forty towns, two classes
    page.select_option("#class", "1")
    page.wait_for_function(f"() => {marks} === 40")
    page.locator("#chart-bags .mark-symbol.role-mark path").last.hover(force=True)
    page.wait_for_selector("#vg-tooltip-element.visible")
    assert "right" in page.text_content("#vg-tooltip-element")
    names = page.locator("#worst tbody th").all_text_contents()
    assert set(names) <= {f"t{i}" for i in range(40)}
    page.select_option("#quantity", index=1)
    visit.close(model)


def test_a_model_without_a_table_has_a_page_with_what_is_known(chromium, model):
    plain = model.with_name("plain.html")
    visit = Visit(chromium, plain, "phone")
    assert visit.page.text_content("#verdict") == "Not judged yet"
    assert visit.page.text_content("#command").startswith("apportion report model people.csv --bag town")
    assert visit.page.locator("#chart-shares .role-mark path").count() >= 4
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= SIZES["phone"][0]
    visit.close(plain)
