"""The two stages end to end: from bags or from predictions of elsewhere, stopped, resumed, in the limits."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import (
    ONE_VIEW,
    learner_of,
    moon_bags,
    network,
    ragged,
    same_bits,
    shuffled_inside,
    steady,
    weights_of,
)

from apportion._random import reseed, stream
from apportion.bags.bags import Bags, bag_means
from apportion.bags.build import build_bags
from apportion.bags.simulate import make_bags
from apportion.datasets.synthetic import blobs, moons
from apportion.evaluate import accuracy, predict_log_proba
from apportion.losses import cross_entropy, symmetric_cross_entropy
from apportion.methods import DLLP
from apportion.methods.plot import bag_weights
from apportion.networks import mlp
from apportion.optim import make_optimizer
from apportion.pipeline import EpochState, first_stage, fit_two_stages, second_stage
from apportion.pseudo_labels import argmax_labels, hard_labels, predicted_labels, soft_labels


def first(bags: Bags, name: str = "dllp", epochs: int = 3, **changes) -> list[EpochState]:
    learner = learner_of(name, network(bags.n_classes))
    optimizers = [make_optimizer(p, "adam", 1e-3) for p in learner.networks()]
    given = {"schedule": steady, "seed": 0, "batch_size": 64} | changes
    return list(first_stage(learner, bags, optimizers, epochs=epochs, **given))


def second(bags: Bags, log_probs: torch.Tensor, student=None, epochs: int = 3, **changes):
    """A generator, so that the caller may look between epochs."""
    student = student or network(bags.n_classes, seed=1)
    optimizers = [make_optimizer(student, "adam", changes.pop("peak", 1e-3))]
    given = {"schedule": steady, "seed": 0, "batch_size": 64} | changes
    return second_stage(log_probs, student, bags, optimizers, epochs=epochs, **given)


def elsewhere(bags: Bags, seed: int = 0) -> torch.Tensor:
    """Predictions that no network of ours made."""
    return torch.randn(len(bags.x), bags.n_classes, generator=stream(seed, "elsewhere")).log_softmax(1)


# --- what is passed on


def test_a_state_has_its_stage_its_epoch_and_the_learner():
    bags = moon_bags()[0]
    epoch_states = first(bags)
    assert [(m.stage, m.epoch.number) for m in epoch_states] == [("first", 1), ("first", 2), ("first", 3)]
    assert epoch_states[-1].labels is None
    student = network(seed=1)
    later = list(second(bags, predict_log_proba(epoch_states[-1].learner.classifier, bags.x), student))
    assert [(m.stage, m.epoch.number) for m in later] == [("second", 1), ("second", 2), ("second", 3)]
    assert later[-1].learner.classifier is student


def test_no_epochs_of_the_second_stage_are_the_first_stage():
    bags = moon_bags()[0]
    teacher = first(bags)[-1].learner.classifier
    before = weights_of(teacher)
    assert list(second(bags, predict_log_proba(teacher, bags.x), teacher, epochs=0)) == []
    assert same_bits(before, weights_of(teacher))


def test_plot_starts_from_predictions_of_anywhere_even_of_minus_infinity():
    bags, hidden = moon_bags()
    sure = torch.full((len(hidden), 2), -math.inf)
    sure[torch.arange(len(hidden)), hidden] = 0.0  # an oracle that rules the other class out
    for ema in (0.0, 0.5):
        epoch_states = list(second(bags, sure, label=hard_labels, ema=ema, warmup_epochs=1))
        rounds = epoch_states[0].labels
        assert rounds is not None
        assert torch.equal(rounds.rounds[0], F.one_hot(hidden, 2).float())
        assert all(m.log_probs.isfinite().all() and m.ema.isfinite().all() for m in epoch_states)
        assert all(math.isfinite(m.epoch.terms["labels"]) for m in epoch_states)


@pytest.mark.parametrize("ema", [0.0, 0.5])
def test_predictions_may_come_in_any_array(ema):
    bags, ends = moon_bags()[0], []
    start = elsewhere(bags)
    for form in (start, start.double(), start.numpy().astype(np.float64), start.tolist()):
        student = network(seed=1)
        list(second(bags, form, student, ema=ema))
        ends.append(weights_of(student))
    assert all(same_bits(ends[0], end) for end in ends[1:])


@pytest.mark.parametrize("label", [hard_labels, soft_labels, predicted_labels, argmax_labels])
def test_the_first_labels_are_those_of_the_predictions_passed_in(label):
    bags = moon_bags()[0]
    log_probs = elsewhere(bags)
    (epoch_state,) = second(bags, log_probs, label=label, epochs=1, warmup_epochs=2)
    assert torch.equal(epoch_state.labels.mean, label(log_probs, bags.sizes, bags.proportions))


def test_labels_stay_the_teachers_for_the_first_epochs_and_are_made_anew_after_every_later_one():
    bags, asked = moon_bags()[0], []

    def watched(log_probs, sizes, proportions):
        asked.append(log_probs)
        return hard_labels(log_probs, sizes, proportions)

    epoch_states = second(bags, elsewhere(bags), label=watched, epochs=5, warmup_epochs=3)
    rounds = [(m.epoch.number, len(asked), m.log_probs is None) for m in epoch_states]
    assert rounds == [(1, 1, True), (2, 1, True), (3, 2, False), (4, 3, False), (5, 4, False)]


def test_the_student_learns_the_mean_of_the_last_rounds_of_labels():
    bags, made = moon_bags()[0], []

    def watched(log_probs, sizes, proportions):
        made.append(soft_labels(log_probs, sizes, proportions, 1.0))
        return made[-1]

    for epoch_state in second(bags, elsewhere(bags), label=watched, epochs=8, memory=5):
        torch.testing.assert_close(epoch_state.labels.mean, torch.stack(made[-5:]).mean(0))
    assert len(made) == 9


def test_labels_are_made_from_a_moving_average_of_log_probabilities():
    bags, start, seen = moon_bags()[0], elsewhere(moon_bags()[0]), []

    def watched(log_probs, sizes, proportions):
        seen.append(log_probs.clone())
        return hard_labels(log_probs, sizes, proportions)

    expected = start
    for epoch_state in second(bags, start, label=watched, ema=0.75):
        expected = 0.75 * expected + 0.25 * epoch_state.log_probs
        torch.testing.assert_close(seen[-1], expected)


def test_the_momentum_of_the_average_follows_the_schedule():
    bags, start, seen = moon_bags()[0], elsewhere(moon_bags()[0]), []

    def watched(log_probs, sizes, proportions):
        seen.append(log_probs.clone())
        return hard_labels(log_probs, sizes, proportions)

    epoch_states = list(
        second(bags, start, label=watched, ema=0.8, epochs=4, schedule=lambda progress: 1 - progress)
    )
    expected = start
    for epoch_state, labeled in zip(epoch_states, seen[1:], strict=True):
        lag = 0.8 * (1 - epoch_state.epoch.number / 4)
        expected = lag * expected + (1 - lag) * epoch_state.log_probs
        torch.testing.assert_close(labeled, expected)
    assert torch.equal(seen[-1], epoch_states[-1].log_probs)


def test_labeling_sees_instances_without_augmentation():
    bags = moon_bags()[0]
    student = network(seed=1)
    for epoch_state in second(
        bags, elsewhere(bags), student, augment=lambda x: x + 50, prepare=lambda x: x * 2
    ):
        torch.testing.assert_close(epoch_state.log_probs, predict_log_proba(student, bags.x * 2))


def test_the_second_stage_meets_every_bags_counts_in_every_round():
    bags = ragged((5, 20, 11, 30), k=3)
    for epoch_state in second(bags, elsewhere(bags), epochs=4):
        for labels in epoch_state.labels.rounds:
            masses = torch.stack([part.sum(0) for part in labels.split(bags.sizes.tolist())])
            assert (masses - bags.proportions * bags.sizes[:, None]).abs().max() < 1


def test_transport_labels_of_a_teacher_are_better_than_its_predictions():
    bags, hidden = moon_bags(1000, 10)
    teacher = first(bags, epochs=15)[-1].learner.classifier
    log_probs = predict_log_proba(teacher, bags.x)
    labels = hard_labels(log_probs, bags.sizes, bags.proportions)
    assert accuracy(labels, hidden) > accuracy(log_probs, hidden)


# --- algorithm 2


def test_algorithm_2_stops_when_predictions_change_by_no_more_than_delta():
    bags = moon_bags()[0]
    changes = [m.change for m in second(bags, elsewhere(bags), epochs=20, label=soft_labels, stop=0.0)]
    assert len(changes) == 20
    limit = changes[6]
    first_below = next(i for i, change in enumerate(changes) if change <= limit)
    stopped = [m.change for m in second(bags, elsewhere(bags), epochs=20, label=soft_labels, stop=limit)]
    assert stopped == changes[: first_below + 1]


def test_algorithm_2_compares_its_first_predictions_with_uniform_ones_and_then_with_the_last():
    bags = moon_bags()[0]
    epoch_states = list(second(bags, elsewhere(bags), label=soft_labels, stop=0.0))
    scale = 1 / torch.repeat_interleave(bags.sizes, bags.sizes)[:, None]
    previous = torch.full((len(bags.x), 2), 0.5)
    for epoch_state in epoch_states:
        assert epoch_state.change == pytest.approx(
            ((epoch_state.log_probs.exp() - previous) * scale).norm().item(), rel=1e-5
        )
        previous = epoch_state.log_probs.exp()


def test_batches_of_rows_show_a_student_every_row_of_large_bags():
    bags = ragged((10, 2, 7), k=2)
    rows = torch.arange(19.0)
    told = replace(bags, x=rows.unsqueeze(1).expand(-1, bags.x.shape[1]).contiguous())

    def seen(**changes) -> list[float]:
        batches = []
        views = {"augment": lambda x: batches.append(x[:, 0].tolist()) or x}
        list(second(told, elsewhere(bags), epochs=1, batch_size=4, **views, **changes))
        assert max(map(len, batches)) <= 4
        return sorted(row for batch in batches for row in batch)

    assert len(seen()) == 10  # four of a large bag
    assert seen(by="row") == rows.tolist()


def test_a_student_that_does_not_move_stops_after_its_second_prediction():
    bags = moon_bags()[0]
    epoch_states = list(second(bags, elsewhere(bags), epochs=9, schedule=lambda progress: 0.0, stop=0.0))
    assert [m.epoch.number for m in epoch_states] == [1, 2]
    assert epoch_states[-1].change == 0.0


def test_the_last_state_is_marked():
    bags = moon_bags()[0]
    assert [m.last for m in first(bags)] == [False, False, True]
    assert [m.last for m in second(bags, elsewhere(bags))] == [False, False, True]
    still = second(bags, elsewhere(bags), epochs=9, schedule=lambda progress: 0.0, stop=0.0)
    assert [m.last for m in still] == [False, True]


# --- proportions that are unknown or uncertain


def test_labels_compromise_between_uncertain_proportions_and_predictions():
    bags = moon_bags()[0]
    m = len(bags.sizes)
    start = elsewhere(bags)
    ends = {}
    for name, precision in (("none", None), ("exact", math.inf), ("uncertain", 0.01)):
        weights = None if precision is None else torch.full((m,), precision, dtype=torch.float64)
        seen = []

        def watched(log_probs, sizes, proportions, seen=seen):
            seen.append(proportions)
            return soft_labels(log_probs, sizes, proportions)

        list(second(replace(bags, precision=weights), start, label=watched, epochs=1))
        ends[name] = seen
    assert torch.equal(ends["none"][0], bags.proportions)
    assert torch.equal(ends["exact"][0], bags.proportions)
    predicted = bag_means(start.exp(), bags.sizes)
    torch.testing.assert_close(ends["uncertain"][0], predicted, rtol=0, atol=0.05)
    assert not torch.equal(ends["uncertain"][0], ends["uncertain"][1])  # and follow the student


# --- both stages in one call


SHORT = {"epochs": 2, "student_epochs": 2, "batch_size": 16}


def small(shape, k):
    return mlp(shape, k, widths=(8,))


@pytest.mark.parametrize(
    ("label", "stages"), [(None, ["first"] * 2), (soft_labels, ["first"] * 2 + ["second"] * 2)]
)
def test_a_student_follows_unless_there_are_no_labels(label, stages):
    states = list(fit_two_stages(moon_bags()[0], small, label=label, **SHORT))
    assert [state.stage for state in states] == stages
    networks = {id(state.learner.classifier) for state in states}
    assert len(networks) == len(set(stages))  # the student is a new network


def test_no_epochs_for_the_student_leave_the_teacher_as_the_last_state():
    *_, last = fit_two_stages(moon_bags()[0], small, label=hard_labels, **SHORT | {"student_epochs": 0})
    assert last.stage == "first"


def test_the_two_stages_depend_on_the_seed_and_hidden_labels_cannot_reach_their_weights():
    data, ends = moons(0, 200), []
    bags, hidden = make_bags(data.x, data.y, 20, 2, stream(0))
    for labels, seed in ((hidden, 0), (shuffled_inside(hidden, bags.sizes), 0), (hidden, 1)):
        y = torch.empty_like(data.y)
        y[bags.source] = labels
        again, _ = make_bags(data.x, y, 20, 2, stream(0))
        *_, last = fit_two_stages(again, small, label=hard_labels, seed=seed, **SHORT)
        ends.append(weights_of(last.learner.classifier))
    assert same_bits(ends[0], ends[1])
    assert not same_bits(ends[0], ends[2])


def test_bags_without_proportions_are_labeled_for_the_student_only():
    bags = moon_bags()[0]
    proportions = bags.proportions.clone()
    proportions[:5] = math.nan
    some = replace(bags, proportions=proportions)
    states = list(fit_two_stages(some, small, label=hard_labels, **SHORT))
    teachers = list(fit_two_stages(some.known(), small, label=None, **SHORT))
    assert [s.epoch.terms for s in states[:2]] == [s.epoch.terms for s in teachers]
    assert states[-1].labels.mean.shape == (len(bags.x), 2)
    assert states[-1].labels.mean.isfinite().all()


@pytest.mark.parametrize(("method", "by"), [("dllp", "row"), ("llp_vat", "bag")])
def test_images_in_bags_larger_than_a_batch_are_trained_on_rows_in_both_stages(monkeypatch, method, by):
    generator = stream(0)
    x = torch.randint(0, 256, (60, 1, 8, 8), generator=generator, dtype=torch.uint8)
    bags, _ = make_bags(x, torch.randint(3, (60,), generator=generator), 30, 3, generator)
    seen = []
    batches = Bags.batches

    def watched(self, batch_size, generator, by="bag"):
        seen.append((batch_size, by))
        return batches(self, batch_size, generator, by)

    monkeypatch.setattr(Bags, "batches", watched)
    short = {"epochs": 1, "student_epochs": 1, "batch_size": 16}
    list(fit_two_stages(bags, small, method=method, label=hard_labels, **short))
    assert seen == [(16, by)] * 2


# --- honesty


@pytest.mark.parametrize("label", [hard_labels, soft_labels, predicted_labels])
def test_hidden_labels_cannot_reach_the_students_weights(label):
    data, ends = moons(0, 200), []
    bags, hidden = make_bags(data.x, data.y, 20, 2, stream(0))
    for labels in (hidden, shuffled_inside(hidden, bags.sizes)):
        y = torch.empty_like(data.y)
        y[bags.source] = labels
        again, kept = make_bags(data.x, y, 20, 2, stream(0))
        teacher = first(again)[-1].learner.classifier
        student = network(seed=1)
        list(second(again, predict_log_proba(teacher, again.x), student, label=label, mixup=1.0))
        ends.append((kept, weights_of(student)))
    assert not torch.equal(ends[0][0], ends[1][0])
    assert same_bits(ends[0][1], ends[1][1])


# --- resuming


@pytest.mark.parametrize("name", ONE_VIEW)
@pytest.mark.parametrize("after", [1, 3])
def test_a_first_stage_interrupted_after_any_epoch_ends_with_the_same_bits(name, after):
    bags = moon_bags()[0]
    whole = first(bags, name, 4)
    state = copy.deepcopy(states(bags, name)[after - 1])
    rest = first(bags, name, 4, resume=state)
    assert [(m.epoch.number, m.epoch.terms) for m in rest] == [
        (m.epoch.number, m.epoch.terms) for m in whole[after:]
    ]
    assert same_bits(weights_of(*whole[-1].learner.networks()), weights_of(*rest[-1].learner.networks()))


def states(bags: Bags, name: str):
    learner = learner_of(name, network(bags.n_classes))
    optimizers = [make_optimizer(p, "adam", 1e-3) for p in learner.networks()]
    epoch_states = first_stage(learner, bags, optimizers, epochs=4, schedule=steady, seed=0, batch_size=64)
    return [copy.deepcopy(epoch_state.state()) for epoch_state in epoch_states]


SECONDS = {
    "hard": {},
    "soft, algorithm 2": {"label": soft_labels, "stop": 1e-9},
    "sce, mixup, bag weights": {"loss": symmetric_cross_entropy, "mixup": 1.0, "weights": "bag"},
    "running mean, long hold": {"ema": 0.9, "warmup_epochs": 3, "memory": 2},
}


@pytest.mark.parametrize("name", SECONDS)
@pytest.mark.parametrize("after", [1, 2, 4])
def test_a_second_stage_interrupted_after_any_epoch_ends_with_the_same_bits(name, after):
    bags, settings = ragged((5, 30, 11, 40), k=2), dict(SECONDS[name])
    if settings.get("weights") == "bag":
        settings["weights"] = bag_weights(bags.sizes, 64)
    start = elsewhere(bags)
    saved, whole = {}, []
    for epoch_state in second(bags, start, epochs=6, **settings):
        saved[epoch_state.epoch.number] = copy.deepcopy(epoch_state.state())
        whole.append((epoch_state.epoch.number, epoch_state.epoch.terms, epoch_state.change))
    end = weights_of(epoch_state.learner.classifier), epoch_state.labels.mean
    rest = list(second(bags, start, network(2, seed=5), epochs=6, resume=saved[after], **settings))
    assert [(m.epoch.number, m.epoch.terms, m.change) for m in rest] == whole[after:]
    assert same_bits(end[0], weights_of(rest[-1].learner.classifier))
    assert torch.equal(end[1], rest[-1].labels.mean)


@pytest.mark.gpu
def test_a_second_stage_on_a_gpu_goes_on_from_a_checkpoint_that_was_read_to_the_cpu():
    bags = moon_bags()[0]
    start, states = elsewhere(bags).cuda(), {}
    for epoch_state in second(bags.to("cuda"), start, network(seed=1).cuda(), stop=1e-9):
        states[epoch_state.epoch.number] = on_cpu(epoch_state.state())
    end = epoch_state.labels.mean
    rest = list(second(bags.to("cuda"), start, network(seed=5).cuda(), stop=1e-9, resume=states[1]))
    torch.testing.assert_close(rest[-1].labels.mean, end)


def on_cpu(value):
    if isinstance(value, dict):
        return {name: on_cpu(part) for name, part in value.items()}
    if isinstance(value, list):
        return [on_cpu(part) for part in value]
    return value.cpu().clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)


# --- limits that connect the methods


def test_bags_of_one_teach_the_truth_whatever_the_teacher():
    bags, hidden = moon_bags(100, 1)
    student = network(seed=1)
    *_, last = second(bags, elsewhere(bags), student, epochs=3)
    assert torch.equal(last.labels.mean, F.one_hot(hidden, 2).float())
    supervised = network(seed=1)
    optimizer = torch.optim.Adam(supervised.parameters(), lr=1e-3)
    for number in (1, 2, 3):
        for batch in bags.batches(64, reseed(0, "second", number)):
            optimizer.zero_grad()
            F.cross_entropy(supervised(batch.x), hidden[batch.row]).backward()
            optimizer.step()
    torch.testing.assert_close(weights_of(student), weights_of(supervised), rtol=1e-4, atol=1e-5)


def clusters_of_one_bag(label) -> tuple[list[int], float]:
    """Self-labeling of one even bag from a random network that predicts two of four classes: the sizes of
    its classes in the end, and the share of instances in the commonest true class of theirs."""
    data = blobs(2, 400)
    bags = Bags(data.x, torch.tensor([400]), torch.full((1, 4), 0.25), torch.arange(400), ["everything"])
    student = network(4, seed=1, widths=(64,) * 4)
    start = predict_log_proba(student, bags.x)
    for _ in second(bags, start, student, epochs=150, label=label, memory=1, batch_size=400, peak=1e-3):
        pass
    found = predict_log_proba(student, bags.x).argmax(1)
    counts = torch.bincount(found * 4 + data.y, minlength=16).view(4, 4)
    return counts.sum(1).tolist(), counts.max(1).values.sum().item() / 400


def test_one_even_bag_of_everything_is_clustering_and_without_transport_collapses_to_one_class():
    sizes, purity = clusters_of_one_bag(hard_labels)
    assert min(sizes) > 90
    assert purity > 0.85
    assert max(clusters_of_one_bag(argmax_labels)[0]) == 400


def test_zero_reverse_weight_is_training_with_cross_entropy():
    bags = moon_bags()[0]

    def reverse_less(logits, labels):
        return symmetric_cross_entropy(logits, labels, 1.0, 0.0)

    ends = []
    for loss in (cross_entropy, reverse_less):
        student = network(seed=1)
        list(second(bags, elsewhere(bags), student, loss=loss))
        ends.append(weights_of(student))
    torch.testing.assert_close(*ends)


def test_the_order_of_the_table_of_proportions_does_not_matter_to_the_trained_weights():
    data, ends = moons(0, 120), []
    ids = [f"town {i % 6}" for i in range(120)]
    table = {f"town {i}": [0.25 + i / 12, 0.75 - i / 12] for i in range(6)}
    for order in (sorted(table), sorted(table, reverse=True)):
        bags = build_bags(data.x, bags=ids, proportions={name: table[name] for name in order}).bags
        teacher = DLLP(network())
        optimizer = make_optimizer(teacher.classifier, "adam", 1e-3)
        list(first_stage(teacher, bags, [optimizer], epochs=2, schedule=steady, seed=0, batch_size=40))
        student = network(seed=1)
        list(second(bags, predict_log_proba(teacher.classifier, bags.x), student))
        ends.append(weights_of(student))
    assert same_bits(*ends)


def steps(**given):
    return {"epochs": 2, "schedule": lambda progress: 1.0, "seed": 0} | given


def test_an_optimizer_of_another_network_is_refused_before_the_first_step():
    (bags, _), student, teacher = moon_bags(), network(), network()
    optimizer = make_optimizer(teacher, "adam", 1e-3)
    with pytest.raises(ValueError, match="optimizer 0"):
        next(second_stage(torch.zeros(len(bags.x), 2), student, bags, [optimizer], **steps()))
    with pytest.raises(ValueError, match="optimizer 0"):
        next(first_stage(learner_of("dllp", student), bags, [optimizer], **steps()))


def test_a_state_of_the_other_stage_is_refused_before_anything_is_loaded():
    bags, _ = moon_bags()
    guess, net = torch.zeros(len(bags.x), 2), network()
    learner, optimizer = learner_of("dllp", net), make_optimizer(net, "adam", 1e-3)
    first = next(first_stage(learner, bags, [optimizer], **steps())).state()
    second = next(second_stage(guess, net, bags, [optimizer], **steps())).state()
    before = weights_of(net)
    with pytest.raises(ValueError, match="state of the second stage"):
        next(first_stage(learner, bags, [optimizer], **steps(resume=second)))
    with pytest.raises(ValueError, match="state of the first stage"):
        next(second_stage(guess, net, bags, [optimizer], **steps(resume=first)))
    assert same_bits(before, weights_of(net))


def test_bags_without_proportions_are_refused_by_a_first_stage_and_leave_the_network():
    bags, _ = moon_bags()
    shares = bags.proportions.clone()
    shares[3] = math.nan
    net = network()
    before, optimizer = weights_of(net), make_optimizer(net, "adam", 1e-3)
    with pytest.raises(ValueError, match="bag 3 has no proportions"):
        next(first_stage(learner_of("dllp", net), replace(bags, proportions=shares), [optimizer], **steps()))
    assert same_bits(before, weights_of(net))


def test_batches_of_no_instance_and_a_mixup_below_nought_are_refused():
    bags, _ = moon_bags()
    net = network()
    optimizer = make_optimizer(net, "adam", 1e-3)
    with pytest.raises(ValueError, match="batch_size is 0"):
        next(first_stage(learner_of("dllp", net), bags, [optimizer], **steps(batch_size=0)))
    with pytest.raises(ValueError, match="mixup is -1.0"):
        next(second_stage(torch.zeros(len(bags.x), 2), net, bags, [optimizer], **steps(mixup=-1.0)))
