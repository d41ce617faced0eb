//===- RequestGradients.cpp - gradients as results of a program -----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Writer.h"
#include "meshwright/lib/Support/ElementTypes.h"
#include "meshwright/lib/Weights/Weights.h"
#include "meshwright/passes/differentiate/Passes.h"

#include "llvm/ADT/MapVector.h"
#include "llvm/Support/GlobPattern.h"

namespace meshwright {
#define GEN_PASS_DEF_REQUESTGRADIENTSPASS
#include "meshwright/passes/differentiate/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using nn::NnDialect;

namespace {

/// A parameter of a function, which may have only parts of the stored tensor.
struct Parameter {
  SmallVector<StringRef> names;
  Type element;
  SmallVector<int64_t> shape;
  Location loc;
};

class Requester {
public:
  Requester(func::FuncOp func, StringRef loss, ArrayRef<std::string> patterns,
            ArrayRef<std::string> frozen)
      : func(func), loss(loss), patterns(patterns), frozen(frozen) {}
  LogicalResult run();

private:
  void collect();
  FailureOr<Value> findLoss();
  LogicalResult select(llvm::SmallVectorImpl<StringAttr> &selected);

  func::FuncOp func;
  StringRef loss;
  ArrayRef<std::string> patterns, frozen;
  llvm::MapVector<StringAttr, Parameter> parameters;
};

} // namespace

void Requester::collect() {
  WeightFinder weights(func);
  for (BlockArgument argument : func.getArguments()) {
    std::optional<Weight> weight = weights.find(argument);
    if (!weight)
      continue;
    auto type = cast<RankedTensorType>(argument.getType());
    SmallVector<int64_t> end(type.getShape());
    if (weight->offsets)
      for (auto [size, offset] : llvm::zip_equal(end, weight->offsets.asArrayRef()))
        size += offset;
    auto [known, isNew] = parameters.insert(
        {weight->name, Parameter{{}, type.getElementType(), end, argument.getLoc()}});
    Parameter &parameter = known->second;
    if (isNew) {
      for (StringAttr own : weight->getNames())
        parameter.names.push_back(own.getValue());
      continue;
    }
    for (auto [size, other] : llvm::zip(parameter.shape, end))
      size = std::max(size, other);
  }
}

FailureOr<Value> Requester::findLoss() {
  SmallVector<std::pair<StringRef, Value>> outputs;
  Operation *terminator = func.front().getTerminator();
  for (auto [i, value] : llvm::enumerate(terminator->getOperands()))
    if (!func.getResultAttr(i, NnDialect::kStateAttr)) {
      auto name = func.getResultAttrOfType<StringAttr>(i, NnDialect::kOutputAttr);
      outputs.push_back({name ? name.getValue() : StringRef(), value});
    }
  size_t position = outputs.size();
  bool isPosition = !loss.getAsInteger(10, position);
  auto found = isPosition && position < outputs.size()
                   ? outputs.begin() + position
                   : llvm::find_if(outputs, [&](auto &output) { return output.first == loss; });
  if (found == outputs.end()) {
    InFlightDiagnostic error = emitError(func.getLoc())
                               << "'" << func.getName() << "' has no output '" << loss
                               << "' to differentiate: expected a position from 0 to "
                               << int64_t(outputs.size()) - 1 << ", or one of ";
    llvm::interleaveComma(outputs, error,
                          [&](auto &output) { error << "'" << output.first << "'"; });
    return LogicalResult(error);
  }
  auto type = cast<RankedTensorType>(found->second.getType());
  if (!isa<FloatType>(type.getElementType()))
    return LogicalResult(emitError(found->second.getLoc())
                         << "loss '" << found->first << "': expected a float, got the integer type "
                         << type.getElementType());
  if (type.getNumElements() != 1)
    return LogicalResult(emitError(found->second.getLoc())
                         << "loss '" << found->first << "': expected a scalar, got " << type);
  return found->second;
}

LogicalResult Requester::select(SmallVectorImpl<StringAttr> &selected) {
  SmallVector<llvm::GlobPattern> globs;
  SmallVector<bool> isUsed(patterns.size(), false);
  for (StringRef pattern : patterns) {
    auto glob = llvm::GlobPattern::create(pattern);
    if (!glob)
      return emitError(func.getLoc()) << "pattern '" << pattern
                                      << "' of parameters: " << toString(glob.takeError());
    globs.push_back(std::move(*glob));
  }
  for (auto &[name, parameter] : parameters) {
    bool isFloat = isa<FloatType>(parameter.element), isSelected = false;
    bool isFrozen = llvm::is_contained(frozen, name.getValue());
    for (auto [i, glob] : llvm::enumerate(globs)) {
      if (llvm::none_of(parameter.names, [&glob = glob](StringRef own) { return glob.match(own); }))
        continue;
      bool isName = llvm::is_contained(parameter.names, StringRef(patterns[i]));
      if (!isFloat && isName)
        return emitError(parameter.loc)
               << "parameter '" << name.getValue()
               << "': expected a float to differentiate by, got the integer type "
               << parameter.element;
      isUsed[i] |= isFloat && !isFrozen;
      isSelected |= isFloat && !isFrozen;
    }
    if (isSelected)
      selected.push_back(name);
  }
  for (auto [pattern, used] : llvm::zip_equal(patterns, isUsed))
    if (!used)
      return emitError(func.getLoc())
             << "pattern '" << pattern << "' matches no parameter of float type of '"
             << func.getName() << "' that has a gradient";
  return success();
}

LogicalResult Requester::run() {
  if (!func.getBody().hasOneBlock())
    return func.emitOpError() << "expected one block, got " << func.getBody().getBlocks().size();
  collect();
  FailureOr<Value> value = findLoss();
  SmallVector<StringAttr> selected;
  if (failed(value) || failed(select(selected)))
    return failure();
  Operation *terminator = func.front().getTerminator();
  OpBuilder builder(terminator);
  unsigned index = 0;
  while (index < func.getNumResults() && !func.getResultAttr(index, NnDialect::kStateAttr))
    ++index;
  for (StringAttr name : selected) {
    const Parameter &parameter = parameters.find(name)->second;
    std::string output = ("grad." + name.getValue()).str();
    nn::Writer w(builder, parameter.loc);
    auto type = RankedTensorType::get(parameter.shape, getComputeType(parameter.element));
    Value gradient = nn::GradientOp::create(builder, parameter.loc, type, *value, name);
    NamedAttrList attrs;
    attrs.set(NnDialect::kOutputAttr, builder.getStringAttr(output));
    for (unsigned i = 0; i < func.getNumResults(); ++i)
      if (func.getResultAttr(i, NnDialect::kOutputAttr) == attrs.get(NnDialect::kOutputAttr))
        return emitError(func.getLoc()) << "'" << func.getName() << "' has an output '" << output
                                        << "' already";
    if (failed(func.insertResult(index, type, attrs.getDictionary(func.getContext()))))
      return failure();
    terminator->insertOperands(index++, gradient);
  }
  return success();
}

namespace {
struct RequestGradientsPass : meshwright::impl::RequestGradientsPassBase<RequestGradientsPass> {
  using RequestGradientsPassBase::RequestGradientsPassBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    SmallVector<FunctionOpInterface> entries = nn::getEntries(module);
    auto func = entries.empty() ? func::FuncOp() : dyn_cast<func::FuncOp>(*entries.front());
    if (!func || func->hasAttr(dist::DistDialect::kSpmdAttr)) {
      module.emitError("expected a module with a global function to differentiate");
      return signalPassFailure();
    }
    SmallVector<std::string> patterns(parameters.begin(), parameters.end());
    if (patterns.empty())
      patterns.push_back("*");
    SmallVector<std::string> without(frozen.begin(), frozen.end());
    if (failed(Requester(func, loss, patterns, without).run()))
      signalPassFailure();
  }
};
} // namespace
