"""Methods: what all of them have in common (beside test_testing.py), how they are built, then facts of
each."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import (
    ONE_VIEW,
    learner_of,
    moon_bags,
    network,
    normed,
    ragged,
    same_bits,
    steady,
    trained,
    two_views,
    weights_of,
)
from sklearn.base import clone
from torch import nn
from torch.utils.checkpoint import checkpoint

from apportion._random import reseed, stream
from apportion.bags.bags import Bags
from apportion.bags.simulate import make_bags
from apportion.datasets.synthetic import blobs, moons
from apportion.errors import SettingsError
from apportion.evaluate import accuracy, predict_log_proba
from apportion.losses import cross_entropy, kl_divergence, proportion_loss
from apportion.methods import (
    DLLP,
    LLPGAN,
    LLPVAT,
    METHODS,
    ROT,
    TwoViews,
    make_learner,
    option_defaults,
    register_method,
    takes_rows,
    title_of,
)
from apportion.methods.count_likelihood import count_loss
from apportion.methods.llp_gan import make_generator
from apportion.methods.llp_vat import ramp_up, rescale
from apportion.methods.new_network import check_network, check_shares_no_weights, check_single_row
from apportion.methods.prediction_memory import PredictionMemory
from apportion.methods.protocol import frozen, frozen_batch_norm
from apportion.networks import resnet9
from apportion.optim import make_optimizer
from apportion.pseudo_labels import soft_labels

# --- the contract, beside what `check_method` covers

# methods whose first term is a loss of whole bags that accounts for rows that were not drawn
WITH_BAG_LOSS = ["dllp", "count_likelihood", "llp_vat", "llp_gan", "rot", "two_views"]


def loss_terms_of(learner, bags: Bags, which=(0, 1), progress: float = 0.5):
    reseed(0, "turns")
    return list(learner.losses(bags.take(torch.tensor(which)), progress))


@pytest.mark.parametrize("name", ONE_VIEW)
def test_every_weight_of_a_network_learns_from_the_terms_of_that_network(name):
    learner = learner_of(name, network())
    assert learner.networks()[0] is learner.classifier
    reseed(0)
    batch = moon_bags()[0].take(torch.arange(4))
    for net, terms in zip(learner.networks(), learner.losses(batch, 0.5), strict=True):
        gradients = torch.autograd.grad(sum(terms.values()), list(net.parameters()), retain_graph=True)
        assert all(gradient.abs().sum() > 0 for gradient in gradients)


@pytest.mark.parametrize("name", ["dllp", "llp_vat", "llp_gan", "rot"])
def test_the_term_named_proportion_is_the_weighted_proportion_loss(name):
    bags = moon_bags()[0]
    learner = learner_of(name, network())
    (first, *_) = loss_terms_of(learner, bags)
    batch = bags.take(torch.tensor([0, 1]))
    plain = proportion_loss(learner.classifier(batch.x), batch.sizes, batch.proportions)
    weight = {"rot": 0.6}.get(name, 1.0)
    torch.testing.assert_close(first["proportion"], weight * plain)


@pytest.mark.parametrize("name", WITH_BAG_LOSS)
def test_training_lowers_the_bag_loss_and_finds_the_classes(name):
    data = blobs(3, 400)
    bags, hidden = make_bags(data.x, data.y, 8, 4, stream(0))
    level = {"bag_first": 1.0, "bag_last": 1.0} if name == "two_views" else {}
    learner = learner_of(name, network(4), **level)
    optimizers = [make_optimizer(p, "adam", 5e-3) for p in learner.networks()]
    first, *_, last = trained(learner, bags, 40, batch_size=100, optimizers=optimizers)
    floor = torch.special.entr(bags.proportions).sum(1).mean().item() * (0.6 if name == "rot" else 1.0)
    if name == "count_likelihood":  # no least value is known, but what the truth has
        floor = count_loss(30.0 * F.one_hot(hidden, 4), bags.sizes, bags.proportions).item()
    of_bags = "counts" if name == "count_likelihood" else "proportion"
    assert last.terms[of_bags] - floor < 0.5 * (first.terms[of_bags] - floor)
    assert accuracy(predict_log_proba(learner.classifier, bags.x), hidden) > 0.8


@pytest.mark.parametrize("name", [*ONE_VIEW, "two_views"])
def test_any_module_can_be_the_classifier(name):
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) * 2

    heads = {"llp_gan": nn.Identity(), "two_views": nn.Linear(2, 2)}  # what is said of the features of others
    own = nn.Sequential(Own(), heads[name]) if name in heads else Own()
    (epoch,) = trained(learner_of(name, own), moon_bags()[0], 1)
    assert all(math.isfinite(value) for value in epoch.terms.values())


@pytest.mark.parametrize("name", ONE_VIEW)
def test_running_statistics_are_those_of_real_instances_only(name):
    classifier, plain = normed(), normed()
    batch = moon_bags()[0].take(torch.arange(5))
    list(learner_of(name, classifier).losses(batch, 1.0))
    plain(batch.x)
    assert same_bits(dict(classifier.named_buffers()).values(), dict(plain.named_buffers()).values())
    assert classifier[0][1].track_running_stats


@pytest.mark.parametrize("name", WITH_BAG_LOSS)
def test_the_loss_accounts_for_rows_of_a_bag_that_were_not_drawn(name):
    classifier = network(2, widths=(8,))
    with torch.no_grad():
        classifier[1].weight.mul_(20)  # so certain that samples differ
    learner = learner_of(name, classifier)
    bags = ragged((3, 200, 5, 40), k=2)
    batch = next(each for each in bags.batches(16, stream(2)) if each.undrawn)
    if name == "two_views":
        batch = replace(batch, x=two_views(batch.x))
    of_bags = "counts" if name == "count_likelihood" else "proportion"
    terms = [next(learner.losses(each, 0.5))[of_bags] for each in (batch, replace(batch, undrawn=0.0))]
    assert terms[0].item() < terms[1].item()


# --- how they are built


@pytest.mark.parametrize("name", [*ONE_VIEW, "two_views"])
def test_a_method_is_built_around_a_classifier_with_its_options(name):
    options = {"llp_vat": {"radius": 0.5}, "llp_gan": {"noise": 3}, "rot": {"alpha": 0.1}}.get(name, {})
    classifier, moved = network(), []
    learner = make_learner(
        name, classifier, ragged(), options=options, to_device=lambda net: moved.append(net) or net
    )
    assert isinstance(learner, METHODS[name])
    assert all(getattr(learner, option) == value for option, value in options.items())
    if name == "two_views":
        assert learner.network is classifier
        assert moved == [learner.classifier]
        assert same_bits(weights_of(learner.classifier), weights_of(classifier))
        assert not any(p.requires_grad for p in learner.classifier.parameters())
        return
    assert learner.networks() == [classifier, *moved]
    if name == "llp_gan":
        assert moved[0](torch.rand(4, 3, generator=stream(0))).shape == (4, 2)


@pytest.mark.parametrize("transport", [True, False])
@pytest.mark.parametrize("name", ["dllp", "two_views"])
def test_for_batches_of_rows_a_method_has_a_memory_of_the_bags_which_checkpoints_include(name, transport):
    if name == "dllp" and not transport:
        return
    bags = ragged((4, 9), k=2)
    options = {"transport": False} if not transport else {}
    learner = make_learner(name, network(), bags, by="row", options=options)
    assert isinstance(learner.memory, PredictionMemory)
    assert learner.memory.transport == (name == "two_views" and transport)
    (trained_together,) = learner.networks()
    assert any(module is learner.memory for module in trained_together.modules())
    batch = next(bags.batches(8, stream(0), by="row"))
    if name == "two_views":
        batch = replace(batch, x=two_views(batch.x))
    (terms,) = learner.losses(batch, 0.6)
    assert all(term.isfinite() for term in terms.values())


def test_without_a_memory_batches_of_rows_are_refused():
    batch = next(ragged((4, 9), k=2).batches(8, stream(0), by="row"))
    with pytest.raises(TypeError, match="PredictionMemory"):
        next(DLLP(network()).losses(batch, 0.0))
    views = make_learner("two_views", network(), ragged())
    assert isinstance(views, TwoViews)
    with pytest.raises(TypeError, match="PredictionMemory"):
        next(views.losses(replace(batch, x=two_views(batch.x)), 0.0))


# --- checks of users' networks


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Linear(2, 3), r"\(1, 3\)"),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.Softmax(1)), "probabilities"),
    ],
)
def test_networks_without_one_logit_per_class_are_refused(make, message):
    with pytest.raises(SettingsError, match=message):
        check_network(make(), torch.ones(1, 2), 2, batch_size=8, horizontal_flip=True)
    check_network(nn.Linear(2, 2), torch.ones(1, 2), 2, batch_size=1, horizontal_flip=True)


def test_networks_that_average_mirror_images_are_refused_if_these_are_of_another_class():
    x = torch.zeros(1, 1, 8, 8)
    check_network(resnet9((1, 8, 8), 2, width=2), x, 2, 8, horizontal_flip=False)
    flips = resnet9((1, 8, 8), 2, width=2, test_time_flip=True)
    check_network(flips, x, 2, 8, horizontal_flip=True)
    with pytest.raises(SettingsError, match="horizontal_flip"):
        check_network(flips, x, 2, 8, horizontal_flip=False)


def test_a_model_function_whose_networks_share_weights_that_learn_is_refused():
    shared = nn.Linear(2, 8)
    make = lambda shape, k: nn.Sequential(shared, nn.Linear(8, k))  # noqa: E731
    with pytest.raises(SettingsError, match="share weights"):
        check_shares_no_weights(make((2,), 2), make, (2,), 2)
    shared.requires_grad_(False)
    check_shares_no_weights(make((2,), 2), make, (2,), 2)


def test_batches_of_one_row_are_tried_out_without_a_trace():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(2)).eval()
    image = torch.rand(1, 1, 8, 8, generator=stream(0))
    model(image)
    before, state = weights_of(model), torch.get_rng_state()
    check_single_row(model, image)  # 36 pixels are left for the norm
    assert same_bits(before, weights_of(model))
    assert torch.equal(torch.get_rng_state(), state)
    assert not model.training
    rows = normed().eval()
    with pytest.raises(SettingsError, match="batch_size is 1"):
        check_single_row(rows, torch.ones(1, 2))
    assert not rows.training


# --- DLLP


def test_bags_of_one_are_supervised_learning():
    bags, hidden = moon_bags(100, 1)
    learner, classifier = DLLP(network()), network()
    losses = [epoch.terms["proportion"] for epoch in trained(learner, bags, 3, batch_size=10)]
    optimizer, supervised = torch.optim.Adam(classifier.parameters(), lr=1e-3), []
    for number in (1, 2, 3):
        total = 0.0
        for batch in bags.batches(10, reseed(0, "first", number)):
            optimizer.zero_grad()
            loss = F.cross_entropy(classifier(batch.x), hidden[batch.row])
            loss.backward()
            optimizer.step()
            total += loss.item() / 10
        supervised.append(total)
    assert losses == pytest.approx(supervised, rel=1e-5)
    torch.testing.assert_close(weights_of(learner.classifier), weights_of(classifier), rtol=1e-4, atol=1e-5)


# --- LLP-VAT


def test_the_perturbation_changes_neither_running_statistics_nor_gradients_of_weights():
    classifier = normed()
    learner, x = LLPVAT(classifier), moon_bags()[0].x[:32]
    logits = classifier(x)
    before = weights_of(classifier)
    with frozen_batch_norm(classifier):
        learner.perturbation(x, logits)
    assert same_bits(before, weights_of(classifier))
    assert all(p.grad is None for p in classifier.parameters())


def test_frozen_batch_norm_keeps_statistics_that_average_over_all_batches():
    norm = nn.BatchNorm1d(2, momentum=None)
    norm(torch.randn(8, 2, generator=stream(0)))
    before = weights_of(norm)
    with frozen_batch_norm(norm):
        norm(torch.randn(8, 2, generator=stream(1)))
    assert same_bits(before, weights_of(norm))


def test_frozen_batch_norm_normalizes_by_its_own_batch_and_ends_even_if_the_pass_fails():
    norm, x = nn.BatchNorm1d(2), torch.randn(8, 2, generator=stream(0)) + 5
    with frozen_batch_norm(norm):
        torch.testing.assert_close(norm(x).mean(0), torch.zeros(2), rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="expected 2D or 3D"), frozen_batch_norm(norm):
        norm(x[0])
    norm(x)
    assert norm.running_mean is not None
    torch.testing.assert_close(norm.running_mean, 0.1 * x.mean(0))


def test_a_frozen_network_has_gradients_of_its_inputs_only_until_the_block_ends():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].bias.requires_grad_(False)
    before = [p.requires_grad for p in model.parameters()]
    x = torch.randn(3, 2, generator=stream(0)).requires_grad_()
    with frozen(model):
        y = model(x).sum()
    y.backward()
    assert x.grad is not None
    assert all(p.grad is None for p in model.parameters())
    with pytest.raises(RuntimeError, match="shapes"), frozen(model):
        model(x[:, :1])
    assert [p.requires_grad for p in model.parameters()] == before


def test_the_perturbation_of_every_instance_has_the_radius():
    classifier = network(2, (3, 4, 4))
    x = torch.randn(5, 3, 4, 4, generator=stream(0))
    perturbation = LLPVAT(classifier, radius=0.25).perturbation(x, classifier(x))
    rms = perturbation.flatten(1).square().mean(1).sqrt()
    torch.testing.assert_close(rms, torch.full((5,), 0.25))
    assert rescale(torch.zeros(2, 3), 1.0).isfinite().all()


def test_the_perturbation_of_a_linear_classifier_is_one_power_iteration_with_its_fisher_matrix():
    classifier = nn.Linear(6, 3, dtype=torch.float64)
    x = torch.randn(4, 6, generator=stream(0), dtype=torch.float64)
    logits, weight = classifier(x).detach(), classifier.weight.detach()
    reseed(0, "direction")
    start = torch.randn_like(x)
    reseed(0, "direction")
    perturbation = LLPVAT(classifier, probe=1e-3).perturbation(x, logits)
    for i in range(4):
        p = logits[i].softmax(0)
        fisher = weight.T @ (p.diag() - p.outer(p)) @ weight
        assert F.cosine_similarity(perturbation[i], fisher @ start[i], dim=0) > 0.999


def test_the_perturbation_changes_predictions_more_than_a_random_direction_of_its_length():
    classifier = network(4, (10,))
    x = torch.randn(50, 10, generator=stream(0))
    logits = classifier(x)
    learner = LLPVAT(classifier, radius=0.3)
    worst = kl_divergence(logits, classifier(x + learner.perturbation(x, logits)))
    other = kl_divergence(logits, classifier(x + rescale(torch.randn(50, 10, generator=stream(1)), 0.3)))
    assert worst > 1.5 * other


def test_the_weight_of_consistency_ramps_up_over_the_first_part_of_training():
    assert ramp_up(0.0, 0.4) == pytest.approx(math.exp(-5))
    assert ramp_up(0.2, 0.4) == pytest.approx(math.exp(-1.25))
    assert ramp_up(0.4, 0.4) == ramp_up(1.0, 0.4) == 1.0
    bags, learner = moon_bags()[0], LLPVAT(network(), weight=0.05, ramp=0.4)
    early, late = (loss_terms_of(learner, bags, progress=p)[0]["consistency"] for p in (0.2, 1.0))
    assert early.item() == pytest.approx(math.exp(-1.25) * late.item(), rel=1e-5)
    doubled = loss_terms_of(LLPVAT(learner.classifier, weight=0.1), bags, progress=1.0)[0]["consistency"]
    assert doubled.item() == pytest.approx(2 * late.item(), rel=1e-5)


def test_llp_vat_without_consistency_is_dllp():
    bags = moon_bags()[0]
    one, other = LLPVAT(network(), weight=0.0), DLLP(network())
    losses = [[epoch.terms["proportion"] for epoch in trained(each, bags, 3)] for each in (one, other)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


# --- LLP-GAN


class Recomputed(nn.Module):
    """Layers whose backward pass computes them again, to save memory."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x):
        return checkpoint(self.layers, x, use_reentrant=False)


