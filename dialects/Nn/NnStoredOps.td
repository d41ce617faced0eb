//===- NnStoredOps.td - weights in 8 and 4 bits -------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A stored weight is a tensor of codes and a scale for each block of them.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_NN_NNSTOREDOPS_TD
#define MESHWRIGHT_DIALECTS_NN_NNSTOREDOPS_TD

include "meshwright/dialects/Nn/NnBase.td"

def Nn_CodeTensor : StaticShapeTensorOf<[Nn_Code]>;
/// Numbers that may scale codes.
def Nn_ScaleTensor : StaticShapeTensorOf<[Nn_Float, F8E8M0FNU, F8E4M3FN]>;

def Nn_DequantizeOp
    : Nn_Op<"dequantize", [Dist_Combines, Dist_KeepsWeight, AttrSizedOperandSegments,
                           DeclareOpInterfaceMethods<Dist_ExpandOpInterface, ["needsExpansion"]>],
            ["getFactorRule"]> {
  let summary = "the numbers that codes and their scales stand for";
  let description = [{
    `block` has the sizes of a block along the last dimensions of the codes. The scales have the
    number of blocks there, rounded up: the last block may be cut. Other dimensions are those of the
    codes. An element is the number of its code times the scale of its block, times `whole`, a scalar,
    computed in f32 (f64 for a result of f64), and rounds once. With a `table`, which has a number for
    each code, a code is an index into it. `parts` has the sizes of equal parts of blocks, of which shards are
    made (`--refine-blocks`). `packed` codes are bytes that hold two f4E2M1FN of the last
    dimension each, the even one in the low half; the schedule makes such bytes.

    ```mlir
    %w = nn.dequantize %c, %s {block = [128, 128]} : (tensor<576x512xf8E4M3FN>, tensor<5x4xf32>) -> tensor<576x512xbf16>
    %v = nn.dequantize %d, %e {block = [1, 32]} : (tensor<8x96x64xf4E2M1FN>, tensor<8x96x2xf8E8M0FNU>) -> tensor<8x96x64xf32>
    %u = nn.dequantize %f, %g, %h {block = [16, 16]} : (tensor<64x64xf4E2M1FN>, tensor<4x4xf8E4M3FN>, tensor<f32>) -> tensor<64x64xf32>
    %t = nn.dequantize %d, %e table %n {block = [1, 32]} : (tensor<8x96x64xf4E2M1FN>, tensor<8x96x2xf8E8M0FNU>, tensor<16xf32>) -> tensor<8x96x64xf32>
    ```
  }];
  let arguments = (ins Nn_CodeTensor:$codes, Nn_ScaleTensor:$scales, Optional<Nn_FloatTensor>:$whole,
                       Optional<Nn_FloatTensor>:$table, I64ArrayAttr:$block,
                       OptionalAttr<I64ArrayAttr>:$parts, UnitAttr:$packed);
  let results = (outs Nn_FloatTensor:$result);
  let assemblyFormat = [{
    $codes `,` $scales (`,` $whole^)? (`table` $table^)? attr-dict `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// The size of a block along each dimension of the codes: 1 along those that `block` leaves out.
    ::llvm::SmallVector<int64_t> getBlockSizes();
    /// The elements of each dimension of which shards are made: those of a block, or of equal parts of
    /// blocks that neither the end of the dimension nor `parts` cuts.
    ::llvm::SmallVector<int64_t> getPartSizes();
    /// The shape of the codes, counted one by one.
    ::llvm::SmallVector<int64_t> getCodeShape();
  }];
}

def Nn_WidenOp : Nn_ElementwiseOp<"widen", [Dist_Cheap], ["getFactorRule"]> {
  let summary = "the number of each code, or the code itself";
  let description = [{
    A result of floats has the numbers of codes, without scales. A result of integers has the codes:
    their bits, from 0 on. With `half`, the codes are bytes of i8, which hold a f4E2M1FN in each half,
    and `half` is 0 where the low one counts, else 1; both operands broadcast as NumPy's do.

    ```mlir
    %x = nn.widen %c : (tensor<4x8xf8E4M3FN>) -> tensor<4x8xf32>
    %y = nn.widen %b half %h : (tensor<4x8x1xi8>, tensor<2xi32>) -> tensor<4x8x2xf32>
    ```
  }];
  let arguments = (ins Nn_CodeTensor:$codes, Optional<StaticShapeTensorOf<[I32]>>:$half);
  let results = (outs StaticShapeTensorOf<[F32, I32]>:$result);
  let assemblyFormat = "$codes (`half` $half^)? attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

#endif
