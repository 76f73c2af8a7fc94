"""CUDA graphs: the kernels of a function are recorded once and then launched together.

A training step on a fast GPU takes less time than Python needs to launch its kernels one by one. Recording
takes no time to speak of, where a compiler would take tens of seconds.
"""

import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from apportion._untrusted import printable
from apportion.errors import ApportionWarning

WARMUP = 3  # plain calls, in which libraries choose their kernels, before a graph is recorded


class Graphed:
    """A function of tensors whose forward and backward passes are one launch each.

    The function is recorded once for each combination of shapes and of training mode, frozen weights and
    frozen statistics. While gradients of one call are still to come, further calls run without a graph, since
    they would overwrite what the backward pass needs. So do all calls of a function that cannot be recorded,
    because it waits for the device or the device has too little memory. Gradients of gradients are not
    supported. An output is overwritten by the next call; copy what has to last.

    Parameters
    ----------
    function : callable
        From tensors to a tensor or a tuple of tensors.
    networks : sequence of nn.Module
        The networks that it uses.
    """

    def __init__(self, function: Callable[..., Any], networks: Sequence[nn.Module] = ()) -> None:
        self.function = function
        self.networks = nn.ModuleList(networks)
        self.modules = list(self.networks.modules())  # to find them anew takes longer than a launch
        self.calls: dict[Any, int] = {}
        self.recordings: dict[Any, _Recording | None] = {}

    def __call__(self, *inputs: Tensor) -> Any:
        if not inputs[0].is_cuda or torch.cuda.is_current_stream_capturing():  # as part of a larger graph
            return self.function(*inputs)
        key = self._key(inputs)
        self.calls[key] = self.calls.get(key, 0) + 1
        if self.calls[key] == WARMUP + 1:
            self.recordings[key] = _record(self.function, inputs, self.networks)
        recording = self.recordings.get(key)
        if recording is None or recording.awaits_gradients():
            return self.function(*inputs)
        outputs = _Replay.apply(recording, *inputs, *recording.weights)
        return outputs if recording.is_tuple else outputs[0]

    def _key(self, inputs: Sequence[Tensor]) -> Any:
        """What a recording depends on. Addresses change if weights are replaced or moved."""
        key: list[Any] = [torch.is_grad_enabled()]
        for x in inputs:
            key += x.shape, x.stride(), x.dtype, x.device, x.requires_grad
        for module in self.modules:
            key += module.training, module.__dict__.get("track_running_stats")
            for weight in module._parameters.values():
                if weight is not None:
                    key += weight.data_ptr(), weight.requires_grad
            for buffer in module._buffers.values():
                if buffer is not None:
                    key.append(buffer.data_ptr())
        return tuple(key)


class _Recording:
    """The graphs of a function for inputs of some shapes, and the tensors that the graphs read and write."""

    def __init__(
        self, function: Callable[..., Any], inputs: Sequence[Tensor], networks: nn.ModuleList
    ) -> None:
        self.inputs = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
        self.weights: list[Tensor] = []
        if torch.is_grad_enabled():
            self.weights = [p for p in networks.parameters() if p.requires_grad]
        self.forward_graph = torch.cuda.CUDAGraph()
        self.backward_graph = torch.cuda.CUDAGraph()
        self.version = 0
        self.last_call: Callable[[], Any] = lambda: None
        device = inputs[0].device
        pool = torch.cuda.graph_pool_handle()
        with _twins_of_weights(networks) as twins:
            sources = [*self.inputs, *(twins[id(weight)] for weight in self.weights)]
            with _recording(self.forward_graph, device, pool):
                outputs = function(*self.inputs)
            self.is_tuple = isinstance(outputs, tuple)
            outputs = outputs if self.is_tuple else (outputs,)
            self.with_gradient = [i for i, each in enumerate(outputs) if each.requires_grad]
            learned = [i for i, source in enumerate(sources) if source.requires_grad]
            self.d_outputs = [torch.zeros_like(outputs[i]) for i in self.with_gradient]
            self.d_sources: list[Tensor | None] = [None] * len(sources)
            if self.with_gradient:
                with _recording(self.backward_graph, device, pool):
                    gradients = torch.autograd.grad(
                        [outputs[i] for i in self.with_gradient],
                        [sources[i] for i in learned],
                        self.d_outputs,
                        allow_unused=True,
                    )
                for i, gradient in zip(learned, gradients, strict=True):
                    self.d_sources[i] = gradient
        self.outputs = tuple(each.detach() for each in outputs)

    def awaits_gradients(self) -> bool:
        return self.last_call() is not None


