"""Several processes: the steps of one, whole bags, refusals; `benchmarks/processes.py` does more."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ONE_VIEW, learner_of, moon_bags, network, ragged
from torch import nn

from apportion._random import stream
from apportion.bags.build import build_bags
from apportion.distributed import (
    GLOBAL_TERMS,
    MAX,
    MEAN_TERMS,
    DistributedPipeline,
    ProcessBags,
    ProcessGroup,
    check_same,
    process_batch_size,
    process_device,
    process_seed,
    sum_gradients,
    weigh_term,
)
from apportion.errors import RunError
from apportion.methods import DLLP
from apportion.methods.prediction_memory import PredictionMemory
from apportion.optim import make_optimizer
from apportion.pseudo_labels import SoftLabels

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "processes.py"
SIZES = [5, 1, 9, 3, 7, 7, 2, 8]
STAGE: dict[str, Any] = {"epochs": 1, "schedule": lambda progress: 1.0, "seed": 0}


class FakeGroup(ProcessGroup):
    """Two processes, of which the other has the counts that are given, and no gradients."""

    def __init__(self, rank: int = 0, other_counts: tuple[int, ...] = ()) -> None:
        self.rank, self.size, self.seconds = rank, 2, 0.0
        self.other_counts = other_counts

    def gather_counts(self, counts, device):
        table = torch.zeros(2, max(len(counts), len(self.other_counts)), dtype=torch.int64)
        table[self.rank, : len(counts)] = torch.tensor(counts)
        table[1 - self.rank, : len(self.other_counts)] = torch.tensor(self.other_counts)
        return table

    def all_reduce(self, value, operation=None):
        return value

    def all_gather(self, value):
        return [value, value]

    def gather(self, part, length):
        return []


# --- the steps are those of one process


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are forked")
def test_two_processes_take_the_steps_of_one_that_replays_their_order():
    words = (
        "steps",
        "--data",
        "ragged",
        "--kinds",
        "dllp",
        "llp_vat",
        "llp_gan",
        "rot",
        "mixup",
        "bag weights",
    )
    done = subprocess.run([sys.executable, BENCHMARK, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("the same steps\n")


@pytest.mark.slow
def test_a_killed_process_costs_nothing_but_time():
    done = subprocess.run([sys.executable, BENCHMARK, "kill"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_term_of_every_method_can_be_summed_over_processes():
    bags, _ = moon_bags()
    for name in ONE_VIEW:
        learner = learner_of(name, network())
        names = {term for terms in learner.losses(bags.take(torch.arange(2)), 0.5) for term in terms}
        assert names <= MEAN_TERMS | GLOBAL_TERMS | set(getattr(learner, "mean_terms", ()))
    with pytest.raises(RunError):
        weigh_term("new", torch.zeros(()), ProcessBags(bags, FakeGroup(), 100, 1))


def test_parts_of_terms_sum_to_the_terms():
    bags = ProcessBags(ragged([2, 2]), FakeGroup(), 4, 1)
    bags.step_weight = 0.25
    term = torch.tensor(3.0, requires_grad=True)
    part = weigh_term("proportion", term, bags)
    assert (part.item(), float(torch.autograd.grad(part, term)[0])) == (0.75, 0.25)
    part = weigh_term("matching", term, bags)  # each of two processes has the whole term
    assert (part.item(), float(torch.autograd.grad(part, term)[0])) == (1.5, 1.0)


def test_running_statistics_are_weighted_means_over_processes():
    bags, norm = ProcessBags(ragged([2, 2]), FakeGroup(), 4, 1), nn.BatchNorm1d(3)
    bags.step_weight = 0.25
    norm.running_mean = torch.tensor([4.0, 8.0, 0.0])
    sum_gradients(norm, bags)  # nothing of other processes is added here
    assert norm.running_mean.tolist() == [1.0, 2.0, 0.0]


def test_what_is_not_passed_has_the_defaults_of_one_process():
    bags, _ = moon_bags()
    stages, net = DistributedPipeline(FakeGroup()), network()
    optimizer = make_optimizer(net, "adam", 1e-3)
    for stage in (
        stages.first_stage(learner_of("dllp", net), bags, [optimizer], **STAGE),
        stages.second_stage(torch.zeros(len(bags.x), 2), net, bags, [optimizer], **STAGE),
    ):
        assert [state.epoch.number for state in stage] == [1]


def test_a_stage_leaves_optimizers_and_learners_as_they_were():
    bags, _ = moon_bags()
    learner = learner_of("llp_gan", network())
    optimizers = [make_optimizer(each, "sgd", 1e-3) for each in learner.networks()]
    mean = learner.mean  # type: ignore[attr-defined]
    for _ in range(2):
        stage = DistributedPipeline(FakeGroup()).first_stage(learner, bags, optimizers, **STAGE)
        next(stage)
        assert [len(each._optimizer_step_pre_hooks) for each in optimizers] == [1, 1]
        assert learner.mean != mean  # type: ignore[attr-defined]
        stage.close()  # also if it ends early
        assert [len(each._optimizer_step_pre_hooks) for each in optimizers] == [0, 0]
        assert learner.mean == mean  # type: ignore[attr-defined]


class WorseElsewhere(FakeGroup):
    """The other process has a plan that is further from converged."""

    def all_reduce(self, value, operation=None):
        return value + 1 if operation is MAX else value


def test_the_error_of_plans_is_the_worst_of_all_processes():
    bags, _ = moon_bags()
    stages, learner = DistributedPipeline(WorseElsewhere()), learner_of("rot", network())
    optimizer = make_optimizer(learner.classifier, "adam", 1e-3)
    next(stages.first_stage(learner, bags, [optimizer], **STAGE))
    assert float(learner.label.worst_error) >= 1  # type: ignore[attr-defined]
    label, net = SoftLabels(1.0), network()
    optimizer = make_optimizer(net, "adam", 1e-3)
    next(stages.second_stage(torch.zeros(len(bags.x), 2), net, bags, [optimizer], label=label, **STAGE))
    assert float(label.last_error) >= 1


# --- the bags of a process


def test_every_bag_is_in_one_process_and_processes_have_similar_numbers_of_rows():
    bags = ragged(SIZES)
    parts = [ProcessBags(bags, FakeGroup(rank), 18, 1) for rank in range(2)]
    rows = torch.cat([part.rows for part in parts])
    assert rows.sort().values.tolist() == list(range(len(bags.x)))
    assert all(torch.equal(part.x, bags.x[part.rows]) for part in parts)
    assert abs(len(parts[0].x) - len(parts[1].x)) <= max(SIZES)


def test_the_first_process_puts_the_rows_of_all_together():
    bags = ragged(SIZES)
    parts = [ProcessBags(bags, FakeGroup(rank), 18, 1) for rank in range(2)]
    values = torch.arange(2.0 * len(bags.x)).view(-1, 2)

    class Gathering(FakeGroup):
        def gather(self, part, length):
            assert torch.equal(part, values[parts[0].rows])
            assert length == max(len(each.rows) for each in parts)
            return [
                torch.cat([values[each.rows], torch.full((length - len(each.rows), 2), -1.0)])
                for each in parts
            ]

    parts[0].group = Gathering()
    assert torch.equal(parts[0].gather_rows(values[parts[0].rows]), values)
    assert torch.equal(parts[1].gather_rows(values[parts[1].rows]), values[parts[1].rows])


def test_of_a_mapped_file_a_process_copies_its_own_bags_alone(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((sum(SIZES), 3), dtype=np.float32))
    file = np.load(tmp_path / "x.npy", mmap_mode="r")
    bags = build_bags(file, bags=np.repeat(np.arange(8), SIZES), proportions=np.full((8, 2), 0.5)).bags
    copied = []

    def spy(method):
        return lambda self, which: copied.append(self.x.shape) or method(self, which)

    for name in ("select", "take"):
        monkeypatch.setattr(type(bags), name, spy(getattr(type(bags), name)))
    part = ProcessBags(bags, FakeGroup(), 18, 1)
    assert torch.equal(part.x, torch.tensor(np.asarray(file))[part.rows])
    assert [shape for shape in copied if shape[1]] == [(sum(SIZES), 3)]  # once; the others have no width


def test_a_process_with_fewer_batches_goes_on_with_weight_zero():
    part = ProcessBags(ragged([4, 4, 4, 4]), FakeGroup(other_counts=(4, 4, 2, 2)), 8, epochs=2, done=1)
    steps = [(len(batch.x), part.step_weight, part.progress) for batch in part.batches(4, stream(0))]
    assert [n for n, *_ in steps] == [4] * 4
    assert [weight for _, weight, _ in steps] == [0.5, 0.5, 0.0, 0.0]
    assert [progress for *_, progress in steps] == [0.5, 0.5 + 4 / 20, 0.5 + 8 / 20, 0.5 + 9 / 20]
    assert part.progress == 1.0


def test_bags_larger_than_a_batch_are_sampled_to_the_batch_size_of_the_process():
    part = ProcessBags(ragged([400] * 4), FakeGroup(other_counts=(16,) * 4), 16, epochs=2, done=1)
    assert [len(batch.x) for batch in part.batches(part.batch_size, stream(0))] == [8] * 4


def test_processes_draw_apart():
    assert len({process_seed(1, 0), process_seed(1, 1), process_seed(2, 0), 1}) == 4


def test_without_cuda_a_process_keeps_its_device(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert process_device(torch.device("cpu")) == torch.device("cpu")


# --- refusals


def test_batches_that_cannot_be_shared_are_refused():
    with pytest.raises(RunError):
        process_batch_size(ragged([2, 2]), 3, 12)
    with pytest.raises(RunError):
        process_batch_size(ragged([2, 7, 3]), 2, 10)
    assert process_batch_size(ragged([2, 7, 3]), 2, 14) == 7
    assert process_batch_size(ragged([2, 70, 3]), 2, 10) == 5  # larger than a batch: sampled in any case


def test_processes_that_differ_are_refused():
    class Differing(FakeGroup):
        def all_gather(self, value):
            return [value, "other"]

    check_same(FakeGroup(), {"torch": "2.9", "data": "ab12"})
    with pytest.raises(RunError):
        check_same(Differing(), {"torch": "2.9"})


def test_stages_that_need_all_rows_in_one_process_are_refused():
    stages, (bags, _) = DistributedPipeline(FakeGroup()), moon_bags()
    log_probs, net = torch.zeros(len(bags.x), 2), network()
    adam, clipped = make_optimizer(net, "adam", 1e-3), make_optimizer(net, "sgd", 1e-3, clip=1.0)
    refused = [
        stages.second_stage(log_probs, net, bags, [adam], stop=0.1, **STAGE),
        stages.second_stage(log_probs, net, bags, [adam], by="row", **STAGE),
        stages.first_stage(DLLP(net), bags, [adam], by="row", **STAGE),
        stages.first_stage(DLLP(net, PredictionMemory(bags)), bags, [adam], **STAGE),
        stages.first_stage(learner_of("two_views", net), bags, [adam], **STAGE),
        stages.first_stage(DLLP(net), bags, [clipped], **STAGE),  # shortened before it is summed
    ]
    for stage in refused:
        with pytest.raises(RunError):
            next(stage)
