"""Every default that depends on the data: what "auto" and `None` mean.

One plain function per default, with its numbers. docs/log.md has the experiments that justify them; the
recipes of the paper refer to these functions, never the reverse. Most defaults depend on the kind of data:

- "table": rows of numbers;
- "images": images as bytes, trained on a GPU;
- "cpu_images": images as bytes, trained on the CPU, with a network that one core trains in minutes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
import torch
from sklearn.utils.validation import has_fit_parameter
from torch import Tensor, nn

from apportion.augment import crop_flip, weak_and_strong
from apportion.bags.arrays import as_floats, center_pixels
from apportion.bags.bags import Bags
from apportion.errors import DataError, SettingsError
from apportion.methods.build import METHODS, Method, image_options, is_linear, takes_pairs, takes_rows
from apportion.methods.new_network import MakeNetwork, is_built_in
from apportion.networks import NETWORKS, mlp, resnet9
from apportion.optim import Optimization, flat_then_linear, one_cycle, ramp_cosine
from apportion.pseudo_labels import PSEUDO_LABELS
from apportion.training import View

DataKind = Literal["table", "images", "cpu_images"]
TABLE_MODELS = ("linear", "trees", "average")  # models of rows that the training loop does not train
ROW_MODELS = ("mlp", *TABLE_MODELS)
TRAINING_SETTINGS = (
    "epochs", "student_epochs", "learning_rate", "student_learning_rate", "batch_size", "select_by",
)  # fmt: skip

LARGEST_WHOLE_BAG = 4096  # rows; a batch grows up to this size to hold the largest bag
MAX_INFORMATIVE_ROWS = 8192  # 1,000 steps of this many rows take one core a minute or two


# --- what is trained


def kind_of_data(x: Tensor, device: torch.device) -> DataKind:
    """The kind of these instances: images are bytes (n, channels, height, width), all else is a table."""
    if not is_images(x):
        return "table"
    return "cpu_images" if device.type == "cpu" else "images"


def is_images(x: Tensor) -> bool:
    """Whether `x` holds images: bytes (n, channels, height, width). Everything else is rows of numbers."""
    return x.ndim == 4 and x.dtype == torch.uint8


LINEAR = partial(mlp, widths=())  # trained by the loop, for methods that are for linear classifiers only


def default_model(kind: DataKind) -> str | MakeNetwork:
    """The name of a model, or a function that makes a network. `fitting` decides what an average is of."""
    if kind == "table":
        return "average"
    if kind == "images":
        return "resnet9"
    return partial(resnet9, width=8)  # a sixty-fourth of the arithmetic


def default_method(kind: DataKind) -> str:
    """The method of the first stage."""
    return "dllp" if kind == "table" else "two_views"


def default_pseudo_labels(kind: DataKind) -> str | None:
    """The labels of the second stage, or None for no second stage.

    After two_views, a second stage helps with bags of 16 images and hurts a little with larger ones.
    """
    return "soft" if kind == "table" else None


def resolve_auto(settings: Mapping[str, Any], x: Tensor, device: torch.device) -> dict[str, Any]:
    """The settings with every "auto" of model, method and pseudo_labels replaced by its default for `x`.

    A setting that only networks have, such as `epochs`, asks for a network.
    """
    kind = kind_of_data(x, device)
    resolved = dict(settings)
    linear_method = is_linear(settings["method"])
    if is_auto(resolved["model"]):
        resolved["model"] = default_model(kind)
        if resolved["model"] == "average" and network_settings(settings):
            resolved["model"] = "mlp"
    if linear_method and isinstance(settings["model"], str) and settings["model"] in ("auto", "linear"):
        resolved["model"] = LINEAR
    model = resolved["model"]
    solved = isinstance(model, str) and model in ("linear", "trees")
    if is_auto(resolved["method"]):
        resolved["method"] = None if solved or is_scikit(model) else default_method(kind)
    if is_auto(resolved["pseudo_labels"]):
        resolved["pseudo_labels"] = None if solved or linear_method else default_pseudo_labels(kind)
    return resolved


def is_scikit(model: Any) -> bool:
    """Whether the model is a classifier of scikit-learn, or like one, and not a class or a function."""
    return hasattr(model, "fit") and hasattr(model, "get_params") and not isinstance(model, type)


def is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def network_settings(settings: Mapping[str, Any]) -> list[str]:
    """The names of the settings that are given and that only networks have."""
    names = [name for name in ("method", "pseudo_labels") if not is_auto(settings[name])]
    return names + [name for name in TRAINING_SETTINGS if settings.get(name) is not None]


def default_method_options(kind: DataKind, method: Method) -> dict[str, Any]:
    """Arguments of the method that differ from the method's own defaults."""
    return {} if kind == "table" else image_options(method)


