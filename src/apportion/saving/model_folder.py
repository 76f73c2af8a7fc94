"""A fitted ProportionClassifier as a folder, and back: model.safetensors, model.json and README.md.

Reading a model executes nothing that it names. The network comes from this package by its name, is built
without memory, and takes the weights only if all names, shapes and types are as expected.
"""

import inspect
import json
import math
import re
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as tensors_as_bytes
from sklearn.utils.validation import check_is_fitted
from torch import nn

import apportion
from apportion._device import channels_last
from apportion._untrusted import LARGEST, NUMBER, check_number, printable, read_json, read_tensors
from apportion._writing import atomic_folder
from apportion.defaults import TABLE_MODELS
from apportion.encoding import TableEncoder
from apportion.errors import ApportionWarning, DataError, ModelError
from apportion.estimator import ProportionClassifier
from apportion.methods import name_of
from apportion.networks import NETWORKS
from apportion.networks.average import Average
from apportion.networks.scikit import ScikitClassifier
from apportion.networks.trees import BoostedTrees
from apportion.saving.card import card

FORMAT = 3  # of a model folder; others are refused
_PLAIN = (str, int, float, bool, type(None))
_WORD = (str, int, float, bool, None)  # of a parameter, or of a line of the card
_SCHEMA = {
    "format": int,
    "apportion": str,
    "torch": str,
    "network": {"name": str, "options": {}},
    "input": {"shape": [int], "bytes": bool},
    "classes": [(str, int, float, bool)],
    "encoder": (None, {}),
    "feature_names": (None, [str]),
    "parameters": {"*": _WORD},
    "fit": {
        "rows": int,
        "stage": str,
        "epoch": int,
        "temperature": NUMBER,
        "optimizers": {"*": str},
        "device": str,
        "resolved": {"*": _WORD},
        "selection": (None, {}),
        "bag_columns": [str],
        "class_shares": [NUMBER],
        "predicted_shares": [NUMBER],
        "share_prices": [NUMBER],
        "never_predicted": str,
        "bag_scores": {"*": {"proportion_error": NUMBER, "bag_correlation": (*NUMBER, None)}},
        "history?": [{"stage": str, "epoch": int, "*": (*NUMBER, None)}],
    },
    "about": {
        "bags": int,
        "fingerprint": str,
        "held_out": int,
        "held_out_names": str,
        "groupings": int,
        "known_labels": bool,
        "missing": [str],
        "image": (None, str),
        "resize": bool,
        "data": {"*": _WORD},
        "quality": {"*": _WORD},
    },
}
_MOST_LAYERS = 1000
_WIDEST = 1 << 20
_MOST_NODES = 1 << 26  # of trees
_DEEPEST = 1 << 10
_MOST_MEMBERS = 16
_MOST_INPUTS = 1 << 31
_MOST_EPOCHS = 100_000  # `diagnose` trains similar networks
_OPTIONS: dict[str, dict[str, Any]] = {  # of the networks, those that are numbers, and their ranges
    "dropout": {"low": 0.0, "high": 1.0},
    "slope": {"low": -1e3, "high": 1e3},
    "width": {"low": 1, "high": _WIDEST, "integer": True},
    "last_padding": {"low": 0, "high": 64, "integer": True},
    "n_trees": {"low": 0, "high": _MOST_NODES, "integer": True},
    "n_nodes": {"low": 0, "high": _MOST_NODES, "integer": True},
    "n_leaves": {"low": 0, "high": _MOST_NODES, "integer": True},
    "depth": {"low": 0, "high": _DEEPEST, "integer": True},
}
_OPTION_NAMES = {  # of models that are not in NETWORKS; all are needed
    "linear": [],
    "trees": ["n_trees", "n_nodes", "n_leaves", "depth"],
    "average": ["members"],
}


@dataclass(frozen=True)
class About:
    """What a model folder tells besides the classifier: about its data, for programs and for people.

    `apportion fit` fills it in, `apportion predict` and `apportion diagnose` read it.
    """

    bags: int = 0  # that it learned from
    fingerprint: str = ""  # of the names, sizes and features of these bags
    held_out: int = 0  # bags that it did not learn from
    held_out_names: str = ""  # a fingerprint of their names
    groupings: int = 1  # that its rows lie in
    known_labels: bool = False  # whether labels of single rows were known
    missing: tuple[str, ...] = ()  # texts that mean a missing value
    image: str | None = None  # the column that names image files
    resize: bool = False  # whether images are resized to the shape that was learned from
    # lines of the card
    data: Mapping[str, Any] = field(default_factory=dict)
    quality: Mapping[str, Any] = field(default_factory=dict)


