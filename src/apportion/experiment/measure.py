"""What a run writes down: a line an epoch and a summary at the end, accuracies in per cent."""

import time
from typing import Any

from torch import Tensor

from apportion.evaluate import (
    accuracy,
    confusion,
    entropy,
    max_proportion_gap,
    predict_log_proba,
    proportion_error,
)
from apportion.experiment.task import Task
from apportion.methods import ROT
from apportion.pipeline import EpochState
from apportion.pseudo_labels import Labeler, SoftLabels, argmax_labels, hard_labels, soft_labels


def evaluated(epoch_state: EpochState, task: Task, label: Labeler) -> dict[str, Any]:
    """One line of the log: terms, accuracies in per cent, and the seconds of each part."""
    started = time.perf_counter()
    line: dict[str, Any] = {
        "stage": epoch_state.stage,
        "epoch": epoch_state.epoch.number,
        "terms": epoch_state.epoch.terms,
    }
    test = predict_log_proba(epoch_state.learner.classifier, task.data.test_x, task.prepare)
    line["test_accuracy"] = percent(accuracy(test, task.data.test_y))
    if task.held_out is not None:
        held = predict_log_proba(epoch_state.learner.classifier, task.held_out.x, task.prepare)
        line["held_out_error"] = percent(
            proportion_error(held, task.held_out.sizes, task.held_out.proportions)
        )
    if epoch_state.log_probs is not None and epoch_state.labels is not None:
        line["label_accuracy"] = {
            "predicted": percent(accuracy(epoch_state.log_probs, task.hidden)),
            "labels": percent(accuracy(epoch_state.labels.rounds[-1], task.hidden)),
            "mean": percent(accuracy(epoch_state.labels.mean, task.hidden)),
        }
        line["max_proportion_gap"] = max_proportion_gap(
            epoch_state.labels.rounds[-1], task.bags.sizes, task.bags.proportions
        )
        line["proportion_error"] = percent(
            proportion_error(epoch_state.log_probs, task.bags.sizes, task.bags.proportions)
        )
    if epoch_state.change is not None:
        line["change"] = epoch_state.change
    if isinstance(epoch_state.learner, ROT):
        line["plan_error"] = epoch_state.learner.label.reset_worst_error()  # the worst of its batches
    elif isinstance(label, SoftLabels) and epoch_state.log_probs is not None:
        line["plan_error"] = float(label.last_error)
    line["seconds"] = {
        "train": round(epoch_state.epoch.seconds, 4),
        "label": round(epoch_state.label_seconds, 4),
        "evaluate": round(time.perf_counter() - started, 4),
    }
    return line


def summary(log: list[dict[str, Any]], task: Task, log_probs: Tensor, test: Tensor) -> dict[str, Any]:
    """The numbers of a run: the last epoch is the headline; the best test epoch is marked oracle."""
    curve = [line["test_accuracy"] for line in log]
    sizes, proportions = task.bags.sizes, task.bags.proportions
    best = max(range(len(curve)), key=curve.__getitem__)
    scores, known, hidden = log_probs.cpu(), proportions.cpu(), task.hidden.cpu()
    labels = {
        "argmax": argmax_labels(scores, sizes, known),
        "exact": hard_labels(scores, sizes, known),
        "entropic_plan": soft_labels(scores, sizes, known, reg=1.0),
        "relaxed": soft_labels(scores, sizes, known, reg=1.0, relax=1.0),
    }
    result: dict[str, Any] = {
        "test_accuracy": {"last": curve[-1], "oracle": curve[best], "oracle_epoch": best + 1},
        "epochs": len(curve),
        "train": {
            "errors": int((log_probs.argmax(1) != task.hidden).sum()),
            "proportion_error": percent(proportion_error(log_probs, sizes, proportions)),
            "entropy": round(float(entropy(log_probs).mean()), 4),
            "label_accuracy": {name: percent(accuracy(each, hidden)) for name, each in labels.items()},
        },
        "seconds": {part: round(sum(line["seconds"][part] for line in log), 2) for part in log[0]["seconds"]},
        "confusion": confusion(test.argmax(1), task.data.test_y, task.data.n_classes).tolist(),
    }
    if "held_out_error" in log[0]:
        chosen = min(range(len(log)), key=lambda i: log[i]["held_out_error"])
        result["test_accuracy"] |= {"held_out": curve[chosen], "held_out_epoch": chosen + 1}
    return result


def percent(share: float) -> float:
    return round(100 * share, 4)
