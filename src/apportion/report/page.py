"""One self-contained HTML page about the runs below a folder, with charts, bags and settings.

The page opens from the disk and loads nothing. All text from run folders is escaped, or goes into it as JSON.
"""

import base64
import io
import json
import os
import shlex
import statistics
from contextlib import suppress
from functools import cache
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from apportion._writing import atomic_write
from apportion.datasets import depends_on_seed
from apportion.errors import DataError, RunError, SettingsError
from apportion.experiments.data import load_instances
from apportion.experiments.extensions import NAME
from apportion.experiments.provenance import imported_modules
from apportion.experiments.recipe import Recipe, from_json, to_json
from apportion.experiments.recipes import RECIPES
from apportion.experiments.run_folder import read_log, read_recipe, read_where
from apportion.experiments.sample import Sample, read_sample
from apportion.report.tables import (
    MARKS,
    Cell,
    Cells,
    collect,
    groups_of,
    log_curves,
    provenance_marks,
    time_by_part,
)

if TYPE_CHECKING:
    from apportion.datasets import Instances

TEMPLATE = resources.files("apportion.report") / "template"
SAMPLE_BYTES = 4_000_000  # of samples in a page; runs beyond them are shown with their curves only
SPRITE_BYTES = 3_000_000  # of thumbnails in a page; the first runs get theirs
SPRITE_COLUMNS = 24
TILES = 16  # thumbnails per bag


def html_page(root: Path, data: Path | None = None, thumbnails: bool = True) -> str:
    """The text of the page. Thumbnails are drawn if the data set of a run is found (in the folder `data`)."""
    cells = collect(root)
    if not cells:
        raise RunError(f"there is no finished run below {root}; pass the folder that holds the runs")
    contents = page_contents(cells, Pictures(data, thumbnails))
    return render_page("page", root.name, contents)


def render_page(name: str, title: str, contents: dict[str, Any]) -> str:
    """A page from template/NAME.html, NAME.js and NAME.json, which has its charts."""
    try:
        from jinja2 import Environment
        from markupsafe import Markup
    except ImportError:
        raise RunError("the page needs jinja2; pip install 'apportion[report]'") from None
    charts = json.loads((TEMPLATE / f"{name}.json").read_text("utf-8"))
    shared = {"data": {"name": "rows"}, "width": "container"}
    contents = contents | {"charts": {name: shared | chart for name, chart in charts.items()}}
    script = "\n".join((TEMPLATE / file).read_text("utf-8") for file in ("charts.js", f"{name}.js"))
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((TEMPLATE / f"{name}.html").read_text("utf-8"))
    # Markup: our own text, which must not be escaped
    return template.render(
        title=title,
        contents=contents,
        style=Markup((TEMPLATE / "page.css").read_text("utf-8")),  # noqa: S704
        vega=Markup(vega_script()),  # noqa: S704
        script=Markup(script),  # noqa: S704
        data=Markup(script_json(contents)),  # noqa: S704
    )


