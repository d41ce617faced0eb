//===- NnCall.td - the steps of a call ----------------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_NN_NNCALL_TD
#define MESHWRIGHT_DIALECTS_NN_NNCALL_TD

include "meshwright/dialects/Nn/NnDialect.td"
include "mlir/IR/AttrTypeBase.td"

def Nn_CallStepAttr : AttrDef<Nn_Dialect, "CallStep"> {
  let mnemonic = "step";
  let summary = "a step of a call: runs of one function";
  let description = [{
    The step runs the function on each of its chunks in turn: a chunk of an input or an output is a
    contiguous part of its dimension 0. The function runs on a chunk `times` times, or until its
    output `until` is true; each run replaces the outputs of the one before.

    ```mlir
    #nn.step<@once>
    #nn.step<@accumulate chunks 4>
    #nn.step<@refine times 100 until "converged">
    ```
  }];
  let parameters = (ins "::mlir::FlatSymbolRefAttr":$function,
                        DefaultValuedParameter<"int64_t", "1">:$chunks,
                        DefaultValuedParameter<"int64_t", "1">:$times,
                        OptionalParameter<"::mlir::StringAttr">:$until);
  let assemblyFormat = [{
    `<` $function (`chunks` $chunks^)? (`times` $times^)? (`until` $until^)? `>`
  }];
  let genVerifyDecl = 1;
}

def Nn_CallAttr : AttrDef<Nn_Dialect, "Call"> {
  let mnemonic = "call";
  let summary = "the steps of a call of an entry, in order";
  let description = [{
    The last step is the entry itself, which runs once.

    ```mlir
    #nn.call<[<@accumulate chunks 4>, <@update>]>
    ```
  }];
  let parameters = (ins ArrayRefParameter<"::meshwright::nn::CallStepAttr">:$steps);
  let assemblyFormat = "`<` `[` $steps `]` `>`";
  let genVerifyDecl = 1;
}

#endif
