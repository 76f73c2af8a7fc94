"""How commands name recipes, settings and seeds."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from apportion.recipes import Recipe

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a setting, such as second.mixup=0.4; may be repeated."),
]


def find(name: str) -> "dict[str, Recipe]":
    """The recipe of that name, or all recipes of that group."""
    from apportion.grid import RECIPES

    if name in RECIPES:
        return {name: RECIPES[name]}
    group = {known: recipe for known, recipe in RECIPES.items() if known.startswith(f"{name}/")}
    if not group:
        raise typer.BadParameter(f"no recipe or group '{name}'; {groups()}: see apportion list")
    return group


def groups() -> str:
    """The groups of recipes, in words."""
    from apportion.grid import RECIPES

    return f"groups are {', '.join(sorted({known.split('/')[0] for known in RECIPES}))}"


def settings(texts: list[str] | None) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts or []]
    for name, equals, _ in pairs:
        if not equals:
            raise typer.BadParameter(f"'{name}' is not of the form setting=value")
    return {name: value for name, _, value in pairs}


def seeds(text: str) -> list[int]:
    """1, 1-3 or 1,2,5."""
    try:
        ends = [[int(end) for end in part.split("-", 1)] for part in text.split(",")]
        found = [seed for first, *last in ends for seed in range(first, (last or [first])[0] + 1)]
    except ValueError:
        found = []
    if not found:
        raise typer.BadParameter(f"'{text}' is not a list of seeds such as 1, 1-3 or 1,2,5")
    return found
