# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A copy of a module for imports: parameters without memory, and buffers with their values."""
import copy
import mmap
import sys
import warnings

import torch

from ...errors import Error


def stand_in(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    """A parameter of the host of that shape and type, of any size. It takes no memory, and
    nothing may write to it."""
    if parameter.numel() == 0:
        return torch.nn.Parameter(torch.empty_like(parameter, device="cpu"), parameter.requires_grad)
    size = parameter.numel() * parameter.element_size()
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not writable
        values = torch.frombuffer(memory, dtype=torch.uint8)
    return torch.nn.Parameter(values.view(parameter.dtype).view(parameter.shape), parameter.requires_grad)


def copied(module: torch.nn.Module, tensors: dict[int, torch.Tensor]) -> torch.nn.Module:
    """A copy of a module with other tensors, which are given by the ids of its own."""
    try:
        return copy.deepcopy(module, dict(tensors))
    except Exception as error:  # a module's own code may copy
        raise Error("with weights the import is one of a copy of the module, and copy.deepcopy fails: "
                    f"{type(error).__name__}: {error}") from error


def initialised(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The values of buffers on the meta device that transformers computes when it loads a model:
    frequencies of rotary embeddings, for example."""
    modeling = sys.modules.get("transformers.modeling_utils")
    unset = {key: b for key, b in module.named_buffers() if b.device.type == "meta"}
    if not unset or modeling is None:
        return {}
    tensors = {id(p): torch.nn.Parameter(p.detach().to("meta"), p.requires_grad)
               for p in module.parameters()}
    tensors |= {id(b): torch.empty_like(b, device="cpu") for b in unset.values()}
    # Its initialisation writes to all tensors of a module, so it gets a copy.
    scratch = copied(module, tensors)
    versions = {key: (b, b._version) for key, b in scratch.named_buffers() if key in unset}
    models = {name: m for name, m in scratch.named_modules()
              if isinstance(m, modeling.PreTrainedModel)}
    for path in {key.rpartition(".")[0] for key in unset}:
        owners = [name for name in models if name == "" or f"{path}.".startswith(f"{name}.")]
        if not owners:
            continue
        try:
            with torch.no_grad():
                models[max(owners, key=len)]._init_weights(scratch.get_submodule(path))
        except Exception as error:  # a model's own code
            raise Error(f"the initialisation of '{path}' by transformers fails: "
                        f"{type(error).__name__}: {error}") from error
    return {key: b for key, b in scratch.named_buffers(remove_duplicate=False)
            if key in versions and (b is not versions[key][0] or b._version != versions[key][1])}