# --- batches


def base_batch_size(kind: DataKind) -> int:
    """Rows per batch, regardless of the bags."""
    return {"table": 256, "images": 512, "cpu_images": 256}[kind]


def default_batch_size(kind: DataKind, bags: Bags, by: str) -> int:
    """Rows per batch: enough for the largest bag and, for tables, at least `informative_rows`."""
    base = base_batch_size(kind)
    if by == "row":
        return base
    size = min(LARGEST_WHOLE_BAG, max(base, int(bags.sizes.max())))
    return max(size, informative_rows(bags.known())) if kind == "table" else size


def informative_rows(bags: Bags) -> int:
    """The rows of as many bags as a batch needs for its proportions to be informative, at most 8,192.

    The proportions of random bags of n rows have a standard deviation of about 1/√n, so a batch of few bags
    mostly shows chance. For k classes, √(n k / 18) bags are enough (docs/log.md): five bags of 256 rows for
    two classes. Bags whose proportions vary more are equivalent to random bags of fewer rows, so fewer of
    them are enough.
    """
    proportions = bags.proportions.cpu().double()  # MPS has no float64
    mean = proportions.mean(0)
    variance = float((proportions - mean).square().sum(1).mean())
    if variance == 0:
        return 0
    random_bag_size = float((mean * (1 - mean)).sum()) / variance  # the size of random bags that vary as much
    bag_size = float(bags.sizes.clamp_max(LARGEST_WHOLE_BAG).double().mean())
    rows = bag_size * math.sqrt(random_bag_size * len(mean) / 18)
    return int(min(MAX_INFORMATIVE_ROWS, rows))


def default_by(kind: DataKind, method: Method, bags: Bags, batch_size: int | None) -> str:
    """Batches of whole bags ("bag"), or of rows ("row") where a batch would hold too few whole bags.

    Tables always use whole bags. For images a batch should hold at least four (on the CPU two) bags of the
    usual size, and never only part of a bag.
    """
    if kind == "table" or not takes_rows(method):
        return "bag"
    bags = bags.known()
    fewest = 4.0 if kind == "images" else 2.0
    too_few = (batch_size or base_batch_size(kind)) < fewest * usual_bag_size(bags)
    too_large = int(bags.sizes.max()) > (batch_size or LARGEST_WHOLE_BAG)
    return "row" if too_few or too_large else "bag"


def usual_bag_size(bags: Bags) -> float:
    """The mean, over rows, of the size of the row's bag."""
    sizes = bags.sizes.double()
    return float(sizes.square().sum() / sizes.sum())


# --- epochs


def default_epochs(kind: DataKind, bags: Bags, batch_size: int | None, by: str) -> int:
    """Epochs of the first stage; `batch_size` is the user's, or None.

    Table: about 1,000 steps. Fewer if the proportions of some bags are unknown, since fewer bags overfit
    sooner. Images: more steps for larger bags, whose proportions say less.
    """
    known = bags.known()
    bag_size = float(known.sizes.float().mean())
    fraction_known = len(known.x) / len(bags.x)
    rows = batch_size or default_batch_size(kind, bags, by)
    if kind == "images":
        return epochs_for_steps(2400 * bag_size**0.5, known, rows, by, most=400)
    if kind == "cpu_images":
        return epochs_for_steps(250 * max(128.0, bag_size) ** 0.5, known, rows, by, most=400)
    if batch_size is None:
        # A batch holds the largest bag, however rare, so an epoch may have few batches. The usual number of
        # steps would then take so many epochs that small bags are overfit (docs/log.md).
        two_bags = math.ceil(2 * usual_bag_size(known))
        rows = min(rows, max(base_batch_size(kind), informative_rows(known), two_bags))
    return _table_epochs(1000 * fraction_known**0.5, bags.n_classes / 10, known, rows, by)


def default_student_epochs(kind: DataKind, bags: Bags, batch_size: int, by: str) -> int:
    """Epochs of the second stage: about 500 steps for tables, 8,000 for images."""
    if kind == "table":
        return _table_epochs(500, bags.n_classes / 5, bags, batch_size, by)
    return epochs_for_steps(8000, bags, batch_size, by, most=400)


