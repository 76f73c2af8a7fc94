"""apportion list"""

from typing import Annotated

import typer

from apportion.cli import naming


def command(group: Annotated[str, typer.Argument(help="A group, or one recipe; else all.")] = "") -> None:
    from apportion.grid import RECIPES

    for name, recipe in (naming.find(group.rstrip("/")) if group else RECIPES).items():
        second = f", then {recipe.second.labels} labels for {recipe.second.epochs}" if recipe.second else ""
        first = f"{recipe.first.method} for {recipe.first.epochs} epochs"
        print(f"{name:32} {recipe.data.name}, bags of {recipe.data.bag_size}: {first}{second}")
