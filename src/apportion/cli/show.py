"""apportion show NAME"""

import json
from typing import Annotated

import typer

from apportion.cli.naming import Settings


def command(
    name: Annotated[
        str,
        typer.Argument(
            help="A recipe or a group of apportion list; of a group an object with a recipe a name."
        ),
    ],
    set_: Settings = None,
) -> None:
    from apportion.cli.naming import find, settings
    from apportion.recipes import changed, to_json

    found = {key: to_json(changed(recipe, settings(set_))) for key, recipe in find(name).items()}
    if list(found) == [name]:
        print(found[name])
    else:
        print(json.dumps({key: json.loads(recipe) for key, recipe in found.items()}, indent=1))
