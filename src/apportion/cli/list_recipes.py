"""apportion list"""

from typing import Annotated

import typer

from apportion.cli import naming


def command(prefix: Annotated[str, typer.Argument(help="Only names that begin so.")] = "") -> None:
    from apportion.grid import RECIPES

    found = {name: recipe for name, recipe in RECIPES.items() if name.startswith(prefix)}
    if not found:
        raise typer.BadParameter(f"no recipe begins with '{prefix}'; {naming.groups()}")
    for name, recipe in found.items():
        second = f", then {recipe.second.labels} labels for {recipe.second.epochs}" if recipe.second else ""
        first = f"{recipe.first.method} for {recipe.first.epochs} epochs"
        print(f"{name:32} {recipe.data.name}, bags of {recipe.data.bag_size}: {first}{second}")
