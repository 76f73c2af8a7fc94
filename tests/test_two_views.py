"""Two views: transport labels of the weak view, taught to the strong one; an average of weights predicts."""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import moon_bags, network, normed, ragged, same_bits, steady, two_views, weights_of
from sklearn.datasets import make_blobs
from torch import nn

from apportion import ProportionClassifier
from apportion._device import identity, start_copy_to_host
from apportion._random import reseed, stream
from apportion.bags.bags import BagBatch
from apportion.evaluate import accuracy, predict_log_proba
from apportion.losses import proportion_loss
from apportion.methods import TwoViews, make_learner
from apportion.methods.count_likelihood import count_loss
from apportion.methods.protocol import WeightAverage
from apportion.methods.two_views import info_nce, label_losses, make_projector, transport_labels, trust
from apportion.optim import make_optimizer
from apportion.pipeline import first_stage
from apportion.pseudo_labels import hard_labels


def learner_of_views(**options) -> TwoViews:
    reseed(0, "projector")
    return TwoViews(normed(), normed(), make_projector(16), **options)


def batch_of(which: Sequence[int] = (0, 1, 2)) -> BagBatch:
    batch = moon_bags()[0].take(torch.tensor(which))
    reseed(0, "views")
    return replace(batch, x=two_views(batch.x).requires_grad_())


# --- labels


def labels_and_trust(logits, sizes, proportions):
    """Labels, and how far they are trusted."""
    classes, scores = transport_labels(logits, lambda: [logits], lambda: [sizes, proportions])
    largest = scores.max(1).values
    torch.testing.assert_close(scores.gather(1, classes.unsqueeze(1)).squeeze(1), largest)
    return classes, trust(scores)


def test_labels_are_those_of_exact_transport_and_the_largest_class_minus_prices():
    bags = ragged((7, 1, 30, 4), k=4)
    logits = torch.randn(42, 4, generator=stream(0))
    classes, trusted = labels_and_trust(logits, bags.sizes, bags.proportions)
    assert torch.equal(classes, hard_labels(logits, bags.sizes, bags.proportions).argmax(1))
    assert ((trusted > 0) & (trusted <= 1)).all()


def test_trust_is_one_for_certain_labels_and_small_where_two_classes_cost_the_same():
    sizes, half = torch.tensor([4]), torch.tensor([[0.5, 0.5]])
    certain = torch.tensor([[30.0, 0.0], [30.0, 0.0], [0.0, 30.0], [0.0, 30.0]])
    assert labels_and_trust(certain, sizes, half)[1].tolist() == pytest.approx([1.0] * 4)
    assert labels_and_trust(torch.zeros(4, 2), sizes, half)[1].tolist() == pytest.approx([math.exp(-10)] * 4)
    # all four rows prefer class 0, by 9 or by 5; two must take class 1, so that these are uncertain
    one_sided = torch.tensor([[9.0, 0.0], [9.0, 0.0], [5.0, 0.0], [5.0, 0.0]])
    classes, trusted = labels_and_trust(one_sided, sizes, half)
    assert classes.tolist() == [0, 0, 1, 1]
    assert trusted.min() < 0.9


def test_a_label_costs_its_cross_entropy_times_its_trust():
    logits, scores = (torch.randn(6, 3, generator=stream(i)) for i in (1, 2))
    classes = torch.tensor([0, 2, 1, 1, 0, 2])
    for i, loss in enumerate(label_losses(logits, classes, scores).tolist()):
        p = scores[i].double().softmax(0)
        entropy = float(-(p * p.log()).sum()) / math.log(3)
        right = float(logits[i].double().softmax(0)[classes[i]])
        assert loss == pytest.approx(-math.exp(-10 * entropy**2) * math.log(right), rel=1e-4)
    half = logits.bfloat16()
    expected = label_losses(half.float(), classes, scores)
    torch.testing.assert_close(label_losses(half, classes, scores), expected)


def test_without_transport_the_label_is_the_most_probable_class():
    logits = torch.tensor([[9.0, 0.0], [9.0, 0.0], [5.0, 0.0], [5.0, 0.0]])
    classes, scores = learner_of_views(transport=False).labels(logits, batch_of())
    assert classes.tolist() == [0, 0, 0, 0]
    assert torch.equal(scores, logits)


# --- the contrastive term