def epochs_for_steps(
    steps: float, bags: Bags, batch_size: int, by: str = "bag", least: int = 5, most: int = 10**6
) -> int:
    """The number of epochs with about this many steps in all, between `least` and `most`."""
    rows = len(bags.x) if by == "row" else int(bags.sizes.clamp_max(batch_size).sum())
    batches = math.ceil(rows / batch_size)
    return min(most, max(least, math.ceil(steps / batches)))


def _table_epochs(steps: float, more_classes: float, bags: Bags, batch_size: int, by: str) -> int:
    """`epochs_for_steps`, with more steps if there are many classes.

    With many classes, each has fewer rows. This raises the number of epochs to 20 at most: more passes over
    the same rows may overfit them (docs/log.md).
    """
    usual = epochs_for_steps(steps, bags, batch_size, by)
    more = epochs_for_steps(steps * more_classes, bags, batch_size, by)
    return max(usual, min(20, more))


def default_warmup_epochs(kind: DataKind, student_epochs: int) -> int:
    """Epochs for which a student learns the teacher's labels, before its own predictions make labels."""
    return math.ceil((0.6 if kind == "table" else 1 / 8) * student_epochs)


# --- optimizers


def default_optimization(
    kind: DataKind, method: Method, muon: bool, steps: float, bag_size: float
) -> Optimization:
    """Optimization of the first stage.

    `muon` says whether the network suits Muon, `steps` is the length of the stage, and `bag_size` the
    `usual_bag_size`.
    """
    if kind == "table" or is_linear(method):
        return Optimization("adam", 1e-2 if is_linear(method) else 2e-3, one_cycle)
    if takes_pairs(method) and muon:
        return Optimization("muon", muon_learning_rate(steps), ramp_cosine, weight_decay=5e-4, clip=5.0)
    if takes_pairs(method):
        return Optimization("sgd", 0.1, ramp_cosine, weight_decay=5e-4, clip=5.0)
    if muon:
        learning_rate = min(muon_learning_rate(steps), bag_loss_learning_rate(bag_size))
        return Optimization("muon", learning_rate, ramp_cosine, weight_decay=5e-4)
    return Optimization("adam", 1e-3, one_cycle)


def default_student_optimization(kind: DataKind, muon: bool, steps: float) -> Optimization:
    """Optimization of the second stage; `muon` and `steps` are as for the first."""
    if kind == "table":
        return Optimization("adam", 1e-3, one_cycle)
    if muon:
        return Optimization("muon", muon_learning_rate(steps), ramp_cosine, weight_decay=5e-4)
    return Optimization("sgd", 0.1, flat_then_linear, weight_decay=5e-4)


def muon_learning_rate(steps: float) -> float:
    """Muon's peak learning rate for this many steps, at most 0.05.

    It is lower for long trainings, which learn most after the rate has decayed (docs/log.md).
    """
    return min(0.05, 3.5 / math.sqrt(max(1.0, steps)))


def bag_loss_learning_rate(bag_size: float) -> float:
    """Muon's largest peak learning rate where the bag loss is the only training signal.

    The information in a bag's proportions falls with the square root of its size, and so does the rate
    (docs/log.md).
    """
    return min(0.05, 0.2 / math.sqrt(bag_size))


def generator_learning_rate(kind: DataKind) -> float:
    """The learning rate of LLP-GAN's generator with Adam. For images it must not be high (docs/log.md)."""
    return 3e-4 if kind == "table" else 3e-5


def suits_muon(make_network: MakeNetwork, network: nn.Module) -> bool:
    """Whether Muon may train a network: it is one of this package's, with a norm after every convolution.

    Muon changes the length of filters, which is harmless only before a norm. A user's network may also have
    been trained before, and is not changed in this way.
    """
    layers = list(network.modules())
    norms = sum(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in layers)
    convolutions = sum(isinstance(layer, nn.Conv2d) for layer in layers)
    return is_built_in(make_network) and 0 < convolutions <= norms


# --- the student and views


def default_mixup(kind: DataKind) -> float:
    """The parameter of mixup's Beta distribution; 0: no mixup."""
    return 0.0 if kind == "table" else 1.0


def default_ema(kind: DataKind) -> float:
    """Momentum of the moving average from which a student's labels are made.

    After a single epoch at the high learning rates of images, predictions are poor.
    """
    return 0.0 if kind == "table" else 0.9


