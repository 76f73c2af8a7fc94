"""Rows of a table whose bags have known shares: their probabilities given these."""

import numpy as np

from apportion.evaluate import predict
from apportion.intake.instances import as_floats
from apportion.meeting import met
from apportion.models import Model
from apportion.tables.asking import Asked
from apportion.tables.checking import check, refuse
from apportion.tables.columns import TableError
from apportion.tabular.diagnose import bags_for
from apportion.tabular.fit import mended
from apportion.tabular.told import asked_for


def given_shares(model: Model, asked: Asked, notes: list[str]) -> np.ndarray:
    """(N, k) in the order of the table and of the model's classes; `docs/known-shares.md`."""
    asked = asked_for(model, asked)
    found = check(asked, learn=False)
    refuse(found)
    notes += found.notes
    bags, relax = mended(bags_for(model, asked, found), asked)
    log_probs = predict(model.network, bags.x, as_floats).double()
    for i in log_probs.isnan().any(1).nonzero().flatten()[:1].tolist():
        where = f"{asked.table.name}, row {int(bags.source[i]) + 1}"
        raise TableError(f"{where}, has no probabilities: a number in it, or in the model, is too large")
    values = met(log_probs, bags, relax).numpy()
    rows = np.empty((len(values), len(model.classes)), np.float32)
    rows[bags.source.numpy()] = values
    return rows
