"""What errors of a table advise: the options of whoever reads it."""

from typing import NamedTuple

ONE_ROW = "keep one row a bag; if it has a row a class, make the classes columns, such as by pivot"


class Way(NamedTuple):
    """Remedies for a table that is read in one way; `subset`: rows are often of a few of its bags."""

    rescale: str  # shares of another sum
    lacking: str  # the same, where a class may lack its share
    larger: str  # counts of another total
    gaps: str  # a class without a number
    missing: str  # a bag without any
    noisy: str  # a negative number
    lost: str  # a bag that the table lacks
    subset: bool = False
    absent: bool = False  # bags that the table lacks have no numbers
    counted: str = "pass counts="  # shares that are counts


_ITSELF = "it is taken by ProportionClassifier"
ESTIMATOR = Way(
    rescale="rescale them; ProportionClassifier(normalize=True) does",
    lacking=", or fill=True what a class lacks that has a column of NaN",
    larger="rescale counts of a larger group; ProportionClassifier(normalize=True) does, noise= if noisy",
    gaps="give all; ProportionClassifier(fill=True) gives these what is left of the bag",
    missing=f"give one or drop the bag; {_ITSELF}(unlabeled=True)",
    noisy=f"; if noise was added, {_ITSELF}(noise=)",
    lost=f"add it or drop its instances; without shares {_ITSELF}(unlabeled=True)",
)
GROUPING = ESTIMATOR._replace(
    rescale="rescale them; normalize=True does",
    lacking="",
    larger="rescale counts of a larger group; normalize=True does",
)
_APART = "leave its rows out of folds and searches, and let a last fit on the table take them, with"
EXPANDING = ESTIMATOR._replace(
    rescale="divide them by their sum",
    lacking="",
    larger="divide counts of a larger group by their sum, and pass proportions",
    gaps=f"give all, or {_APART} fill=True",
    missing=f"give one, or {_APART} unlabeled=True",
    noisy="",
    lost=f"add it, or {_APART} unlabeled=True",
)
MEETING = Way(
    rescale="divide them by their sum",
    lacking="",
    larger="divide them by their sum, and pass proportions=",
    gaps="give all",
    missing="give one, or leave the bag's rows out, which stay as predicted",
    noisy="",
    lost="add it, or leave its rows out, which stay as predicted",
    subset=True,
)
JUDGING = MEETING._replace(
    missing="give one, or leave the bag's rows out", lost="add it, or leave its rows out", subset=False
)
SCORING = JUDGING._replace(larger="divide them by their sum", counted="divide each bag's by their sum")
