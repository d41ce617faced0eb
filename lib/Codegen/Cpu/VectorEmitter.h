//===- VectorEmitter.h - vectors and workspaces of kernels ------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_CPU_VECTOREMITTER_H
#define MESHWRIGHT_LIB_CODEGEN_CPU_VECTOREMITTER_H

#include "meshwright/lib/Codegen/AttentionScores.h"
#include "meshwright/lib/Codegen/Elements.h"
#include "meshwright/lib/Codegen/LoopEmitter.h"

#include "mlir/Dialect/Vector/IR/VectorOps.h"

namespace meshwright::lower {

/// The base of emitters of kernels of attention: vectors of a processor's width, and the regions of
/// a workspace.
class VectorEmitter : protected LoopEmitter {
public:
  /// The bytes of the workspace of each thread.
  int64_t getWorkspaceBytes() const { return workspaceBytes; }

protected:
  /// Vectors have so many elements of `compute`; memory has elements of `element`.
  VectorEmitter(mlir::MLIRContext *context, int64_t lanes, Type element, Type compute)
      : LoopEmitter(context), lanes(lanes), element(element), compute(compute) {}

  //===--------------------------------------------------------------------===//
  // Workspace
  //===--------------------------------------------------------------------===//

  /// A part of the workspace.
  struct Region {
    int64_t offset = 0, count = 0;
    Type type;
    Value buffer;
  };
  /// Reserves a region of `count` elements of `type`.
  void reserve(Region &region, int64_t count, Type type);
  /// Creates the buffers of all regions.
  void bindWorkspace(Value workspace);

  //===--------------------------------------------------------------------===//
  // Vectors
  //===--------------------------------------------------------------------===//

  mlir::VectorType getVector(int64_t size, Type type) { return mlir::VectorType::get(size, type); }
  mlir::VectorType getVector() { return getVector(lanes, compute); }
  Value getScalar(double value);
  Value getSplat(double value);
  Value splat(Value scalar);
  /// a b + c.
  Value fma(Value a, Value c, Value d);
  /// a b + c for each pair of bf16 of `a` and `c`.
  Value dot(Value a, Value c, Value d);
  /// `size` lanes at an index.
  Value load(Value buffer, Value index, int64_t size);
  Value load(Value buffer, Value index) { return load(buffer, index, lanes); }
  Value loadScalar(Value buffer, Value index);
  void store(Value value, Value buffer, Value index);
  /// Casts to and from the type of arithmetic.
  Value widen(Value value) { return emitCast(b, value, compute); }
  Value narrow(Value value) { return emitCast(b, value, element); }
  /// Removes lanes, or adds lanes of zeros.
  Value resize(Value vector, int64_t size);
  Value shuffle(Value a, Value c, ArrayRef<int64_t> lanes);
  /// The larger of the two, or `c` if one is NaN.
  Value larger(Value a, Value c);
  /// Transposes as many vectors as each has lanes.
  void transpose(SmallVector<Value> &vectors);
  /// Lane i of the result is the sum over vector i.
  Value sumEach(SmallVector<Value> vectors);
  Value exp2(Value x) { return emitExp2(b, x); }
  /// The maximum to subtract: zero if there is no score.
  Value guard(Value maximum);
  /// 1 / sum, zero for zero.
  Value invert(Value sum);

  int64_t lanes;
  Type element, compute;

private:
  SmallVector<Region *> regions;
  int64_t workspaceBytes = 0;
};

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_CPU_VECTOREMITTER_H
