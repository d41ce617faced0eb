# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Several models as the stages of one."""

from . import _core, arguments
from .errors import unwrap
from .model import Model, check_models


def compose(models, connect, loop=(), steps=1) -> Model:
    """Joins models into one.

    models: {"encoder": model, ...}, stages in the order in which they run.
    connect: {"stage.input": "stage.output position"}; what is not connected is an input of the
    pipeline under "stage.input". Outputs are those of the last stage.
    loop: names of stages, neighbours, that run `steps` times. An input that is fed from the same
    or a later stage of the loop starts with the pipeline's own input of that name.

    Weights are referenced, under "stage.name".
    """
    check_models(models)
    arguments.mapping("connect", connect, '{"stage.input": "stage.output position"}')
    for to, source in connect.items():
        arguments.text(f"connect[{to!r}]", source, '"stage.output position"')
    program = unwrap(
        _core.Program.compose(
            [(name, model._program) for name, model in models.items()],
            list(connect.items()),
            arguments.names("loop", loop, "names of stages"),
            arguments.integer("steps", steps),
        ),
        call="compose",
    )
    parameters = {
        f"{stage}.{name}": value
        for stage, model in models.items()
        for name, value in model._parameters.items()
    }
    composed = Model(program, parameters)
    composed._imports = [
        (f"{stage}.{prefix}", imported)
        for stage, model in models.items()
        for prefix, imported in model._imports
    ]
    return composed
