"""The leaderboard: every method on the same bags, with the same network and the same budget.

python benchmarks/leaderboard.py [--data FOLDER] [--only METHOD ...] [--cells DATA/BAGGING/SIZE ...]

Runs what results/leaderboard.jsonl does not have yet, one line per run, and writes docs/leaderboard.md from it.
Stopped at any moment, the same command continues. One core takes about half an hour. Without MNIST and Adult
(`apportion data fetch mnist adult`) only the digits are run. `--page` writes the page only.

The rules. Bags depend on the data, the bagging, the bag size and the seed only. Every method trains the same
network for the same number of epochs of batches of the same number of rows, with Adam and a one-cycle schedule,
and is judged after its last epoch. Its peak learning rate is the one of two whose predictions make the counts
of held-out bags most likely, a fifth of the bags of seed 0; no label is used for this. Then it is trained on
all bags of seeds 11 to 13. Other options are the defaults of the methods.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from apportion._random import reseed, stream
from apportion.augment import views
from apportion.bags.bags import Bags
from apportion.bags.simulate import make_bags
from apportion.datasets import Instances, load_dataset
from apportion.defaults import make_optimizers, Optimization
from apportion.errors import DataError, TrainingError
from apportion.evaluate import accuracy, predict_log_proba
from apportion.methods import METHODS, make_learner, takes_pairs, title_of
from apportion.networks import mlp
from apportion.optim import one_cycle
from apportion.pipeline import first_stage, second_stage
from apportion.pseudo_labels import soft_labels
from apportion.selection.scores import SCORES

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "results" / "leaderboard.jsonl"
PAGE = ROOT / "docs" / "leaderboard.md"

RATES = (1e-3, 4e-3)
TUNING_SEED = 0
SEEDS = (11, 12, 13)


@dataclass(frozen=True)
class Cell:
    """One column: bags of one data set."""

    data: str
    bagging: str
    size: int

    def __str__(self) -> str:
        return f"{self.data}/{self.bagging}/{self.size}"