def test_info_nce_is_the_cross_entropy_of_finding_the_other_view_in_both_directions():
    one, other = (torch.randn(6, 3, generator=stream(i)) for i in (1, 2))
    total = 0.0
    for first, second in ((one, other), (other, one)):
        for i in range(6):
            similar = [float(torch.cosine_similarity(first[i], second[j], 0)) / 0.2 for j in range(6)]
            total += (math.log(sum(math.exp(a) for a in similar)) - similar[i]) / 12
    assert float(info_nce(one, other, 0.2)) == pytest.approx(total, rel=1e-5)
    assert float(info_nce(one, one, 1e6)) == pytest.approx(math.log(6), rel=1e-4)


# --- the terms


def test_the_strong_view_learns_labels_and_the_weak_view_proportions():
    batch = batch_of()
    (terms,) = learner_of_views().losses(batch, 0.2)
    for name, view in (("proportion", 0), ("labels", 1)):
        (gradient,) = torch.autograd.grad(terms[name], batch.x, retain_graph=True)
        assert gradient[:, view].abs().sum() > 0
        assert gradient[:, 1 - view].abs().sum() == 0
    (gradient,) = torch.autograd.grad(terms["contrast"], batch.x)
    assert (gradient.abs().sum((0, 2)) > 0).all()


@pytest.mark.parametrize(("progress", "weight"), [(0.0, 8.0), (0.499, 5.006), (0.5, 5.0), (1.0, 2.0)])
def test_the_weight_of_the_bag_loss_falls_and_the_contrast_ends_half_way(progress, weight):
    batch = batch_of()
    (terms,) = learner_of_views().losses(batch, progress)
    plain = proportion_loss(normed()(batch.x[:, 0]), batch.sizes, batch.proportions)
    torch.testing.assert_close(terms["proportion"], weight * plain)
    assert ("contrast" in terms) == (progress < 0.5)


def test_the_weight_of_the_contrast_falls_linearly_at_its_temperature():
    batch = batch_of()
    for temperature in (0.2, 1.0):
        plain = learner_of_views()
        one, other = (plain.projector(plain.network[0](batch.x[:, view])) for view in (0, 1))
        expected = info_nce(one, other, temperature)
        for progress, weight in ((0.0, 1.0), (0.25, 0.5)):
            terms = next(learner_of_views(temperature=temperature).losses(batch, progress))
            torch.testing.assert_close(terms["contrast"], weight * expected)


def test_the_bag_loss_may_be_the_count_likelihood():
    batch = batch_of()
    (terms,) = learner_of_views(counts=True).losses(batch, 0.5)
    plain = count_loss(normed()(batch.x[:, 0]), batch.sizes, batch.proportions)
    torch.testing.assert_close(terms["proportion"], 5.0 * plain)


def test_the_loss_of_a_drawn_bag_accounts_for_the_rows_that_were_not():
    bags = ragged((40,), k=2)
    batch = next(replace(bags, x=torch.randn(40, 2, generator=stream(0))).batches(10, stream(1)))
    assert batch.undrawn == 0.75
    learner = learner_of_views()
    with torch.no_grad():
        learner.network[1].weight.mul_(30)  # predictions that differ
    logits = copy.deepcopy(learner.network)(batch.x)
    expected = proportion_loss(logits, batch.sizes, batch.proportions, batch.undrawn)
    whole = proportion_loss(logits, batch.sizes, batch.proportions)
    assert float((expected - whole).detach().abs()) > 1e-3
    both = replace(batch, x=torch.stack([batch.x, batch.x], 1))
    torch.testing.assert_close(next(learner.losses(both, 0.0))["proportion"], 8 * expected)


def test_running_statistics_are_those_of_the_weak_views():
    batch, trained, plain = batch_of(), normed(), normed()
    next(TwoViews(trained, normed(), make_projector(16)).losses(batch, 0.9))
    plain(batch.x[:, 0])
    assert same_bits(dict(trained.named_buffers()).values(), dict(plain.named_buffers()).values())


# --- recording


