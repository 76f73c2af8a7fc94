"""Numbers of the papers that are defaults here, each with its source. Changing one changes results
silently."""

import inspect
import math

import pytest
import torch
from conftest import network, ragged
from torch import nn

from apportion import ProportionClassifier
from apportion._random import stream
from apportion.losses import (
    LOG_ZERO,
    SCE_WEIGHTS,
    cross_entropy,
    reverse_cross_entropy,
    symmetric_cross_entropy,
)
from apportion.methods import LLPGAN, LLPVAT, ROT, TwoViews
from apportion.methods.plot import LabelHistory
from apportion.networks import MNIST_WIDTHS, conv13
from apportion.pipeline import second_stage
from apportion.pseudo_labels import SoftLabels, soft_labels


def defaults_of(function) -> dict:
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.default not in (each.empty, None)}


def test_symmetric_cross_entropy_has_the_weights_of_wang_et_al_for_cifar_10():
    """0.1 CE + 1.0 RCE with log 0 = log 1e-4:
    github.com/YisenWang/symmetric_cross_entropy_for_noisy_labels."""
    generator = stream(0)
    logits, labels = torch.randn(9, 4, generator=generator), torch.eye(4)[torch.arange(9) % 4]
    expected = 0.1 * cross_entropy(logits, labels) + 1.0 * reverse_cross_entropy(
        logits, labels, math.log(1e-4)
    )
    torch.testing.assert_close(symmetric_cross_entropy(logits, labels), expected)
    assert pytest.approx(math.log(1e-4)) == LOG_ZERO


def test_the_weights_of_symmetric_cross_entropy_by_data_set():
    """The code of Wang et al.; "eq9" is eq. (9) of the paper, which has none."""
    assert SCE_WEIGHTS == {
        "mnist": (0.01, 1.0), "cifar10": (0.1, 1.0), "cifar100": (6.0, 0.1), "eq9": (1.0, 1.0),
    }  # fmt: skip


def test_soft_labels_have_lambda_10():
    """The smaller of the two λ of figure 4 is 1, the larger 10 (P1 in docs/paper.md)."""
    bags = ragged((4, 7))
    log_probs = torch.randn(11, 3, generator=stream(1)).log_softmax(1)
    given = log_probs, bags.sizes, bags.proportions
    assert torch.equal(soft_labels(*given), soft_labels(*given, reg=1 / 10))
    assert not torch.equal(soft_labels(*given), soft_labels(*given, reg=1.0))
    assert SoftLabels(0.1).precision == math.inf  # proportions are met exactly


def test_the_student_learns_the_mean_of_the_last_five_rounds():
    """Section 5, "TD_OT_5": the average of the last five pseudo-labels."""
    bags, student = ragged((4, 7)), network(3)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    *_, last = second_stage(
        torch.zeros(11, 3), student, bags, [optimizer], epochs=7, schedule=lambda p: 1.0, seed=0
    )
    assert len(last.labels.rounds) == 5
    torch.testing.assert_close(last.labels.mean, torch.stack(last.labels.rounds).mean(0))
    assert LabelHistory(torch.zeros(1, 2)).limit == 5


def test_the_second_stage_is_algorithm_1_unless_told_otherwise():
    named = defaults_of(second_stage)
    assert (named["mixup"], named["ema"], named["warmup_epochs"], named["batch_size"]) == (0.0, 0.0, 1, 1024)
    assert named["label"].__name__ == "hard_labels"
    assert named["loss"] is cross_entropy


def test_the_classifier_has_lambda_1():
    """docs/log.md: softer labels than the paper's are better for tables."""
    assert ProportionClassifier().reg == 1.0


def test_the_13_layers_have_dropout_of_one_half_after_each_pooling():
    """Table 4 of the paper's appendix: "2×2 max-pooling with stride 2, dropout with p=0.5", twice."""
    layers = list(conv13((3, 32, 32), 10).modules())
    assert [layer.p for layer in layers if isinstance(layer, nn.Dropout)] == [0.5, 0.5]
    convolutions = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
    sizes = [(layer.out_channels, layer.kernel_size[0]) for layer in convolutions]
    assert sizes == [(128, 3)] * 3 + [(256, 3)] * 3 + [(512, 3), (256, 1), (128, 1)]
    assert {layer.negative_slope for layer in layers if isinstance(layer, nn.LeakyReLU)} == {0.1}


def test_the_mnist_network_is_the_appendixs():
    assert MNIST_WIDTHS == (1000, 500, 250, 250, 250)


def test_llp_vat_has_its_authors_weight_ramp_and_radius():
    """Tsai & Lin's code: weight 0.05, ramp-up over 40 %, radius 6.0 over the 3,072 values of an image."""
    assert defaults_of(LLPVAT) == {"weight": 0.05, "radius": 0.108, "probe": 0.02, "ramp": 0.4}
    assert pytest.approx(6.0 / math.sqrt(3072), abs=5e-4) == 0.108


def test_rot_and_llp_gan():
    """Dulac-Arnold et al.; Liu et al.: 100 values of noise."""
    assert defaults_of(ROT) == {"alpha": 0.6, "reg": 1.0, "precision": 1.0}
    assert defaults_of(LLPGAN) == {"noise": 100, "weight": 1.0, "adversarial": 1.0}


def test_two_views():
    """docs/methods/two-views.md: how these were found."""
    assert defaults_of(TwoViews) == {
        "bag_first": 8.0, "bag_last": 2.0, "contrast": 1.0, "temperature": 0.2, "momentum": 0.99,
        "transport": True, "counts": False,
    }  # fmt: skip
