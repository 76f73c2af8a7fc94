"""Evaluation: predictions, and how they compare with hidden labels and known proportions."""

import logging

import torch
from torch import Tensor, nn

from apportion._device import copied_to
from apportion.bags.bags import exact_bag_means
from apportion.training import View

VALUES = 2**22  # of instances at once: 1,024 images in color of 32 x 32 pixels have three quarters of it


@torch.no_grad()
def predict(classifier: nn.Module, x: Tensor, prepare: View = lambda x: x, batch_size: int = 1024) -> Tensor:
    """Log-probabilities (N, k) in float32, in evaluation mode and without augmentation.

    Large instances are taken fewer at a time, lest memory grow with their size.
    """
    if not isinstance(x, Tensor):
        what = f"x is a {type(x).__name__}, and networks take tensors"
        raise TypeError(f"{what}; pass torch.as_tensor(x, dtype=torch.float32)")
    was_training = classifier.training
    classifier.eval()
    found, at, most = torch.empty(0), 0, VALUES // values_in(x.shape[1:])
    try:
        for part in x.split(max(1, min(batch_size, most))):
            answer = classifier(prepare(part)).float().log_softmax(1)
            if not at:  # in one place from the start: many small parts would keep large holes between them
                found = answer.new_empty(len(x), *answer.shape[1:])
            found[at : at + len(part)] = answer
            at += len(part)
    finally:
        classifier.train(was_training)
    return found


def predict_on(device: torch.device, classifier: nn.Module, x: Tensor, prepare: View = lambda x: x) -> Tensor:
    """The same on that device, for a network of the CPU; the answers are on the CPU. Instances go there a few
    at a time. Where even those are too many the CPU does it: what was learned is not lost."""
    try:
        return predict(copied_to(classifier, device), x, lambda part: prepare(part.to(device))).cpu()
    except torch.OutOfMemoryError:
        logging.getLogger("apportion").warning("%s has no memory left; the CPU predicts, slowly", device)
        return predict(classifier, x, lambda part: prepare(part.cpu()))


def values_in(shape: torch.Size) -> int:
    """Of an instance; gray images count as colored ones, since a network makes as much of either."""
    return max(1, shape.numel(), 3 * shape[1:].numel() if len(shape) == 3 else 0)


def accuracy(scores: Tensor, y: Tensor) -> float:
    """Share of instances whose largest score, or label, is at their true class; of ties the first counts."""
    return float((scores.argmax(1) == y).float().mean())


def proportion_error(log_probs: Tensor, sizes: Tensor, proportions: Tensor) -> float:
    """Half the L1 distance of predicted and known proportions, mean over bags: the share misplaced."""
    predicted = exact_bag_means(log_probs.exp(), sizes)
    return float((predicted - proportions).abs().sum(1).mean() / 2)


def bag_correlation(predicted: Tensor, known: Tensor) -> float | None:
    """Correlation over bags of shares (m, k), each less its class's mean; None where all bags are alike."""
    predicted, known = predicted.double(), known.double()
    predicted, known = predicted - predicted.mean(0), known - known.mean(0)
    if not known.abs().max() > 1e-6:
        return None
    scale = predicted.norm() * known.norm()
    return float((predicted * known).sum() / scale) if scale > 0 else 0.0


def entropy(log_probs: Tensor) -> Tensor:
    """The entropy of each prediction in nats, (n,)."""
    return torch.special.entr(log_probs.exp()).sum(1)


def label_gap(labels: Tensor, sizes: Tensor, proportions: Tensor) -> float:
    """The largest distance of any bag's labels from its proportions: zero where transport converged."""
    return float((exact_bag_means(labels, sizes) - proportions).abs().max())


def confusion(predicted: Tensor, y: Tensor, n_classes: int) -> Tensor:
    """CountLikelihood (k, k): rows are true classes, columns predicted ones."""
    return torch.bincount(y * n_classes + predicted, minlength=n_classes**2).view(n_classes, n_classes)


def calibration(log_probs: Tensor, y: Tensor, bins: int = 10) -> list[list[float]]:
    """By confidence, the largest probability, in bins of equal width: [instances, mean confidence, right]."""
    confidence, predicted = log_probs.exp().max(1)
    number = (confidence * bins).long().clamp_max(bins - 1)
    values = torch.stack([confidence, (predicted == y).to(confidence)], 1)
    values = values if values.device.type == "mps" else values.double()  # sums of millions in single stray
    counts = torch.bincount(number, minlength=bins)
    sums = values.new_zeros(bins, 2).index_add_(0, number, values)
    means = (sums / counts.clamp_min(1).unsqueeze(1)).tolist()
    return [[n, round(c, 4), round(a, 4)] for n, (c, a) in zip(counts.tolist(), means, strict=True)]
