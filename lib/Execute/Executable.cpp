//===- Executable.cpp - compile in process and run on ranks ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Executable.h"

#include "Jit.h"

#include "meshwright/dialects/Dist/Layout.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/passes/lower/Lower.h"
#include "meshwright/runtime/include/Sharding.h"
#include "meshwright/runtime/include/World.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

#include <cstdlib>
#include <cstring>
#include <mutex>

using namespace mlir;

namespace meshwright {

namespace {

struct FreeDeleter {
  void operator()(char *data) const { std::free(data); }
};
/// Memory aligned for any vector.
using Memory = std::unique_ptr<char, FreeDeleter>;

Memory allocate(int64_t bytes) {
  constexpr int64_t alignment = 64;
  bytes = llvm::alignTo(std::max<int64_t>(bytes, 1), alignment);
  return Memory(static_cast<char *>(std::aligned_alloc(alignment, bytes)));
}

/// An argument or result, with its layout.
struct Slot {
  enum Kind { Input, Parameter, Output } kind;
  /// Index in the list of its kind.
  size_t index;
  rt::ShardedLayout layout;
  int64_t localBytes = 0;
  /// Ranks whose part of a sum is zero: all but the first along the axes that an
  /// input is unreduced over. Empty where there are none.
  std::vector<bool> isZero = {};
};

std::string formatBytes(int64_t bytes) {
  const char *units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = bytes;
  int unit = 0;
  for (; value >= 1024 && unit < 5; ++unit)
    value /= 1024;
  char text[32];
  std::snprintf(text, sizeof(text), unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
  return text;
}

} // namespace

struct Executable::State {
  std::vector<ProgramValue> inputs, parameters, outputs;
  /// Program order.
  std::vector<Slot> arguments, results;
  int64_t numRanks = 1;
  int64_t arenaBytes = 0;
  std::vector<std::vector<char>> constants;
  std::unique_ptr<CompiledCode> code;
  std::unique_ptr<rt::World> world;
  /// Held by a run.
  std::mutex running;
  std::vector<ProbedValue> probed;

  /// The stored tensors of parameters.
  std::vector<HostTensor> stored;
  std::vector<bool> given;
  /// What ranks own, for each argument and rank; empty where they read the
  /// host's array.
  std::vector<std::vector<Memory>> shards;
  std::vector<bool> sharded;
  std::vector<Memory> arenas;

