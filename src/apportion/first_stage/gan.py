"""LLP-GAN (Liu et al., 2019): the classifier also tells real instances from generated ones.

The discriminator has k + 1 classes; the logit of the class "generated" is fixed at zero, so that the
classifier's k logits say everything: an instance is real with probability sigmoid(logsumexp(logits)). The
generator matches the mean features of real instances.
"""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from apportion.bags import BagBatch
from apportion.learner import Terms, frozen, still_batchnorm
from apportion.losses import proportion_loss


def instance_mean(values: Tensor) -> Tensor:
    return values.mean(0)


class LLPGAN:
    """The classifier is nn.Sequential(features, head), as every backbone here; any module can be put so.

    `weight` is that of the proportions, `adversarial` that of telling real from generated: to Adam 100 and 1
    are the same as 1 and 0.01, to SGD and Muon they are not.
    """

    def __init__(
        self,
        classifier: nn.Module,
        generator: nn.Module,
        noise: int = 100,
        weight: float = 1.0,
        adversarial: float = 1.0,
    ) -> None:
        if not isinstance(classifier, nn.Sequential) or len(classifier) != 2:
            raise TypeError(
                "LLP-GAN matches the features before the last layer: pass nn.Sequential(features, head), or "
                "nn.Sequential(network, nn.Identity()) to match the logits"
            )
        self.classifier: nn.Module = classifier
        self.features = classifier[0]
        self.generator = generator
        self.noise = noise
        self.weight = weight
        self.adversarial = adversarial
        self.mean: Callable[[Tensor], Tensor] = instance_mean  # over all processes, where there are several

    def players(self) -> list[nn.Module]:
        return [self.classifier, self.generator]

    def steps(self, batch: BagBatch, progress: float) -> Iterator[Terms]:
        made = self.generator(torch.rand(len(batch.x), self.noise, device=batch.x.device) * 2 - 1)
        logits = self.classifier(batch.x)
        with still_batchnorm(self.classifier):  # the statistics used at test time are those of real instances
            judged = self.classifier(made.detach())
        yield {
            "proportion": self.weight * proportion_loss(logits, batch.sizes, batch.proportions, batch.left),
            "real": self.adversarial * F.softplus(-logits.float().logsumexp(1)).mean(),
            "fake": self.adversarial * F.softplus(judged.float().logsumexp(1)).mean(),
        }
        with still_batchnorm(self.classifier):
            with torch.no_grad():
                real = self.mean(self.features(batch.x).flatten(1).float())
            with frozen(self.classifier):  # until the generator has taken its step
                fake = self.mean(self.features(made).flatten(1).float())
                yield {"matching": (real - fake).square().mean()}
