"""A row of weight w is w equal rows: in bag means, losses, labels, scores and conditioned probabilities."""

import torch

from apportion._random import stream
from apportion.bags.bags import Bags, bag_means
from apportion.losses import effective_sizes, proportion_loss

SIZES = torch.tensor([1, 7, 2, 20])


def weighted_bags(k: int = 3) -> Bags:
    """Bags of random rows with whole weights."""
    n = int(SIZES.sum())
    shares = torch.rand(len(SIZES), k, generator=stream(1)) + 0.1
    return Bags(
        torch.randn(n, 2, generator=stream(0)),
        SIZES,
        shares / shares.sum(1, keepdim=True),
        torch.arange(n),
        ids=range(len(SIZES)),
        weight=torch.randint(1, 5, (n,), generator=stream(2)).float(),
    )


def repeated(bags: Bags) -> tuple[Bags, torch.Tensor]:
    """The same bags with every row as often as it weighs, and the row of `bags` that each one repeats."""
    times = bags.weight.long()
    row = torch.arange(len(bags.x)).repeat_interleave(times)
    sizes = torch.stack([part.sum() for part in times.split(bags.sizes.tolist())])
    return Bags(bags.x[row], sizes, bags.proportions, torch.arange(len(row)), bags.ids), row


def test_means_masses_and_overall_proportions():
    bags = weighted_bags()
    copies, row = repeated(bags)
    torch.testing.assert_close(bag_means(bags.x, SIZES, bags.weight), bag_means(copies.x, copies.sizes))
    torch.testing.assert_close(bags.mass, copies.sizes.double())
    torch.testing.assert_close(bags.overall, copies.overall)
    torch.testing.assert_close(bags.select(torch.tensor([3, 1])).mass, copies.sizes[[3, 1]].double())
    equal = torch.full((len(bags.x),), 2.5)
    torch.testing.assert_close(bag_means(bags.x, SIZES, equal), bag_means(bags.x, SIZES))
    torch.testing.assert_close(effective_sizes(equal, SIZES), SIZES.float())


def test_batches_carry_the_weights_of_their_rows():
    bags = weighted_bags()
    for by in ("bag", "row"):
        for batch in bags.batches(16, stream(0), by=by):
            torch.testing.assert_close(batch.weight, bags.weight[batch.row])


def test_the_bag_loss_and_its_gradient():
    bags = weighted_bags()
    copies, row = repeated(bags)
    logits = torch.randn(len(bags.x), 3, generator=stream(3)).requires_grad_()
    loss = proportion_loss(logits, SIZES, bags.proportions, weight=bags.weight)
    expected = proportion_loss(logits[row], copies.sizes, bags.proportions)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(*(torch.autograd.grad(value, logits)[0] for value in (loss, expected)))