def default_view(kind: DataKind, horizontal_flip: bool) -> View:
    """What training sees of the instances: rows as they are, or images shifted and flipped."""
    if kind == "table":
        return as_floats
    return lambda x: center_pixels(crop_flip(x, horizontal_flip=horizontal_flip))


def default_pairs(kind: DataKind, horizontal_flip: bool) -> View:
    """What methods for pairs see: a weak and a strong view of every instance."""
    pairs = partial(weak_and_strong, horizontal_flip=horizontal_flip)
    return pairs if kind == "table" else lambda x: center_pixels(pairs(x))


# --- both stages


@dataclass(frozen=True)
class TrainingPlan:
    """The settings of both stages for some bags, except for those that depend on a network."""

    kind: DataKind
    by: str  # batches of whole bags ("bag") or of rows from all bags ("row")
    batch_size: int  # rows
    horizontal_flip: bool
    # the teacher
    method: Method
    method_options: dict[str, Any]
    epochs: int
    learning_rate: float | None  # as passed; None: that of `default_optimization`
    generator_learning_rate: float
    pairs: bool  # whether batches hold a weak and a strong view of every instance
    view: View
    # the student
    student_epochs: int
    student_learning_rate: float | None  # as passed
    warmup_epochs: int
    mixup: float
    ema: float
    student_view: View


def plan_training(
    bags: Bags,
    method: Method,
    *,
    epochs: int | None,
    student_epochs: int | None,
    learning_rate: float | None,
    student_learning_rate: float | None,
    batch_size: int | None,
    horizontal_flip: bool,
) -> TrainingPlan:
    """The settings as passed; where None, their defaults for these bags."""
    kind = kind_of_data(bags.x, bags.x.device)
    by = default_by(kind, method, bags, batch_size)
    rows = default_batch_size(kind, bags, by) if batch_size is None else batch_size
    if epochs is None:
        epochs = default_epochs(kind, bags, batch_size, by)
    if epochs < 1:
        raise SettingsError(f"epochs is {epochs}; pass at least 1")
    if student_epochs is None:
        student_epochs = default_student_epochs(kind, bags, rows, by)
    pairs = takes_pairs(method)
    return TrainingPlan(
        kind=kind,
        by=by,
        batch_size=rows,
        horizontal_flip=horizontal_flip,
        method=method,
        method_options=default_method_options(kind, method),
        epochs=epochs,
        learning_rate=learning_rate,
        generator_learning_rate=generator_learning_rate(kind),
        pairs=pairs,
        view=default_pairs(kind, horizontal_flip) if pairs else default_view(kind, horizontal_flip),
        student_epochs=student_epochs,
        student_learning_rate=student_learning_rate,
        warmup_epochs=default_warmup_epochs(kind, student_epochs),
        mixup=default_mixup(kind),
        ema=default_ema(kind),
        student_view=default_view(kind, horizontal_flip),
    )


def plan_teacher_optimization(
    plan: TrainingPlan, model: MakeNetwork, network: nn.Module, bags: Bags
) -> Optimization:
    """The optimization of the teacher `network`, which `model` has made, for bags with known proportions."""
    settings = default_optimization(
        plan.kind,
        plan.method,
        muon=suits_muon(model, network),
        steps=plan.epochs * len(bags.x) / plan.batch_size,
        bag_size=usual_bag_size(bags),
    )
    return settings if plan.learning_rate is None else replace(settings, learning_rate=plan.learning_rate)


def plan_student_optimization(
    plan: TrainingPlan, model: MakeNetwork, student: nn.Module, bags: Bags
) -> Optimization:
    """The optimization of the student, which `model` has made."""
    settings = default_student_optimization(
        plan.kind,
        muon=suits_muon(model, student),
        steps=plan.student_epochs * len(bags.x) / plan.batch_size,
    )
    if plan.student_learning_rate is None:
        return settings
    return replace(settings, learning_rate=plan.student_learning_rate)