def _record(
    function: Callable[..., Any], inputs: Sequence[Tensor], networks: nn.ModuleList
) -> _Recording | None:
    """The recording, or None, with a warning, if this function cannot be recorded."""
    try:
        return _Recording(function, inputs, networks)
    except RuntimeError as problem:  # of CUDA: what the function does is not allowed while it is recorded
        reason = str(problem).strip().partition("\n")[0]
        message = f"a part of training runs without a CUDA graph, which is slower: {printable(reason)}"
        warnings.warn(message, ApportionWarning, stacklevel=3)
        _finish_failed_recordings(inputs[0].device)
        return None


_failed: list[tuple[torch.cuda.CUDAGraph, Any]] = []  # with their memory pools; torch may still ask them


def _finish_failed_recordings(device: torch.device) -> None:
    """Do what torch does at the end of a recording, but leaves out if it fails.

    Otherwise the allocator would wait for the end, and any random number that is drawn later is an error,
    since the generator still takes draws for recorded ones. A recording that succeeds frees it.
    """
    for _, pool in _failed:
        with suppress(RuntimeError, AttributeError):  # it has been ended; another version of torch
            torch._C._cuda_endAllocateToPool(device.index, pool)  # type: ignore[attr-defined]
    x = torch.zeros(1, device=device)
    with _recording(torch.cuda.CUDAGraph(), device, torch.cuda.graph_pool_handle()):
        x.add_(1)


@contextmanager
def _recording(graph: torch.cuda.CUDAGraph, device: torch.device, pool: Any) -> Iterator[None]:
    """Within this context, kernels are recorded. `torch.cuda.graph` would also collect garbage: 0.3 s."""
    current = torch.cuda.current_stream(device)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            yield
            graph.capture_end()
        except BaseException:
            _failed.append((graph, pool))
            with suppress(RuntimeError):  # the first error says more
                graph.capture_end()
            raise
    current.wait_stream(stream)


@contextmanager
def _twins_of_weights(networks: nn.ModuleList) -> Iterator[dict[int, Tensor]]:
    """Within this context, networks have other parameters with the same values, by the id of the originals.

    Autograd remembers on which stream a parameter was first used, and a recording uses a stream of its own.
    """
    twins = {id(p): p.detach().requires_grad_(p.requires_grad) for p in networks.parameters()}
    originals = [(m, name, p) for m in networks.modules() for name, p in m._parameters.items()]
    try:
        for module, name, p in originals:
            module._parameters[name] = None if p is None else twins[id(p)]  # type: ignore[assignment]
        yield twins
    finally:
        for module, name, p in originals:
            module._parameters[name] = p


class _Call:
    """A call whose backward pass is to come; it is dropped with the outputs of the call."""


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recording: _Recording, *inputs: Tensor) -> tuple[Tensor, ...]:
        for own, given in zip(recording.inputs, inputs, strict=False):
            if own.data_ptr() != given.data_ptr():
                own.detach().copy_(given)
        recording.forward_graph.replay()
        recording.version += 1
        outputs = tuple(each.detach() for each in recording.outputs)
        ctx.recording = recording
        ctx.version = recording.version
        if any(ctx.needs_input_grad):
            ctx.call = _Call()
            recording.last_call = weakref.ref(ctx.call)
        fixed = [each for i, each in enumerate(outputs) if i not in recording.with_gradient]
        ctx.mark_non_differentiable(*fixed)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        recording = ctx.recording
        if recording.version != ctx.version:
            raise RuntimeError(
                "the values that this backward pass needs have been overwritten by a later call; take "
                "gradients only once, and before the next step"
            )
        ctx.call = None
        recording.version += 1  # the recorded pass may reuse the memory of what it has read
        own_gradients = recording.d_sources[len(recording.inputs) :]
        for weight, own in zip(recording.weights, own_gradients, strict=True):
            if weight.grad is not None and own is not None and weight.grad.data_ptr() == own.data_ptr():
                weight.grad = weight.grad.clone()  # of an earlier call, to which this one is to be added
        for own, i in zip(recording.d_outputs, recording.with_gradient, strict=True):
            own.copy_(gradients[i])
        recording.backward_graph.replay()
        return (None, *(None if each is None else each.detach() for each in recording.d_sources))
