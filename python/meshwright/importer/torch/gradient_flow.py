# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Where gradients flow in PyTorch, though the graph of a forward pass shows something else.

The program's gradients are those of its graph. `tracing_gradients` makes what PyTorch traces have the
gradients of what it runs, and refuses hooks on gradients. `end_gradients` then states in the graph
where PyTorch's gradients end.
"""
import contextlib
import functools
import gc
import inspect
import sys
import types

import torch
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch._functorch import eager_transforms
from torch.autograd import forward_ad
from torch.utils import checkpoint

from ..errors import Diagnostic, ImportFailed
from .functionalize import written_arguments
from .locations import Locations, calling_line, is_model_file
from .patches import patched
from .regions import GRADIENTS, requires_gradient

_DETACH = {torch.ops.aten.detach.default, torch.ops.aten.detach_.default}


@contextlib.contextmanager
def tracing_gradients(module: torch.nn.Module, asked: "AskedInCheckpoints"):
    """Refuses hooks on gradients, and lets a trace see through what hides gradients from it."""
    problems = _registered_hooks(module)
    with patched() as patch:
        patch(checkpoint.CheckpointFunction, "apply", staticmethod(asked.checkpointed))
        # The mode is not recorded, that of torch.no_grad() is.
        patch(torch.inference_mode, "__enter__", _enter_inference)
        patch(torch.inference_mode, "__exit__", _exit_inference)
        _watch_hooks(patch, problems)
        if problems:
            raise ImportFailed(problems)
        yield
    # The forward pass may have placed hooks on nodes that it has from before.
    problems += _hooks_of_nodes(module)
    if problems:
        raise ImportFailed(dict.fromkeys(problems))


class AskedInCheckpoints:
    """Functions of reentrant checkpoints that ask whether gradients are on. The trace sees them on, as
    in the backward pass. In PyTorch's forward pass they are off."""

    def __init__(self):
        #: The lines that ask, in order.
        self.lines: dict[tuple[str, int], None] = {}
        #: Whether to answer as in the forward pass.
        self.is_forward = False
        self._depth = 0

    def checkpointed(self, function, preserve_rng_state, *args):
        """A reentrant checkpoint: it has the gradients of its function if some tensor among its own
        arguments has one, and else none."""
        flows = torch.is_grad_enabled() and any(
            isinstance(x, torch.Tensor) and x.requires_grad for x in args)
        if not flows:
            with torch.no_grad():
                return function(*args)
        self._depth += 1
        try:
            with patched() as patch:
                if self._depth == 1:
                    self._listen(patch, args)
                return function(*args)
        finally:
            self._depth -= 1

    def _listen(self, patch, args):
        is_on, requires_grad = torch.is_grad_enabled, torch.Tensor.requires_grad
        given = {id(x) for x in args}

        def told(value):
            caller = sys._getframe(2)
            line = caller.f_code.co_filename, caller.f_lineno
            if not value or not is_model_file(line[0]):
                return value
            self.lines[line] = None
            return not self.is_forward

        def requires(x):
            value = requires_grad.__get__(x)
            return value if x.is_leaf or id(x) in given else told(value)

        patch(torch, "is_grad_enabled", lambda: told(is_on()))
        patch(torch.Tensor, "requires_grad", property(requires, requires_grad.__set__))

    def refuse(self):
        raise ImportFailed([Diagnostic(
            "the function of a reentrant checkpoint computes something else where gradients are off, as "
            "they are in PyTorch's forward pass, than in the backward pass: it is not covered; expected "
            "checkpoint(..., use_reentrant=False), or no question whether gradients are on", "error",
            *next(iter(self.lines)))])


def _enter_inference(self):
    self.gradients_before = torch.is_grad_enabled()
    torch._C._set_grad_enabled(not self.mode)


def _exit_inference(self, *_):
    torch._C._set_grad_enabled(self.gradients_before)


@contextlib.contextmanager
def refusing_transforms(training: bool):
    """Refuses derivatives that a forward pass itself takes by torch.func: torch.export cannot trace
    them, or their own gradients."""
    problems = []

    def refused(name):
        def call(*_):
            problems.append(Diagnostic(
                f"the forward pass takes a derivative by {name}: it is not covered"
                f"{' in an import with training=True' if name == _FORWARD else ''}; expected the "
                "derivative written with operations of PyTorch", "error", *(calling_line() or (None, None))))
            raise ImportFailed(problems)

        return call

    with patched() as patch:
        patch(eager_transforms, "grad_increment_nesting", refused("torch.func.grad, vjp or jacrev"))
        if training:
            patch(eager_transforms, "jvp_increment_nesting", refused(_FORWARD))
            patch(forward_ad, "enter_dual_level", refused(_FORWARD))
        yield
    if problems:  # the forward pass may have caught the exception
        raise ImportFailed(problems)


