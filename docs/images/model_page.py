"""Draws model-page.png and model-page-bags.png: a simulated election and the page of its model in Chromium.

python docs/images/model_page.py: some minutes on one core; needs the extras cli, report and browser.
"""

import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import polars as pl
from PIL import Image
from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "benchmarks"))
from tabulation import simulate  # noqa: E402

BAGS = ["--bag", "precinct", "--counts", "results.csv"]


def write_election() -> None:
    """Voters and the results of their precincts, in the working folder."""
    voters, vote = simulate(seed=3, effect=0.3)
    voters = voters.rename({"age group": "age_group"}).with_columns(
        pl.col("age").round(0), pl.format("precinct {}", pl.col("precinct") + 1).alias("precinct")
    )
    voters.write_csv("voters.csv")
    counts = [(pl.col("vote") == name).sum().alias(name) for name in ("left", "right", "none")]
    results = voters.with_columns(vote=pl.Series(vote)).group_by("precinct", maintain_order=True).agg(counts)
    results.write_csv("results.csv")


def apportion(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "apportion", *words], check=True)  # noqa: S603


def save(page: Page, name: str, top: float, bottom: float) -> None:
    """A part of the page."""
    width = page.viewport_size["width"]
    clip = {"x": 0, "y": top, "width": width, "height": bottom - top}
    image = Image.open(io.BytesIO(page.screenshot(full_page=True, clip=clip)))
    image.convert("RGB").save(HERE / name, optimize=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_election()
        apportion("fit", "voters.csv", *BAGS, "--drop", "county,age_group", "--out", "model")
        by = ["--by", "race", "--by", "county,age_group"]
        apportion("report", "model", "voters.csv", *BAGS, *by, "--html", "page.html")
        with sync_playwright() as started:
            path = shutil.which("chromium") or shutil.which("google-chrome")
            browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1000, "height": 900}, color_scheme="light")
            page.goto(Path("page.html").resolve().as_uri())
            page.wait_for_selector("html[data-ready=yes]", state="attached")
            where = "name => document.querySelector(name).getBoundingClientRect().top + window.scrollY"
            save(page, "model-page.png", 0, page.evaluate(where, "#tables details tbody tr:nth-child(5)"))
            start = page.evaluate(where, "#bags-title")
            end = page.evaluate(where, "#worst tbody tr:nth-child(9)")
            save(page, "model-page-bags.png", start - 10, end)
            browser.close()
        os.chdir(HERE)


if __name__ == "__main__":
    main()
