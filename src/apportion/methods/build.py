"""The methods by name, and how each is built for a classifier."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, cast

from torch import nn

from apportion._device import PartCompiler, identity, plain_network
from apportion.bags.bags import Bags
from apportion.methods.count_likelihood import CountLikelihood
from apportion.methods.dllp import DLLP
from apportion.methods.llp_gan import LLPGAN, make_generator
from apportion.methods.llp_vat import LLPVAT
from apportion.methods.prediction_memory import PredictionMemory
from apportion.methods.protocol import Learner
from apportion.methods.rot import ROT
from apportion.methods.two_views import TwoViews, make_projector, split_network

METHODS: dict[str, Callable[..., Learner]] = {
    "dllp": DLLP,
    "count_likelihood": CountLikelihood,
    "llp_vat": LLPVAT,
    "llp_gan": LLPGAN,
    "rot": ROT,
    "two_views": TwoViews,
}
ROW_METHODS = ("dllp", "two_views")  # can learn from batches of rows from all bags


def make_learner(
    method: str,
    classifier: nn.Module,
    bags: Bags,
    *,
    by: str = "bag",
    options: Mapping[str, Any] | None = None,
    to_device: Callable[[nn.Module], nn.Module] = lambda network: network,
    compile_part: PartCompiler = identity,
) -> Learner:
    """A method for a classifier, with the other networks that it needs.

    Parameters
    ----------
    method : str
        A name in `METHODS`.
    classifier : nn.Module
        The network to train, on its device.
    bags : Bags
        Training data, for the shape of instances and, with `by="row"`, for a memory of predictions.
    by : {"bag", "row"}, default="bag"
        The kind of batches that the method will be given.
    options : mapping, optional
        Further arguments of the method.
    to_device, compile_part : callable, optional
        Move a network to its device; compile a part of a step (see `apportion._device.compile_for`).

    Returns
    -------
    Learner
    """
    arguments = dict(options or {})
    if by == "row":
        transport = method == "two_views" and arguments.get("transport", True)
        arguments["memory"] = PredictionMemory(bags, transport, compile_part)
    if method == "llp_gan":
        noise = int(arguments.get("noise", 100))
        arguments["generator"] = to_device(make_generator(bags.x.shape[1:], noise))
    if method == "two_views":
        plain = split_network(plain_network(classifier))
        head = cast(nn.Linear, plain[1])
        arguments["average"] = to_device(deepcopy(plain))
        arguments["projector"] = make_projector(head.in_features).to(head.weight.device)
        arguments["compile_part"] = compile_part
    return METHODS[method](classifier, **arguments)