def save(classifier: ProportionClassifier, folder: str | Path, *, about: About | None = None) -> None:
    """Write a fitted classifier to a new folder: weights, JSON and a card, no pickle.

    Parameters
    ----------
    classifier : ProportionClassifier
        Fitted on arrays, data frames or images. Its model must be one of this package: a name, or a
        `functools.partial` of a function of `apportion.networks` with keyword arguments.
    folder : str or path
        A new or an empty folder. It is written as a whole or not at all.
    about : About, optional
        What the folder tells about the data. By default what is known to the classifier.
    """
    folder = Path(folder)
    values = _values_of(classifier, about)
    try:
        text = json.dumps(values, indent=1, allow_nan=False)
    except (TypeError, ValueError) as problem:
        what = "classes and parameters must be texts, finite numbers or booleans"
        raise ModelError(f"{what}: {printable(problem)}") from None
    weights = classifier.model_.state_dict()
    tensors = {name: value.detach().cpu().contiguous() for name, value in weights.items()}
    with atomic_folder(folder, error=ModelError) as partial_folder:
        (partial_folder / "model.safetensors").write_bytes(tensors_as_bytes(tensors))
        (partial_folder / "model.json").write_text(text, "utf-8")
        (partial_folder / "README.md").write_text(card(values), "utf-8")


def has_model(folder: str | Path, classifier: ProportionClassifier) -> bool:
    """Whether a folder holds this classifier: a model with the same weights, bit by bit, and classes."""
    try:
        saved = load(folder)
    except (ModelError, OSError):
        return False
    ours, theirs = (each.model_.state_dict() for each in (classifier, saved))
    return (
        ours.keys() == theirs.keys()
        and all(torch.equal(value.cpu(), theirs[name].cpu()) for name, value in ours.items())
        and saved.classes_.tolist() == classifier.classes_.tolist()
    )


def save_nearby(classifier: ProportionClassifier, folder: str | Path, *, about: About | None = None) -> Path:
    """Save to `folder` or, if that fails after hours of training, to another place; returns which.

    Another place comes with an ApportionWarning that names it, and the reason.
    """
    folder = Path(folder).absolute()
    places = [folder]
    places += [folder.with_name(f"{folder.name[:100]}-{i}") for i in range(2, 10)]
    places += [Path(tempfile.gettempdir()) / f"{folder.name[:100]}-{i}" for i in range(2, 10)]
    problems = []
    for place in places:
        try:
            save(classifier, place, about=about)
        except ModelError as problem:
            problems.append(problem)
            continue
        if problems:
            warnings.warn(f"{problems[0]}; the model is in {place}", ApportionWarning, stacklevel=2)
        return place
    raise problems[0]


def _values_of(classifier: ProportionClassifier, about: About | None) -> dict[str, Any]:
    """What model.json holds."""
    if not isinstance(classifier, ProportionClassifier):
        what = f"a {type(classifier).__name__} is not a ProportionClassifier"
        hint = "for a search, save best_estimator_; for a pipeline, its last step, pipeline[-1]"
        raise ModelError(f"{what}; {hint}, and keep the other steps with joblib")
    check_is_fitted(classifier)
    network = _describe_network(classifier.model_, classifier.resolved_["model"])
    name = network["name"]
    feature_names = getattr(classifier, "feature_names_in_", None)
    encoder = classifier.encoder_
    if about is None:
        about = getattr(classifier, "about_", About(quality=describe_quality(classifier)))
    stage, epoch = classifier.best_epoch_
    return {
        "format": FORMAT,
        "apportion": apportion.__version__,
        "torch": str(torch.__version__),
        "network": network,
        "input": {"shape": list(classifier.instance_shape_), "bytes": classifier.bytes_},
        "classes": classifier.classes_.tolist(),
        "encoder": None if encoder is None else encoder.to_json(),
        "feature_names": None if feature_names is None else feature_names.tolist(),
        "parameters": _parameters_of(classifier, name),
        "fit": {
            "rows": classifier.n_rows_,
            "stage": stage,
            "epoch": epoch,
            "temperature": classifier.temperature_,
            "optimizers": classifier.optimizers_,
            "device": classifier.device_,
            "resolved": classifier.resolved_ | {"model": name},
            "selection": classifier.selection_,
            "bag_scores": classifier.bag_scores_,
            "bag_columns": [str(name) for name in classifier.bag_columns_],
            "class_shares": classifier.class_shares_.tolist(),
            "predicted_shares": classifier.predicted_shares_.tolist(),
            "share_prices": classifier.share_prices_.tolist(),
            "never_predicted": classifier.never_predicted_,
            "history": _finite_history(classifier.history_),
        },
        "about": asdict(about),
    }


