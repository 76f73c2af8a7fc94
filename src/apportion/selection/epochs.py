"""Selection of an epoch on validation bags, which are not trained on."""

import math
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from apportion._device import plain_network
from apportion.bags.arrays import as_floats
from apportion.bags.bags import Bags
from apportion.errors import CheckpointError
from apportion.evaluate import predict_log_proba
from apportion.pipeline import EpochState
from apportion.selection.calibration import fit_temperature, scale_temperature
from apportion.selection.scores import SCORES


class EpochSelector:
    """Keeps the network of the epoch that scores best on validation bags, or else that of the last epoch.

    Call `update` after every epoch of both stages, then `best_network`. Instances are predicted on the device
    of the network; scores are computed on the CPU.

    Parameters
    ----------
    validation_bags : Bags
        Bags that are not trained on.
    select_by : str or None
        A name in `SCORES`. None keeps the last epoch.

    Attributes
    ----------
    stage, epoch : str, int
        The stage and the number of the epoch that is kept.
    """

    def __init__(self, validation_bags: Bags, select_by: str | None) -> None:
        weight = None if validation_bags.weight is None else validation_bags.weight.cpu()
        proportions = validation_bags.proportions.cpu()
        self.validation_bags = replace(validation_bags, proportions=proportions, weight=weight)
        self.select_by = select_by
        self.stage = ""
        self.epoch = 0
        self._best_score = -math.inf
        self._learner: Any = None
        self._weights: dict[str, Tensor] | None = None

    def update(self, state: EpochState) -> dict[str, Any]:
        """Record an epoch. Returns {"validation_NAME": score} for the history; {} without `select_by`."""
        if self.select_by is None:
            self._keep(state)
            return {}
        network = state.learner.classifier
        x = self.validation_bags.x.to(_device_of(network))
        score = SCORES[self.select_by](predict_log_proba(network, x, as_floats).cpu(), self.validation_bags)
        if self.epoch == 0 or score > self._best_score:  # a NaN is never better
            self._best_score = -math.inf if math.isnan(score) else score
            # copies, since training goes on with these tensors
            self._weights = {name: value.clone() for name, value in network.state_dict().items()}
            self._keep(state)
        elif self._learner is None:  # the best epoch is in a checkpoint; networks of both stages are alike
            self._learner = state.learner
        return {f"validation_{self.select_by}": score}

    def _keep(self, state: EpochState) -> None:
        self._learner = state.learner
        self.stage = state.stage
        self.epoch = state.epoch.number

    def state(self) -> dict[str, Any]:
        """Tensors and plain values that `restore` accepts."""
        return {
            "stage": self.stage,
            "epoch": self.epoch,
            "best_score": self._best_score,
            "weights": self._weights,
        }

    def restore(self, saved: dict[str, Any] | None) -> None:
        """Continue with what was selected before, in front of the next `update`."""
        if saved is None:
            raise CheckpointError("the checkpoint does not say which epoch is best; delete it to start over")
        self.stage = saved["stage"]
        self.epoch = saved["epoch"]
        self._best_score = saved["best_score"]
        self._weights = saved["weights"]

    def best_network(self, calibrate: bool = False) -> tuple[nn.Module, float]:
        """The selected network on the CPU, in evaluation mode, and its temperature.

        With `calibrate`, the temperature is fitted on the validation bags and the logits are divided by it;
        otherwise it is one.
        """
        classifier = self._learner.classifier
        if self._weights is not None:
            classifier.load_state_dict(self._weights)
        network = plain_network(classifier).cpu().eval()
        if not calibrate:
            return network, 1.0
        bags = self.validation_bags
        log_probs = predict_log_proba(network, bags.x.cpu(), as_floats)
        temperature = fit_temperature(log_probs, bags.sizes, bags.proportions, bags.weight)
        return scale_temperature(network, temperature), temperature


def _device_of(network: nn.Module) -> torch.device:
    """Where a network is; trees have no parameters, and a scikit-learn classifier has no tensors at all."""
    for tensor in chain(network.parameters(), network.buffers()):
        return tensor.device
    return torch.device("cpu")
