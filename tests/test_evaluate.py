"""Evaluation: predictions without traces, and measures against explicit counts."""

import math

import numpy as np
import pytest
import torch
from conftest import network, normed, ragged, same_bits, weights_of
from torch import nn

from apportion._random import stream
from apportion.errors import ApportionWarning, DataError
from apportion.evaluate import (
    accuracy,
    bag_correlation,
    calibration,
    confusion,
    copy_network_to,
    entropy,
    max_proportion_gap,
    predict_log_proba,
    predict_log_proba_on,
    proportion_error,
)
from apportion.networks import mlp


@pytest.mark.parametrize("training", [True, False])
def test_predicting_leaves_mode_weights_statistics_and_randomness_alone(training):
    classifier = nn.Sequential(normed(), nn.Dropout(0.5)).train(training)
    before, state = weights_of(classifier), torch.get_rng_state()
    predict_log_proba(classifier, torch.randn(5, 2, generator=stream(0)))
    assert classifier.training == training
    assert same_bits(before, weights_of(classifier))
    assert torch.equal(torch.get_rng_state(), state)


def test_what_is_no_tensor_is_refused():
    with pytest.raises(DataError):
        predict_log_proba(normed(), np.zeros((3, 2)))  # type: ignore


def test_the_mode_is_put_back_even_where_the_network_fails():
    classifier = normed()
    with pytest.raises(RuntimeError):
        predict_log_proba(classifier, torch.zeros(3, 7))
    assert classifier.training


def test_predictions_are_log_probabilities_in_evaluation_mode_and_carry_no_gradient():
    classifier, x = normed(), torch.randn(6, 2, generator=stream(0))
    got = predict_log_proba(classifier, x)
    torch.testing.assert_close(got.exp().sum(1), torch.ones(6))
    torch.testing.assert_close(got, classifier.eval()(x).log_softmax(1).detach())
    assert not got.requires_grad


@pytest.mark.parametrize("instances", [1, 4, 7, 100])
def test_the_batch_size_does_not_matter(instances):
    classifier, x = network(), torch.randn(7, 2, generator=stream(0))
    torch.testing.assert_close(
        predict_log_proba(classifier, x, batch_size=instances), predict_log_proba(classifier, x)
    )


@pytest.mark.parametrize(
    ("shape", "asked", "most"),
    [((3, 32, 32), 1024, 1024), ((4096,), 1024, 1024), ((3, 64, 64), 1024, 341), ((3, 64, 64), 100, 100),
     ((1, 64, 64), 1024, 341), ((1, 28, 28), 1024, 1024), ((8, 64, 64), 1024, 128), ((2**23,), 1024, 1),
     ((), 4, 4)],
)  # fmt: skip
def test_large_instances_are_taken_fewer_at_a_time(shape, asked, most):
    seen = []

    def prepare(part):
        seen.append(len(part))
        return torch.zeros(len(part), 2)

    x = torch.zeros(1, *shape).expand(most + 1, *shape)
    assert predict_log_proba(nn.Identity(), x, prepare, asked).shape == (most + 1, 2)
    assert seen == [most, 1]


def test_instances_are_prepared_batch_by_batch():
    seen = []
    predict_log_proba(
        network(), torch.zeros(5, 2, dtype=torch.uint8), lambda x: (seen.append(len(x)), x.float())[1], 2
    )
    assert seen == [2, 2, 1]


def test_accuracy_is_the_share_of_largest_scores_at_the_true_class():
    scores = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.5, 0.5], [0.0, 1.0]])
    assert accuracy(scores, torch.tensor([1, 1, 0, 1])) == 0.75


def test_the_proportion_error_is_the_share_of_instances_that_would_have_to_move():
    sure = torch.tensor([[0.0, -math.inf]] * 3 + [[-math.inf, 0.0]])  # three of class 0, one of class 1
    error = proportion_error(sure, torch.tensor([4]), torch.tensor([[0.5, 0.5]]))
    assert error == pytest.approx(0.25)
    bags = ragged((1, 5, 3))
    log_probs = torch.randn(9, 3, generator=stream(0)).log_softmax(1)
    total = 0.0
    for part, shares in zip(log_probs.split([1, 5, 3]), bags.proportions, strict=True):
        total += (part.exp().mean(0) - shares).abs().sum().item() / 2
    assert proportion_error(log_probs, bags.sizes, bags.proportions) == pytest.approx(total / 3, rel=1e-5)


def test_the_label_gap_is_the_largest_of_any_bag_and_class():
    labels = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    shares = torch.tensor([[0.5, 0.5], [0.75, 0.25]])
    assert max_proportion_gap(labels, torch.tensor([2, 1]), shares) == pytest.approx(0.25)
    assert max_proportion_gap(labels[:2], torch.tensor([2]), shares[:1]) == 0.0


