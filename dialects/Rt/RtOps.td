//===- RtOps.td - launches, streams and buffers -------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_RT_RTOPS_TD
#define MESHWRIGHT_DIALECTS_RT_RTOPS_TD

include "meshwright/dialects/Dist/OpTraits.td"
include "meshwright/dialects/Rt/RtDialect.td"
include "mlir/IR/EnumAttr.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

class Rt_Op<string mnemonic, list<Trait> traits = []>
    : Op<Rt_Dialect, mnemonic, !listconcat([Dist_Structural], traits)>;

/// A launch is one entry of the list that each rank runs. Only ops in the block of the
/// function itself have an order and offsets.
def Rt_OfFunction : HasParent<"::mlir::func::FuncOp">;

def Rt_Tensor : StaticShapeTensorOf<[AnyType]>;

def Rt_FutureType : TypeDef<Rt_Dialect, "Future"> {
  let mnemonic = "future";
  let summary = "the results of a collective that has started";
  let description = [{
    ```mlir
    !rt.future<tensor<4x32xf32>, tensor<4xf32>>
    ```
  }];
  let parameters = (ins ArrayRefParameter<"::mlir::Type">:$types);
  let assemblyFormat = "`<` $types `>`";
  let genVerifyDecl = 1;
}

def Rt_PackingAttr : AttrDef<Rt_Dialect, "Packing"> {
  let mnemonic = "packing";
  let summary = "how a parameter is stored for the kernels that read it";
  let description = [{
    A matrix of `k` x `n`, or of n x k if the parameter is `transposed`, is stored
    in panels of `panel` columns, with `group` consecutive rows together, a step. The steps are
    rounded up to a multiple of four (`mw_rt_packing`). A parameter of three dimensions is a `batch` of
    matrices, whose panels follow one another.

    ```mlir
    #rt.packing<k = 64, n = 96, transposed = true, panel = 32, group = 2>
    #rt.packing<k = 64, n = 96, panel = 32, batch = 8>
    ```
  }];
  let parameters = (ins "int64_t":$k, "int64_t":$n, DefaultValuedParameter<"bool", "false">:$transposed,
                        "int64_t":$panel, DefaultValuedParameter<"int64_t", "1">:$group,
                        DefaultValuedParameter<"int64_t", "1">:$batch);
  let assemblyFormat = "`<` struct(params) `>`";
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    /// Bytes of the matrices of this form with elements of a type, padding included.
    int64_t getBytes(::mlir::Type element) const;
  }];
}

def Rt_PrepareTime : I32EnumAttr<"PrepareTime", "when a weight is brought to the form of its readers", [
    I32EnumAttrCase<"Load", 0, "load">, I32EnumAttrCase<"Update", 1, "update">,
    I32EnumAttrCase<"Use", 2, "use">]> {
  let cppNamespace = "::meshwright::rt";
}

def Rt_PrepareOp : Rt_Op<"prepare", [Pure, Dist_KeepsWeight]> {
  let summary = "brings a weight from its stored form to the form that its kernels read";
  let description = [{
    Performs the links between the two forms that need no other rank: a cast between f32, bf16 and
    f16, if the result has another element type, and a packing, the same value in another order in
    memory. Only kernels that know the packing may read a packed weight. A parameter may also be brought
    to the form in which it travels (`dist.encode`), at load.

    `at` says when:
    - `load`: once for a parameter, before the first call;
    - `update`: whenever a trained state has another value, before a kernel reads it;
    - `use`: in the call, where the op stands. It is the only op of a kernel, and packs any value,
      such as a weight that was gathered just before. A weight in the form in which it travels is
      decoded, too.

    The first two are no work of the entry: no launch performs them. Their operand is an argument of
    the function or a view of one; of a view only its own elements are prepared.

    ```mlir
    %1 = rt.prepare %w <k = 64, n = 96, transposed = true, panel = 32> at load : tensor<96x64xf32>
    %2 = rt.prepare %v at update : tensor<96x64xf32> -> tensor<96x64xbf16>
    %5 = rt.prepare %w at load : tensor<96x64xf32> -> tensor<96x64xf8E4M3FN, #dist.form<mxfp8 along 1>>
    %3 = rt.kernel %gathered : (tensor<96x64xf32>) -> tensor<96x64xf32> {
    ^bb0(%a: tensor<96x64xf32>):
      %4 = rt.prepare %a <k = 64, n = 96, transposed = true, panel = 32> at use : tensor<96x64xf32>
      rt.yield %4 : tensor<96x64xf32>
    }
    ```
  }];
  let arguments = (ins Rt_Tensor:$weight, OptionalAttr<Rt_PackingAttr>:$packing, Rt_PrepareTime:$time);
  let results = (outs Rt_Tensor:$result);
  let assemblyFormat = [{
    $weight custom<Form>($packing, $time) attr-dict `:` custom<FormTypes>(type($weight), type($result))
  }];
  let extraClassDeclaration = [{
    /// Returns true if a cast from and to this type can be prepared.
    static bool isCastable(::mlir::Type element);
  }];
  let hasVerifier = 1;
}

