"""The likelihood of counts beside DLLP's cross-entropy: gradients in tiny bags, accuracy on a part of MNIST.

python benchmarks/counts.py gradients
python benchmarks/counts.py mnist --data FOLDER [--sizes 1 4 16 64 128] [--seeds 1 2]

`gradients`: how far each loss's gradient is from that of the exact likelihood, the sum over all labelings.
`mnist`: 15,000 images in random bags, a dense network, Adam in one cycle for 15 epochs; test accuracy. About
20 seconds a training on one core.
"""

import argparse
import itertools
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor, nn

from apportion._random import reseed, stream
from apportion.bags.bags import bag_means
from apportion.bags.simulate import make_bags
from apportion.datasets import load_dataset
from apportion.losses import proportion_loss
from apportion.methods.count_likelihood import TINY, count_covariance, count_loss, drawn_count_loss
from apportion.networks import mlp
from apportion.optim import make_optimizer, one_cycle
from apportion.training import train
from apportion.transport import entropic_plan

LEAST = 1e-3  # variance of counts
CELLS = 1 << 22  # numbers in memory at once


def normal_loss(logits: Tensor, sizes: Tensor, proportions: Tensor, left: Tensor | None = None) -> Tensor:
    return drawn_count_loss(logits, sizes, proportions, torch.zeros(len(sizes)))


def posterior(log_probs: Tensor, sizes: Tensor, proportions: Tensor) -> Tensor:
    """(N, k) the probability of each row's class once the counts of its bag are known.

    Exactly it is a sum over all labelings that have these counts. The plan q of transport with λ = 1 is
    near, but lacks that the row is one of those who make them up: if it is of class c, the others together
    are e_c - q off what the plan has for them, which by the normal law is the less likely the less room they
    have. In small bags this is three to ten times as near to the exact sum as the plan.
    """
    plan = entropic_plan(log_probs, sizes, proportions, reg=1.0).mass.double()
    n, k = sizes.double().view(-1, 1, 1), plan.shape[1]
    ground = 1 / k + LEAST * torch.eye(k, dtype=plan.dtype)  # where the others have no room at all
    inverse = torch.linalg.inv_ex(count_covariance(plan, sizes) * (n - 1) / n + ground)[0]
    bag = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    parts = zip(plan.split(CELLS // k**2 + 1), bag.split(CELLS // k**2 + 1), strict=True)
    # (e_c - q)' inverse (e_c - q), less what is the same for all c
    pulled = torch.cat([(inverse[of] @ q.unsqueeze(2)).squeeze(2) for q, of in parts])
    dear = inverse.diagonal(dim1=1, dim2=2)[bag] - 2 * pulled
    scores = plan.clamp_min(TINY).log() - dear / 2
    return entropic_plan(scores.log_softmax(1), sizes, proportions, reg=1.0).mass


def posterior_loss(logits: Tensor, sizes: Tensor, proportions: Tensor, left: Tensor | None = None) -> Tensor:
    """Cross-entropy with each row's probabilities given the counts: the step of expectation-maximization."""
    log_probs = logits.log_softmax(1)
    labels = posterior(log_probs.detach(), sizes, proportions).to(log_probs)
    return bag_means(-(labels * log_probs).sum(1, keepdim=True), sizes).mean()


LOSSES = {
    "DLLP": proportion_loss,
    "normal law": normal_loss,
    "counts": count_loss,
    "posterior": posterior_loss,
}


def exact(logits: Tensor, counts: list[int]) -> Tensor:
    """Minus the log-probability of a bag's counts, by instance."""
    n, k = logits.shape
    ways = [w for w in itertools.product(range(k), repeat=n) if [w.count(j) for j in range(k)] == counts]
    each = logits.log_softmax(1)[torch.arange(n), torch.tensor(ways)]  # (ways, n)
    return -each.sum(1).logsumexp(0) / n


def error(loss: str, n: int, k: int, scale: float, seed: int) -> float:
    """The distance of a gradient from the exact likelihood's, over the length of that."""
    logits = (scale * torch.randn(n, k, generator=stream(seed, "logits"))).requires_grad_()
    labels = torch.multinomial(logits.detach().softmax(1), 1, generator=stream(seed, "labels")).flatten()
    counts = torch.bincount(labels, minlength=k)
    (truth,) = torch.autograd.grad(exact(logits, counts.tolist()), logits)
    (found,) = torch.autograd.grad(LOSSES[loss](logits, torch.tensor([n]), (counts / n)[None]), logits)
    return float((found - truth).norm() / truth.norm())


def gradients() -> None:
    shapes = [(4, 3), (7, 3), (8, 2), (6, 4)]
    print("| bags of (rows, classes), 20 of each |", " | ".join(map(str, shapes)), "|")
    print("|---|" + "---|" * len(shapes))
    for loss in LOSSES:
        means = [fmean(error(loss, n, k, 2.0, seed) for seed in range(20)) for n, k in shapes]
        print(f"| {loss} |", " | ".join(f"{mean:.2f}" for mean in means), "|")


class Learner:
    """A network that learns by one of the losses."""

    def __init__(self, loss: str) -> None:
        reseed(0, "weights")
        self.classifier: nn.Module = mlp((784,), 10, (256, 256))
        self.loss = LOSSES[loss]

    def networks(self) -> list[nn.Module]:
        return [self.classifier]

    def losses(self, batch, progress):  # noqa: ANN001, ANN201  as every learner's
        yield {"loss": self.loss(self.classifier(batch.x), batch.sizes, batch.proportions)}


def accuracy(loss: str, size: int, seed: int, folder: Path, epochs: int = 15) -> float:
    data = load_dataset("mnist", folder)
    x, y, test = data.x[:15000].flatten(1) / 255, data.y[:15000], data.test_x.flatten(1) / 255
    bags, _ = make_bags(x, y, size, 10, stream(seed, "bags"))
    learner = Learner(loss)
    optimizer = make_optimizer(learner.classifier, "adam", 1e-3)
    given = {"schedule": one_cycle, "seed": seed, "stage": "first"}
    for _ in train(learner, bags, [optimizer], epochs=epochs, batch_size=512, **given):
        pass
    with torch.no_grad():
        right = learner.classifier(test).argmax(1) == data.test_y
    return 100 * float(right.float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("gradients", "mnist"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 4, 16, 64, 128])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=list(LOSSES))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.part == "gradients":
        return gradients()
    print("| bags of |", " | ".join(map(str, asked.sizes)), "|")
    print("|---|" + "---|" * len(asked.sizes))
    for loss in asked.losses:
        found = [[accuracy(loss, size, seed, asked.data) for seed in asked.seeds] for size in asked.sizes]
        print(f"| {loss} |", " | ".join(f"{fmean(each):.2f}" for each in found), "|", flush=True)
    return None


if __name__ == "__main__":
    main()
