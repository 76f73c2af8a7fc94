"""What the charts share."""

from typing import Any

Chart = dict[str, Any]
DASHES = [
    [1, 0],
    [6, 3],
    [2, 2],
    [8, 3, 2, 3],
    [4, 1],
    [1, 3],
]  # beside colors, by which no line is told alone


def field(name: str, kind: str, **more: Any) -> Chart:
    """A field of the rows; its title is its name unless told otherwise."""
    return {"field": name, "type": kind, **more}


def tips(*names: str) -> list[Chart]:
    return [field(name, "nominal") for name in names]