def Rt_KernelOp : Rt_Op<"kernel", [Rt_OfFunction, IsolatedFromAbove, SingleBlock, RecursiveMemoryEffects]> {
  let summary = "one launch on the compute stream";
  let description = [{
    The region says what is computed: ops on tensors that become one kernel, or a
    single op that the runtime performs. Its arguments are the operands.

    `at` has the offset of each result in the arena, in bytes. A result may have the
    offset of an operand that no later op reads (see `--plan-buffers`).

    `over` has a name for each result: the state whose new value it is, and over which the
    kernel writes it, or an empty name. Such a result has no place in the arena. If the kernel
    replaces rows of the state, `at` has the offset of the rows that it replaces in the log of
    the state.

    With `counted_by` the last element of that operand is the number of rows of each result that exist, which are its
    first ones. Rows behind them need not be computed, and are never read.

    ```mlir
    %1 = rt.kernel %0, %x at [0] : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32> {
    ^bb0(%a: tensor<4x8xf32>, %b: tensor<4x8xf32>):
      %2 = nn.add %a, %b : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
      %3 = nn.relu %2 : tensor<4x8xf32>
      rt.yield %3 : tensor<4x8xf32>
    }
    ```
  }];
  let arguments = (ins Variadic<Rt_Tensor>:$inputs, OptionalAttr<DenseI64ArrayAttr>:$offsets,
                       OptionalAttr<StrArrayAttr>:$over, OptionalAttr<I64Attr>:$counted_by);
  let results = (outs Variadic<Rt_Tensor>:$outputs);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "($inputs^)? (`at` $offsets^)? (`over` $over^)? (`counted_by` $counted_by^)? attr-dict-with-keyword `:` functional-type($inputs, $outputs) $body";
  let hasVerifier = 1;
  let hasRegionVerifier = 1;
  let extraClassDeclaration = [{
    ::mlir::Block &getBlock() { return getBody().front(); }
    /// The values in the region that become the results.
    ::mlir::OperandRange getYielded() { return getBlock().getTerminator()->getOperands(); }
    /// The ops, without the terminator.
    auto getOps() { return getBlock().without_terminator(); }
    /// The name of the state that the kernel writes a result over; null if there is none.
    ::mlir::StringAttr getOverState(unsigned result) {
      auto state = getOver() ? ::mlir::cast<::mlir::StringAttr>((*getOver())[result])
                             : ::mlir::StringAttr();
      return state && !state.empty() ? state : ::mlir::StringAttr();
    }
  }];
}

def Rt_StartOp : Rt_Op<"start", [Rt_OfFunction, IsolatedFromAbove, SingleBlock]> {
  let summary = "hands a collective to a communication stream";
  let description = [{
    The region holds one collective. Between the start and its `rt.wait` no launch may
    write the operands, or read or write the results, which are at offset `at` in the
    arena. Streams count from 1; the collectives of a stream run in order and have one role.

    ```mlir
    %f = rt.start %0 stream 1 at [128] : (tensor<4x8xf32>) -> !rt.future<tensor<4x32xf32>> {
    ^bb0(%a: tensor<4x8xf32>):
      %2 = dist.all_gather %a axes ["tp"] dims [1] : (tensor<4x8xf32>) -> tensor<4x32xf32>
      rt.yield %2 : tensor<4x32xf32>
    }
    %1 = rt.wait %f : !rt.future<tensor<4x32xf32>>
    ```
  }];
  let arguments = (ins Variadic<Rt_Tensor>:$inputs, I64Attr:$stream,
                       OptionalAttr<DenseI64ArrayAttr>:$offsets);
  let results = (outs Rt_FutureType:$future);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "($inputs^)? `stream` $stream (`at` $offsets^)? attr-dict-with-keyword `:` functional-type($inputs, $future) $body";
  let hasVerifier = 1;
  let hasRegionVerifier = 1;
  let extraClassDeclaration = [{
    ::mlir::Block &getBlock() { return getBody().front(); }
    ::mlir::OperandRange getYielded() { return getBlock().getTerminator()->getOperands(); }
    /// Null only before verification.
    dist::CollectiveOpInterface getCollective() {
      return ::llvm::dyn_cast<dist::CollectiveOpInterface>(getBlock().front());
    }
  }];
}

def Rt_WaitOp : Rt_Op<"wait", [Rt_OfFunction, InferTypeOpAdaptor]> {
  let summary = "waits for a collective and gives its results";
  let description = [{
    Each start has exactly one wait.

    ```mlir
    %1 = rt.wait %f : !rt.future<tensor<4x32xf32>>
    ```
  }];
  let arguments = (ins Rt_FutureType:$future);
  let results = (outs Variadic<Rt_Tensor>:$outputs);
  let assemblyFormat = "$future attr-dict `:` qualified(type($future))";
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    StartOp getStart() { return getFuture().getDefiningOp<StartOp>(); }
  }];
}

def Rt_GraphBeginOp : Rt_Op<"graph_begin", [Rt_OfFunction]> {
  let summary = "begins launches that a device may record and repeat";
  let description = [{
    The launches up to the next `rt.graph_end` need nothing of the host, so a device may record them
    as one graph and launch that in later calls (see `--plan-graphs`). All collectives that start
    between the two are waited for between them.

    ```mlir
    rt.graph_begin
    ```
  }];
  let assemblyFormat = "attr-dict";
}

def Rt_GraphEndOp : Rt_Op<"graph_end", [Rt_OfFunction]> {
  let summary = "ends launches that a device may record and repeat";
  let description = [{
    ```mlir
    rt.graph_end
    ```
  }];
  let assemblyFormat = "attr-dict";
}

def Rt_YieldOp : Rt_Op<"yield", [Pure, Terminator, ParentOneOf<["KernelOp", "StartOp"]>]> {
  let summary = "ends a launch's region with its results";
  let description = [{
    ```mlir
    rt.yield %1, %2 : tensor<4x8xf32>, tensor<4xf32>
    ```
  }];
  let arguments = (ins Variadic<Rt_Tensor>:$values);
  let assemblyFormat = "attr-dict ($values^ `:` type($values))?";
}

#endif