def torch_compiler(fullgraph: bool, compiled: list[str], networks_of: dict[str, int] | None = None):
    """A GraphPart that notes what torch's compiler records, and runs it as it is."""

    def graph_part(part, networks=()):
        def backend(graph, _):
            compiled.append(part.__name__)
            return graph

        if networks_of is not None:
            networks_of[part.__name__] = len(networks)
        return torch.compile(part, backend=backend, dynamic=False, fullgraph=fullgraph)

    return graph_part


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning", "ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize("by", ["bag", "row"])
def test_every_part_of_a_step_is_recorded_in_one_piece_and_once(by):
    """A part that waits for the host cannot be a CUDA graph; torch's compiler finds that out on a CPU."""
    compiled: list[str] = []
    networks_of: dict[str, int] = {}

    def terms(graph_part=identity):
        bags = moon_bags()[0]
        reseed(0, "projector")
        learner = make_learner("two_views", normed(), bags, by=by, graph_part=graph_part)
        (optimizer,) = (make_optimizer(each, "sgd", 0.1) for each in learner.networks())
        for i, batch in enumerate(bags.batches(40, stream(0), by=by)):
            reseed(i, "views")
            for found in learner.losses(replace(batch, x=two_views(batch.x)), 0.1 + 0.1 * i):
                optimizer.zero_grad()
                sum(found.values()).backward()
                optimizer.step()
            yield {name: float(term.detach()) for name, term in found.items()}

    plain, fast = list(terms()), list(terms(torch_compiler(True, compiled, networks_of)))
    assert len(plain) > 2
    assert fast == [pytest.approx(each, rel=1e-5) for each in plain]
    parts = {"_weak_pass": 1, "_strong_pass": 1, "_contrastive_loss": 1, "label_losses": 0}
    assert networks_of == parts | ({"_loss": 1} if by == "row" else {})
    assert sorted(compiled) == sorted(networks_of)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning", "ignore:The .grad attribute:UserWarning")
def test_batches_with_another_number_of_bags_are_not_recorded_anew():
    compiled: list[str] = []
    bags = ragged((4, 8, 12, 2, 2, 8, 6, 6, 6, 6, 10, 2, 4, 20), k=2)
    bags = replace(bags, x=torch.randn(len(bags.x), 2, generator=stream(0)))
    learner = learner_of_views(graph_part=torch_compiler(False, compiled))
    for which in ((0, 1, 2), (3, 4, 5, 2), (6, 7, 8, 9), (10, 11, 2), (12, 13)):  # 24 rows each
        batch = bags.take(torch.tensor(which))
        assert len(batch.x) == 24
        (terms,) = learner.losses(replace(batch, x=torch.stack([batch.x, batch.x], 1)), 0.9)
        logits = copy.deepcopy(learner.network)(batch.x)
        expected = proportion_loss(logits, batch.sizes, batch.proportions)
        torch.testing.assert_close(terms["proportion"], (8 - 6 * 0.9) * expected)
    assert compiled.count("_weak_pass") == 2  # with the loss of the usual number of bags, and without


def test_values_on_the_host_have_no_history():
    value = torch.ones(3, requires_grad=True) * 2
    (copied,) = start_copy_to_host(value)()
    assert copied.tolist() == [2.0] * 3
    assert not copied.requires_grad


# --- the average of weights


def late_step(learner: TwoViews) -> None:
    """A step of the average late in a training, when its momentum is the learner's."""
    learner.averaging.taken.fill_(10**6)
    learner.averaging.update(learner.classifier, learner.network)


def test_the_momentum_of_the_average_grows_to_its_final_value():
    average, current = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    nn.init.zeros_(average.weight)
    nn.init.ones_(current.weight)
    averaging, initial = WeightAverage(0.9), 1.0
    for t in range(100):
        averaging.update(average, current)
        initial *= min(0.9, (1 + t) / (10 + t))
        assert float(average.weight.detach()) == pytest.approx(1 - initial, rel=1e-5)
    assert int(averaging.state_dict()["taken"]) == 100


def test_the_average_of_a_short_training_is_that_of_its_last_weights():
    """60 steps with momentum 0.99 from the start would leave half of the initial weights."""
    bags, hidden = moon_bags(400, 20)
    learner = TwoViews(network(), network(), make_projector(32))
    optimizers = [make_optimizer(each, "adam", 1e-2) for each in learner.networks()]
    *_, last = first_stage(
        learner, bags, optimizers, epochs=15, schedule=steady, seed=0, batch_size=100, augment=two_views
    )
    current = accuracy(predict_log_proba(learner.network, bags.x), hidden)
    assert current > 0.8
    assert accuracy(predict_log_proba(last.learner.classifier, bags.x), hidden) > current - 0.03


