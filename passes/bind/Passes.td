//===- Passes.td - bind ------------------------------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_BIND_PASSES_TD
#define MESHWRIGHT_PASSES_BIND_PASSES_TD

include "mlir/Pass/PassBase.td"

def BindStatePass : Pass<"bind-state", "::mlir::ModuleOp"> {
  let summary = "turn reads and writes of state into arguments and results";
  let description = [{
    All reads of a state in a function become one argument, and its write becomes a
    result. Both carry `nn.state`, the name of the state, and its `dist.sharding` if it has
    one. They follow the function's own arguments and results, in the order of the states
    in the module. A function has neither for a state that it does not touch. A read that
    carries `dist.sharding` becomes a `dist.constrain` of the argument.

    A parameter that has the name of a state is trained: its argument, which stays an
    `nn.parameter` for the policies, is the state's argument. It is an error if a state has
    another name of a parameter, or is a parameter of which the function has parts: one of the
    two would not see the writes of the other.

    Guarantees that no op of a global function names a state. A module that is bound does
    not change.

    Before:
    ```mlir
    nn.state @steps {fill = 0 : i64} : tensor<i64>
    func.func @main(%x: tensor<4xf32> {nn.input = "x"}) -> (tensor<i64> {nn.output = "n"}) {
      %0 = nn.read @steps : tensor<i64>
      %one = nn.constant dense<1> : tensor<i64>
      %1 = nn.add %0, %one : (tensor<i64>, tensor<i64>) -> tensor<i64>
      nn.write @steps, %1 : tensor<i64>
      return %0 : tensor<i64>
    }
    ```
    After:
    ```mlir
    nn.state @steps {fill = 0 : i64} : tensor<i64>
    func.func @main(%x: tensor<4xf32> {nn.input = "x"}, %0: tensor<i64> {nn.state = "steps"})
        -> (tensor<i64> {nn.output = "n"}, tensor<i64> {nn.state = "steps"}) {
      %one = nn.constant dense<1> : tensor<i64>
      %1 = nn.add %0, %one : (tensor<i64>, tensor<i64>) -> tensor<i64>
      return %0, %1 : tensor<i64>, tensor<i64>
    }
    ```
  }];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

def BindSizesPass : Pass<"bind-sizes", "::mlir::ModuleOp"> {
  let summary = "give ops that count elements the run-time sizes of their dimensions";
  let description = [{
    A dimension may have fewer true elements than its type says: `nn.sizes` on an argument, and
    `nn.cut`, name the argument that has their number. Elements behind it are padding, which most
    ops do not read and `--partition` hides from sums. Three kinds of ops count elements, and
    are told where the true ones end: a mean becomes a sum divided by the number, attention sees no key
    behind it, and a running sum runs over zeros behind it.

    Guarantees that no such op of a global function counts elements of a dimension with a run-time
    size. A module that is bound does not change.

    Before:
    ```mlir
    func.func @main(%x: tensor<4x24x8xf32> {nn.input = "x", nn.sizes = ["", "tokens", ""]},
                    %n: tensor<i64> {nn.input = "size.tokens", nn.size = "tokens"})
        -> (tensor<4x8xf32> {nn.output = "y"}) {
      %0 = nn.reduce mean %x dims [1] : (tensor<4x24x8xf32>) -> tensor<4x8xf32>
      return %0 : tensor<4x8xf32>
    }
    ```
    After:
    ```mlir
    func.func @main(%x: tensor<4x24x8xf32> {nn.input = "x", nn.sizes = ["", "tokens", ""]},
                    %n: tensor<i64> {nn.input = "size.tokens", nn.size = "tokens"})
        -> (tensor<4x8xf32> {nn.output = "y"}) {
      %0 = nn.reduce sum %x dims [1] : (tensor<4x24x8xf32>) -> tensor<4x8xf32>
      %1 = nn.cast %n : (tensor<i64>) -> tensor<f32>
      %2 = nn.div %0, %1 : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
      return %2 : tensor<4x8xf32>
    }
    ```
  }];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

def ReleaseParametersPass : Pass<"release-parameters", "::mlir::ModuleOp"> {
  let summary = "make trained parameters plain state";
  let description = [{
    Takes `nn.parameter` and what belongs to it off the arguments that are a state, too. Policies
    and gradients find weights by `nn.parameter`; behind them, a trained parameter is a state
    like any other.

    Before:
    ```mlir
    nn.state @w : tensor<6x8xf32>
    func.func @step(%w: tensor<6x8xf32> {nn.parameter = "w", nn.state = "w"}) { return }
    ```
    After:
    ```mlir
    nn.state @w : tensor<6x8xf32>
    func.func @step(%w: tensor<6x8xf32> {nn.state = "w"}) { return }
    ```
  }];
  let dependentDialects = ["::meshwright::nn::NnDialect"];
}

def PackElementsPass : Pass<"pack-elements", "::mlir::ModuleOp"> {
  let summary = "make bytes of elements that share bytes";
  let description = [{
    Two elements of f4E2M1FN share a byte, along the last dimension: the even one is its low half.
    A tensor of them becomes the tensor of i8 that has the same bytes, everywhere in the module.
    Starts, limits and sizes along the last dimension count bytes then.

    Guarantees the same bytes in each argument, result and state. It is an error if an op takes
    one of two elements that share a byte. Programs are compiled so, and keep their types.

    Before:
    ```mlir
    func.func @main(%x: tensor<4x8xf4E2M1FN> {nn.input = "x"})
        -> (tensor<5x4xf4E2M1FN> {nn.output = "y"}) {
      %one = nn.constant dense<1.0> : tensor<1x4xf4E2M1FN>
      %0 = nn.slice %x starts [0, 2] limits [4, 6] strides [1, 1] : (tensor<4x8xf4E2M1FN>) -> tensor<4x4xf4E2M1FN>
      %1 = nn.concat %0, %one dim 0 : (tensor<4x4xf4E2M1FN>, tensor<1x4xf4E2M1FN>) -> tensor<5x4xf4E2M1FN>
      return %1 : tensor<5x4xf4E2M1FN>
    }
    ```
    After:
    ```mlir
    func.func @main(%x: tensor<4x4xi8> {nn.input = "x"}) -> (tensor<5x2xi8> {nn.output = "y"}) {
      %one = nn.constant dense<34> : tensor<1x2xi8>
      %0 = nn.slice %x starts [0, 1] limits [4, 3] strides [1, 1] : (tensor<4x4xi8>) -> tensor<4x2xi8>
      %1 = nn.concat %0, %one dim 0 : (tensor<4x2xi8>, tensor<1x2xi8>) -> tensor<5x2xi8>
      return %1 : tensor<5x2xi8>
    }
    ```
  }];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

def WidenStoredPass : Pass<"widen-stored", "::mlir::ModuleOp"> {
  let summary = "make parameters of weights that are widened at load";
  let description = [{
    A float that follows from parameters alone, among them codes (f8E4M3FN, f4E2M1FN, i8), becomes a
    parameter of its own. The chain ends at the last value that has no more elements than the codes
    and that ops on other values read: behind a cast to the model's type, before a repetition. It has the
    name of the codes, unless a function still reads them.

    Plans with `stored-weights=widen` begin so. They keep the chain as a program of its own, which computes
    the parameter from the stored ones at load. Parameters that have a layout stay as they are stored.

    Before:
    ```mlir
    func.func @main(%x: tensor<2x64xbf16> {nn.input = "x"}, %c: tensor<32x64xf8E4M3FN> {nn.parameter = "w"},
                    %s: tensor<2x2xf32> {nn.parameter = "w.scale"}) -> (tensor<2x32xbf16> {nn.output = "y"}) {
      %w = nn.dequantize %c, %s {block = [16, 32]} : (tensor<32x64xf8E4M3FN>, tensor<2x2xf32>) -> tensor<32x64xbf16>
      %y = nn.linear %x, %w : (tensor<2x64xbf16>, tensor<32x64xbf16>) -> tensor<2x32xbf16>
      return %y : tensor<2x32xbf16>
    }
    ```
    After:
    ```mlir
    func.func @main(%x: tensor<2x64xbf16> {nn.input = "x"}, %w: tensor<32x64xbf16> {nn.parameter = "w"})
        -> (tensor<2x32xbf16> {nn.output = "y"}) {
      %y = nn.linear %x, %w : (tensor<2x64xbf16>, tensor<32x64xbf16>) -> tensor<2x32xbf16>
      return %y : tensor<2x32xbf16>
    }
    ```
  }];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

def TieEntriesPass : Pass<"tie-entries", "::mlir::ModuleOp"> {
  let summary = "give each parameter and state the same sharding in all functions";
  let description = [{
    If one place of a parameter or a state carries `dist.sharding`, all of its places get it:
    the arguments of that name in all functions, the results that write the state, and the
    `nn.state`. Two places that carry different ones are an error that names both.

    With `keep-first` the first place in the module holds, and the decision log has the others.
    The pipeline runs the pass so behind the policies, which annotate one function after the
    other and may choose differently. The function that wants another layout reshards.

    Before:
    ```mlir
    #rows = #dist.sharding<@mesh, [{"tp"}, {} ]>
    dist.mesh @mesh = <["tp"=2]>
    func.func @prefill(%x: tensor<4x8xf32> {nn.input = "x"},
                       %w: tensor<6x8xf32> {nn.parameter = "w", dist.sharding = #rows}) { return }
    func.func @decode(%x: tensor<1x8xf32> {nn.input = "x"},
                      %w: tensor<6x8xf32> {nn.parameter = "w"}) { return }
    ```
    After:
    ```mlir
    #rows = #dist.sharding<@mesh, [{"tp"}, {} ]>
    dist.mesh @mesh = <["tp"=2]>
    func.func @prefill(%x: tensor<4x8xf32> {nn.input = "x"},
                       %w: tensor<6x8xf32> {nn.parameter = "w", dist.sharding = #rows}) { return }
    func.func @decode(%x: tensor<1x8xf32> {nn.input = "x"},
                      %w: tensor<6x8xf32> {nn.parameter = "w", dist.sharding = #rows}) { return }
    ```
  }];
  let options = [Option<"keepFirst", "keep-first", "bool", /*default=*/"false",
                        "resolve conflicts in favour of the first place">];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

#endif
