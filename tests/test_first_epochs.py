"""How long stages learn: less where bags lack proportions, more for many classes; or as left-out bags say."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ragged
from sklearn.datasets import make_moons

from apportion import ProportionClassifier
from apportion.fitting.kinds import IMAGES, ROWS
from apportion.fitting.lengths import epochs_for, two_usual
from apportion.intake.mending import mended_bags

X, TRUTH = make_moons(640, noise=0.1, random_state=0)
TOWN = np.random.default_rng(0).permutation(640) % 40
SHARES = np.stack([np.bincount(TOWN, c == TRUTH) for c in (0, 1)], 1) / 16


@pytest.fixture
def noise(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    import noise

    return noise


def half_known():
    table = SHARES.copy()
    table[::2] = np.nan
    return mended_bags(X.astype(np.float32), ids=TOWN, proportions=table, unlabeled=True).bags.known()


@pytest.mark.parametrize(("without", "steps"), [(0, 1000), (20, 1000 * 0.5**0.5), (30, 500)])
def test_the_first_stage_learns_for_steps_as_the_root_of_the_share_that_is_known(without, steps):
    table = SHARES.copy()
    table[:without] = np.nan
    model = ProportionClassifier(unlabeled=True, second_stage=None, batch_size=16, random_state=0)
    epochs = len(model.fit(X, bags=TOWN, proportions=table).history_)  # of a step for each known bag
    known = 40 - without
    assert steps <= epochs * known < steps + known


def test_for_images_nothing_is_shortened():
    bags = ragged((64,) * 40)
    known = bags.select(torch.arange(10))
    assert IMAGES.first_epochs(known, bags, 256) == IMAGES.first_epochs(known, known, 256)
    assert ROWS.first_epochs(known, bags, 256) == ROWS.first_epochs(known, known, 256) / 2


@pytest.mark.parametrize(
    ("n_classes", "rows", "epochs"),
    [
        (2, 2560, 100),
        (100, 2560, 100),  # seen often as it is
        (10, 25600, 10),
        (11, 25600, 11),
        (15, 25600, 15),
        (100, 25600, 20),  # and not 100
        (30, 256000, 5),  # 3,000 steps are less than five epochs
        (100, 256000, 10),
        (2, 256000, 5),
    ],
)
def test_many_classes_are_learnt_for_more_steps_until_their_rows_were_seen_often(n_classes, rows, epochs):
    assert epochs_for(n_classes / 10, torch.full((rows // 16,), 16), 256, 1000) == epochs
    bags = replace(ragged((16,) * 40), proportions=torch.full((40, n_classes), 1 / n_classes))
    assert ROWS.second_epochs(bags, 16) == epochs_for(n_classes / 5, bags.sizes, 16, 500)
    assert ROWS.first_epochs(bags, bags, 16) == epochs_for(n_classes / 10, bags.sizes, 16, 1000)
    assert IMAGES.second_epochs(bags, 16) == IMAGES.second_epochs(ragged((16,) * 40), 16)


@pytest.mark.parametrize("method", ["dllp", "counts"])
def test_left_out_bags_choose_a_first_stage_that_has_learnt(noise, method):
    bags = half_known()
    assert len(bags.sizes) == 20
    assert bool(bags.proportions.isfinite().all())
    assert noise.likeliest([40, 1], bags, method, seed=1) == 40


def test_left_out_bags_refuse_a_first_stage_that_learnt_by_heart(noise):
    # shares that have nothing to do with the rows
    bags = half_known()
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    bags.proportions.copy_(bags.proportions[order])
    assert noise.likeliest([80, 1], bags, "counts", seed=1) == 1


def test_one_number_of_epochs_is_taken_without_a_trial(noise):
    assert noise.likeliest([7], None, "dllp", seed=1) == 7


def test_a_few_large_bags_do_not_lengthen_the_first_stage_of_rows_unless_a_batch_is_asked_for():
    tail = ragged((2000, *(20,) * 400))  # a batch holds the large one; a row's bag has 416 rows on average
    assert two_usual(tail.sizes) == 832
    assert ROWS.first_epochs(tail, tail, 2000) == math.ceil(1000 / math.ceil((832 + 8000) / 832))
    assert ROWS.first_epochs(tail, tail, 2000, asked=2000) == 200
    even = ragged((2000,) * 5)
    assert ROWS.first_epochs(even, even, 2000) == 200  # all are large
    small = ragged((20,) * 500)
    assert ROWS.first_epochs(small, small, 256) == math.ceil(1000 / math.ceil(10_000 / 256))
    assert IMAGES.first_epochs(tail, tail, 2000) == IMAGES.first_epochs(tail, tail, 2000, asked=2000)


def test_the_estimator_learns_for_as_long_as_its_bags_need():
    x = np.random.default_rng(0).normal(size=(1600, 2)).astype(np.float32)
    y, bags = (x[:, 0] > 0).astype(int), np.concatenate([np.zeros(400, int), 1 + np.arange(1200) // 4])
    lengths = []
    for asked in (None, 400):
        model = ProportionClassifier(second_stage=None, batch_size=asked, random_state=0)
        lengths.append(len(model.fit(x, y, bags=bags).history_))
    assert lengths == [math.ceil(1000 / 6), 1000 / 4]  # as if by batches of 256, and by those of 400
