"""The first losses of every method and of the second stage, to four digits: any change of behavior shows
here.

A number that has to change is a decision to be recorded in docs/decisions.
"""

import pytest
import torch
from conftest import learner_of, moon_bags, network, steady, trained

from apportion._random import stream
from apportion.losses import symmetric_cross_entropy
from apportion.methods import METHODS, is_linear
from apportion.optim import make_optimizer
from apportion.pipeline import fit_two_stages, second_stage
from apportion.pseudo_labels import argmax_labels, hard_labels, predicted_labels, soft_labels

METHOD_LOSSES: dict[str, list[float]] = {
    "dllp": [0.694538, 0.697094],
    "count_likelihood": [0.127775, 0.123885],
    "llp_vat": [0.694538, 1.08544e-06, 0.697094, 2.12295e-06],
    "llp_gan": [0.695246, 0.438229, 1.03671, 0.00260044, 0.700496, 0.444007, 1.02005, 0.00117221],
    "rot": [0.416722, 0.275902, 0.418263, 0.277015],
    "two_views": [4.63216, 2.03379, 3.10588e-05, 2.54032, 3.10669e-05],
    "llp_mm": [1.37473, 1.36349],
    "easy_llp": [1.42719, 1.10406],
    "mixbag": [0.430256, 0.0302773, 0.436847, 0],
    "mean_map": [0.205751, 0.00203768, 0.163082, 0.00202852],
}
STUDENT_LOSSES: dict[str, list[float]] = {
    "hard": [0.700607, 0.687726, 0.650845, 0.622553],
    "soft": [0.698507, 0.695937, 0.669262, 0.658287],
    "predicted": [0.694284, 0.687047, 0.688836, 0.688531],
    "argmax": [0.713591, 0.637097, 0.559202, 0.442853],
    "sce, mixup": [3.17815, 1.5552, 1.5037, 1.49729],
    "moving average, rows": [0.698393, 0.698321, 0.697073, 0.682971],
    "weights": [0.731007, 0.747124, 0.675147, 0.590457],
}
STAGE_LOSSES = [0.702631, 0.702455, 0.698607, 0.690949, 0.690791, 0.686216]

STUDENTS = {
    "hard": {"label": hard_labels},
    "soft": {"label": soft_labels},
    "predicted": {"label": predicted_labels},
    "argmax": {"label": argmax_labels},
    "sce, mixup": {"loss": symmetric_cross_entropy, "mixup": 1.0},
    "moving average, rows": {"ema": 0.9, "warmup_epochs": 2, "memory": 2, "by": "row"},
    "weights": {"weights": torch.linspace(0.5, 1.5, 200)},
}


def losses_of_method(name: str) -> list[float]:
    net = network(widths=()) if is_linear(name) else network()
    epochs = trained(learner_of(name, net), moon_bags()[0], 2)
    return [value for epoch in epochs for value in epoch.terms.values()]


def losses_of_student(name: str) -> list[float]:
    bags, student = moon_bags()[0], network(seed=1)
    log_probs = torch.randn(len(bags.x), 2, generator=stream(0, "pinned")).log_softmax(1)
    states = second_stage(
        log_probs, student, bags, [make_optimizer(student, "adam", 1e-2)], epochs=4, schedule=steady,
        seed=0, batch_size=64, **STUDENTS[name],
    )  # fmt: skip
    return [state.epoch.terms["labels"] for state in states]


def losses_of_both_stages() -> list[float]:
    states = fit_two_stages(
        moon_bags()[0], lambda shape, k: network(k, shape), label=soft_labels, epochs=3, student_epochs=3
    )
    return [value for state in states for value in state.epoch.terms.values()]


@pytest.mark.parametrize("name", METHODS)
def test_a_methods_first_losses(name):
    assert losses_of_method(name) == pytest.approx(METHOD_LOSSES[name], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", STUDENTS)
def test_a_students_first_losses(name):
    assert losses_of_student(name) == pytest.approx(STUDENT_LOSSES[name], rel=1e-4, abs=1e-6)


def test_the_first_losses_of_both_stages_by_default():
    assert losses_of_both_stages() == pytest.approx(STAGE_LOSSES, rel=1e-4, abs=1e-6)
