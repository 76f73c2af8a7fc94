"""Two views: labels by transport from the weak one, taught to the strong one; their running mean answers."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import moon_bags, network, normed, ragged, same_bits, steady, two_views, weights_of
from sklearn.datasets import make_blobs
from torch import nn

from apportion import ProportionClassifier, runs
from apportion._device import identity, start_copy_to_host
from apportion._random import reseed, stream
from apportion.augment import AUGMENTATIONS
from apportion.evaluate import accuracy, predict_log_proba
from apportion.experiment.stages import run_with_teacher
from apportion.grid import RECIPES
from apportion.losses import proportion_loss
from apportion.methods import TwoViews
from apportion.methods.count_likelihood import count_loss
from apportion.methods.protocol import WeightAverage
from apportion.methods.two_views import info_nce, label_losses, make_projector, transport_labels, trust
from apportion.optim import make_optimizer
from apportion.pipeline import first_stage
from apportion.pseudo_labels import hard_labels
from apportion.recipes import First, Second
from apportion.recipes.building import build_learner, build_optimizers


def labeled(scores, sizes, shares):
    """Classes, and how far they are trusted."""
    classes, priced = transport_labels(scores, lambda: (scores, sizes, shares))
    best = priced.max(1).values
    torch.testing.assert_close(priced.gather(1, classes.unsqueeze(1)).squeeze(1), best)
    return classes, trust(priced)


def learner(**options) -> TwoViews:
    reseed(0, "projector")
    return TwoViews(normed(), normed(), make_projector(16), **options)


def batch_of(which=(0, 1, 2)):
    batch = moon_bags()[0].take(torch.tensor(which))
    reseed(0, "views")
    return replace(batch, x=two_views(batch.x).requires_grad_())


# --- labels


def test_the_labels_are_those_of_exact_transport_and_the_largest_class_at_their_prices():
    bags = ragged((7, 1, 30, 4), k=4)
    scores = torch.randn(42, 4, generator=stream(0))
    classes, trusted = labeled(scores, bags.sizes, bags.proportions)
    assert torch.equal(classes, hard_labels(scores, bags.sizes, bags.proportions).argmax(1))
    assert ((trusted > 0) & (trusted <= 1)).all()


def test_trust_is_one_where_prices_leave_no_doubt_and_small_where_two_classes_cost_the_same():
    sizes, shares = torch.tensor([4]), torch.tensor([[0.5, 0.5]])
    sure = torch.tensor([[30.0, 0.0], [30.0, 0.0], [0.0, 30.0], [0.0, 30.0]])
    assert labeled(sure, sizes, shares)[1].tolist() == pytest.approx([1.0] * 4)
    doubtful = labeled(torch.zeros(4, 2), sizes, shares)[1]
    assert doubtful.tolist() == pytest.approx([math.exp(-10)] * 4)


def test_a_price_is_taken_off_before_doubt_is_measured():
    # all four lean to class 0 by five, two must go to class 1: what one class must give up is in doubt
    scores, sizes = torch.tensor([[9.0, 0.0], [9.0, 0.0], [5.0, 0.0], [5.0, 0.0]]), torch.tensor([4])
    classes, trusted = labeled(scores, sizes, torch.tensor([[0.5, 0.5]]))
    assert classes.tolist() == [0, 0, 1, 1]
    assert trusted.min() < 0.9


def test_an_answer_costs_its_cross_entropy_to_the_label_times_the_labels_trust():
    answers, scores = (torch.randn(6, 3, generator=stream(i)) for i in (1, 2))
    classes = torch.tensor([0, 2, 1, 1, 0, 2])
    for i, cost in enumerate(label_losses(answers, classes, scores).tolist()):
        shares = np.exp(scores[i].double().numpy())
        shares /= shares.sum()
        doubt = -(shares * np.log(shares)).sum() / math.log(3)
        right = answers[i].double().softmax(0)[classes[i]]
        assert cost == pytest.approx(-math.exp(-10 * doubt**2) * math.log(right), rel=1e-4)


# --- the contrast


def test_the_contrast_is_the_cross_entropy_of_finding_the_other_view_in_both_directions():
    one, other = (torch.randn(6, 3, generator=stream(i)) for i in (1, 2))
    total = 0.0
    for first, second in ((one, other), (other, one)):
        for i in range(6):
            alike = [float(torch.cosine_similarity(first[i], second[j], 0)) / 0.2 for j in range(6)]
            total += (math.log(sum(math.exp(a) for a in alike)) - alike[i]) / 12
    assert float(info_nce(one, other, 0.2)) == pytest.approx(total, rel=1e-5)


def test_at_a_high_temperature_nothing_is_told_apart():
    one = torch.randn(8, 3, generator=stream(0))
    assert float(info_nce(one, one, 1e6)) == pytest.approx(math.log(8), rel=1e-5)


# --- the terms


def test_labels_are_learnt_from_the_strong_view_and_proportions_from_the_weak_one():
    batch = batch_of()
    (terms,) = learner().losses(batch, 0.2)
    for name, view in (("proportion", 0), ("labels", 1)):
        (gradient,) = torch.autograd.grad(terms[name], batch.x, retain_graph=True)
        assert gradient[:, view].abs().sum() > 0
        assert gradient[:, 1 - view].abs().sum() == 0
    (gradient,) = torch.autograd.grad(terms["contrast"], batch.x)
    assert (gradient.abs().sum((0, 2)) > 0).all()


@pytest.mark.parametrize(("progress", "weight"), [(0.0, 8.0), (0.5, 5.0), (1.0, 2.0)])
def test_the_bag_losses_weight_falls_and_the_contrast_ends_at_half(progress, weight):
    batch = batch_of()
    (terms,) = learner().losses(batch, progress)
    plain = proportion_loss(normed()(batch.x[:, 0]), batch.sizes, batch.proportions)
    torch.testing.assert_close(terms["proportion"], weight * plain)
    assert ("contrast" in terms) == (progress < 0.5)


def test_of_a_bag_that_was_drawn_from_the_loss_is_dllps_of_what_was_drawn():
    bags = ragged((40,), k=2)
    batch = next(replace(bags, x=torch.randn(40, 2, generator=stream(0))).batches(10, stream(1)))
    assert batch.left == 0.75
    method = learner()
    with torch.no_grad():
        method.network[1].weight.mul_(30)  # predictions that differ
    shown = replace(batch, x=torch.stack([batch.x, batch.x], 1))
    expected = proportion_loss(
        copy.deepcopy(method.network)(batch.x), batch.sizes, batch.proportions, batch.left
    )
    plain = proportion_loss(copy.deepcopy(method.network)(batch.x), batch.sizes, batch.proportions)
    assert float((expected - plain).detach().abs()) > 1e-3
    torch.testing.assert_close(next(method.losses(shown, 0.0))["proportion"], 8 * expected)


def test_the_contrast_has_the_temperature_that_is_asked_for():
    batch = batch_of()
    for temperature in (0.2, 1.0):
        method = learner(temperature=temperature)
        alone = copy.deepcopy(method)
        one, other = (alone.projector(alone.network[0](batch.x[:, view])) for view in (0, 1))
        expected = info_nce(one, other, temperature)
        torch.testing.assert_close(next(method.losses(batch, 0.0))["contrast"], expected)


def test_labels_are_taught_in_float32_whatever_the_answers_are_in():
    answers, classes = torch.randn(4, 3, generator=stream(0)).bfloat16(), torch.tensor([0, 1, 2, 0])
    torch.testing.assert_close(
        label_losses(answers, classes, answers), label_losses(answers.float(), classes, answers)
    )


def test_the_contrasts_weight_falls_in_a_line():
    at = [next(learner().losses(batch_of(), progress))["contrast"] for progress in (0.0, 0.25)]
    torch.testing.assert_close(at[1], at[0] / 2)


def test_running_statistics_are_those_of_the_weak_views():
    batch, trained, plain = batch_of(), normed(), normed()
    next(TwoViews(trained, normed(), make_projector(16)).losses(batch, 0.9))
    plain(batch.x[:, 0])
    assert same_bits(dict(trained.named_buffers()).values(), dict(plain.named_buffers()).values())


def test_the_bag_loss_may_be_the_likelihood_of_counts():
    batch = batch_of()
    (terms,) = learner(counts=True).losses(batch, 0.5)
    plain = count_loss(normed()(batch.x[:, 0]), batch.sizes, batch.proportions)
    torch.testing.assert_close(terms["proportion"], 5.0 * plain)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning", "ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize("scatter", [False, True])
def test_every_part_of_a_step_is_one_piece_for_the_compiler_and_the_terms_are_the_same(scatter):
    """Where it had to break off, or to compile anew in every step, a GPU would wait for the host."""
    asked, made = {}, []

    def quick(part, graphs=False):
        def backend(graph, _):
            made.append(part.__name__)
            return graph

        asked[part.__name__] = graphs
        return torch.compile(part, backend=backend, dynamic=False, fullgraph=True)

    def terms(quick=identity):
        bags = moon_bags()[0]
        reseed(0, "projector")
        first = First("two_views", batches="scattered" if scatter else None)
        method = build_learner(first, normed(), bags, compile_part=quick)
        (optimizer,) = (make_optimizer(p, "sgd", 0.1) for p in method.networks())
        for i, batch in enumerate(bags.batches(40, stream(0), by="row" if scatter else "bag")):
            reseed(i, "views")
            for found in method.losses(replace(batch, x=two_views(batch.x)), 0.1 + 0.1 * i):
                optimizer.zero_grad()
                sum(found.values()).backward()
                optimizer.step()
            yield {name: float(term.detach()) for name, term in found.items()}

    plain, fast = list(terms()), list(terms(quick))
    assert len(plain) > 2
    assert fast == [pytest.approx(each, rel=1e-5) for each in plain]
    parts = dict.fromkeys(("_weak_pass", "_strong_pass", "_contrastive_loss", "label_losses"), True)
    assert asked == parts | ({"_loss": False} if scatter else {})
    assert sorted(made) == sorted(asked)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning", "ignore:The .grad attribute:UserWarning")
def test_batches_of_other_numbers_of_bags_are_not_compiled_anew():
    made = []

    def quick(part, graphs=False):
        def backend(graph, _):
            made.append(part.__name__)
            return graph

        return torch.compile(part, backend=backend, dynamic=False)

    bags = ragged((4, 8, 12, 2, 2, 8, 6, 6, 6, 6, 10, 2, 4, 20), k=2)
    bags = replace(bags, x=torch.randn(len(bags.x), 2, generator=stream(0)))
    method = learner(compile_part=quick)
    for which in ((0, 1, 2), (3, 4, 5, 2), (6, 7, 8, 9), (10, 11, 2), (12, 13)):  # of 24 rows each
        batch = bags.take(torch.tensor(which))
        assert len(batch.x) == 24
        (terms,) = method.losses(replace(batch, x=torch.stack([batch.x, batch.x], 1)), 0.9)
        logits = copy.deepcopy(method.network)(batch.x)
        expected = proportion_loss(logits, batch.sizes, batch.proportions)
        torch.testing.assert_close(terms["proportion"], (8 - 6 * 0.9) * expected)
    assert made.count("_weak_pass") == 2  # with the loss of the usual number of bags, and without


# --- the running mean


def followed(method: TwoViews) -> None:
    """A step late in a training."""
    method.averaging.taken.fill_(10**6)
    method.averaging.update(method.classifier, method.network)


def test_the_mean_begins_with_little_of_the_first_network_and_comes_to_its_momentum():
    mean, network = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    nn.init.zeros_(mean.weight)
    nn.init.ones_(network.weight)
    averaging, left, momenta = WeightAverage(0.9), 1.0, []
    for t in range(100):
        averaging.update(mean, network)
        momentum = min(0.9, (1 + t) / (10 + t))
        left, momenta = left * momentum, [*momenta, momentum]
        assert float(mean.weight.detach()) == pytest.approx(1 - left, rel=1e-5)
    assert momenta[:2] == [0.1, 2 / 11]
    assert momenta[80:] == [0.9] * 20
    assert int(averaging.state_dict()["taken"]) == 100


def test_a_short_training_is_answered_by_what_it_learnt():
    bags, hidden = moon_bags(400, 20)
    method = TwoViews(network(), network(), make_projector(32))
    optimizers = [make_optimizer(p, "adam", 1e-2) for p in method.networks()]
    for epoch_state in first_stage(  # 60 steps: 0.99 of itself would leave half of the first weights
        method, bags, optimizers, epochs=15, schedule=steady, seed=0, batch_size=100, augment=two_views
    ):
        last = epoch_state
    live = accuracy(predict_log_proba(method.network, bags.x), hidden)
    assert live > 0.8
    assert accuracy(predict_log_proba(last.learner.classifier, bags.x), hidden) > live - 0.03


def test_the_mean_follows_weights_and_statistics_and_copies_them_without_momentum():
    for momentum, share in ((0.75, 0.25), (0.0, 1.0)):
        average, moved = normed(), normed()
        method = TwoViews(moved, average, make_projector(16), momentum=momentum)
        with torch.no_grad():
            for value in moved.state_dict().values():
                value += 1
        before = copy.deepcopy(average.state_dict())
        followed(method)
        for name, value in average.state_dict().items():
            expected = before[name] + share if value.is_floating_point() else before[name]
            torch.testing.assert_close(value, expected)


def test_the_mean_follows_buffers_that_were_replaced_and_networks_that_were_moved_in_between():
    method = learner(momentum=0.5)
    followed(method)
    norm = method.network[0][1]
    norm.running_mean = norm.running_mean + 4
    before = method.classifier[0][1].running_mean.clone()
    followed(method)
    torch.testing.assert_close(method.classifier[0][1].running_mean, (before + norm.running_mean) / 2)
    for each in (method.network, method.classifier):
        each.double()
    norm.running_mean += 4
    before = method.classifier[0][1].running_mean.clone()
    followed(method)
    torch.testing.assert_close(method.classifier[0][1].running_mean, (before + norm.running_mean) / 2)


def test_the_mean_follows_where_the_networks_went():
    method = learner(momentum=0.0)
    method.trained.double()  # as .cuda() does: other tensors than those it was made with
    batch = batch_of()
    list(method.losses(replace(batch, x=batch.x.detach().double()), 0.2))
    assert same_bits(weights_of(method.classifier)[:1], weights_of(method.network)[:1])
    with torch.no_grad():
        method.network[1].bias.add_(1)
    followed(method)
    assert torch.equal(method.classifier[1].bias, method.network[1].bias)


def test_the_answer_is_the_mean_which_moves_only_after_a_step_and_learns_from_no_gradient():
    method = learner(momentum=0.5)
    before = weights_of(method.classifier)
    steps = method.losses(batch_of(), 0.2)
    sum(next(steps).values()).backward()
    assert all(p.grad is None for p in method.classifier.parameters())
    assert all(p.grad is not None for p in [*method.network.parameters(), *method.projector.parameters()])
    assert same_bits(before, weights_of(method.classifier))
    with torch.no_grad():
        for p in method.network.parameters():
            p += 1
    assert list(steps) == []
    assert not same_bits(before, weights_of(method.classifier))


# --- in the loop


def epoch_states(epochs=4, resume=None):
    method = learner(momentum=0.9)
    optimizers = [make_optimizer(p, "sgd", 0.05, weight_decay=5e-4, clip=5.0) for p in method.networks()]
    return list(
        first_stage(
            method,
            moon_bags()[0],
            optimizers,
            epochs=epochs,
            schedule=steady,
            seed=0,
            batch_size=64,
            augment=two_views,
            resume=resume,
        )  # fmt: skip
    )


def test_interrupted_it_ends_with_the_same_bits():
    whole, state = epoch_states(), None
    method = learner(momentum=0.9)
    optimizers = [make_optimizer(p, "sgd", 0.05, weight_decay=5e-4, clip=5.0) for p in method.networks()]
    for epoch_state in first_stage(
        method, moon_bags()[0], optimizers, epochs=4, schedule=steady, seed=0, batch_size=64,
        augment=two_views,
    ):  # fmt: skip
        if epoch_state.epoch.number == 2:
            state = copy.deepcopy(epoch_state.state())
    rest = epoch_states(resume=state)
    assert [m.epoch.terms for m in rest] == [m.epoch.terms for m in whole[2:]]
    assert same_bits(weights_of(*whole[-1].learner.networks()), weights_of(*rest[-1].learner.networks()))


def test_it_learns_two_moons_from_bags():
    bags, hidden = moon_bags(400, 20)
    method = TwoViews(network(), network(), make_projector(32), momentum=0.9)
    optimizers = [make_optimizer(p, "adam", 1e-2) for p in method.networks()]
    for epoch_state in first_stage(
        method, bags, optimizers, epochs=60, schedule=steady, seed=0, batch_size=100, augment=two_views
    ):
        last = epoch_state
    assert accuracy(predict_log_proba(last.learner.classifier, bags.x), hidden) > 0.9


def test_it_is_built_with_a_mean_that_starts_at_the_network_and_one_optimiser_that_leaves_the_mean_out():
    plain, to_device = normed(), []
    built = build_learner(First("two_views"), plain, ragged(), lambda n: to_device.append(n) or n)
    assert to_device == [built.classifier]
    assert built.network is plain
    assert same_bits(weights_of(plain), weights_of(built.classifier))
    (optimizer,) = build_optimizers(built.networks(), First("two_views", clip=0.5))
    learned = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert learned == {id(p) for p in [*plain.parameters(), *built.projector.parameters()]}


def test_a_network_without_parts_is_refused():
    with pytest.raises(TypeError, match=r"nn.Sequential\(features, head\)"):
        TwoViews(nn.Linear(2, 2), normed(), make_projector(16))


def test_what_is_fetched_on_the_cpu_is_the_value_without_its_history():
    value = torch.ones(3, requires_grad=True) * 2
    (copied,) = start_copy_to_host(value)()
    assert copied.tolist() == [2.0] * 3
    assert not copied.requires_grad


# --- rows of values


def test_a_strong_view_of_rows_swaps_a_share_of_values_within_their_columns():
    x = torch.arange(4000.0).view(1000, 4)
    reseed(0, "views")
    views = AUGMENTATIONS["weak+strong"](x)
    assert torch.equal(views[:, 0], x)
    assert torch.equal(views[:, 1] % 4, x % 4)  # no value has left its column
    assert float((views[:, 1] != x).float().mean()) == pytest.approx(0.3, abs=0.03)


def test_without_transport_the_label_is_the_largest_class():
    scores, batch = torch.tensor([[9.0, 0.0], [9.0, 0.0], [5.0, 0.0], [5.0, 0.0]]), batch_of()
    method = learner(transport=False)
    classes, priced = method.labels(scores, batch, None)
    assert classes.tolist() == [0, 0, 0, 0]
    assert trust(priced).min() > 0.9


def test_the_estimator_answers_with_the_mean_and_teaches_its_student_by_it():
    x, y = make_blobs(400, centers=[[0, 0, 0], [4, 4, 0], [0, 4, 4]], random_state=0)
    bags = np.arange(400) // 10
    for second, right in ((None, 0.97), ("plot", 0.9)):  # a student of 20 steps
        model = ProportionClassifier(
            "two_views", second, first_epochs=40, second_epochs=10, random_state=0
        ).fit(x, y, bags=bags)
        assert model.score(x, y) > right
    with pytest.raises(TypeError, match="pass a network of two parts"):
        ProportionClassifier("two_views", backbone=lambda shape, k: nn.Linear(3, k)).fit(x, y, bags=bags)


def test_a_recipe_runs_both_stages_on_rows(tmp_path):
    recipe = replace(
        RECIPES["digits/dllp/16"], first=First("two_views", epochs=2), augment="weak+strong",
        second=Second(epochs=2, hold=1, augment="none"),
    )  # fmt: skip
    list(run_with_teacher(recipe, tmp_path, "digits/two-views+plot/16", device="cpu"))
    for method in ("two-views", "two-views+plot"):
        assert runs.finished(tmp_path / "digits" / method / "16" / "seed=1")