# --- checks


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise SettingsError for a value that `fit_two_stages` and the labels cannot use.

    `settings` are the classifier's parameters after `resolve_auto`: model, method, pseudo_labels, reg,
    epochs, student_epochs, learning_rate, student_learning_rate, batch_size, horizontal_flip.
    """
    model = settings["model"]
    if isinstance(model, nn.Module):
        raise SettingsError(
            f"model is a network, {type(model).__name__}; pass a function (shape, n_classes) -> "
            "nn.Module, since every stage trains a new network"
        )
    if is_scikit(model):
        _check_scikit(model, settings)
        return
    if not callable(model):
        _check_choice("model", model, [*NETWORKS, *TABLE_MODELS])
    if isinstance(model, str) and model in ("linear", "trees"):
        for name in ("method", "pseudo_labels", *TRAINING_SETTINGS):
            if settings.get(name) is not None:
                what = f"{name} is {settings[name]!r}, a setting of networks, but the model is {model!r}"
                raise SettingsError(f"{what}; leave {name} out, or pass model='mlp'")
        return
    if isinstance(model, str) and model == "average" and settings.get("select_by") is not None:
        what = f"select_by is {settings['select_by']!r}, which chooses an epoch of a network"
        raise SettingsError(f"{what}, but the model is 'average'; leave it out, or pass model='mlp'")
    method = settings["method"]
    if not callable(method) and (not isinstance(method, str) or method not in METHODS):
        names = ", ".join(METHODS)
        raise SettingsError(
            f"method is {method!r}; pass one of {names}, or the class of a method of your own"
        )
    _check_choice("pseudo_labels", settings["pseudo_labels"], [*PSEUDO_LABELS, None])
    if not isinstance(settings["horizontal_flip"], bool | np.bool_):
        raise SettingsError(f"horizontal_flip is {settings['horizontal_flip']!r}; pass True or False")
    _check_positive("reg", settings["reg"])
    for name in ("learning_rate", "student_learning_rate"):
        if settings[name] is not None:
            _check_positive(name, settings[name])
    for name, least in (("epochs", 1), ("student_epochs", 0), ("batch_size", 1)):
        value = settings[name]
        if value is None:
            continue
        if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
            raise SettingsError(f"{name} is {value!r}; pass a whole number, at least {least}")


def check_shape(x: Any, requested: Any, model: str | Callable[..., nn.Module]) -> None:
    """Raise DataError for instances of a shape that the network cannot take."""
    images = "images are bytes (n, channels, height, width)"
    hint = ""
    if x.ndim > 2 and model in ROW_MODELS and requested == model:
        hint = f"the model {model!r} takes rows: pass X.reshape(len(X), -1), or another model"
    elif x.ndim == 3 and (isinstance(model, str) or requested == "auto"):
        hint = f"{images}: pass X[:, None] if they are gray, or a model of your own"
    elif x.ndim == 4 and not is_images(x) and requested == "auto":
        hint = (
            f"{images}: pass X.astype(numpy.uint8) if pixels are from 0 to 255, "
            "(255 * X).round().astype(numpy.uint8) if they are from 0 to 1, or name a model"
        )
    elif x.ndim > 4 and requested == "auto":
        hint = f"{images}: pass X.reshape(-1, *X.shape[-3:]) if each is an image, with a bag for each"
    elif x.ndim != 4 and isinstance(model, str) and model not in ROW_MODELS:
        hint = f"{images} for the model {model!r}; name another, such as 'mlp' for rows"
    if hint:
        raise DataError(f"X has instances of shape {tuple(x.shape[1:])}; {hint}", value=tuple(x.shape[1:]))


def _check_scikit(model: Any, settings: Mapping[str, Any]) -> None:
    """A classifier that can learn weighted rows, and no settings of networks."""
    name = type(model).__name__
    if not hasattr(model, "predict_proba"):
        raise SettingsError(f"model is a {name}, which has no predict_proba; pass a classifier that has it")
    if not has_fit_parameter(model, "sample_weight"):
        hint = "pass a classifier that takes it, such as LogisticRegression() or RandomForestClassifier()"
        raise SettingsError(f"model is a {name}, whose fit takes no sample_weight; {hint}")
    for setting in ("method", *TRAINING_SETTINGS):
        if settings.get(setting) is not None:
            what = f"{setting} is {settings[setting]!r}, a setting of networks, but the model is a {name}"
            raise SettingsError(f"{what}; leave {setting} out, or pass model='mlp'")
    _check_choice("pseudo_labels", settings["pseudo_labels"], list(PSEUDO_LABELS))
    _check_positive("reg", settings["reg"])


def _check_choice(name: str, value: Any, known: Sequence[str | None]) -> None:
    if not isinstance(value, str | None) or value not in known:
        raise SettingsError(f"{name} is {value!r}; pass one of {', '.join(map(str, known))}")


def _check_positive(name: str, value: Any) -> None:
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not 0 < float(value) < math.inf:
        raise SettingsError(f"{name} is {value!r}; pass a positive number")
