"""From bags to a classifier, whatever the model: a network, a linear model, trees, or their average.

`fit_model` is what the estimator calls. Like the stages of `pipeline`, everything here is a generator of
EpochState, and the classifier of the last state is the fitted one.

The three models of tables fail on different data, so their average is better than any one of them, and also
better than the one that predicts held-out bags best: what differs between bags is often not what differs
within them (docs/log.md). Held-out bags choose lengths and penalties, how far predictions are drawn toward
the overall shares and, where they are strong evidence, weights.
"""

import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from sklearn.base import clone
from torch import Tensor, nn

from apportion._random import derive_seed, stream
from apportion._untrusted import printable
from apportion.bags.bags import Bags
from apportion.checkpoints import DAMAGED, check_table, load_weights
from apportion.defaults import TABLE_MODELS, is_scikit, plan_training
from apportion.errors import CheckpointError, ModelError, SettingsError
from apportion.evaluate import predict_log_proba
from apportion.losses import cross_entropy
from apportion.methods.boosted_trees import (
    FEW_LEAVES,
    FRACTIONS_OF_ROWS,
    MANY_LEAVES,
    ROUNDS_BETWEEN_SCORES,
    USUAL_ROUNDS,
    Round,
    boost,
)
from apportion.methods.count_likelihood import count_log_likelihood
from apportion.methods.linear import (
    PENALTIES,
    USUAL_PENALTY,
    Penalty,
    fit_linear,
    try_penalties,
    without_weights,
)
from apportion.methods.new_network import initial_proportions
from apportion.methods.protocol import LossTerms
from apportion.networks import NETWORKS
from apportion.networks.average import Average, rescale
from apportion.networks.scikit import ScikitClassifier
from apportion.networks.trees import BoostedTrees, Tree, mean_of_trees, sizes_of_trees, trees_from_tensors
from apportion.pipeline import EpochState, fit_two_stages
from apportion.pseudo_labels import make_labeler, relaxed_proportions
from apportion.selection.calibration import count_residuals
from apportion.selection.held_out import (
    FEWEST_BAGS,
    PARTS,
    Split,
    effective_bags,
    split_to_choose,
)
from apportion.training import Epoch

MOST_ROWS_FOR_PARTS = 60_000  # beyond, only a fifth of the bags is held out, and once
ENSEMBLES = 3  # of trees, whose mean is the model
WEIGHT_STD = 0.2  # of a model's weight around equal weights, a priori
HIGHER_TEMPERATURE_STD = 1.0  # of the logarithm of the temperature around zero, a priori
LOWER_TEMPERATURE_STD = 0.3  # less where counts vary more than predictions explain
# rows times epochs of a network:
FAST = 1_000_000  # a few seconds on one core: each part of the bags is held out in turn
FAST_ENOUGH_TO_REPEAT = 4_000_000  # it learns once more, from all bags
LABEL_ROUNDS = 4  # of a scikit-learn classifier
FOLDS = 3  # of the bags, in every round but the last
SMALLEST_LABEL = 0.01  # smaller probabilities of a soft label are left out
ROWS_FOR_MANY_LEAVES = 2000  # from which trees of many leaves are tried, too


@dataclass(frozen=True)
class Fitted:
    """A classifier in the form of a Learner, though no loop trains it."""

    classifier: nn.Module

    def networks(self) -> list[nn.Module]:
        return [self.classifier]

    def losses(self, batch: Any, progress: float) -> Iterator[LossTerms]:
        return iter(())


