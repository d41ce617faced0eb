# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Hooks on gradients, and writes that gradients do not see, are refused in an import for training."""
import functools

import meshwright as mw
import pytest
import torch
import torch.nn.functional as F
from meshwright.importer.torch import ImportFailed, import_module
from torch import nn
from torch.utils import checkpoint

X = torch.randn(5, 4)


class Net(nn.Module):
    def __init__(self, function=lambda y: y):
        super().__init__()
        self.a, self.b, self.function = nn.Linear(4, 6), nn.Linear(6, 6), function

    def forward(self, x):
        return self.b(self.function(self.a(x))).square().mean()


def scale(gradient):
    return gradient * 0.1


def of_module(module, *gradients):
    return None


def diagnostic(module):
    with pytest.raises(ImportFailed) as failed:
        import_module(module, (X,), training=True)
    return failed.value.diagnostics[0]


PLACES = {
    "parameter a.weight has the hook scale on its gradient": [
        lambda n: n.a.weight.register_hook(scale),
        lambda n: n.a.weight.register_hook(functools.partial(scale)),
        lambda n: n.a.weight.register_post_accumulate_grad_hook(scale)],
    "module a has the hook of_module on its gradients": [
        lambda n: n.a.register_full_backward_hook(of_module),
        lambda n: n.a.register_full_backward_pre_hook(of_module),
        lambda n: n.a.register_backward_hook(of_module)],
    "a hook of all modules, of_module, is on their gradients": [
        lambda n: nn.modules.module.register_module_full_backward_hook(of_module),
        lambda n: nn.modules.module.register_module_full_backward_pre_hook(of_module)],
}


@pytest.mark.parametrize("message", PLACES)
def test_hooks_that_stand_before_the_import(message):
    for place in PLACES[message]:
        module = Net().train()
        handle = place(module)
        try:
            found = diagnostic(module)
            import_module(module, (X,))  # which asks for no gradients
        finally:
            handle.remove()
        code = (scale if "scale" in message else of_module).__code__
        assert message in found.message and "expected no hook on gradients" in found.message
        assert (found.file, found.line) == (__file__, code.co_firstlineno)
        import_module(module, (X,), training=True)


def on_tensor(y):
    y.register_hook(scale)
    return y


def on_tensors(y):
    torch.autograd.graph.register_multi_grad_hook((y,), scale)
    return y


def on_node(y):
    y.grad_fn.register_hook(scale)
    return y


def before_node(y):
    y.grad_fn.next_functions[0][0].register_prehook(scale)
    return y


def on_saved(y):
    with torch.autograd.graph.saved_tensors_hooks(scale, scale):
        return y.tanh()


@pytest.mark.parametrize("function, message", [
    (on_tensor, "a tensor has the hook scale on its gradient"),
    (on_tensors, "several tensors have the hook scale on their gradients"),
    (on_node, "a node of the backward pass has the hook scale"),
    (before_node, "a node of the backward pass has the hook scale"),
    (on_saved, "the hooks scale and scale change what the backward pass reads")])
def test_hooks_that_the_forward_pass_registers(function, message):
    found = diagnostic(Net(function).train())
    assert message in found.message
    assert (found.file, found.line) == (__file__, function.__code__.co_firstlineno + 1)


def test_hooks_of_the_forward_pass_stay():
    module = Net().train()
    module.a.register_forward_hook(lambda module, inputs, output: output * 2)
    module.a.register_forward_pre_hook(lambda module, inputs: None)
    import_module(module, (X,), training=True)
    module.b.register_forward_hook(lambda module, inputs, output: on_tensor(output))
    assert "a tensor has the hook scale" in diagnostic(module).message


@pytest.mark.parametrize("name, hook", [
    ("Hardtanh", nn.Hardtanh(-1e-3, 1e-3)), ("relu", F.relu), ("tanh", F.tanh), ("sgn", torch.sgn),
    ("clamp", functools.partial(torch.clamp, max=1)), ("nan_to_num", torch.nan_to_num)])
def test_hooks_that_are_functions_of_pytorch(name, hook):
    def of_tensor(y):
        y.register_hook(hook)
        return y

    def of_saved(y):
        with torch.autograd.graph.saved_tensors_hooks(hook, hook):
            return y.tanh()

    assert f"a tensor has the hook {name} on its gradient" in diagnostic(Net(of_tensor).train()).message
    assert f"the hooks {name} and {name} change" in diagnostic(Net(of_saved).train()).message
    module = Net().train()
    module.a.weight.register_hook(hook)
    assert f"parameter a.weight has the hook {name}" in diagnostic(module).message