@pytest.mark.parametrize(("momentum", "share"), [(0.75, 0.25), (0.0, 1.0)])
def test_the_average_follows_weights_and_running_statistics(momentum, share):
    learner = learner_of_views(momentum=momentum)
    with torch.no_grad():
        for value in learner.network.state_dict().values():
            value += 1
    before = copy.deepcopy(learner.classifier.state_dict())
    late_step(learner)
    for name, value in learner.classifier.state_dict().items():
        expected = before[name] + share if value.is_floating_point() else before[name]
        torch.testing.assert_close(value, expected)


def test_the_average_follows_networks_that_move_and_buffers_that_are_replaced():
    learner = learner_of_views(momentum=0.5)
    late_step(learner)
    norm = learner.network[0][1]
    average = learner.classifier[0][1]
    norm.running_mean = norm.running_mean + 4
    before = average.running_mean.clone()
    late_step(learner)
    torch.testing.assert_close(average.running_mean, (before + norm.running_mean) / 2)
    learner.trained.double()  # other tensors, as .cuda() makes
    norm.running_mean += 4
    before = average.running_mean.clone()
    late_step(learner)
    torch.testing.assert_close(average.running_mean, (before + norm.running_mean) / 2)


def test_the_average_moves_only_after_a_step_and_has_no_gradient():
    learner = learner_of_views(momentum=0.5)
    before = weights_of(learner.classifier)
    turns = learner.losses(batch_of(), 0.2)
    sum(next(turns).values()).backward()
    assert all(p.grad is None for p in learner.classifier.parameters())
    assert all(p.grad is not None for p in [*learner.network.parameters(), *learner.projector.parameters()])
    assert same_bits(before, weights_of(learner.classifier))
    with torch.no_grad():
        for p in learner.network.parameters():
            p += 1
    assert list(turns) == []
    assert not same_bits(before, weights_of(learner.classifier))


def test_one_optimizer_trains_network_and_projector_and_leaves_the_average_out():
    learner = make_learner("two_views", normed(), ragged())
    (optimizer,) = (make_optimizer(each, "sgd", 0.1, clip=0.5) for each in learner.networks())
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert trained == {id(p) for p in [*learner.network.parameters(), *learner.projector.parameters()]}


# --- in training


def training(learner: TwoViews, resume=None):
    optimizers = [
        make_optimizer(each, "sgd", 0.05, weight_decay=5e-4, clip=5.0) for each in learner.networks()
    ]
    return first_stage(
        learner, moon_bags()[0], optimizers, epochs=4, schedule=steady, seed=0, batch_size=64,
        augment=two_views, resume=resume,
    )  # fmt: skip


def test_training_resumes_to_the_same_bits():
    whole = list(training(learner_of_views(momentum=0.9)))
    states = training(learner_of_views(momentum=0.9))
    next(states)
    state = copy.deepcopy(next(states).state())
    rest = list(training(learner_of_views(momentum=0.9), resume=state))
    assert [each.epoch.terms for each in rest] == [each.epoch.terms for each in whole[2:]]
    assert same_bits(weights_of(*whole[-1].learner.networks()), weights_of(*rest[-1].learner.networks()))


def test_it_learns_two_moons_from_bags():
    bags, hidden = moon_bags(400, 20)
    learner = TwoViews(network(), network(), make_projector(32), momentum=0.9)
    optimizers = [make_optimizer(each, "adam", 1e-2) for each in learner.networks()]
    *_, last = first_stage(
        learner, bags, optimizers, epochs=60, schedule=steady, seed=0, batch_size=100, augment=two_views
    )
    assert accuracy(predict_log_proba(last.learner.classifier, bags.x), hidden) > 0.9


def test_a_network_without_a_separate_linear_head_is_refused():
    for other in (nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU())):
        with pytest.raises(TypeError, match="features, head"):
            TwoViews(other, normed(), make_projector(16))


def test_the_estimator_predicts_with_the_average_and_teaches_a_student_by_it():
    x, y = make_blobs(400, centers=[[0, 0, 0], [4, 4, 0], [0, 4, 4]], random_state=0)
    bags = np.arange(400) // 10
    for pseudo_labels, right in ((None, 0.97), ("soft", 0.9)):  # a student of 20 steps
        model = two_views_classifier(pseudo_labels)
        assert model.fit(x, y, bags=bags).score(x, y) > right


def two_views_classifier(pseudo_labels: str | None) -> ProportionClassifier:
    return ProportionClassifier(
        method="two_views", pseudo_labels=pseudo_labels, epochs=40, student_epochs=10, random_state=0
    )