def _finite_history(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The history with None in place of losses that were not finite, which JSON cannot hold."""
    return [
        {
            name: None if isinstance(value, float) and not abs(value) <= LARGEST else value
            for name, value in entry.items()
        }
        for entry in history
    ]


def _describe_network(network: nn.Module, model: str | Callable[..., nn.Module]) -> dict[str, Any]:
    """The name and the options with which `_make_network` makes such a network, from `resolved_["model"]`.

    A function of the user's has no name.
    """
    if isinstance(network, Average):
        return {
            "name": "average",
            "options": {"members": [_describe_network(each, "mlp") for each in network.members]},
        }
    if isinstance(network, BoostedTrees):
        return {"name": "trees", "options": network.options}
    if isinstance(model, str) and isinstance(network, nn.Linear):
        return {"name": "linear", "options": {}}
    function: Any = model
    options: dict[str, Any] = {}
    if isinstance(model, partial) and not model.args:
        function = model.func
        options = dict(model.keywords)
    for name, known in NETWORKS.items():
        if function is known or function == name:
            return {"name": name, "options": options}
    what = f"the model {model!r} is not one of this package's, so a file cannot name it"
    hint = "save its weights with torch.save(classifier.model_.state_dict(), path)"
    if isinstance(network, ScikitClassifier):
        hint = "save the classifier with joblib or skops"
    raise ModelError(f"{what}; {hint}, or use a model with a name, such as 'mlp'")


def _parameters_of(classifier: ProportionClassifier, name: str) -> dict[str, Any]:
    """The constructor's parameters as plain values."""
    parameters = classifier.get_params(deep=False)
    if not isinstance(parameters["model"], str):
        parameters["model"] = name
    parameters["method"] = name_of(parameters["method"])
    for key, value in parameters.items():
        if isinstance(value, np.generic):
            parameters[key] = value.item()
        elif not isinstance(value, _PLAIN):
            parameters[key] = str(value)
    if not isinstance(parameters["random_state"], int | None):
        parameters["random_state"] = None  # the state of a generator is not kept
    return parameters


def describe_quality(classifier: ProportionClassifier) -> dict[str, Any]:
    """How well the predicted proportions of the bags agree with the known ones, as lines of the card."""
    lines: dict[str, Any] = {}
    for part, scores in classifier.bag_scores_.items():
        lines[f"proportion error ({part})"] = scores["proportion_error"]
        lines[f"bag correlation ({part})"] = scores["bag_correlation"]
    if classifier.select_by is not None:
        stage, epoch = classifier.best_epoch_
        lines["best epoch"] = f"{epoch} of the {stage} stage, by {classifier.select_by}"
    candidates = {} if classifier.selection_ is None else classifier.selection_["candidates"]
    if len(candidates) > 1:
        for name, found in candidates.items():
            lines[f"weight of {name}"] = found["weight"]
    if classifier.calibrate:
        lines["temperature"] = classifier.temperature_
    return lines


def load(folder: str | Path) -> ProportionClassifier:
    """The classifier that was saved to a folder, also by `apportion fit`.

    It predicts as the saved one did. `transduction_` and `validation_bags_` are not kept. The folder may come
    from strangers: nothing in it is executed, and what is damaged or unknown raises a ModelError.
    """
    folder = Path(folder)
    values = _read_values(folder)
    network = _network_of(folder, values)
    classifier = ProportionClassifier(**_parameters_from(folder, values))
    fit = values["fit"]
    shape = tuple(values["input"]["shape"])
    encoder = None if values["encoder"] is None else _encoder_from(folder, values)
    attributes = {
        "model_": network,
        "classes_": np.asarray(values["classes"]),
        "history_": fit.get("history", []),
        "best_epoch_": (fit["stage"], fit["epoch"]),
        "temperature_": float(fit["temperature"]),
        "bag_scores_": fit["bag_scores"],
        "encoder_": encoder,
        "resolved_": fit["resolved"] | {"model": _function_of(values)},
        "selection_": fit["selection"],
        "optimizers_": fit["optimizers"],
        "device_": fit["device"],
        "instance_shape_": shape,
        "bytes_": values["input"]["bytes"],
        "n_rows_": fit["rows"],
        "bag_columns_": fit["bag_columns"],
        "class_shares_": np.asarray(fit["class_shares"], float),
        "predicted_shares_": np.asarray(fit["predicted_shares"], float),
        "share_prices_": np.asarray(fit["share_prices"], float),
        "never_predicted_": fit["never_predicted"],
        "about_": _about_from(values),
    }
    if encoder is not None:
        attributes["n_features_in_"] = encoder.n_features_in_
    elif len(shape) == 1:
        attributes["n_features_in_"] = shape[0]
    if values["feature_names"] is not None:
        attributes["feature_names_in_"] = np.asarray(values["feature_names"], dtype=object)
    for name, value in attributes.items():
        setattr(classifier, name, value)
    return classifier


def _read_values(folder: Path) -> dict[str, Any]:
    """model.json, checked."""
    path = folder / "model.json"
    if not path.exists():
        raise ModelError(f"{folder} holds no model: it has no model.json")
    values = read_json(path, {"format": int}, error=ModelError)
    if values["format"] != FORMAT:
        version = f"apportion {apportion.__version__} reads format {FORMAT}"
        hint = "use the version that wrote it, or fit again"
        raise ModelError(f"{path} has format {values['format']}; {version}; {hint}")
    values = read_json(path, _SCHEMA, error=ModelError)
    about = values["about"]
    for name, count in (*values["fit"].items(), *about.items()):
        if type(count) is int:
            check_number(count, f"{path}: {name}", low=0, error=ModelError)
    check_number(values["fit"]["temperature"], f"{path}: temperature", low=1e-9, error=ModelError)
    _check_classes(path, values["classes"])
    for name in ("class_shares", "predicted_shares", "share_prices"):
        numbers = values["fit"][name]
        for number in numbers:
            check_number(number, f"{path}: {name}", low=-1e9, error=ModelError)
        if len(numbers) != len(values["classes"]):
            raise ModelError(f"{path}: {name} are {printable(numbers)}; they are one number for each class")
    _check_network(path, values["network"])
    shape = values["input"]["shape"]
    if not shape or min(shape) < 1 or math.prod(shape) > _MOST_INPUTS:
        raise ModelError(f"{path}: the shape of an input is {printable(shape)}; it is a list of sizes")
    return values


def _check_classes(path: Path, classes: list[Any]) -> None:
    kinds = {type(value) for value in classes}
    if len(classes) < 2 or len(kinds) != 1 or len(set(classes)) < len(classes):
        what = "they must be at least two different texts, numbers or booleans, all of one type"
        raise ModelError(f"{path}: the classes are {printable(classes)}; {what}")


def _check_network(path: Path, network: Mapping[str, Any], members_allowed: bool = True) -> None:
    """A network of this package, with options that it has and values that can be built."""
    name, options = network["name"], network["options"]
    known = [*NETWORKS, *TABLE_MODELS]
    if name not in known:
        raise ModelError(f"{path}: the network is {printable(name)!r}; known networks are {', '.join(known)}")
    known_options = _OPTION_NAMES.get(name)
    if known_options is None:
        known_options = list(inspect.signature(NETWORKS[name]).parameters)[2:]
    if name in _OPTION_NAMES and set(options) != set(known_options):
        raise ModelError(f"{path}: {name} has the options {printable(list(options))}, not {known_options}")
    for key, value in options.items():
        what = f"{path}: the option {printable(key)} of {name}"
        if key not in known_options:
            raise ModelError(f"{what} is not known; known options are {', '.join(known_options)}")
        if key in _OPTIONS:
            check_number(value, what, error=ModelError, **_OPTIONS[key])
        elif key == "widths":
            _check_widths(value, what)
        elif key == "members":
            _check_members(path, value, members_allowed)
        elif not isinstance(value, bool):
            raise ModelError(f"{what} is {printable(value)}; it must be true or false")


def _check_members(path: Path, members: Any, allowed: bool) -> None:
    """The members of an average, which are no averages themselves."""
    if not allowed or not isinstance(members, list) or not 0 < len(members) <= _MOST_MEMBERS:
        raise ModelError(f"{path} has an average of {printable(members)}; it must be of a few networks")
    for member in members:
        if not isinstance(member, dict) or set(member) != {"name", "options"}:
            raise ModelError(f"{path} has an average of {printable(member)}; it needs a name and options")
        if not isinstance(member["name"], str) or not isinstance(member["options"], dict):
            raise ModelError(f"{path} has an average of {printable(member)}; it needs a name and options")
        _check_network(path, member, members_allowed=False)


def _check_widths(widths: Any, what: str) -> None:
    if not isinstance(widths, list) or len(widths) > _MOST_LAYERS:
        raise ModelError(
            f"{what} is {printable(widths)}; it must be a list of at most {_MOST_LAYERS} numbers"
        )
    for width in widths:
        check_number(width, what, low=1, high=_WIDEST, integer=True, error=ModelError)


def _function_of(values: Mapping[str, Any]) -> str | Callable[..., nn.Module]:
    """The model's name or, for a network with options, a function that makes it."""
    name, options = values["network"]["name"], values["network"]["options"]
    if name in TABLE_MODELS or not options:
        return name
    return partial(NETWORKS[name], **_as_arguments(options))


def _as_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}