def test_a_weight_of_100_is_a_hundredth_for_the_other_terms_up_to_the_length_of_the_gradient():
    bags, classifier, maker, found = moon_bags()[0], network(), make_generator((2,), 8), []
    for given in ({"weight": 100.0}, {"adversarial": 0.01}):
        terms = loss_terms_of(LLPGAN(classifier, maker, 8, **given), bags)[0]
        assert set(terms) == {"proportion", "real", "fake"}
        classifier.zero_grad()
        sum(terms.values()).backward()
        found.append(torch.cat([p.grad.flatten().clone() for p in classifier.parameters()]))
    torch.testing.assert_close(found[0], 100 * found[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [LLPVAT, lambda net: LLPGAN(net, make_generator((2,), 8), 8)])
def test_a_network_with_checkpointed_activations_can_be_frozen(make):
    features, head = network()
    (epoch,) = trained(make(nn.Sequential(Recomputed(features), head)), moon_bags()[0], 1)
    assert all(math.isfinite(term) for term in epoch.terms.values())


def test_the_generators_terms_give_the_classifier_no_gradient():
    bags, _ = moon_bags()
    learner = LLPGAN(network(), make_generator((2,), 8), 8)
    batch = next(bags.batches(100, stream(0)))
    _, matching = learner.losses(batch, 0.0)
    matching["matching"].backward()
    assert all(p.grad is None for p in learner.classifier.parameters())
    assert all(p.grad is not None for p in learner.generator.parameters())


def test_llp_gan_has_one_more_class_of_logit_zero():
    bags, learner = moon_bags()[0], learner_of("llp_gan", network(), weight=2.0)
    batch = bags.take(torch.tensor([0, 1]))
    reseed(0, "turns")
    turn = next(iter(learner.losses(batch, 0.0)))
    reseed(0, "turns")
    made = learner.generator(torch.rand(len(batch.x), 8) * 2 - 1)

    def generated(x: torch.Tensor) -> torch.Tensor:
        logits = learner.classifier(x)
        return torch.cat([logits, torch.zeros(len(x), 1)], 1).softmax(1)[:, -1]

    assert turn["real"].item() == pytest.approx(-(1 - generated(batch.x)).log().mean().item(), rel=1e-4)
    assert turn["fake"].item() == pytest.approx(-generated(made).log().mean().item(), rel=1e-4)
    plain = proportion_loss(learner.classifier(batch.x), batch.sizes, batch.proportions)
    assert turn["proportion"].item() == pytest.approx(2 * plain.item(), rel=1e-5)


def test_the_generator_matches_mean_features_of_the_classifier_after_its_step():
    bags, learner = moon_bags()[0], learner_of("llp_gan", network())
    batch = bags.take(torch.tensor([0, 1]))
    reseed(0, "turns")
    turns = learner.losses(batch, 0.0)
    next(turns)
    with torch.no_grad():
        for weight in learner.classifier.parameters():
            weight.mul_(1.5)
    term = next(turns)["matching"]
    reseed(0, "turns")
    made = learner.generator(torch.rand(len(batch.x), 8) * 2 - 1)
    moved = learner.classifier[0](batch.x).mean(0) - learner.classifier[0](made).mean(0)
    torch.testing.assert_close(term, moved.square().mean())


def test_the_classifiers_terms_give_the_generator_no_gradient():
    learner = learner_of("llp_gan", network())
    turns = learner.losses(moon_bags()[0].take(torch.tensor([0])), 0.0)
    sum(next(turns).values()).backward()
    assert all(p.grad is None for p in learner.generator.parameters())


def test_llp_gan_trains_on_batches_of_one_row():
    x, y = moons(1, 12).x[:9], moons(1, 12).y[:9]
    bags, _ = make_bags(x, y, 1, 2, stream(1, "bags"))
    learner = learner_of("llp_gan", network())
    before = [p.clone() for p in learner.generator.parameters()]
    for epoch in trained(learner, bags, batch_size=1):
        assert all(math.isfinite(value) for value in epoch.terms.values())
    assert all(not torch.equal(a, b) for a, b in zip(before, learner.generator.parameters(), strict=True))


def test_the_dense_generator_normalizes_a_single_row_by_its_running_statistics():
    made, plain = make_generator((2,), 8)[1], nn.BatchNorm1d(128)
    rows = torch.randn(5, 128, generator=stream(0, "rows"))
    assert torch.equal(made(rows), plain(rows))
    assert torch.equal(made(rows[:1]), plain.eval()(rows[:1]))
    assert torch.equal(made.running_mean, plain.running_mean)  # a single row does not enter them


def test_llp_gan_refuses_a_classifier_without_a_separate_head():
    with pytest.raises(
        TypeError, match=r"nn.Sequential\(features, head\).*nn.Identity\(\)\) to match the logits"
    ):
        LLPGAN(nn.Linear(2, 2), make_generator((2,), 8), 8)


# --- ROT


def test_rot_labels_are_relaxed_transport_labels_of_the_batch_without_gradient():
    bags = ragged((4, 7), k=3)
    batch, classifier = bags.take(torch.tensor([0, 1])), network(3)
    (terms,) = ROT(classifier, alpha=0.25, reg=0.5, precision=2.0).losses(batch, 0.0)
    logits = classifier(batch.x)
    labels = soft_labels(logits.detach().log_softmax(1), bags.sizes, bags.proportions, 0.5, 2.0)
    expected = 0.75 * cross_entropy(logits, labels).mean()
    torch.testing.assert_close(terms["labels"], expected)
    got, wanted = (torch.autograd.grad(t, classifier[1].weight)[0] for t in (terms["labels"], expected))
    torch.testing.assert_close(got, wanted)


def test_rot_with_all_weight_on_the_proportion_loss_is_dllp():
    bags = moon_bags()[0]
    one, other = ROT(network(), alpha=1.0), DLLP(network())
    for each in (one, other):
        trained(each, bags, 2, schedule=steady)
    torch.testing.assert_close(weights_of(one.classifier), weights_of(other.classifier))


def test_frozen_batch_norm_leaves_norms_without_statistics_as_they_are():
    norms = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2, track_running_stats=False))
    with frozen_batch_norm(norms):
        pass
    assert [norm.track_running_stats for norm in norms] == [True, False]


