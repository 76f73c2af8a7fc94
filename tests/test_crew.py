"""Several processes: the steps of one, whole bags, refusals; `benchmarks/processes.py` does more."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ONE_VIEW, learner_of, moon_bags, network, ragged
from torch import nn

from apportion._random import stream
from apportion.crew import Crew, Share, own_batch, own_seed
from apportion.crew.group import MAX, own_device
from apportion.crew.share import MEANS, WHOLE
from apportion.errors import RunError
from apportion.intake.grouping import build_bags
from apportion.optim import make_optimizer
from apportion.pseudo_labels import SoftLabels

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "processes.py"


class Pretended:
    """A group whose other processes have the counts that are given, and no gradients."""

    def __init__(self, rank=0, size=2, others=()):
        self.rank, self.size, self.others = rank, size, others

    def rounded_up(self, counts, device):
        table = torch.zeros(2, max(len(counts), len(self.others)), dtype=torch.int64)
        table[self.rank, : len(counts)] = torch.tensor(counts)
        table[1 - self.rank, : len(self.others)] = torch.tensor(self.others)
        return table

    def reduced(self, value, how=None):
        return value

    def gathered(self, part, longest):
        return []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are forked")
def test_two_processes_take_the_steps_of_one_that_replays_their_order():
    words = ("steps", "--data", "ragged", "--kinds", "dllp", "vat", "gan", "rot", "mixup", "bag weights")
    done = subprocess.run([sys.executable, BENCHMARK, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("the same steps\n")


@pytest.mark.slow
def test_a_killed_process_costs_nothing_but_time():
    done = subprocess.run([sys.executable, BENCHMARK, "kill"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_bag_is_in_one_share_and_shares_are_alike_in_size():
    bags = ragged([5, 1, 9, 3, 7, 7, 2, 8])
    shares = [Share(bags, Pretended(rank), 18, 1, 0) for rank in range(2)]
    rows = torch.cat([share.rows for share in shares])
    assert rows.sort().values.tolist() == list(range(len(bags.x)))
    assert all(torch.equal(share.x, bags.x[share.rows]) for share in shares)
    assert abs(len(shares[0].x) - len(shares[1].x)) <= 9


def test_the_first_process_puts_together_what_all_have_found():
    bags = ragged([5, 1, 9, 3, 7, 7, 2, 8])
    shares = [Share(bags, Pretended(rank), 18, 1, 0) for rank in range(2)]
    longest = max(len(share.rows) for share in shares)
    found = torch.arange(2.0 * len(bags.x)).view(-1, 2)

    def gathered(part, n):
        assert torch.equal(part, found[shares[0].rows])
        assert n == longest
        return [torch.cat([found[each.rows], torch.full((n - len(each.rows), 2), -1.0)]) for each in shares]

    shares[0].group.gathered = gathered
    assert torch.equal(shares[0].gathered(found[shares[0].rows]), found)
    shares[1].group.gathered = lambda part, n: []
    assert torch.equal(shares[1].gathered(found[shares[1].rows]), found[shares[1].rows])


def test_of_a_mapped_file_a_process_copies_its_own_share_alone(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((42, 3), dtype=np.float32))
    ids = np.repeat(np.arange(8), [5, 1, 9, 3, 7, 7, 2, 8])
    file = np.load(tmp_path / "x.npy", mmap_mode="r")
    bags = build_bags(file, ids, np.full((8, 2), 0.5))
    copied = []
    with pytest.MonkeyPatch.context() as patch:
        take = type(bags).take
        patch.setattr(
            type(bags), "take", lambda self, which: copied.append(self.x.shape) or take(self, which)
        )
        share = Share(bags, Pretended(), 18, 1, 0)
    assert torch.equal(share.x, torch.tensor(np.asarray(file))[share.rows])
    assert [shape for shape in copied if shape[1]] == [(42, 3)]  # once; the others have no width


def test_a_process_with_fewer_batches_goes_on_with_no_weight():
    bags = ragged([4, 4, 4, 4])
    share = Share(bags, Pretended(others=[4, 4, 2, 2]), 8, 2, 1)
    seen = []
    for batch in share.batches(share.batch, stream(0)):
        seen.append((len(batch.x), share.of_rows, share.progress))
    assert [weight for _, weight, _ in seen] == [0.5, 0.5, 0.0, 0.0]
    assert all(n == 4 for n, *_ in seen)
    assert [progress for *_, progress in seen] == [0.5, 0.5 + 4 / 20, 0.5 + 8 / 20, 0.5 + 9 / 20]
    assert share.progress == 1.0


def test_every_term_of_every_method_is_known_to_be_a_mean_over_instances():
    bags, _ = moon_bags()
    for name in ONE_VIEW:
        learner = learner_of(name, network())
        names = {term for terms in learner.losses(bags.take(torch.arange(2)), 0.5) for term in terms}
        assert names <= MEANS | WHOLE
    with pytest.raises(RunError, match="'new' is no known mean"):
        Share(bags, Pretended(), 100, 1, 0).weighed("new", torch.zeros(()))


def test_running_statistics_become_the_mean_over_instances():
    share = Share(ragged([2, 2]), Pretended(), 4, 1, 0)
    share.of_rows, norm = 0.25, nn.BatchNorm1d(3)
    norm.running_mean = torch.tensor([4.0, 8.0, 0.0])
    share.sum_gradients(norm)  # of other processes nothing is added here
    assert norm.running_mean.tolist() == [1.0, 2.0, 0.0]


def test_what_several_processes_cannot_do_is_refused_with_a_remedy():
    with pytest.raises(RunError, match="2 bags cannot be shared by 3 processes"):
        own_batch(ragged([2, 2]), 3, 12)
    with pytest.raises(RunError, match="bag 'bag 1' has 7 instances.*at least 14"):
        own_batch(ragged([2, 7, 3]), 2, 10)
    assert own_batch(ragged([2, 70, 3]), 2, 10) == 5  # larger than a batch: sampled anyway
    stages = Crew(Pretended())
    with pytest.raises(RunError, match=r"second\.stop"):
        next(stages.second_stage(torch.zeros(4, 3), network(3), ragged([2, 2]), [], stop=0.1))


def test_what_is_not_said_is_as_it_is_for_one_process():
    (bags, _), given = moon_bags(), {"epochs": 1, "schedule": lambda progress: 1.0, "seed": 0}
    stages, net = Crew(Pretended()), network()
    optimizer = make_optimizer(net, "adam", 1e-3)
    for stage in (
        stages.first_stage(learner_of("dllp", net), bags, [optimizer], **given),
        stages.second_stage(torch.zeros(len(bags.x), 2), net, bags, [optimizer], **given),
    ):
        assert [epoch_state.epoch.number for epoch_state in stage] == [1]


def test_a_stage_leaves_optimisers_and_learners_as_they_were():
    (bags, _), given = moon_bags(), {"epochs": 1, "schedule": lambda progress: 1.0, "seed": 0}
    learner = learner_of("gan", network())
    optimizers, mean = [make_optimizer(p, "sgd", 1e-3) for p in learner.networks()], learner.mean
    for _ in range(2):
        stage = Crew(Pretended()).first_stage(learner, bags, optimizers, **given)
        next(stage)
        assert [len(optimizer._optimizer_step_pre_hooks) for optimizer in optimizers] == [1, 1]
        assert learner.mean != mean
        stage.close()  # as it ends, also early
        assert [len(optimizer._optimizer_step_pre_hooks) for optimizer in optimizers] == [0, 0]
        assert learner.mean == mean


def test_gradients_that_are_shortened_before_they_are_added_are_refused():
    (bags, _), given = moon_bags(), {"epochs": 1, "schedule": lambda progress: 1.0, "seed": 0}
    net = network()
    clipped = make_optimizer(net, "sgd", 1e-3, clip=1.0)
    with pytest.raises(RunError, match="as clip does, but they are added over processes only then"):
        next(Crew(Pretended()).first_stage(learner_of("dllp", net), bags, [clipped], **given))


def test_a_batch_of_no_weight_is_no_larger_than_others():
    share = Share(ragged([400, 400, 400, 400]), Pretended(others=[16] * 4), 16, 2, 1)
    assert [len(batch.x) for batch in share.batches(share.batch, stream(0))] == [8] * 4


def test_processes_draw_apart():
    assert len({own_seed(1, 0), own_seed(1, 1), own_seed(2, 0), 1}) == 4


def test_without_cuda_a_process_keeps_its_device(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert own_device(torch.device("cpu")) == torch.device("cpu")


class Worse(Pretended):
    """Another process has a plan that is further from converged."""

    def reduced(self, value, how=None):
        return value + 1 if how is MAX else value


def test_the_error_of_plans_is_the_worst_of_all_processes():
    (bags, _), given = moon_bags(), {"epochs": 1, "schedule": lambda progress: 1.0, "seed": 0}
    learner = learner_of("rot", network())
    optimizer = make_optimizer(learner.classifier, "adam", 1e-3)
    next(Crew(Worse()).first_stage(learner, bags, [optimizer], **given))
    assert learner.label.taken() >= 1
    label, net = SoftLabels(1.0), network()
    optimizer = make_optimizer(net, "adam", 1e-3)
    next(
        Crew(Worse()).second_stage(torch.zeros(len(bags.x), 2), net, bags, [optimizer], label=label, **given)
    )
    assert float(label.last) >= 1
