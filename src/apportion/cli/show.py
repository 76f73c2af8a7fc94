"""apportion show NAME"""

from typing import Annotated

import typer

from apportion.cli.naming import Settings


def command(
    name: Annotated[str, typer.Argument(help="A name of apportion list.")], set_: Settings = None
) -> None:
    from apportion.cli.naming import find, settings
    from apportion.recipes import changed, to_json

    for recipe in find(name).values():
        print(to_json(changed(recipe, settings(set_))))
