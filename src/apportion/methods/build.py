"""The methods by name, what can be asked about a method, and how one is built for a classifier.

A method is a class, or any function that makes a `Learner` from a classifier; `functools.partial` fixes its
options. What is special about a method stands in its class:

- `title`: what reports call it; by default its name.
- `batches`: ("bag",) by default; with "row" it can also learn from batches of rows from all bags.
- `views`: 1 by default; 2 if a batch holds a weak and a strong view of every instance.
- `weights`: True if its losses take the weights of rows (`batch.weight`) into account.
- `linear`: True if the classifier has to be linear.
- `mean_terms`: the names of loss terms that are means over rows, for training in several processes.
- `image_options`: options for images that differ from its defaults.
- `build(classifier, setup, **options)`: a class method that makes it, if it needs more than the classifier.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn

from apportion._device import GraphPart, identity, plain_network
from apportion._register import register
from apportion.bags.bags import Bags
from apportion.errors import SettingsError
from apportion.methods.count_likelihood import CountLikelihood
from apportion.methods.dllp import DLLP
from apportion.methods.easy_llp import EasyLLP
from apportion.methods.llp_gan import LLPGAN
from apportion.methods.llp_mm import LLPMM
from apportion.methods.llp_vat import LLPVAT
from apportion.methods.mean_map import MeanMap
from apportion.methods.mixbag import MixBag
from apportion.methods.protocol import Learner
from apportion.methods.rot import ROT
from apportion.methods.setup import Setup
from apportion.methods.two_views import TwoViews

MakeLearner = Callable[..., Learner]  # (classifier, **options) -> Learner
Method = str | MakeLearner

METHODS: dict[str, MakeLearner] = {
    "dllp": DLLP,
    "count_likelihood": CountLikelihood,
    "llp_vat": LLPVAT,
    "llp_gan": LLPGAN,
    "rot": ROT,
    "two_views": TwoViews,
    "llp_mm": LLPMM,
    "easy_llp": EasyLLP,
    "mixbag": MixBag,
    "mean_map": MeanMap,
}


def register_method(name: str, method: MakeLearner) -> None:
    """Make a method available by name, as in recipes, on the command line and in `ProportionClassifier`.

    Parameters
    ----------
    name : str
        Lower-case letters, digits and underscores, such as "focal". The names of others cannot be taken.
    method : callable
        A class, or a function that makes a `Learner` from a classifier.
    """
    register(METHODS, "method", name, method)


# --- what is special about a method


def class_of(method: Method) -> Any:
    """The class or function that makes a method, given its name or a partial of it; None for other names."""
    if isinstance(method, str):
        return METHODS.get(method)
    return class_of(method.func) if isinstance(method, partial) else method


def takes_rows(method: Method) -> bool:
    """Whether a method can learn from batches of rows from all bags."""
    return "row" in getattr(class_of(method), "batches", ("bag",))


def takes_pairs(method: Method) -> bool:
    """Whether a batch for this method holds a weak and a strong view of every instance."""
    return getattr(class_of(method), "views", 1) == 2


def takes_weights(method: Method) -> bool:
    """Whether a method can learn from rows that have weights."""
    return getattr(class_of(method), "weights", False)


def is_linear(method: Method) -> bool:
    """Whether a method is for linear classifiers only."""
    return getattr(class_of(method), "linear", False)


def image_options(method: Method) -> dict[str, Any]:
    """The options for images that differ from the defaults of a method."""
    return dict(getattr(class_of(method), "image_options", {}))


def title_of(method: Method) -> str:
    """What reports call a method. A name that is not in `METHODS` is its own title."""
    return getattr(class_of(method), "title", name_of(method))


def name_of(method: Method) -> str:
    """The name of a method, or of the class or function that makes it, for messages and model cards."""
    return method if isinstance(method, str) else getattr(class_of(method), "__name__", repr(method))


def option_defaults(method: Method) -> dict[str, Any]:
    """The options of a method that a recipe can set, and their defaults."""
    make = class_of(method)
    build = getattr(make, "build", None)
    # after the classifier, and the setup that `build` takes; `build` may pass on options by **
    parameters = _parameters(make)[1:] if build is None else _parameters(build)[2:]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        parameters += _parameters(make)[1:]
    # parameters without a default, or with None, are made by `build`, such as LLP-GAN's generator
    empty = inspect.Parameter.empty
    return {each.name: each.default for each in parameters if each.default not in (empty, None)}


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


# --- making one


def make_learner(
    method: Method,
    classifier: nn.Module,
    bags: Bags,
    *,
    by: str = "bag",
    options: Mapping[str, Any] | None = None,
    to_device: Callable[[nn.Module], nn.Module] = lambda network: network,
    graph_part: GraphPart = identity,
) -> Learner:
    """A method for a classifier, with the other networks that it needs.

    Parameters
    ----------
    method : str or callable
        A name in `METHODS`, a class, or a function that makes a `Learner` from a classifier.
    classifier : nn.Module
        The network to train, on its device.
    bags : Bags
        Training data, for methods that need more than batches.
    by : {"bag", "row"}, default="bag"
        The kind of batches that the method will be given.
    options : mapping, optional
        Further arguments of the method.
    to_device, graph_part : callable, optional
        Move a network to its device; make a part of a step fast (see `apportion._device.graphs_for`).

    Returns
    -------
    Learner
    """
    arguments = dict(options or {})
    if isinstance(method, partial):
        arguments = method.keywords | arguments
    make = class_of(method)
    build = getattr(make, "build", None)
    names = list(plain_network(classifier).state_dict())
    if build is None:
        learner = make(classifier, **arguments)
    else:
        learner = build(classifier, Setup(bags, by, to_device, graph_part), **arguments)
    check_learner(learner, name_of(method), names)
    return learner


def check_learner(learner: Any, method: str, names: Sequence[str]) -> None:
    """Raise SettingsError unless a method can be trained; `names` are those of its network's weights."""
    for member in ("classifier", "networks", "losses"):
        if not hasattr(learner, member):
            raise SettingsError(
                f"the method {method} has no {member}; see apportion.methods.protocol.Learner"
            )
    networks = learner.networks()
    if isinstance(networks, nn.Module):
        raise SettingsError(f"networks() of the method {method} returned a module; return a list, [module]")
    for i, network in enumerate(networks):
        if not any(weight.requires_grad for weight in network.parameters()):
            raise SettingsError(
                f"network {i} of the method {method} has no weights to train; put what is not trained into "
                "one nn.ModuleList with the network that is"
            )
    changed = set(names) ^ set(plain_network(learner.classifier).state_dict())
    if changed:
        raise SettingsError(
            f"the classifier of the method {method} differs from the network that it was given in "
            f"{', '.join(sorted(changed))}, but it is saved and loaded by itself; put state into a "
            "module next to it, both in one nn.ModuleList"
        )
