"""One page that explains runs: self-contained, opened from the disk, made from run folders alone."""

import json
from importlib import resources
from pathlib import Path
from typing import Any

from apportion.errors import RunError
from apportion.report.collect import Cell, collect
from apportion.report.html import charts
from apportion.report.html.bundle import bundle
from apportion.report.html.contents import page_contents

PARTS = resources.files("apportion.report.html")


def html_page(root: Path, data: Path | None = None, thumbnails: bool = True) -> str:
    """The page's text. Thumbnails are drawn where a run's data set is at hand, in the folder `data`."""
    cells = collect(root)
    if not cells:
        raise RunError(f"no finished run below {root}; pass the folder that holds the runs, such as results")
    return render(cells, root.name, data, thumbnails)


def render(cells: dict[str, Cell], title: str, data: Path | None, thumbnails: bool) -> str:
    try:
        from jinja2 import Environment
    except ImportError:
        raise RunError("the page needs jinja2; pip install 'apportion[report]'") from None
    script = bundle()
    filled = page_contents(cells, data, thumbnails)
    room = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return room.from_string(_part("page.html")).render(
        title=title,
        contents=filled,
        style=_safe(_part("page.css")),
        bundle=_safe(script),
        script=_safe(_part("page.js")),
        data=_safe(embedded({"charts": charts.all_charts(), **filled})),
    )


def embedded(values: dict[str, Any]) -> str:
    """JSON that may stand inside a script element: no text of a user can end it."""
    text = json.dumps(values, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _safe(text: str) -> Any:
    """Our own text, which the template shall not escape."""
    from markupsafe import Markup

    return Markup(text)  # noqa: S704


def _part(name: str) -> str:
    return (PARTS / name).read_text("utf-8")