def test_rows_of_the_confusion_are_true_classes_and_columns_predicted_ones():
    got = confusion(torch.tensor([0, 1, 1, 2, 2, 2]), torch.tensor([0, 0, 1, 2, 2, 1]), 4)
    assert got.tolist() == [[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 2, 0], [0, 0, 0, 0]]


def test_entropy_is_log_k_where_all_is_even_and_zero_where_all_is_sure():
    even, sure = torch.full((1, 5), -math.log(5)), torch.tensor([[0.0, -math.inf, -math.inf]])
    assert entropy(even).item() == pytest.approx(math.log(5))
    assert entropy(sure).item() == 0.0


def test_the_error_of_a_huge_bag_is_that_of_its_rows():
    share, n = 0.3, 3_000_000
    log_probs = torch.tensor([[share, 1 - share]]).log().expand(n, 2)
    known, sizes = torch.tensor([[share, 1 - share]]), torch.tensor([n])
    assert proportion_error(log_probs, sizes, known) < 1e-7
    assert max_proportion_gap(log_probs.exp(), sizes, known) < 1e-7


def test_the_bag_correlation_is_that_of_proportions_centered_by_class():
    known, predicted = (torch.rand(8, 3, generator=stream(i)).softmax(1) for i in range(2))
    one, other = ((v - v.mean(0)).flatten().double().numpy() for v in (known, predicted))
    assert bag_correlation(predicted, known) == pytest.approx(np.corrcoef(one, other)[0, 1], abs=1e-6)
    assert bag_correlation(known, known) == pytest.approx(1)
    assert bag_correlation(torch.full((8, 3), 1 / 3), known) == 0


def test_bags_that_differ_by_rounding_alone_have_no_correlation():
    known = torch.tensor([[0.3, 0.7], [0.3 + 1e-7, 0.7 - 1e-7]], dtype=torch.float64)
    assert bag_correlation(torch.rand(2, 2), known) is None


def test_calibration_counts_rows_confidence_and_accuracy_by_bin():
    scores = torch.tensor([[0.9, 0.1], [0.05, 0.95], [0.6, 0.4]]).log()
    bins = calibration(scores, torch.tensor([0, 0, 1]), 2)
    assert bins == [[0, 0.0, 0.0], [3, pytest.approx((0.9 + 0.95 + 0.6) / 3, abs=1e-4), 0.3333]]


def test_the_calibration_of_millions_of_rows_is_exact():
    scores = torch.tensor([[0.73, 0.27]]).log().expand(4_000_000, 2)
    assert calibration(scores, torch.zeros(4_000_000, dtype=torch.int64))[7] == [4_000_000, 0.73, 1.0]


# --- on a device


class FullDevice(nn.Linear):
    """On a device other than the CPU, which "meta" stands for, there is no memory."""

    error: type[Exception] = torch.OutOfMemoryError

    def forward(self, x):
        if x.is_meta:
            raise self.error("MPS backend out of memory (MPS allocated: 9 GB)")
        return super().forward(x)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError])
def test_a_device_without_memory_leaves_the_prediction_to_the_cpu(error):
    network, x = FullDevice(2, 2), torch.randn(5, 2, generator=stream(0))
    network.error = error
    with pytest.warns(ApportionWarning, match="meta is out of memory"):
        log_probs = predict_log_proba_on(torch.device("meta"), network, x)
    assert torch.equal(log_probs, predict_log_proba(network, x))


def test_other_errors_of_a_device_are_not_hidden():
    with pytest.raises(RuntimeError, match="mat1"):
        predict_log_proba_on(torch.device("cpu"), nn.Linear(2, 2), torch.zeros(5, 3))


def test_instances_go_to_the_device_a_batch_at_a_time():
    copied = []

    class Watched(torch.Tensor):
        def to(self, *args, **named):
            copied.append(len(self))
            return self.as_subclass(torch.Tensor)

    x = torch.zeros(2500, 2).as_subclass(Watched)
    predict_log_proba_on(torch.device("cpu"), nn.Linear(2, 2), x)
    assert copied == [1024, 1024, 452]


def test_a_network_is_copied_to_another_device_and_stays_where_it_is():
    network = mlp((2,), 2)
    copy = copy_network_to(network, torch.device("meta"))
    assert {p.device.type for p in copy.parameters()} == {"meta"}
    assert {p.device.type for p in network.parameters()} == {"cpu"}
    assert copy_network_to(network, torch.device("cpu")) is network
