"""Colors of classes in charts: a class named after a color has it, and others have none that is similar.

The colors are names; page.css has their values for the light and the dark mode. Their brightness differs, so
that people who cannot tell red from green see different colors.
"""

import itertools
from collections.abc import Sequence

NAMES = {name: name for name in ("red", "blue", "green", "yellow", "orange", "purple", "black", "gray")}
NAMES |= {"grey": "gray", "brown": "brown", "pink": "pink"}
# of classes that are not named after a color; red and green would say bad and good
OTHERS = ("blue", "orange", "purple", "yellow", "gray", "sky", "pink", "brown", "navy", "black")
SIMILAR = {
    "red": {"red", "orange", "pink", "brown"},
    "blue": {"blue", "sky", "navy"},
    "green": {"green"},
    "yellow": {"yellow", "orange"},
    "orange": {"orange", "yellow", "brown"},
    "purple": {"purple", "pink", "navy"},
    "black": {"black", "navy"},
    "gray": {"gray"},
    "brown": {"brown", "orange"},
    "pink": {"pink", "purple"},
}


def class_colors(classes: Sequence[str]) -> list[tuple[str, str]]:
    """Each class with the name of its color.

    >>> class_colors(["Blue", "GREEN", "nonvoters"])
    [('Blue', 'blue'), ('GREEN', 'green'), ('nonvoters', 'orange')]
    """
    own = {name: NAMES[name.strip().lower()] for name in classes if name.strip().lower() in NAMES}
    taken = set(own.values())
    similar = set().union(*(SIMILAR[color] for color in taken))
    free = [color for color in OTHERS if color not in similar]
    free += [color for color in OTHERS if color in similar and color not in taken]
    others = itertools.cycle(free or OTHERS)
    return [(name, own[name] if name in own else next(others)) for name in classes]