def _make_network(network: Mapping[str, Any], shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """A new network as described."""
    name, options = network["name"], network["options"]
    if name == "average":
        members = [_make_network(each, shape, n_classes) for each in options["members"]]
        return Average(members, n_classes)
    if name == "trees":
        return BoostedTrees(math.prod(shape), n_classes, **options)
    if name == "linear":
        return nn.Linear(math.prod(shape), n_classes)
    return NETWORKS[name](shape, n_classes, **_as_arguments(options))


def _network_of(folder: Path, values: Mapping[str, Any]) -> nn.Module:
    """The network with its weights, in evaluation mode."""
    shape, n_classes = tuple(values["input"]["shape"]), len(values["classes"])
    try:
        with torch.device("meta"):  # nothing is allocated for the sizes that a file claims
            network = _make_network(values["network"], shape, n_classes).eval()
            # those of tables fit any shape; to try one imports torch's compiler, which takes seconds
            answers = values["network"]["name"] in (*TABLE_MODELS, "mlp")
            answers = answers or network(torch.empty(2, *shape)).shape == (2, n_classes)
    except (TypeError, ValueError, RuntimeError, IndexError) as problem:
        what = f"{folder} describes a network that cannot be built"
        raise ModelError(f"{what}: {printable(problem)}") from None
    if not answers:
        raise ModelError(f"{folder} describes a network that does not answer with {n_classes} classes")
    weights = read_tensors(folder / "model.safetensors", network.state_dict(), error=ModelError)
    network.load_state_dict(weights, assign=True)
    for module in network.modules():
        if isinstance(module, BoostedTrees):
            module.check()
    return channels_last(network)


def _parameters_from(folder: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """The constructor's parameters; one that is missing is younger than the file and has its default."""
    parameters = dict(values["parameters"])
    known = ProportionClassifier().get_params(deep=False)
    for name in parameters:
        if name not in known:
            what = f"{folder} has the parameter {printable(name)!r}, which is not known"
            raise ModelError(f"{what}; known parameters are {', '.join(known)}")
    for name in ("epochs", "student_epochs"):
        if parameters.get(name) is not None:
            check_number(
                parameters[name],
                f"{folder}: {name}",
                low=0,
                high=_MOST_EPOCHS,
                integer=True,
                error=ModelError,
            )
    device = parameters.get("device", "auto")
    if not isinstance(device, str) or not re.fullmatch(r"auto|cpu|mps|cuda(:\d{1,3})?", device):
        raise ModelError(f"{folder} has the device {printable(device)!r}; it must be auto, cpu, cuda or mps")
    if not isinstance(_function_of(values), str):
        parameters["model"] = _function_of(values)
    return parameters


def _about_from(values: Mapping[str, Any]) -> About:
    known = {each.name for each in fields(About)}
    about = {key: value for key, value in values["about"].items() if key in known}
    return About(**(about | {"missing": tuple(about["missing"])}))


def _encoder_from(folder: Path, values: Mapping[str, Any]) -> TableEncoder:
    try:
        encoder = TableEncoder.from_json(values["encoder"])
    except DataError as problem:
        raise ModelError(f"{folder}: {problem}") from None
    names = [column.name for column in encoder.columns_]
    if values["feature_names"] not in (None, names):
        raise ModelError(f"{folder} has feature names that are not the columns of its encoder")
    n_features = len(encoder.get_feature_names_out())
    if values["input"]["bytes"] or values["input"]["shape"] != [n_features]:
        shape = tuple(values["input"]["shape"])
        raise ModelError(f"{folder} encodes {n_features} features, but its network takes inputs of {shape}")
    return encoder