class Progress:
    """How far a fit is: what its finished steps ended with, and where an earlier process was interrupted.

    Steps have names. Results are tensors and plain values, for a checkpoint.
    """

    def __init__(self, resume: dict[str, Any] | None) -> None:
        self.finished: dict[str, Any] = {} if resume is None else dict(resume["finished"])
        self._interrupted = resume

    def within(self, step: str) -> dict[str, Any] | None:
        """The state to continue from if an earlier process was interrupted in this step."""
        state = self._interrupted
        return state if state is not None and state["step"] == step else None

    def number(self, step: str, name: str) -> float:
        """A number with which a step ended."""
        value = self._result(step, name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise CheckpointError(f"the checkpoint has no number for {name}; delete it to start over")
        return value

    def log_probs(self, step: str, shapes: Sequence[tuple[int, int]]) -> list[Tensor]:
        """The predictions with which a step ended."""
        tables = self._result(step, "log_probs")
        if not isinstance(tables, list) or len(tables) != len(shapes):
            raise CheckpointError("the checkpoint has other predictions; delete it to start over")
        return [check_table(*each, error=CheckpointError) for each in zip(tables, shapes, strict=True)]

    def model(self, step: str, make: Callable[..., nn.Module], *arguments: Any, **options: Any) -> nn.Module:
        """The model with which a step ended; `make` makes one like it."""
        with torch.device("meta"):  # initial weights would be drawn from the generator of the whole process
            model = make(*arguments, **options)
        weights = self._result(step, "weights")
        return load_weights(model.to_empty(device="cpu"), weights, error=CheckpointError)

    def keep_penalties(self, step: str, tried: Sequence[Penalty]) -> None:
        """Keep the penalties that have been tried on a split."""
        weights = [each.model.state_dict() for each in tried]
        self.finished[step] = {"score": [each.score for each in tried], "weights": weights}

    def penalties(self, step: str, n_features: int, n_classes: int) -> list[Penalty]:
        """Those that have been tried on a split."""
        if step not in self.finished:
            return []
        scores = self._result(step, "score")
        try:
            found = zip(PENALTIES, self._result(step, "weights"), scores, strict=False)
            return [
                Penalty(l2, linear_from(weights, n_features, n_classes), float(score))
                for l2, weights, score in found
            ]
        except DAMAGED as problem:
            reason = f"the checkpoint's linear models are damaged ({printable(problem)})"
            raise CheckpointError(f"{reason}; delete it to start over") from None

    def trees(self, step: str, n_features: int, n_classes: int) -> BoostedTrees:
        """The ensemble with which a step ended."""
        try:
            options = sizes_of_trees(self._result(step, "weights"), self._result(step, "depth"))
            model = self.model(step, BoostedTrees, n_features, n_classes, **options)
            assert isinstance(model, BoostedTrees)  # noqa: S101
            model.check()
        except (ModelError, *DAMAGED) as problem:
            raise damaged_trees(problem) from None
        return model

    def _result(self, step: str, name: str) -> Any:
        result = self.finished[step]
        if not isinstance(result, dict) or name not in result:
            raise CheckpointError(f"the checkpoint has no {name} for {step}; delete it to start over")
        return result[name]


def linear_from(weights: Any, n_features: int, n_classes: int) -> nn.Linear:
    """A linear model with saved weights."""
    model = without_weights(n_features, n_classes)
    load_weights(model, weights, error=CheckpointError)
    return model


def damaged_trees(problem: Exception) -> CheckpointError:
    reason = printable(problem)
    return CheckpointError(f"the checkpoint's trees are damaged ({reason}); delete it to start over")


@dataclass
class Candidate:
    """A model of an average, and what held-out bags say about it."""

    model: nn.Module  # learned from all bags or, if that takes long, from those that are not held out
    log_probs: list[Tensor]  # (N, k) of the held-out bags of every split, which it has not learned from
    chosen: dict[str, Any]  # settings


Fitting = Generator[EpochState, None, Candidate]


def fit_model(
    bags: Bags, settings: Mapping[str, Any], seed: int, resume: dict[str, Any] | None = None
) -> Iterator[EpochState]:
    """Fit the model with the estimator's settings, in which `resolve_auto` has replaced "auto".

    `resume` is `state()` of an earlier state of the same fit, after which it continues with the same bits.
    The last state cannot be resumed from, since nothing follows it.
    """
    progress = Progress(resume)
    for state in fit_by_name(bags, settings, seed, progress):
        yield replace(state, finished=dict(progress.finished))


def fit_by_name(
    bags: Bags, settings: Mapping[str, Any], seed: int, progress: Progress
) -> Iterator[EpochState]:
    """Each model by its own function."""
    name = settings["model"]
    if bags.weight is not None and name == "trees":
        raise SettingsError("trees do not take weights of rows; pass model='auto', 'linear' or 'mlp'")
    if isinstance(name, str) and name in TABLE_MODELS:
        yield from fit_table_model(name, bags.to("cpu"), settings, seed, progress)
    elif is_scikit(name):
        yield from fit_scikit(name, bags.to("cpu"), settings, seed, progress)
    else:
        yield from fit_network(bags, settings, seed, progress.within(""))


def fit_network(
    bags: Bags, settings: Mapping[str, Any], seed: int, resume: dict[str, Any] | None = None
) -> Generator[EpochState, None, nn.Module]:
    """Both stages of a network, which is returned."""
    model = settings["model"]
    labeler = None
    if settings["pseudo_labels"] is not None:
        labeler = make_labeler(settings["pseudo_labels"], settings["reg"])
    return fit_two_stages(
        bags,
        NETWORKS[model] if isinstance(model, str) else model,
        method=settings["method"],
        label=labeler,
        epochs=settings["epochs"],
        student_epochs=settings["student_epochs"],
        learning_rate=settings["learning_rate"],
        student_learning_rate=settings["student_learning_rate"],
        batch_size=settings["batch_size"],
        horizontal_flip=settings["horizontal_flip"],
        seed=seed,
        resume=resume,
    )


def fit_table_model(
    name: str, bags: Bags, settings: Mapping[str, Any], seed: int, progress: Progress
) -> Iterator[EpochState]:
    """A linear model, trees, or the average of these and an mlp.

    The "teacher" of a scikit-learn classifier is the average without the mlp.
    """
    started = time.perf_counter()
    fast = len(bags.x) <= MOST_ROWS_FOR_PARTS
    if name == "average":
        fast = fast and rows_to_process(bags, settings) <= FAST
    splits = split_to_choose(bags, PARTS if fast else 1, seed)
    known = bags.known()
    # trees do not take weights of rows; few bags they fit exactly, in a way that says little about rows
    with_trees = name == "trees" or (bags.weight is None and effective_bags(known.mass) >= FEWEST_BAGS)
    candidates: dict[str, Candidate] = {}
    if name != "trees":
        candidates["linear"] = yield from fit_linear_candidate(known, splits, progress)
    if name != "linear" and with_trees:
        ensembles = 1 if len(bags.x) > MOST_ROWS_FOR_PARTS else ENSEMBLES
        candidates["trees"] = yield from fit_trees_candidate(known, splits, seed, ensembles, progress)
    if name == "average":
        candidates["mlp"] = yield from fit_mlp_candidate(bags, splits, settings, seed, progress)
    model, selection = combine(candidates, known, [split.held_out for split in splits])
    terms = {f"weight of {each}": found["weight"] for each, found in selection["candidates"].items()}
    epoch = Epoch(1, 1, terms, time.perf_counter() - started)
    yield EpochState(name, epoch, Fitted(model), [], last=True, selection=selection)


# --- candidates


def fit_linear_candidate(known: Bags, splits: Sequence[Split], progress: Progress) -> Fitting:
    """The linear model with the penalty that predicts the held-out bags best."""
    if not splits:
        return Candidate(fit_linear(known, USUAL_PENALTY), [], {"l2": USUAL_PENALTY})
    l2, start, log_probs = yield from choose_penalty(splits, progress)
    if "linear" not in progress.finished:
        progress.finished["linear"] = {"weights": fit_linear(known, l2, start).state_dict()}
    model = progress.model("linear", nn.Linear, math.prod(known.x.shape[1:]), known.n_classes)
    return Candidate(model, log_probs, {"l2": l2})


def shapes_of(splits: Sequence[Split]) -> list[tuple[int, int]]:
    """Of the predictions of held-out bags."""
    return [(len(split.held_out.x), split.held_out.n_classes) for split in splits]


def choose_penalty(
    splits: Sequence[Split], progress: Progress
) -> Generator[EpochState, None, tuple[float, nn.Linear, list[Tensor]]]:
    """The best penalty, a model to start from, and predictions of the held-out bags."""
    started = time.perf_counter()
    tried: list[dict[float, Penalty]] = []
    for number, split in enumerate(splits):
        step = f"linear, split {number + 1}"
        before = progress.penalties(step, math.prod(split.bags.x.shape[1:]), split.bags.n_classes)
        tried.append({each.l2: each for each in before})
        for each in try_penalties(split.small_training, split.held_out, tried=before):
            tried[-1][each.l2] = each
            progress.keep_penalties(step, list(tried[-1].values()))
            now = time.perf_counter()
            terms = {"l2": each.l2, "likelihood": each.score}
            epoch = Epoch(len(tried[-1]), len(PENALTIES), terms, now - started)
            yield EpochState("linear", epoch, Fitted(each.model), [], step=step)
            started = now
    mass = [float(split.held_out.mass.sum()) for split in splits]
    scores = {
        l2: sum(n * found[l2].score for n, found in zip(mass, tried, strict=True))
        for l2 in tried[0]
        if all(l2 in found for found in tried)
    }
    l2 = max(scores, key=lambda each: scores[each])
    log_probs = [
        predict_log_proba(found[l2].model, split.held_out.x)
        for found, split in zip(tried, splits, strict=True)
    ]
    return l2, tried[0][l2].model, log_probs


def fit_trees_candidate(
    known: Bags, splits: Sequence[Split], seed: int, ensembles: int, progress: Progress
) -> Fitting:
    """Boosted trees with the number and the settings that predict the held-out bags best.

    The model is the mean of several ensembles, which differ by the rows and features that trees are grown on.
    """
    rounds = USUAL_ROUNDS
    settings: dict[str, Any] = {"leaves": FEW_LEAVES, "fraction": min(FRACTIONS_OF_ROWS)}
    log_probs: list[Tensor] = []
    if splits:
        rounds, settings, log_probs = yield from choose_trees(splits, seed, progress)
    models = []
    for number in range(ensembles):
        step = f"trees, ensemble {number + 1}"
        if step not in progress.finished:
            last = yield from grow(
                step, progress, known, rounds=rounds, seed=derive_seed(seed, number), **settings
            )
            model = last.classifier
            progress.finished[step] = {"depth": model.depth, "weights": model.state_dict()}
        models.append(progress.trees(step, math.prod(known.x.shape[1:]), known.n_classes))
    return Candidate(mean_of_trees(models), log_probs, {"trees": rounds * ensembles} | settings)


def choose_trees(
    splits: Sequence[Split], seed: int, progress: Progress
) -> Generator[EpochState, None, tuple[int, dict[str, Any], list[Tensor]]]:
    """The number of trees and their settings with the best score, and predictions of the held-out bags.

    First the fraction of the rows that trees are grown on, then, of many rows, the number of leaves.
    """
    tries: list[dict[str, Any]] = [
        {"leaves": FEW_LEAVES, "fraction": fraction} for fraction in FRACTIONS_OF_ROWS
    ]
    best_score = -math.inf
    best: tuple[int, dict[str, Any], list[Tensor]] = (USUAL_ROUNDS, tries[0], [])
    if int(splits[0].bags.sizes[splits[0].learned].sum()) >= ROWS_FOR_MANY_LEAVES:
        tries.append({"leaves": MANY_LEAVES})
    for settings in tries:
        settings = best[1] | settings
        rounds = []
        log_probs = []
        score = 0.0
        for number, split in enumerate(splits):
            grown_on = f"{settings['leaves']} leaves on {settings['fraction']:.0%} of the rows"
            step = f"trees of {grown_on}, split {number + 1}"
            if step not in progress.finished:
                last = yield from grow(
                    step, progress, split.small_training, split.held_out, seed=seed, **settings
                )
                progress.finished[step] = {
                    "rounds": last.best,
                    "score": last.best_score,
                    "log_probs": [predict_log_proba(last.classifier, split.held_out.x)],
                }
            rounds.append(progress.number(step, "rounds"))
            log_probs += progress.log_probs(step, shapes_of([split]))
            score += progress.number(step, "score") * len(split.held_out.x)
        if score > best_score:
            best_score = score
            best = (round(float(np.mean(rounds))), settings, log_probs)
    return best


def grow(
    step: str, progress: Progress, bags: Bags, validation: Bags | None = None, **settings: Any
) -> Generator[EpochState, None, Round]:
    """An ensemble of trees, from where an earlier process was interrupted; returns its last round."""
    state = progress.within(step)
    resume: Sequence[Tree] = ()
    if state is not None and state["trees"]:
        try:
            resume = trees_from_tensors(state["trees"], math.prod(bags.x.shape[1:]), bags.n_classes)
        except (ModelError, *DAMAGED) as problem:
            raise damaged_trees(problem) from None
    rounds = boost(bags, validation, resume=resume, **settings)
    while True:
        try:
            found = next(rounds)
        except StopIteration as end:
            return end.value
        yield trees_state(found, step)


def fit_mlp_candidate(
    bags: Bags, splits: Sequence[Split], settings: Mapping[str, Any], seed: int, progress: Progress
) -> Fitting:
    """The network as it would be alone. It learns from the held-out bags, too, unless that takes long."""
    settings = dict(settings) | {"model": "mlp"}
    steps = []
    log_probs = []
    for number, split in enumerate(splits):
        steps.append(f"mlp, split {number + 1}")
        if steps[-1] not in progress.finished:
            model = yield from fit_in_step(steps[-1], split.training, settings, seed, progress)
            progress.finished[steps[-1]] = {
                "log_probs": [predict_log_proba(model, split.held_out.x)],
                "weights": model.state_dict(),
            }
        log_probs += progress.log_probs(steps[-1], shapes_of([split]))
    if len(splits) != 1 or rows_to_process(bags, settings) <= FAST_ENOUGH_TO_REPEAT:
        steps.append("mlp")
        if steps[-1] not in progress.finished:
            model = yield from fit_in_step(steps[-1], bags, settings, seed, progress)
            progress.finished[steps[-1]] = {"weights": model.state_dict()}
    network = progress.model(steps[-1], NETWORKS["mlp"], bags.x.shape[1:], bags.n_classes)
    return Candidate(network, log_probs, {})


def fit_in_step(
    step: str, bags: Bags, settings: Mapping[str, Any], seed: int, progress: Progress
) -> Generator[EpochState, None, nn.Module]:
    """A network as a step of a fit, from where an earlier process was interrupted."""
    states = fit_network(bags, settings, seed, progress.within(step))
    while True:
        try:
            state = next(states)
        except StopIteration as end:
            return end.value
        yield replace(state, step=step, last=False)


def rows_to_process(bags: Bags, settings: Mapping[str, Any]) -> int:
    """Rows times epochs of both stages, to which the time of training a network is proportional."""
    plan = plan_training(
        bags,
        settings["method"],
        epochs=settings["epochs"],
        student_epochs=settings["student_epochs"],
        learning_rate=None,
        student_learning_rate=None,
        batch_size=settings["batch_size"],
        horizontal_flip=False,
    )
    student_epochs = 0 if settings["pseudo_labels"] is None else plan.student_epochs
    return (plan.epochs + student_epochs) * len(bags.x)


def trees_state(found: Round, step: str) -> EpochState:
    """Ten rounds of boosting as an epoch."""
    terms = {"proportion": found.loss}
    if found.score is not None:
        terms["likelihood"] = found.score
    number = math.ceil(found.number / ROUNDS_BETWEEN_SCORES)
    total = math.ceil(found.total / ROUNDS_BETWEEN_SCORES)
    epoch = Epoch(number, total, terms, found.seconds)
    stage = step.partition(",")[0]  # "trees", or "trees of 8 leaves on 70% of the rows"
    return EpochState(stage, epoch, found, [], step=step, trees=found.trees)


# --- a classifier of scikit-learn


def fit_scikit(
    estimator: Any, bags: Bags, settings: Mapping[str, Any], seed: int, progress: Progress
) -> Iterator[EpochState]:
    """The second stage with any classifier as its student; the teacher is a linear model with trees.

    In each round, labels are made that match the proportions of the bags. New labels come from predictions
    of bags that the classifier has not learned from, since it may know its own labels by heart. The last
    round learns from all bags.
    """
    label = make_labeler(settings["pseudo_labels"], settings["reg"])
    if "labels" not in progress.finished:
        for state in fit_table_model("teacher", bags, settings, seed, progress):
            if state.last:
                predicted = predict_log_proba(state.learner.classifier, bags.x)
                progress.finished = {"labels": {"round": 0, "log_probs": [predicted]}}
            yield replace(state, last=False, selection=None)
    done = min(int(progress.number("labels", "round")), LABEL_ROUNDS - 1)
    model: nn.Module = nn.Identity()
    log_probs = progress.log_probs("labels", [(len(bags.x), bags.n_classes)])[0].clone()
    row_weight = {} if bags.weight is None else {"weight": bags.weight}
    weight = torch.ones(len(bags.x)) if bags.weight is None else bags.weight
    folds = torch.randperm(len(bags.sizes), generator=stream(seed, "folds")) % min(FOLDS, len(bags.sizes))
    fold_of_row = torch.repeat_interleave(folds, bags.sizes)
    for number in range(done + 1, LABEL_ROUNDS + 1):
        started = time.perf_counter()
        proportions = relaxed_proportions(
            log_probs, bags.sizes, bags.proportions, bags.precision, bags.weight
        )
        labels = label(log_probs, bags.sizes, proportions, **row_weight)
        last = number == LABEL_ROUNDS
        if last:
            model = learn_labels(estimator, bags.x, labels, weight, seed)
        else:
            for fold in range(int(folds.max()) + 1):
                rows = fold_of_row == fold
                model = learn_labels(estimator, bags.x[~rows], labels[~rows], weight[~rows], seed)
                log_probs[rows] = predict_log_proba(model, bags.x[rows])
        terms = {"cross-entropy": float(cross_entropy(log_probs, labels).mean())}
        epoch = Epoch(number, LABEL_ROUNDS, terms, time.perf_counter() - started)
        progress.finished = {"labels": {"round": number, "log_probs": [log_probs.clone()]}}
        yield EpochState("second", epoch, Fitted(model), [], last=last)


def learn_labels(estimator: Any, x: Tensor, labels: Tensor, weight: Tensor, seed: int) -> nn.Module:
    """A new classifier, fitted on a copy of each row for every class of its label, with their weights."""
    model = clone(estimator)
    if "random_state" in model.get_params() and model.get_params()["random_state"] is None:
        model.set_params(random_state=derive_seed(seed, "student") % 2**31)
    row, code = (labels > SMALLEST_LABEL).nonzero(as_tuple=True)
    copies = (labels[row, code] * weight[row]).double().numpy()
    model.fit(x[row].flatten(1).float().numpy(), code.numpy(), sample_weight=copies)
    return ScikitClassifier(model, labels.shape[1]).eval()


# --- the average


def combine(
    candidates: Mapping[str, Candidate], known: Bags, held_out: Sequence[Bags]
) -> tuple[nn.Module, dict[str, Any]]:
    """The average of the candidates' log-odds, and what `selection_` says about it."""
    base = initial_proportions(known).log().log_softmax(0)
    described: dict[str, Any] = {name: dict(each.chosen) for name, each in candidates.items()}
    selection: dict[str, Any] = {"candidates": described, "held_out_bags": 0}
    factors = [1 / len(candidates)] * len(candidates)
    if held_out:
        validation = join(held_out)
        centered = [torch.cat(each.log_probs).double() - base for each in candidates.values()]
        factors = choose_factors(centered, base, validation)
        for found, log_odds in zip(described.values(), centered, strict=True):
            found["score"] = score_of(base + log_odds, validation)
        selection["held_out_bags"] = len(validation.sizes)
        selection["score"] = score_of(weighted(factors, centered, base), validation)
        selection["score_of_overall_shares"] = score_of(base.expand(len(validation.x), -1), validation)
    total = sum(factors)
    selection["temperature"] = 1 / total
    for found, factor in zip(described.values(), factors, strict=True):
        found["weight"] = factor / total
    bias = ((1 - total) * base).float()
    models = [each.model for each in candidates.values()]
    if len(models) == 1:
        rescale(models[0], total, bias)
        return models[0].eval(), selection
    average = Average(models, known.n_classes)
    average.weights.copy_(torch.tensor(factors))
    average.bias.copy_(bias)
    return average.eval(), selection


def join(parts: Sequence[Bags]) -> Bags:
    """All bags of several sets, one set after the other."""
    weights = [part.weight for part in parts if part.weight is not None]
    return Bags(
        torch.cat([part.x for part in parts]),
        torch.cat([part.sizes for part in parts]),
        torch.cat([part.proportions for part in parts]),
        torch.cat([part.source for part in parts]),
        [name for part in parts for name in part.ids],
        weight=torch.cat(weights) if weights else None,
    )


def choose_factors(log_odds: Sequence[Tensor], base: Tensor, bags: Bags) -> list[float]:
    """By what the log-odds of each model are multiplied before they are added to those of the overall shares.

    The factors are most probable given the counts of held-out bags. A priori their sum, the inverse of the
    temperature, is near one, or smaller, and their shares in it are nearly equal. Counts of natural bags vary
    more than predictions explain, and the likelihood is divided by that dispersion: what looks like a certain
    choice between models may only show what differs between bags.
    """
    count = len(log_odds)
    dispersion = max(1.0, min(dispersion_of(base + each, bags) for each in log_odds))

    def cost(factors: np.ndarray) -> float:
        total = factors.sum()
        unequal = np.square(factors / total - 1 / count).sum() / WEIGHT_STD**2
        std = LOWER_TEMPERATURE_STD / dispersion if total > 1 else HIGHER_TEMPERATURE_STD
        distance = (math.log(total) / std) ** 2
        likelihood = score_of(weighted(factors, log_odds, base), bags) * float(bags.mass.sum())
        return (unequal + distance) / 2 - likelihood / dispersion

    bounds = [(1e-4, 4.0)] * count
    solution = minimize(cost, np.full(count, 1 / count), bounds=bounds, method="L-BFGS-B")
    return solution.x.tolist()


def weighted(factors: Sequence[float] | np.ndarray, log_odds: Sequence[Tensor], base: Tensor) -> Tensor:
    """Log-probabilities (N, k) of the average."""
    logits = base
    for factor, each in zip(factors, log_odds, strict=True):
        logits = logits + float(factor) * each
    return logits.log_softmax(1)


def dispersion_of(log_probs: Tensor, bags: Bags) -> float:
    """The variance of the bags' counts over the variance that predictions imply: one if they are right."""
    gap, variance = count_residuals(log_probs, bags)
    return float((gap.square() / variance).mean())


def score_of(log_probs: Tensor, bags: Bags) -> float:
    """The log-likelihood of the counts, in nats per row."""
    total = count_log_likelihood(log_probs, bags.sizes, bags.proportions, bags.weight).sum()
    return float(total / bags.mass.sum())