_FORWARD = "torch.func.jvp, jacfwd or torch.autograd.forward_ad"


# Hooks.

_REMEDY = "; expected no hook on gradients in an import with training=True: remove it, and state what " \
    "it does in the forward pass"


def _registered_hooks(module) -> list[Diagnostic]:
    """The hooks on gradients that a module, its parts and its parameters have."""
    kinds = torch.nn.modules.module
    problems = [_refusal(f"a hook of all modules, {_name(hook)}, is on their gradients", hook)
                for hooks in (kinds._global_backward_hooks, kinds._global_backward_pre_hooks)
                for hook in hooks.values()]
    for path, part in module.named_modules():
        where = f"module {path}" if path else "the module"
        problems += [_refusal(f"{where} has the hook {_name(hook)} on its gradients", hook)
                     for hooks in (part._backward_hooks, part._backward_pre_hooks)
                     for hook in hooks.values()]
        if isinstance(part, torch.nn.parallel.DistributedDataParallel):
            problems.append(Diagnostic(
                f"{where} is a DistributedDataParallel, which sums gradients by hooks: expected "
                "its attribute `module`"))
    for path, parameter in module.named_parameters():
        hooks = [hook for hooks in (parameter._backward_hooks, parameter._post_accumulate_grad_hooks)
                 for hook in (hooks or {}).values()]
        if parameter.requires_grad:
            problems += [_refusal(f"parameter {path} has the hook {_name(hook)} on its gradient", hook)
                         for hook in hooks]
    return problems + _hooks_of_nodes(module)


def _hooks_of_nodes(module) -> list[Diagnostic]:
    """The hooks on the nodes that accumulate the gradients of parameters. Such a node lives on where
    its owner keeps it."""
    problems = []
    for path, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        with torch.enable_grad():
            node = parameter.view_as(parameter).grad_fn.next_functions[0][0]
        # A node tells its hooks to the garbage collector alone. It has those of the tensor, too.
        own = (parameter._backward_hooks, parameter._post_accumulate_grad_hooks)
        problems += [_refusal(f"the node of the backward pass that accumulates the gradient of parameter "
                              f"{path} has the hook {_name(hook)}", hook)
                     for hooks in gc.get_referents(node)
                     if isinstance(hooks, dict) and not any(hooks is known for known in own)
                     for hook in hooks.values()]
    return problems


def _watch_hooks(patch, problems):
    """Adds to `problems` the hooks that a forward pass registers."""
    def watched(owner, name, subject):
        kept = getattr(owner, name)

        def call(self, hook, *args, **kwargs):
            problems.append(_refusal(f"{subject} has the hook {_name(hook)} on its gradient", hook,
                                     calling_line()))
            return kept(self, hook, *args, **kwargs)

        patch(owner, name, functools.wraps(kept)(call))

    for name in ("register_hook", "register_post_accumulate_grad_hook"):
        watched(torch.Tensor, name, "a tensor")
    nodes = torch.autograd.graph
    several, saved = nodes.register_multi_grad_hook, nodes.saved_tensors_hooks.__init__

    def of_several(tensors, hook, **kwargs):
        problems.append(_refusal(f"several tensors have the hook {_name(hook)} on their gradients",
                                 hook, calling_line()))
        return several(tensors, hook, **kwargs)

    def of_saved(self, pack, unpack):
        if not (_keeps_values(pack) and _keeps_values(unpack)):
            problems.append(_refusal(f"the hooks {_name(pack)} and {_name(unpack)} change what the "
                                     "backward pass reads", pack, calling_line()))
        saved(self, pack, unpack)

    def of_node(hook):
        problems.append(_refusal(f"a node of the backward pass has the hook {_name(hook)}", hook,
                                 calling_line()))

    node_of = torch.Tensor.grad_fn.__get__
    patch(torch.Tensor, "grad_fn", property(lambda x: _WatchedNode.of(node_of(x), of_node)))
    patch(nodes, "register_multi_grad_hook", of_several)
    patch(nodes.saved_tensors_hooks, "__init__", of_saved)


