"""Rows of a table whose bags have known shares: their probabilities given these."""

import numpy as np

from apportion.evaluate import predict
from apportion.instances import as_floats
from apportion.meeting import met
from apportion.models import Model
from apportion.tables.asking import Asked
from apportion.tables.checking import check, refuse
from apportion.tabular.diagnose import bags_for
from apportion.tabular.fit import mended
from apportion.tabular.told import asked_for


def given_shares(model: Model, asked: Asked) -> np.ndarray:
    """(N, k) in the order of the table and of the model's classes; `docs/known-shares.md`."""
    asked = asked_for(model, asked)
    found = check(asked)
    refuse(found)
    bags, relax = mended(bags_for(model, asked, found), asked)
    values = met(predict(model.network, bags.x, as_floats).double(), bags, relax).numpy()
    rows = np.empty((len(values), len(model.classes)), np.float32)
    rows[bags.source.numpy()] = values
    return rows
