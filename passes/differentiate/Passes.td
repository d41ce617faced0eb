//===- Passes.td - differentiate ---------------------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_DIFFERENTIATE_PASSES_TD
#define MESHWRIGHT_PASSES_DIFFERENTIATE_PASSES_TD

include "mlir/Pass/PassBase.td"

def RequestGradientsPass : Pass<"request-gradients", "::mlir::ModuleOp"> {
  let summary = "make gradients of a loss results of the program";
  let description = [{
    Adds a result `grad.NAME` to the default entry for each parameter that a pattern
    matches, behind the outputs, in the order of the parameters. Each is an `nn.gradient`.
    Parameters of integers that a pattern with a wildcard matches are left out.

    It is an error if there is no such output, if it is no float with one element, or if a
    pattern matches no parameter of float type.

    Before:
    ```mlir
    func.func @main(%x: tensor<4xf32> {nn.input = "x"}, %w: tensor<4xf32> {nn.parameter = "w"})
        -> (tensor<f32> {nn.output = "loss"}) {
      %0 = nn.mul %x, %w : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      %1 = nn.reduce sum %0 dims [0] : (tensor<4xf32>) -> tensor<f32>
      return %1 : tensor<f32>
    }
    ```
    After:
    ```mlir
    func.func @main(%x: tensor<4xf32> {nn.input = "x"}, %w: tensor<4xf32> {nn.parameter = "w"})
        -> (tensor<f32> {nn.output = "loss"}, tensor<4xf32> {nn.output = "grad.w"}) {
      %0 = nn.mul %x, %w : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      %1 = nn.reduce sum %0 dims [0] : (tensor<4xf32>) -> tensor<f32>
      %2 = nn.gradient %1 of "w" : (tensor<f32>) -> tensor<4xf32>
      return %1, %2 : tensor<f32>, tensor<4xf32>
    }
    ```
  }];
  let options = [
    Option<"loss", "loss", "std::string", /*default=*/"\"0\"",
           "the output that is differentiated: its position or its name">,
    ListOption<"parameters", "parameters", "std::string",
               "shell patterns of names of parameters; all where empty">,
    ListOption<"frozen", "frozen", "std::string",
               "names of parameters that have no gradient: buffers, and parameters that are not "
               "trained">];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

def DifferentiateGradientsPass : Pass<"differentiate-gradients", "::mlir::ModuleOp"> {
  let summary = "replace gradients by the ops of backward passes";
  let description = [{
    Replaces each `nn.gradient` by the ops of a backward pass, which all gradients of one loss
    share. The ops are behind the forward pass. Each has the location of the op that it
    belongs to, and `nn.backward` if it has operands, which `recompute` reads and removes. Only
    cotangents of floats that depend on such a parameter, and that the loss depends on, are
    computed.

    The cotangent of a value that carries `dist.sharding` carries it, too, without the axes of
    a partial sum. So does the gradient of a parameter. The gradient of a parameter of which
    the function has parts (`nn.parameter_offsets`) is joined from theirs. A parameter that the
    loss does not depend on has a gradient of zeros; the decision log has its name.

    It is an error if the loss depends on none of the parameters, or through an op that
    cannot be differentiated.

    Then replaces each `nn.stop_gradient` by its operand, unless the op carries a sharding, and
    each `nn.with_derivative` by its value. An op from which a stated derivative is computed
    moves into the backward pass if nothing else reads it.
    Guarantees that no op is an `nn.gradient` or an `nn.with_derivative`.

    Before:
    ```mlir
    func.func @main(%x: tensor<4xf32>, %w: tensor<4xf32> {nn.parameter = "w"})
        -> (tensor<f32>, tensor<4xf32>) {
      %0 = nn.mul %x, %w : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      %1 = nn.reduce sum %0 dims [0] : (tensor<4xf32>) -> tensor<f32>
      %2 = nn.gradient %1 of "w" : (tensor<f32>) -> tensor<4xf32>
      return %1, %2 : tensor<f32>, tensor<4xf32>
    }
    ```
    After:
    ```mlir
    func.func @main(%x: tensor<4xf32>, %w: tensor<4xf32> {nn.parameter = "w"})
        -> (tensor<f32>, tensor<4xf32>) {
      %0 = nn.mul %x, %w : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      %1 = nn.reduce sum %0 dims [0] : (tensor<4xf32>) -> tensor<f32>
      %one = nn.constant dense<1.0> : tensor<f32>
      %r = nn.reshape %one {nn.backward} : (tensor<f32>) -> tensor<1xf32>
      %b = nn.broadcast %r {nn.backward} : (tensor<1xf32>) -> tensor<4xf32>
      %2 = nn.mul %b, %x {nn.backward} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      return %1, %2 : tensor<f32>, tensor<4xf32>
    }
    ```
  }];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

#endif