# --- one table of names


def test_every_method_is_named_where_users_choose_one():
    from apportion import ProportionClassifier
    from apportion.cli import options

    for name in METHODS:
        assert f'"{name}"' in str(ProportionClassifier.__doc__)
        assert name in Path(options.__file__).read_text("utf-8")
        assert title_of(name) != name


def test_names_from_outside_are_registered_once(monkeypatch):
    monkeypatch.setattr("apportion.methods.build.METHODS", dict(METHODS))

    class Own(DLLP):
        title = "own"

    register_method("own", Own)
    register_method("own", Own)  # a module may be imported twice
    assert title_of("own") == "own"
    assert takes_rows("own")
    for name, method in (("dllp", Own), ("own", ROT), ("Own!", Own), ("other", None)):
        with pytest.raises(SettingsError):
            register_method(name, method)  # type: ignore[arg-type]


def test_options_of_a_method_are_those_of_the_functions_that_make_it():
    assert option_defaults("dllp") == {}
    assert set(option_defaults("llp_gan")) == {"noise", "weight", "adversarial"}
    assert set(option_defaults("mean_map")) == {"ridge", "l2"}
    assert {"transport", "counts", "bag_first"} <= set(option_defaults("two_views"))
    assert option_defaults(partial(ROT, alpha=0.1))["reg"] == 1.0


