"""apportion check TABLE"""

from collections import Counter

from apportion.cli import tabling

MOST = 40  # columns that are named


def command(
    table: tabling.Table,
    bag: tabling.Bag,
    proportions: tabling.Proportions = None,
    counts: tabling.Counts = None,
    shares: tabling.Shares = "",
    key: tabling.Key = None,
    classes: tabling.Classes = "",
    drop: tabling.Drop = "",
    categorical: tabling.Categorical = "",
    keep: tabling.Keep = "",
    missing: tabling.Missing = None,
    normalize: tabling.Normalize = False,
    noise: tabling.Noise = None,
    unlabeled: tabling.Unlabeled = False,
    fill: tabling.Fill = False,
    given: tabling.Given = "",
    image: tabling.Image = "",
    pixels: tabling.Pixels = None,
) -> None:
    from apportion.tables.checking import refuse
    from apportion.tables.groupings import check_groupings
    from apportion.tables.pictures import unreadable

    asked = tabling.asked(
        table, bag, proportions, counts, shares, key, classes, drop, categorical, missing, normalize,
        noise, unlabeled, fill, given, keep, image, pixels,
    )  # fmt: skip
    found = check_groupings(asked)[0]
    for note in found.notes:
        print(note)
    refuse(found)
    refuse(unreadable(asked[0], found))
    print(f"nothing is wrong: {columns(found.kinds)} -> {', '.join(found.classes)}")


def columns(kinds: dict[str, str]) -> str:
    """Each column with its kind; where there are many, how many of each kind."""
    if len(kinds) <= MOST:
        return ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
    counts = Counter(kinds.values())
    return ", ".join(f"{n:,} columns ({kind})" for kind, n in counts.items())
