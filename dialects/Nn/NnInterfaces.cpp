//===- NnInterfaces.cpp - work of ops, and roles of their operands --------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Support/TensorValues.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;

#include "meshwright/dialects/Nn/NnInterfaces.cpp.inc"

//===----------------------------------------------------------------------===//
// Work
//===----------------------------------------------------------------------===//

/// A multiplication and an addition for each element of the result and term of its sum.
static double countProducts(Value result, int64_t terms) {
  return 2.0 * double(typeOf(result).getNumElements()) * double(terms);
}

double MatmulOp::getFlops() {
  ArrayRef<int64_t> lhs = typeOf(getLhs()).getShape();
  return countProducts(getResult(), getTransposeLhs() ? lhs[lhs.size() - 2] : lhs.back());
}

double LinearOp::getFlops() {
  return countProducts(getResult(), typeOf(getInput()).getShape().back());
}

//===----------------------------------------------------------------------===//
// Roles of operands and results
//===----------------------------------------------------------------------===//

std::optional<unsigned> LinearOp::getBiasOperand() {
  return getBias() ? std::optional<unsigned>(2) : std::nullopt;
}

bool EmbeddingOp::takesOffset() { return true; }
std::optional<unsigned> EmbeddingOp::getOffsetOperand() {
  return getOffset() ? std::optional<unsigned>(2) : std::nullopt;
}
std::optional<unsigned> EmbeddingOp::getTableOperand() { return 1; }
unsigned EmbeddingOp::getIndexOperand() { return 0; }
int64_t EmbeddingOp::getTableDim() { return 0; }

std::optional<unsigned> GatherOp::getTableOperand() { return 0; }
unsigned GatherOp::getIndexOperand() { return 1; }
int64_t GatherOp::getTableDim() { return getDim(); }

std::optional<unsigned> TakeAlongOp::getTableOperand() { return 0; }
unsigned TakeAlongOp::getIndexOperand() { return 1; }
int64_t TakeAlongOp::getTableDim() { return getDim(); }

std::optional<unsigned> IndexCopyOp::getTableOperand() { return 0; }
unsigned IndexCopyOp::getIndexOperand() { return 1; }
int64_t IndexCopyOp::getTableDim() { return getDim(); }
bool IndexCopyOp::skipsMinusOne() { return getSkipsMinusOne(); }

std::optional<unsigned> CrossEntropyOp::getTableOperand() { return 0; }
unsigned CrossEntropyOp::getIndexOperand() { return 1; }
int64_t CrossEntropyOp::getTableDim() { return getDim(); }
