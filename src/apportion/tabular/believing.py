"""What a table says of its bags, made good: noisy shares, labels that a column gives, several groupings."""

from collections.abc import Sequence

import numpy as np

from apportion.bags import Bags
from apportion.intake.given import with_given
from apportion.intake.joining import joined, joined_weights
from apportion.intake.weights import Relax, denoised_bags
from apportion.tables.asking import Asked, Found
from apportion.tables.labels import given_labels


def together(groupings: Sequence[Bags], asked: Sequence[Asked], found: Sequence[Found]) -> tuple[Bags, Relax]:
    """The bags of all groupings, and what their shares weigh when labels are made."""
    bags, relax = {}, {}
    for grouping, question, known in zip(groupings, asked, found, strict=True):
        clean, relax[question.bag] = mended(grouping, question)
        bags[question.bag] = with_labels(clean, question, known)
    return joined(bags), joined_weights(relax)


def mended(bags: Bags, asked: Asked) -> tuple[Bags, Relax]:
    """Bags whose noisy shares are made good, and what they weigh when labels are made."""
    level = float(asked.noise) if asked.noise not in ("", "estimate") else asked.noise or None
    return denoised_bags(bags, level, whole=asked.counts is not None)


def with_labels(bags: Bags, asked: Asked, found: Found) -> Bags:
    """The bags, and those of rows whose class a column of the table gives."""
    given = given_labels(asked)
    return with_given(bags, given, np.array(found.classes), sure=not asked.noise) if given else bags
