"""apportion check TABLE"""

from apportion.cli import tabling


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
    missing: tabling.Missing = None,
    normalise: tabling.Normalise = False,
    noise: tabling.Noise = "",
    unlabelled: tabling.Unlabelled = False,
    fill: tabling.Fill = False,
    given: tabling.Given = "",
) -> None:
    from apportion.tables.checking import check, refuse

    asked = tabling.asked(
        table, bag, proportions, counts, shares, key, classes, drop, categorical, missing, normalise,
        noise, unlabelled, fill, given,
    )  # fmt: skip
    found = check(asked)
    for note in found.notes:
        print(note)
    refuse(found)
    print("nothing is wrong: ", end="")
    print(
        ", ".join(f"{name} ({kind})" for name, kind in found.kinds.items())
        + f" -> {', '.join(found.classes)}"
    )