def test_the_estimator_takes_a_class_a_function_or_a_partial():
    from apportion import ProportionClassifier

    bags, hidden = moon_bags()
    x = bags.x.numpy()
    ids = np.repeat(np.arange(len(bags.sizes)), bags.sizes)

    def weights(method):
        classifier = ProportionClassifier(method=method, epochs=2, pseudo_labels=None, random_state=0)
        clone(classifier).fit(x, hidden.numpy(), bags=ids)
        classifier.fit(x, hidden.numpy(), bags=ids)
        return weights_of(classifier.model_)

    by_name = weights("rot")
    assert same_bits(by_name, weights(ROT))
    assert same_bits(by_name, weights(lambda network: ROT(network)))
    assert same_bits(by_name, weights(partial(ROT, alpha=0.6)))
    assert not same_bits(by_name, weights(partial(ROT, alpha=0.1)))


def test_mean_map_is_linear_in_the_estimator():
    from apportion import ProportionClassifier

    bags, hidden = moon_bags()
    ids = np.repeat(np.arange(len(bags.sizes)), bags.sizes)
    weights = []
    for model in ("auto", "linear"):
        classifier = ProportionClassifier(model, method="mean_map", random_state=0)
        classifier.fit(bags.x.numpy(), hidden.numpy(), bags=ids)
        assert sum(isinstance(layer, nn.Linear) for layer in classifier.model_.modules()) == 1
        assert classifier.score(bags.x.numpy(), hidden.numpy()) > 0.8
        weights.append(weights_of(classifier.model_))
    assert same_bits(*weights)
    with pytest.raises(SettingsError, match="linear"):
        ProportionClassifier("mlp", method="mean_map").fit(bags.x.numpy(), hidden.numpy(), bags=ids)
