"""Rows of a table whose bags have known shares: their probabilities given these."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from apportion._device import resolve_device
from apportion.bags.arrays import as_floats
from apportion.conditioning import condition_groupings
from apportion.errors import DataError
from apportion.evaluate import predict_log_proba_on
from apportion.intake.weights import weights_of
from apportion.models import Model
from apportion.tables.asking import Asked
from apportion.tables.checking import refuse
from apportion.tables.groupings import check_groupings
from apportion.tabular.believing import mended
from apportion.tabular.diagnose import bags_for
from apportion.tabular.told import asked_for


def given_shares(
    model: Model, questions: Sequence[Asked], notes: list[str], device: str = "auto"
) -> np.ndarray:
    """(N, k) in the order of the table and of the model's classes; `docs/known-shares.md`."""
    asked = [asked_for(model, each) for each in questions]
    found = check_groupings(asked, learn=False)
    refuse(found[0])
    notes += found[0].notes
    first, others = bags_for(model, asked, found)
    log_probs = predict_log_proba_on(
        resolve_device(device, first.x), model.network, first.x, as_floats
    ).double()
    for i in log_probs.isnan().any(1).nonzero().flatten()[:1].tolist():
        where = f"{asked[0].table.name}, row {int(first.source[i]) + 1}"
        raise DataError(f"{where}, has no probabilities: a number in it, or in the model, is too large")
    rows, theirs = log_probs[first.source.argsort()], zip(asked, (first, *others), strict=True)
    made = {each.bag: mended(bags, each, rows[bags.source]) for each, bags in theirs}
    groupings = {
        name: replace(bags, precision=torch.as_tensor(weights_of(bags, relax)).expand(len(bags.sizes)))
        for name, (bags, relax) in made.items()
    }
    return condition_groupings(rows, groupings).float().numpy()
