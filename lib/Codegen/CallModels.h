//===- CallModels.h - how calls describe ops --------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The model of an op that a device performs is a function that fills the structure of a call. The
// type of the structure is the kind of the call.
//
// This header is private to lib/Codegen.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_CALLMODELS_H
#define MESHWRIGHT_LIB_CODEGEN_CALLMODELS_H

#include "meshwright/lib/Codegen/RuntimeCalls.h"
#include "meshwright/lib/Support/ElementTypes.h"
#include "meshwright/lib/Support/TensorValues.h"

#include <functional>

namespace meshwright::lower {

/// The models, by op.
class CallModels {
public:
  struct Model {
    int64_t kind;
    std::function<mlir::LogicalResult(mlir::Operation *, RuntimeCall &)> describe;
  };

  /// The weight that an op reads: a tensor, or codes that an `nn.dequantize` beside it reads.
  enum class Weights { Plain, Codes };

  /// Adds the model of an op. `describe` fills the structure, adds the inputs, and appends the
  /// integers that follow the structure to the descriptor. It fails after an error at the op.
  template <typename OpT, typename What>
  void add(mlir::LogicalResult (*describe)(OpT op, What &what, RuntimeCall &call),
           Weights weights = Weights::Plain) {
    models[size_t(weights)][mlir::TypeID::get<OpT>()] = {
        kCallKind<What>, [describe](mlir::Operation *op, RuntimeCall &call) {
          What what = {};
          what.call.kind = kCallKind<What>;
          if (mlir::failed(describe(mlir::cast<OpT>(op), what, call)))
            return mlir::failure();
          Descriptor following = std::move(call.descriptor);
          call.descriptor.clear();
          append(call.descriptor, what);
          call.descriptor.append(following);
          return mlir::success();
        }};
  }
  /// Returns null if the op has no model.
  const Model *find(mlir::Operation *op) const {
    bool readsCodes = llvm::any_of(op->getOperands(), [](mlir::Value operand) {
      return bool(operand.getDefiningOp<nn::DequantizeOp>());
    });
    const Model *model = readsCodes ? find(op, Weights::Codes) : nullptr;
    return model ? model : find(op, Weights::Plain);
  }

private:
  const Model *find(mlir::Operation *op, Weights weights) const {
    auto found = models[size_t(weights)].find(op->getName().getTypeID());
    return found == models[size_t(weights)].end() ? nullptr : &found->second;
  }

  llvm::DenseMap<mlir::TypeID, Model> models[2];
};

// The models of the ops of each dialect, in the file of that name.
void addNnCalls(CallModels &models);
void addDistCalls(CallModels &models);
void addRtCalls(CallModels &models);

/// The type code of a value's elements.
inline int64_t codeOf(mlir::Value value) {
  return getTypeCode(elementOf(value));
}
/// The structure of the form that a tensor has.
mw_rt_form getFormCall(mlir::Type type);
/// The same for the rows that are decoded.
mw_rt_form getFormCall(dist::DecodeOp op);
/// The number of elements of a part of a shape.
inline int64_t countOf(llvm::ArrayRef<int64_t> sizes) {
  return mlir::ShapedType::getNumElements(sizes);
}

/// Fails, after an error, if a descriptor has no room for so many dimensions.
mlir::LogicalResult checkRank(mlir::Operation *op, int64_t rank);

/// The mesh of the op's function. Fails, after an error, if it has none.
mlir::FailureOr<dist::MeshAttr> getMesh(mlir::Operation *op);

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_CALLMODELS_H