class _WatchedNode:
    """A node of autograd, whose own methods cannot be replaced."""

    def __init__(self, node, found):
        self._node, self._found = node, found

    @classmethod
    def of(cls, node, found):
        return node and cls(node, found)

    def register_hook(self, hook):
        self._found(hook)
        return self._node.register_hook(hook)

    def register_prehook(self, hook):
        self._found(hook)
        return self._node.register_prehook(hook)

    @property
    def next_functions(self):
        return tuple((self.of(node, self._found), i) for node, i in self._node.next_functions)

    def __getattr__(self, name):
        return getattr(self._node, name)


#: The files of PyTorch's own hooks on saved tensors: those of save_on_cpu and of checkpoints.
_OWN_HOOKS = (torch.autograd.graph.__file__, checkpoint.__file__)


def _keeps_values(hook) -> bool:
    """Whether a hook on saved tensors gives back what it was given. Other functions of PyTorch, F.relu
    say, are as good or bad as any."""
    return isinstance(hook, types.FunctionType) and hook.__code__.co_filename in _OWN_HOOKS


def _name(hook) -> str:
    while isinstance(hook, functools.partial):
        hook = hook.func
    own = "__qualname__" if hasattr(hook, "__code__") else "__name__"
    return getattr(hook, own, type(hook).__qualname__)


def _refusal(message, hook, frame=None) -> Diagnostic:
    """`frame` is the line that registers the hook, if it is known; that of its own code stands for
    it."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    code = getattr(inspect.unwrap(hook), "__code__", None)
    if frame is None and code and is_model_file(code.co_filename):
        frame = code.co_filename, code.co_firstlineno
    return Diagnostic(message + _REMEDY, "error", *(frame or (None, None)))


# Ends.

def end_gradients(graph: torch.fx.Graph):
    """Detaches each value that depends on a parameter, but required no gradient when it was traced.

    Raises ImportFailed for a write that PyTorch leaves out of the gradient of the written value."""
    flowing, memory, problems, locations = set(), set(), {}, Locations()
    mapped = 0

    def flows(*nodes):
        flowing.update(nodes)
        memory.update(_memory(n) for n in nodes)

    def requires(node):
        """Within torch.vmap no value tells that it requires a gradient: the region around it decides."""
        if mapped:
            return node.meta.get(GRADIENTS, True) and node.target not in _DETACH
        return requires_gradient(node)

    for node in list(graph.nodes):
        if node.op == "placeholder" and requires_gradient(node):
            flows(node)
        if node.op != "call_function":
            continue
        mapped += _MAPS.get(getattr(node.target, "__name__", ""), 0)
        written = written_arguments(node)
        depends = not flowing.isdisjoint(node.all_input_nodes)
        if written and node.target not in _DETACH:
            counts = bool(requires(node)) and node.meta.get(GRADIENTS, True)
            if counts and depends:
                flows(node, *written)
            elif not counts and _memory(written[0]) in memory:
                frame = locations.frame(node.meta.get("stack_trace") or "") or (None, None)
                problems[frame] = Diagnostic(
                    "a value that requires gradients is written to where gradients are off, in "
                    "torch.no_grad() say, so its gradient does not see the write: it is not covered; "
                    "expected a write to a value that requires none, or one where gradients are on",
                    "error", *frame)
            elif depends:
                _detach_operands(graph, node, flowing)
        elif depends:
            value = node.meta.get("val")
            if not isinstance(value, torch.Tensor):
                flowing.add(node)  # several results, or a number
            elif value.is_floating_point() or value.is_complex():
                if requires(node) is not False:
                    flows(node)
                elif node.target not in _DETACH:
                    _detach(graph, node)
    if problems:
        raise ImportFailed(problems.values())


#: The operations at which a region of torch.vmap begins and ends.
_MAPS = {"_vmap_increment_nesting": 1, "_vmap_decrement_nesting": -1}


def _memory(node):
    value = node.meta.get("val")
    while isinstance(value, torch.Tensor) and is_functorch_wrapped_tensor(value):
        value = get_unwrapped(value)
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def _detach(graph, node):
    with graph.inserting_after(node):
        copy = graph.call_function(torch.ops.aten.detach.default, (node,))
    copy.meta.update(node.meta)
    node.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not copy)


def _detach_operands(graph, node, flowing):
    """Only views of a value may take the place of one that is written to."""
    for operand in node.all_input_nodes:
        if operand in flowing:
            with graph.inserting_before(node):
                copy = graph.call_function(torch.ops.aten.detach.default, (operand,))
            copy.meta.update(operand.meta)
            node.replace_input_with(operand, copy)