  LogicalResult readSignature(func::FuncOp main);
  LogicalResult readValue(func::FuncOp main, Type type, DictionaryAttr attrs, const Twine &what,
                          ProgramValue &value, Slot &slot);
  bool readsInPlace(const Slot &slot, const HostTensor &tensor, bool isBox) const;
  int64_t missingBytes(ArrayRef<HostTensor> given) const;
  const HostTensor &getTensor(const Slot &slot, ArrayRef<HostTensor> given) const {
    return slot.kind == Slot::Input ? given[slot.index] : stored[slot.index];
  }
  llvm::Error checkInputs(ArrayRef<HostTensor> given) const;
  llvm::Error prepare(ArrayRef<HostTensor> given);
};

//===----------------------------------------------------------------------===//
// Signature
//===----------------------------------------------------------------------===//

static rt::ShardedLayout convertLayout(const dist::Layout &layout, dist::MeshAttr mesh) {
  rt::ShardedLayout result;
  for (const dist::DimLayout &dim : layout.dims) {
    auto &factors = result.dims.emplace_back();
    for (const dist::LayoutFactor &factor : dim.factors) {
      rt::ShardedFactor converted{factor.size, factor.padded, {}};
      for (const dist::Axis &axis : factor.axes) {
        auto &to = converted.axes.axes[converted.axes.count++];
        to.stride = getRankStride(axis, mesh);
        to.size = axis.size;
      }
      factors.push_back(converted);
    }
  }
  return result;
}

LogicalResult Executable::State::readValue(func::FuncOp main, Type type, DictionaryAttr attrs,
                                           const Twine &what, ProgramValue &value, Slot &slot) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  if (!tensor || !tensor.hasStaticShape() || getTypeCode(tensor.getElementType()) < 0)
    return emitError(main.getLoc())
           << what << " is of type " << type << ", expected a tensor of static shape";
  value.type = rt::DType(getTypeCode(tensor.getElementType()));
  value.localShape = tensor.getShape();
  value.shape = value.localShape;
  slot.localBytes = rt::countOf(value.localShape) * rt::sizeOf(value.type);
  dist::MeshAttr mesh = dist::getSpmdMesh(main);
  if (!mesh) {
    for (int64_t size : value.shape)
      slot.layout.dims.push_back({{size, size, {}}});
    return success();
  }
  auto global = attrs ? attrs.getAs<TypeAttr>(dist::DistDialect::kGlobalAttr) : TypeAttr();
  auto sharding =
      attrs ? attrs.getAs<dist::ShardingAttr>(dist::DistDialect::kShardingAttr) : nullptr;
  auto globalType = global ? dyn_cast<RankedTensorType>(global.getValue()) : RankedTensorType();
  if (!globalType || !sharding)
    return emitError(main.getLoc())
           << what << " of an SPMD function has no '"
           << (globalType ? dist::DistDialect::kShardingAttr : dist::DistDialect::kGlobalAttr)
           << "'";
  FailureOr<dist::Layout> layout =
      dist::getLayout(sharding, mesh, globalType.getShape(), tensor.getShape(), dist::Padding::Zero,
                      [&] { return emitError(main.getLoc()) << what << ": "; });
  if (failed(layout))
    return failure();
  // One rank may hold a sum as well as all together.
  bool isInput = slot.kind != Slot::Output && layout->reduction == dist::ReductionKind::Sum;
  if (layout->isUnreduced() && isInput)
    for (int64_t rank = 0; rank < mesh.getNumRanks(); ++rank)
      slot.isZero.push_back(dist::getCoordinate(rank, layout->unreduced, mesh) != 0);
  else if (layout->isUnreduced())
    return emitError(main.getLoc())
           << what << " is unreduced over " << dist::toString(layout->unreduced, mesh)
           << ": results must be reduced, and arguments reduced or partial sums";
  value.shape = globalType.getShape();
  value.sharding = dist::toString(*layout, mesh);
  slot.layout = convertLayout(*layout, mesh);
  if (slot.layout.getLocalShape() != value.localShape ||
      slot.layout.getGlobalShape() != value.shape)
    return emitError(main.getLoc()) << what << " has a layout that does not fit its types";
  return success();
}

LogicalResult Executable::State::readSignature(func::FuncOp main) {
  if (auto symbol = dist::getSpmdMeshSymbol(main)) {
    dist::MeshAttr mesh = dist::getSpmdMesh(main);
    if (!mesh)
      return emitError(main.getLoc(), "no mesh named @") << symbol.getValue();
    numRanks = mesh.getNumRanks();
  }
  for (unsigned i = 0; i < main.getNumArguments(); ++i) {
    DictionaryAttr attrs = main.getArgAttrDict(i);
    auto input = attrs ? attrs.getAs<StringAttr>(nn::NnDialect::kInputAttr) : StringAttr();
    auto parameter = attrs ? attrs.getAs<StringAttr>(nn::NnDialect::kParameterAttr) : StringAttr();
    if (!input == !parameter)
      return emitError(main.getLoc(), "argument ")
             << i << " of 'main' needs one of '" << nn::NnDialect::kInputAttr << "' and '"
             << nn::NnDialect::kParameterAttr << "'";
    ProgramValue value;
    value.name = (input ? input : parameter).str();
    auto &list = input ? inputs : parameters;
    Slot slot{input ? Slot::Input : Slot::Parameter, list.size(), {}, 0};
    if (failed(readValue(main, main.getArgument(i).getType(), attrs,
                         "argument '" + value.name + "'", value, slot)))
      return failure();
    if (parameter) {
      if (auto aliases = attrs.getAs<ArrayAttr>(nn::NnDialect::kAliasesAttr))
        for (auto alias : aliases.getAsRange<StringAttr>())
          value.aliases.push_back(alias.str());
      if (auto offsets = attrs.getAs<DenseI64ArrayAttr>(nn::NnDialect::kParameterOffsetsAttr)) {
        value.offsets = offsets.asArrayRef();
        if (value.offsets.size() != value.shape.size())
          return emitError(main.getLoc(), "parameter '")
                 << value.name << "' has " << value.offsets.size() << " offsets, expected "
                 << value.shape.size();
      }
    }
    list.push_back(std::move(value));
    arguments.push_back(std::move(slot));
  }
  for (unsigned i = 0; i < main.getNumResults(); ++i) {
    DictionaryAttr attrs = main.getResultAttrDict(i);
    auto name = attrs ? attrs.getAs<StringAttr>(nn::NnDialect::kOutputAttr) : StringAttr();
    ProgramValue value;
    value.name = name ? name.str() : "output_" + std::to_string(i);
    Slot slot{Slot::Output, outputs.size(), {}, 0};
    if (failed(readValue(main, main.getResultTypes()[i], attrs, "result '" + value.name + "'",
                         value, slot)))
      return failure();
    outputs.push_back(std::move(value));
    results.push_back(std::move(slot));
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Compile
//===----------------------------------------------------------------------===//

FailureOr<std::unique_ptr<Executable>> Executable::compile(ModuleOp module,
                                                           const CompileOptions &options) {
  auto main = module.lookupSymbol<func::FuncOp>("main");
  if (!main)
    return emitError(module.getLoc(), "the module has no function 'main'");
  auto state = std::make_unique<State>();
  if (failed(state->readSignature(main)))
    return failure();
  LowerOptions lowering;
  lowering.probes = options.probes;
  lowering.expandBf16 = !hostConvertsBf16();
  FailureOr<LoweredProgram> lowered = lowerProgram(main, lowering);
  if (failed(lowered))
    return failure();
  auto code = CompiledCode::compile(*lowered->module, LoweredProgram::kEntry);
  if (!code)
    return emitError(main.getLoc(), "cannot be compiled: ") << llvm::toString(code.takeError());
  state->code = std::move(*code);
  state->arenaBytes = lowered->arenaBytes;
  state->constants = std::move(lowered->constants);
  std::string error;
  state->world =
      rt::World::create(options.backend, state->numRanks, std::move(lowered->ops), error);
  if (!state->world)
    return emitError(main.getLoc()) << error;
  for (const ProbedOp &probe : lowered->probes) {
    ProbedValue value{probe.id, probe.name, rt::DType(probe.type), probe.shape, {}};
    value.values.resize(state->numRanks);
    state->probed.push_back(std::move(value));
  }
  if (options.probes) {
    State *raw = state.get();
    state->world->setProbe([raw](int64_t rank, int64_t probe, const void *data) {
      ProbedValue &value = raw->probed[probe];
      auto *bytes = static_cast<const char *>(data);
      value.values[rank].assign(bytes,
                                bytes + rt::countOf(value.localShape) * rt::sizeOf(value.type));
    });
  }
  state->stored.resize(state->parameters.size());
  state->given.resize(state->parameters.size());
  state->shards.resize(state->arguments.size());
  state->sharded.resize(state->arguments.size());
  return std::unique_ptr<Executable>(new Executable(std::move(state)));
}

Executable::Executable(std::unique_ptr<State> state) : state(std::move(state)) {}
Executable::~Executable() = default;

const std::vector<ProgramValue> &Executable::getInputs() const { return state->inputs; }
const std::vector<ProgramValue> &Executable::getParameters() const { return state->parameters; }
const std::vector<ProgramValue> &Executable::getOutputs() const { return state->outputs; }
int64_t Executable::getNumRanks() const { return state->numRanks; }
int64_t Executable::getArenaBytes() const { return state->arenaBytes; }
const std::vector<Executable::ProbedValue> &Executable::getProbedValues() const {
  return state->probed;
}

//===----------------------------------------------------------------------===//
// Arguments
//===----------------------------------------------------------------------===//

static llvm::Error makeError(const Twine &message) {
  return llvm::createStringError(message.str());
}

llvm::Error Executable::setParameter(StringRef name, const HostTensor &tensor) {
  bool found = false;
  // Several arguments may be parts of one stored tensor.
  for (auto [i, parameter] : llvm::enumerate(state->parameters)) {
    if (parameter.name != name && !llvm::is_contained(parameter.aliases, name))
      continue;
    found = true;
    bool fits = tensor.type == parameter.type;
    if (parameter.offsets.empty()) {
      fits &= tensor.shape == parameter.shape;
    } else {
      fits &= tensor.shape.size() == parameter.shape.size();
      for (size_t d = 0; fits && d < parameter.shape.size(); ++d)
        fits = parameter.offsets[d] >= 0 &&
               parameter.offsets[d] + parameter.shape[d] <= tensor.shape[d];
    }
    if (!fits) {
      std::string expected = rt::describe(parameter.type, parameter.shape);
      if (!parameter.offsets.empty()) {
        expected += " within it, at";
        for (int64_t offset : parameter.offsets)
          expected += " " + std::to_string(offset);
      }
      return makeError("parameter '" + name + "' is " + rt::describe(tensor.type, tensor.shape) +
                       ", expected " + expected);
    }
    state->stored[i] = tensor;
    state->given[i] = true;
    for (auto [a, slot] : llvm::enumerate(state->arguments))
      if (slot.kind == Slot::Parameter && slot.index == i)
        state->sharded[a] = false;
  }
  if (!found)
    return makeError("the program has no parameter '" + name + "'");
  return llvm::Error::success();
}

std::vector<std::string> Executable::getMissingParameters() const {
  std::vector<std::string> missing;
  for (auto [parameter, given] : llvm::zip_equal(state->parameters, state->given))
    if (!given)
      missing.push_back(parameter.name);
  return missing;
}

llvm::Error Executable::State::checkInputs(ArrayRef<HostTensor> tensors) const {
  if (tensors.size() != inputs.size())
    return makeError(Twine(tensors.size()) + " inputs given, expected " + Twine(inputs.size()));
  for (auto [tensor, input] : llvm::zip_equal(tensors, inputs))
    if (tensor.type != input.type || tensor.shape != input.shape)
      return makeError("input '" + Twine(input.name) + "' is " +
                       rt::describe(tensor.type, tensor.shape) + ", expected " +
                       rt::describe(input.type, input.shape));
  for (auto [parameter, isGiven] : llvm::zip_equal(parameters, given))
    if (!isGiven)
      return makeError("parameter '" + Twine(parameter.name) + "' has no value");
  return llvm::Error::success();
}

/// Whether ranks read the host's array where it is.
bool Executable::State::readsInPlace(const Slot &slot, const HostTensor &tensor, bool isBox) const {
  return slot.layout.isReplicated() && slot.isZero.empty() && !isBox &&
         reinterpret_cast<uintptr_t>(tensor.data) % rt::sizeOf(tensor.type) == 0;
}

/// Bytes that the next run still has to allocate, or -1 if they are beyond
/// counting.
int64_t Executable::State::missingBytes(ArrayRef<HostTensor> tensors) const {
  int64_t bytes = 0;
  auto add = [&](int64_t each) {
    int64_t all = 0;
    if (bytes < 0 || llvm::MulOverflow(each, numRanks, all) || llvm::AddOverflow(bytes, all, bytes))
      bytes = -1;
  };
  if (arenas.empty())
    add(arenaBytes);
  for (auto [slot, own] : llvm::zip_equal(arguments, shards)) {
    bool isBox = slot.kind == Slot::Parameter && !parameters[slot.index].offsets.empty();
    if (own.empty() && !readsInPlace(slot, getTensor(slot, tensors), isBox))
      add(slot.localBytes);
  }
  // A thread of each rank.
  add(64 << 10);
  return bytes;
}

/// Brings arguments onto the ranks.
llvm::Error Executable::State::prepare(ArrayRef<HostTensor> tensors) {
  int64_t needed = missingBytes(tensors), available = rt::availableMemory();
  if (needed < 0 || (available >= 0 && needed > available))
    return makeError("running on " + Twine(numRanks) + " ranks needs " +
                     (needed < 0 ? std::string("more than 8 EiB") : formatBytes(needed)) +
                     " of memory, " + formatBytes(available) + " are available");
  std::string shortage = "out of memory for " + std::to_string(numRanks) + " ranks";
  if (arenas.empty()) {
    for (int64_t rank = 0; rank < numRanks; ++rank) {
      arenas.push_back(allocate(arenaBytes));
      if (!arenas.back()) {
        arenas.clear();
        return makeError(shortage);
      }
    }
  }
  for (auto [i, slot] : llvm::enumerate(arguments)) {
    if (slot.kind == Slot::Parameter && sharded[i])
      continue;
    const HostTensor &tensor = getTensor(slot, tensors);
    std::vector<int64_t> stored, offsets;
    if (slot.kind == Slot::Parameter && !parameters[slot.index].offsets.empty()) {
      stored = tensor.shape;
      offsets = parameters[slot.index].offsets;
    }
    if (readsInPlace(slot, tensor, !offsets.empty())) {
      shards[i].clear();
    } else {
      if (shards[i].empty())
        for (int64_t rank = 0; rank < numRanks; ++rank) {
          shards[i].push_back(allocate(slot.localBytes));
          if (!shards[i].back()) {
            shards[i].clear();
            return makeError(shortage);
          }
        }
      for (int64_t rank = 0; rank < numRanks; ++rank)
        if (!slot.isZero.empty() && slot.isZero[rank])
          std::memset(shards[i][rank].get(), 0, slot.localBytes);
        else
          rt::shard(slot.layout, rank, rt::sizeOf(tensor.type), tensor.data, stored, offsets,
                    shards[i][rank].get());
    }
    sharded[i] = true;
  }
  return llvm::Error::success();
}

//===----------------------------------------------------------------------===//
// Run
//===----------------------------------------------------------------------===//

llvm::Error Executable::run(ArrayRef<HostTensor> inputs, ArrayRef<void *> outputs,
                            const RunOptions &options) {
  std::lock_guard<std::mutex> lock(state->running);
  if (llvm::Error error = state->checkInputs(inputs))
    return error;
  if (outputs.size() != state->outputs.size())
    return makeError(Twine(outputs.size()) + " outputs given, expected " +
                     Twine(state->outputs.size()));
  if (llvm::Error error = state->prepare(inputs))
    return error;
  std::vector<rt::RankBuffers> buffers(state->numRanks);
  for (auto [rank, mine] : llvm::enumerate(buffers)) {
    mine.arena = state->arenas[rank].get();
    for (auto [slot, own] : llvm::zip_equal(state->arguments, state->shards))
      mine.arguments.push_back(own.empty() ? state->getTensor(slot, inputs).data : own[rank].get());
    for (const std::vector<char> &constant : state->constants)
      mine.constants.push_back(constant.data());
    mine.results.resize(state->results.size());
  }
  std::string error;
  double timeout = options.timeout > 0 ? options.timeout : rt::defaultTimeout();
  if (!state->world->run(state->code->getEntry(), buffers, timeout, error))
    return makeError(error);
  for (auto [i, slot] : llvm::enumerate(state->results))
    for (int64_t rank = 0; rank < state->numRanks; ++rank)
      if (slot.layout.isFirstHolder(rank))
        rt::unshard(slot.layout, rank, rt::sizeOf(state->outputs[i].type), buffers[rank].results[i],
                    outputs[i]);
  return llvm::Error::success();
}

} // namespace meshwright