def accumulates(parameter):
    return parameter.expand_as(parameter).grad_fn.next_functions[0][0]


@pytest.mark.parametrize("how", ["register_hook", "register_prehook"])
@pytest.mark.parametrize("hook", [scale, torch.sgn])
def test_hooks_on_the_node_that_accumulates_a_gradient(how, hook):
    module = Net().train()
    node = accumulates(module.a.weight)
    import_module(module, (X,), training=True)
    handle = getattr(node, how)(hook)
    assert "the node of the backward pass that accumulates the gradient of parameter a.weight has the " \
        f"hook {hook.__name__}" in diagnostic(module).message
    import_module(module, (X,))
    handle.remove()
    import_module(module, (X,), training=True)
    module.function = lambda y: (getattr(node, how)(hook), y)[1]
    assert "a.weight has the hook" in diagnostic(module).message


def saved_elsewhere(y):
    with torch.autograd.graph.save_on_cpu():
        return y.tanh()


def kept_as_weak(y):
    return checkpoint.checkpoint(lambda y: checkpoint.checkpoint(torch.tanh, y, use_reentrant=False), y,
                                 use_reentrant=False)


def test_what_changes_no_gradient():
    for function in saved_elsewhere, kept_as_weak:
        module = Net(function).train()
        module.a.weight.register_hook(scale)
        module.a.requires_grad_(False)
        import_module(module, (X,), training=True)


def scales(y):
    with torch.no_grad():
        y.mul_(2)
    return y


def sets(y):
    with torch.no_grad():
        y[:, 0] = 0
    return y


def writes_data(y):
    y.data.mul_(2)
    return y


def writes_in_inference(y):
    with torch.inference_mode():
        y.mul_(2)
    return y


@pytest.mark.parametrize("function", [scales, sets, writes_data, writes_in_inference])
def test_writes_that_gradients_do_not_see(function):
    found = diagnostic(Net(function).train())
    assert "a value that requires gradients is written to where gradients are off" in found.message
    assert found.file == __file__ and found.line
    import_module(Net(function).eval(), (X,))


def mixed(t, layer):
    with torch.no_grad():
        kept = layer(t)
        with torch.enable_grad():
            flowing = kept * layer(t)
        return flowing * layer(t)


MAPPED = {
    "a layer": lambda n, y: torch.vmap(n.b)(y),
    "an operation": lambda n, y: torch.func.vmap(lambda t: t * 2)(y),
    "nested": lambda n, y: torch.vmap(torch.vmap(lambda t: t * 2))(n.b(y)),
    "weights": lambda n, y: torch.vmap(lambda w, t: w @ t)(torch.stack([n.b.weight] * 5), y),
    "detached": lambda n, y: torch.vmap(lambda t: n.b(t) * n.b(t).detach())(y),
    "regions": lambda n, y: torch.vmap(lambda t: mixed(t, n.b) + t)(y),
    "in place": lambda n, y: torch.vmap(lambda t: n.b(t).mul_(t))(y),
    "several results": lambda n, y: torch.vmap(lambda t: n.b(t).chunk(2)[0].repeat(2))(y),
    "parameters of the call": lambda n, y: torch.func.functional_call(
        n.b, {k: p * 2 for k, p in n.b.named_parameters()}, (y,)),
}


@pytest.mark.parametrize("how", MAPPED)
def test_gradients_through_vmap(how):
    module = Net().train()
    module.function = lambda y: MAPPED[how](module, y)
    module(X).backward()
    model = mw.from_torch(module, (X,), training=True).differentiate()
    got = dict(zip(model.outputs, model.parallelize(mesh={"dp": 1}).run(X), strict=True))
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(got[f"grad.{name}"], parameter.grad)


@pytest.mark.parametrize("function", [
    lambda y: torch.func.grad(lambda t: t.square().sum())(y),
    lambda y: torch.func.vjp(torch.sin, y)[1](y)[0],
    lambda y: torch.func.jvp(torch.sin, (y,), (y,))[1],
    lambda y: torch.func.jacfwd(torch.sin)(y).sum((2, 3))])
def test_derivatives_in_the_forward_pass(function):
    found = diagnostic(Net(function).train())
    assert "the forward pass takes a derivative by torch.func." in found.message
    assert (found.file, found.line) == (__file__, function.__code__.co_firstlineno)
    assert torch._C._functorch.peek_interpreter_stack() is None