def script_json(values: Any) -> str:
    """JSON for a script element, which no text in it can end."""
    text = json.dumps(values, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def vega_script() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script. Bundling takes seconds, so it is cached by version."""
    try:
        import vl_convert
    except ImportError:
        raise RunError("the charts of the page need vl-convert; pip install 'apportion[report]'") from None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "apportion"
    path = cache / f"vega-{version('vl-convert-python')}.js"
    with suppress(OSError):
        if path.stat().st_size:
            return path.read_text("utf-8")
    script = vl_convert.javascript_bundle()  # type: ignore[missing-argument]  # its stub lacks the default
    with suppress(RunError):  # without a cache it only takes longer
        atomic_write(path, script.encode(), error=RunError)
    return script


# --- contents


def page_contents(cells: Cells, pictures: "Pictures") -> dict[str, Any]:
    """Everything that the page shows, as JSON values."""
    runs = []
    room = SAMPLE_BYTES
    for cell in cells.values():
        for folder, result in zip(cell.folders, cell.results, strict=True):
            run = run_contents(cell.name, folder, result)
            if (folder / "sample.npz").exists():
                sample = read_sample(folder)
                run["time"] = time_by_part(result["seconds"], read_log(folder), sample)
                packed = pack_sample(sample)
                room -= len(json.dumps(packed))
                if room >= 0:
                    run["sample"] = packed
                    run["picture"] = pictures.key_for(folder, sample)
            runs.append(run)
    marks: dict[str, str] = {}
    for group in groups_of(cells):
        marks |= provenance_marks(cells, group)
    rows = [cell_contents(cell) | {"marks": marks.get(cell.name, "")} for cell in cells.values()]
    groups = group_contents(rows)
    return {
        "summary": summary(groups, len(runs)),
        "groups": groups,
        "cells": rows,
        "legend": [text for mark, text in MARKS.items() if any(mark in each for each in marks.values())],
        "runs": runs,
        "sprites": pictures.sprites,
        "points": pictures.points,
    }


def cell_contents(cell: Cell) -> dict[str, Any]:
    """One row of the table of results."""
    values = cell.accuracies()
    return {
        "name": cell.name,
        "group": cell.name.split("/")[0],
        "method": cell.title(),
        "size": cell.size(),
        "seeds": ", ".join(folder.name.removeprefix("seed=") for folder in cell.folders),
        "mean": statistics.fmean(values),
        "deviation": cell.deviation(),
        "oracle": cell.mean("test_accuracy", "oracle"),
        "seconds": cell.seconds(),
    }


def group_contents(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The groups of recipes, each with its most accurate recipe; the largest group first."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    found = []
    for name, members in groups.items():
        best = max(members, key=lambda row: row["mean"])
        found.append({"name": name, "recipes": len(members), "best": best["name"], "mean": best["mean"]})
    return sorted(found, key=lambda group: -group["recipes"])


def summary(groups: list[dict[str, Any]], n_runs: int) -> str:
    """One or two sentences about all results."""
    n_recipes = sum(group["recipes"] for group in groups)

    def count(n: int, noun: str) -> str:
        return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"

    text = f"{count(n_runs, 'run')} of {count(n_recipes, 'recipe')} in {count(len(groups), 'group')}."
    if len(groups) == 1:
        return f"{text} The most accurate is {groups[0]['best']}, with {groups[0]['mean']:.2f} %."
    return text


def run_contents(cell: str, folder: Path, result: dict[str, Any]) -> dict[str, Any]:
    log = read_log(folder)
    recipe = read_recipe(folder)
    return {
        "name": f"{cell}/{folder.name}",
        "cell": cell,
        "group": cell.split("/")[0],
        "last": result["test_accuracy"]["last"],
        "epochs": [line["epoch"] for line in log],
        "curves": log_curves(log),
        "time": time_by_part(result["seconds"], log, None),
        "recipe": _printable_numbers(recipe),
        "where": _printable_numbers(read_where(folder)),
        "command": run_command(cell, recipe, read_where(folder)),
        "confusion": sparse_confusion(result["confusion"]) if result.get("confusion") else None,
    }


def _printable_numbers(value: Any) -> Any:
    """The value with text in place of numbers that JavaScript would round."""
    if isinstance(value, dict):
        return {name: _printable_numbers(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_printable_numbers(inner) for inner in value]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number and not abs(value) < 1 << 53 else value


def sparse_confusion(matrix: list[list[int]]) -> dict[str, Any]:
    """All of a small confusion matrix; of a large one the diagonal and the most frequent confusions."""
    if len(matrix) <= 12:
        return {"full": matrix}
    counts = np.array(matrix)
    others = counts.copy()
    np.fill_diagonal(others, 0)
    largest = np.argsort(-others, axis=None, kind="stable")[:150]
    pairs = [
        (int(i), int(j), int(others[i, j]))
        for i, j in zip(*np.unravel_index(largest, others.shape), strict=True)
    ]
    return {
        "right": counts.diagonal().tolist(),
        "of": counts.sum(1).tolist(),
        "pairs": [pair for pair in pairs if pair[2]],
    }


def run_command(name: str, recipe: dict[str, Any], where: dict[str, Any] | None = None) -> str:
    """`apportion run …` with every setting that differs from a named recipe, and the modules that are needed.

    That recipe is the one that the run is named after, or else the one with the fewest differences.
    """
    group, _, rest = name.partition("/")
    own = f"{group.partition(',')[0]}/{rest}"  # of `changed_name`
    settings = _flat_settings(recipe)
    is_single = recipe.get("second") is None
    bases = {base: named for base, named in named_settings().items() if ("second" in named) == is_single}
    # of two that are equally near, one whose name is that of its method
    nearest = min(bases, key=lambda each: (len(_changes(bases[each], settings)), "supervised" in each))
    base = own if own in bases else nearest
    changes = _changes(bases[base], settings)
    seed = changes.pop("seed", recipe.get("seed", 1))
    words = ["apportion", "run", base, "--seeds", str(seed)]
    if base != name and NAME.fullmatch(name):
        words += ["--name", name]
    for module in imported_modules(where or {}):
        words += ["--import", module]
    for path, value in changes.items():
        words += ["--set", f"{path}={value if isinstance(value, str) else json.dumps(value)}"]
    return shlex.join(words)


@cache
def named_settings() -> dict[str, dict[str, Any]]:
    """The settings by path of every named recipe. Without a second stage, `second` is a setting: None."""
    return {name: _flat_settings(json.loads(to_json(recipe))) for name, recipe in RECIPES.items()}


def _changes(named: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    return {path: value for path, value in settings.items() if named.get(path, ...) != value}


def _flat_settings(values: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Settings by path. Options stay tables, since they are set as a whole."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict) and name != "options":
            flat |= _flat_settings(value, f"{path}{name}.")
        else:
            flat[f"{path}{name}"] = value
    return flat


# --- samples


def pack_sample(sample: Sample) -> dict[str, Any]:
    """A sample as the script of the page reads it."""
    bags = zip(sample.info["names"], sample.size, sample.bag_classes, sample.known, strict=True)
    epochs = []
    for i, number in enumerate(sample.epoch.tolist()):
        line = {
            "epoch": number,
            "shares": pack_integers(sample.predicted_share[i]),
            "predicted": pack_integers(sample.predicted[i]),
        }
        if sample.labels is not None:
            line["labels"] = pack_integers(sample.labels[i])
        if sample.regions is not None:
            line["regions"] = pack_integers(sample.regions[i])
        epochs.append(line)
    packed: dict[str, Any] = {
        "classes": sample.info["classes"],
        "bags": [
            {
                "name": name,
                "size": int(size),
                "classes": classes.tolist(),
                "known": [round(float(value), 2) for value in known],
            }
            for name, size, classes, known in bags
        ],
        "shown": sample.shown.tolist(),
        "truth": pack_integers(sample.truth),
        "epochs": epochs,
        "calibration": [] if sample.calibration is None else sample.calibration.tolist(),
    }
    if sample.regions is not None:
        up, across = sample.regions.shape[1:]
        packed["grid"] = {"low": sample.info["low"], "high": sample.info["high"], "across": across, "up": up}
    return packed


def pack_integers(values: np.ndarray) -> str:
    """Base64 of little-endian 16-bit integers."""
    return base64.b64encode(values.astype("<u2").tobytes()).decode("ascii")


# --- pictures


class Pictures:
    """Thumbnails and points of the sampled instances. Runs with the same bags share them."""

    def __init__(self, folder: Path | None, thumbnails: bool) -> None:
        self.folder = folder
        self.thumbnails = thumbnails
        self.sprites: dict[str, dict[str, Any]] = {}
        self.points: dict[str, list[list[float]]] = {}
        self.loaded: dict[tuple[object, ...], Instances | None] = {}
        self.room = SPRITE_BYTES

    def key_for(self, folder: Path, sample: Sample) -> str | None:
        """The key of a run's pictures in `sprites` or `points`, or None if there are none."""
        if not self.thumbnails and sample.regions is None:
            return None
        try:
            recipe = from_json((folder / "recipe.json").read_text("utf-8"))
        except (SettingsError, UnicodeDecodeError):  # from another version
            return None
        key = f"{recipe.data.name} {pack_integers(sample.source)}"[:200]
        if key not in self.sprites and key not in self.points:
            data = self._load(recipe)
            if data is None or len(data.x) != sample.info["instances"]:
                return None
            self._draw(key, data, sample)
        return key if key in self.sprites or key in self.points else None

    def _draw(self, key: str, data: "Instances", sample: Sample) -> None:
        if data.x.shape[1:] == (2,):
            points = data.x[sample.source].tolist()
            self.points[key] = [[round(value, 3) for value in point] for point in points]
            return
        images = as_images(data)
        if not self.thumbnails or images is None:
            return
        starts = np.cumsum(sample.shown) - sample.shown
        tiles = [
            sample.source[start : start + min(n, TILES)]
            for start, n in zip(starts, sample.shown, strict=True)
        ]
        sprite = draw_sprite(images[np.concatenate(tiles)])
        if len(sprite["url"]) <= self.room:
            self.sprites[key] = sprite | {"each": TILES}
            self.room -= len(sprite["url"])

    def _load(self, recipe: Recipe) -> "Instances | None":
        name = recipe.data.name
        key = (name, recipe.seed) if depends_on_seed(name) else (name,)
        if key not in self.loaded:
            try:
                self.loaded[key] = load_instances(recipe, self.folder)
            except DataError:  # there is no copy here
                self.loaded[key] = None
        return self.loaded[key]


def as_images(data: "Instances") -> np.ndarray | None:
    """The training instances as images (N, height, width, channels) of bytes; None if they are not images."""
    if data.x.ndim == 4:
        return data.x.permute(0, 2, 3, 1).numpy()
    if data.name == "digits":
        return (255 * (1 - data.x.view(-1, 8, 8, 1))).byte().numpy()
    return None


def draw_sprite(images: np.ndarray) -> dict[str, Any]:
    """All thumbnails as one picture, since hundreds of pictures make a page slow and large."""
    from PIL import Image

    n, height, width, channels = images.shape
    rows = -(-n // SPRITE_COLUMNS)
    sheet = np.full((rows * height, SPRITE_COLUMNS * width, channels), 255, np.uint8)
    for i, image in enumerate(images):
        top = i // SPRITE_COLUMNS * height
        left = i % SPRITE_COLUMNS * width
        sheet[top : top + height, left : left + width] = image
    content = io.BytesIO()
    if channels == 1:
        kind = "png"
        Image.fromarray(sheet[..., 0]).save(content, kind, optimize=True)
    else:
        kind = "jpeg"
        Image.fromarray(sheet).save(content, kind, quality=80)
    url = f"data:image/{kind};base64," + base64.b64encode(content.getvalue()).decode("ascii")
    return {"url": url, "columns": SPRITE_COLUMNS, "rows": rows, "width": width, "height": height}
