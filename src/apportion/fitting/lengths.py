"""How many instances a batch has, and how many epochs a stage, where nobody says so."""

import math

from torch import Tensor

from apportion.bags.bags import Bags

LARGEST = 4096  # instances that a bag may ask for
SEEN = 20  # epochs up to which many classes lengthen a stage
FIRST_FOR, SECOND_FOR = 10, 5  # classes that the usual steps of each stage do for
MOST = 8192  # instances that bags may ask for: 1,000 steps of them are a minute or two of one core


def batch_of(sizes: Tensor, least: int = 256) -> int:
    """Instances in a batch: 256, or the largest bag up to 4,096, since a sampled bag's shares are noisy."""
    return min(LARGEST, max(least, int(sizes.max())))


def epochs_of(sizes: Tensor, batch_size: int, steps: float = 1000, least: int = 5, most: int = 10**6) -> int:
    """Epochs that make about `steps` steps, `least` to `most`: small data is gone over more often."""
    batches = math.ceil(int(sizes.clamp_max(batch_size).sum()) / batch_size)
    return min(most, max(least, math.ceil(steps / batches)))


def epochs_for(times: float, sizes: Tensor, batch_size: int, steps: float) -> int:
    """`epochs_of`, where `times` as many classes as `steps` do for need as many times more.

    They have fewer rows each. But where rows have been seen 20 times, more epochs may as well teach them by
    heart: beyond that no epoch is for the sake of the classes (docs/log.md).
    """
    usual, more = (epochs_of(sizes, batch_size, each) for each in (steps, steps * times))
    return max(usual, min(SEEN, more))


def usual_size(sizes: Tensor) -> float:
    """The size that the bag of a row has on average."""
    rows = sizes.double()
    return float(rows.square().sum() / rows.sum())


def two_usual(sizes: Tensor) -> int:
    """Instances of two bags of the usual size.

    A batch holds the largest bag, however few are so large. Steps of such batches are fewer: as many would go
    over the rows so often that the small bags are learned by heart (docs/log.md).
    """
    return math.ceil(2 * usual_size(sizes))


def instances_needed(bags: Bags) -> int:
    """Instances of as many bags as it takes to see what their shares tell; at most `MOST`.

    Shares of random bags of n rows differ as one over the root of n, and what one bag says drowns in what the
    others contradict. √(n k / 18) bags of k classes do (docs/log.md): five of 256 rows for two classes. Bags
    that differ more are as random ones of fewer rows, and fewer of them do.
    """
    shares = bags.proportions.cpu().double()  # MPS has no such numbers
    overall = shares.mean(0)
    differ = float((shares - overall).square().sum(1).mean())
    if differ == 0:
        return 0
    alike = float((overall * (1 - overall)).sum()) / differ  # rows of random bags that differ as much
    size = float(bags.sizes.clamp_max(LARGEST).double().mean())  # of what a batch holds of a bag
    return int(min(MOST, size * math.sqrt(alike * len(overall) / 18)))
