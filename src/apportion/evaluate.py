"""Predictions, and measures that compare them with labels and with known proportions."""

import warnings
from copy import deepcopy

import torch
from torch import Tensor, nn

from apportion._device import is_out_of_memory
from apportion.bags.bags import Bags, bag_slices, empty_like, exact_bag_means
from apportion.errors import ApportionWarning, DataError
from apportion.training import View

MAX_VALUES = 2**22  # per batch of predictions; 1,024 color images of 32 x 32 pixels have three quarters of it
MIN_BAGS_TO_CORRELATE = 6  # of two bags and two classes, a correlation would be 1 or -1


def predict_log_proba(
    classifier: nn.Module, x: Tensor, prepare: View = lambda x: x, batch_size: int = 1024
) -> Tensor:
    """Log-probabilities (N, k) in float32, in evaluation mode and without augmentation.

    `prepare` turns a batch of instances into what the network takes. Batches of large instances are smaller
    than `batch_size`, so that memory does not grow with the size of an instance.
    """
    if not isinstance(x, Tensor):
        raise DataError(f"x is a {type(x).__name__}; pass torch.as_tensor(x, dtype=torch.float32)")
    size = max(1, min(batch_size, MAX_VALUES // _values_per_instance(x.shape[1:])))
    log_probs = torch.empty(0)
    row = 0
    was_training = classifier.training
    classifier.eval()
    try:
        with torch.no_grad():
            for part in x.split(size):
                output = classifier(prepare(part)).float().log_softmax(1)
                if row == 0:  # allocated once: many small parts would fragment memory
                    log_probs = empty_like(output, len(x))
                log_probs[row : row + len(part)] = output
                row += len(part)
    finally:
        classifier.train(was_training)
    return log_probs


def predict_log_proba_on(
    device: torch.device, classifier: nn.Module, x: Tensor, prepare: View = lambda x: x
) -> Tensor:
    """`predict_log_proba` on a device, for a network on the CPU. The result is on the CPU, too.

    Instances are copied batch by batch. If the device still runs out of memory, the CPU predicts.
    """
    try:
        network = copy_network_to(classifier, device)
        return predict_log_proba(network, x, lambda part: prepare(part.to(device))).cpu()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        message = (
            f"{device} is out of memory, so the CPU predicts, which is slow; free memory or pass device='cpu'"
        )
        warnings.warn(message, ApportionWarning, stacklevel=2)
        return predict_log_proba(classifier, x, lambda part: prepare(part.cpu()))


def copy_network_to(network: nn.Module, device: torch.device) -> nn.Module:
    """A copy of a CPU network on a device; on the CPU the network itself."""
    return network if device.type == "cpu" else deepcopy(network).to(device)


def _values_per_instance(shape: torch.Size) -> int:
    """Numbers in an instance. A gray image counts as a color image, since networks need as much memory."""
    if len(shape) == 3:
        return max(1, shape.numel(), 3 * shape[1:].numel())
    return max(1, shape.numel())


def accuracy(scores: Tensor, y: Tensor) -> float:
    """The fraction of rows whose largest score is at their true class; the first of equal scores counts.

    >>> accuracy(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0]))
    0.5
    """
    return float((scores.argmax(1) == y).float().mean())


def proportion_error(log_probs: Tensor, sizes: Tensor, proportions: Tensor) -> float:
    """Half the L1 distance between predicted and known proportions, averaged over bags.

    It is the smallest fraction of a bag's rows that must be predicted wrongly.

    >>> log_probs = torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log()
    >>> round(proportion_error(log_probs, torch.tensor([2]), torch.tensor([[0.5, 0.5]])), 6)
    0.2
    """
    predicted = exact_bag_means(log_probs.exp(), sizes)
    return float((predicted - proportions).abs().sum(1).mean() / 2)


def max_proportion_gap(labels: Tensor, sizes: Tensor, proportions: Tensor) -> float:
    """The largest distance of a mean label (N, k) in a bag from its proportion; 0 if transport converged."""
    return float((exact_bag_means(labels, sizes) - proportions).abs().max())


def bag_correlation(predicted: Tensor, known: Tensor) -> float | None:
    """The correlation of predicted and known proportions (m, k), each centered by class.

    None if all bags have the same known proportions.
    """
    predicted = predicted.double() - predicted.double().mean(0)
    known = known.double() - known.double().mean(0)
    if not known.abs().max() > 1e-6:
        return None
    scale = predicted.norm() * known.norm()
    return float((predicted * known).sum() / scale) if scale > 0 else 0.0


def score_bags(log_probs: Tensor, bags: Bags) -> dict[str, float | None]:
    """How well the predicted proportions of bags agree with the known ones; everything is on the CPU."""
    parts = []
    for some, rows in bag_slices(bags.sizes):
        weight = None if bags.weight is None else bags.weight[rows]
        parts.append(exact_bag_means(log_probs[rows].exp(), bags.sizes[some], weight))
    predicted = torch.cat(parts)
    known = bags.proportions.isfinite().all(1)
    errors = (predicted[known] - bags.proportions[known]).abs().sum(1) / 2
    correlation = None
    if int(known.sum()) >= MIN_BAGS_TO_CORRELATE:
        correlation = bag_correlation(predicted[known], bags.proportions[known])
    return {"proportion_error": float(errors.mean()), "bag_correlation": correlation}


def entropy(log_probs: Tensor) -> Tensor:
    """The entropy of each prediction, (N,), in nats."""
    return torch.special.entr(log_probs.exp()).sum(1)


def confusion(predicted: Tensor, y: Tensor, n_classes: int) -> Tensor:
    """The confusion matrix (k, k): counts by true class (rows) and predicted class (columns).

    >>> confusion(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    return torch.bincount(y * n_classes + predicted, minlength=n_classes**2).view(n_classes, n_classes)


def calibration(log_probs: Tensor, y: Tensor, bins: int = 10) -> list[list[float]]:
    """The data of a reliability diagram: [rows, mean confidence, accuracy] for each of `bins` intervals.

    Confidence is the largest predicted probability of a row.
    """
    confidence, predicted = log_probs.exp().max(1)
    number = (confidence * bins).long().clamp_max(bins - 1)
    values = torch.stack([confidence, (predicted == y).to(confidence)], 1)
    if values.device.type != "mps":  # float32 sums of millions of rows lose digits; MPS has no float64
        values = values.double()
    counts = torch.bincount(number, minlength=bins)
    sums = values.new_zeros(bins, 2).index_add_(0, number, values)
    means = (sums / counts.clamp_min(1).unsqueeze(1)).tolist()
    return [[n, round(c, 4), round(a, 4)] for n, (c, a) in zip(counts.tolist(), means, strict=True)]
