//===- Signature.cpp - the arguments and results of entries ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Signature.h"

#include "meshwright/dialects/Dist/Layout.h"
#include "meshwright/dialects/Nn/Batch.h"
#include "meshwright/dialects/Nn/Call.h"
#include "meshwright/lib/Driver/Program/Lower.h"
#include "meshwright/lib/Launches/IndexBound.h"
#include "meshwright/lib/Placement/PlacementAnalysis.h"
#include "meshwright/lib/Support/ElementTypes.h"
#include "meshwright/runtime/include/Axes.h"

using namespace mlir;

namespace meshwright {

namespace {

/// Reads the signature of an entry into a program's description, to which other entries may have
/// been added.
class SignatureReader {
public:
  SignatureReader(func::FuncOp main, rt::ProgramDescription &program, std::vector<bool> &isPlaced)
      : main(main), mesh(dist::getSpmdMesh(main)), isPadded(mesh && mayPad(main, mesh)),
        program(program), isPlaced(isPlaced) {}

  FailureOr<rt::EntryDescription> read();

private:
  LogicalResult readValue(Type type, DictionaryAttr attrs, const Twine &what,
                          rt::ProgramValue &value);
  LogicalResult readRanks();
  LogicalResult readArgument(unsigned index, rt::EntryDescription &entry);
  LogicalResult readResult(unsigned index, rt::EntryDescription &entry);
  LogicalResult readParameter(DictionaryAttr attrs, rt::ProgramValue &value);
  int64_t addParameter(rt::ProgramValue value);
  FailureOr<int64_t> addState(rt::ProgramValue value);

  func::FuncOp main;
  dist::MeshAttr mesh;
  /// True if the proof of the entry relies on the bounds of parameters.
  bool isPadded;
  rt::ProgramDescription &program;
  /// By state: whether its layout is known.
  std::vector<bool> &isPlaced;
};

} // namespace

static mw_rt_axes convertAxes(ArrayRef<dist::Axis> axes, dist::MeshAttr mesh) {
  mw_rt_axes result = {};
  for (const dist::Axis &axis : axes) {
    auto &to = result.axes[result.count++];
    to.stride = getRankStride(axis, mesh);
    to.size = axis.size;
  }
  return result;
}

static rt::ShardedLayout convertLayout(const dist::Layout &layout, dist::MeshAttr mesh) {
  rt::ShardedLayout result;
  for (const dist::DimLayout &dim : layout.dims) {
    auto &factors = result.dims.emplace_back();
    for (const dist::LayoutFactor &factor : dim.factors)
      factors.push_back({factor.size, factor.padded, convertAxes(factor.axes, mesh), factor.order,
                         factor.orderRanks});
  }
  return result;
}

/// Makes the layout of a tensor that of its bytes, of which `shared` elements share one. Fails if
/// a factor has a part of a byte.
static LogicalResult packLayout(rt::ShardedLayout &layout, int64_t shared) {
  if (shared == 1)
    return success();
  if (layout.dims.empty() || layout.dims.back().empty())
    return failure();
  rt::ShardedFactor &minor = layout.dims.back().back();
  if (minor.size % shared != 0 || minor.padded / rt::sizeOfGroup(minor.axes) % shared != 0 ||
      minor.order != TokenOrder::Contiguous)
    return failure();
  minor.size /= shared;
  minor.padded /= shared;
  return success();
}

static void setLayout(rt::ProgramValue &value, const dist::Layout &layout, dist::MeshAttr mesh) {
  value.sharding = dist::toString(layout, mesh);
  value.layout = convertLayout(layout, mesh);
  value.unreduced = convertAxes(layout.getUnreduced(), mesh);
  value.reduction = layout.getReduction() == dist::ReductionKind::Max ? MW_RT_MAX : MW_RT_SUM;
}

LogicalResult SignatureReader::readValue(Type type, DictionaryAttr attrs, const Twine &what,
                                         rt::ProgramValue &value) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  if (!tensor || !tensor.hasStaticShape() || getTypeCode(tensor.getElementType()) < 0)
    return emitError(main.getLoc()) << what << ": expected a tensor of static shape, got " << type;
  value.type = rt::DType(getTypeCode(tensor.getElementType()));
  RankedTensorType packed = getPackedType(tensor);
  if (!packed)
    return emitError(main.getLoc()) << what << ": expected an even last dimension, got " << type
                                    << ": two elements share a byte";
  value.localShape = packed.getShape();
  value.shape = value.localShape;
  if (!mesh) {
    for (int64_t size : value.shape)
      value.layout.dims.push_back({{size, size, {}}});
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
  if (layout->isUnreduced() && !hasSums(tensor.getElementType()))
    return emitError(main.getLoc())
           << what << ": expected numbers, which have sums and maxima, as it is unreduced over "
           << dist::toString(layout->getUnreduced(), mesh) << ", got " << type;
  setLayout(value, *layout, mesh);
  RankedTensorType packedGlobal = getPackedType(globalType);
  if (!packedGlobal ||
      failed(packLayout(value.layout, getElementsPerByte(tensor.getElementType()))))
    return emitError(main.getLoc())
           << what << ": expected whole bytes on each rank, got the layout " << value.sharding
           << " of " << globalType;
  value.shape = packedGlobal.getShape();
  if (value.layout.getLocalShape() != value.localShape ||
      value.layout.getGlobalShape() != value.shape)
    return emitError(main.getLoc()) << what << " has a layout that does not fit its types";
  return success();
}

//===----------------------------------------------------------------------===//
// Parameters and states, which entries share
//===----------------------------------------------------------------------===//

/// Describes how ranks store a value. Two values of one description are stored alike.
static std::string describeStorage(const rt::ProgramValue &value) {
  return rt::describe(value.type, value.shape) +
         (value.sharding.empty() ? "" : ", laid out as " + value.sharding) + ", on a rank " +
         rt::describe(value.type, value.localShape);
}

/// Returns the index of a parameter in the program's list, and adds it if it is new.
int64_t SignatureReader::addParameter(rt::ProgramValue value) {
  for (auto [i, known] : llvm::enumerate(program.parameters)) {
    if (known.name != value.name || known.offsets != value.offsets ||
        describeStorage(known) != describeStorage(value))
      continue;
    for (std::string &alias : value.aliases)
      if (!known.isNamed(alias))
        known.aliases.push_back(std::move(alias));
    known.magnitude = std::min(known.magnitude, value.magnitude);
    return i;
  }
  program.parameters.push_back(std::move(value));
  return program.parameters.size() - 1;
}

/// Returns the index of a state. The first use of a state tells its layout.
FailureOr<int64_t> SignatureReader::addState(rt::ProgramValue value) {
  for (auto [i, known] : llvm::enumerate(program.states)) {
    if (known.value.name != value.name)
      continue;
    if (!isPlaced[i])
      known.value = value;
    isPlaced[i] = true;
    if (describeStorage(known.value) != describeStorage(value))
      return emitError(main.getLoc(), "state '")
             << value.name << "' in '" << main.getName() << "': expected "
             << describeStorage(known.value) << ", as it is used before, got "
             << describeStorage(value);
    return i;
  }
  return emitError(main.getLoc(), "'")
         << main.getName() << "' uses state '" << value.name
         << "', which the module does not have";
}

//===----------------------------------------------------------------------===//
// Arguments and results
//===----------------------------------------------------------------------===//

LogicalResult SignatureReader::readParameter(DictionaryAttr attrs, rt::ProgramValue &value) {
  if (auto aliases = attrs.getAs<ArrayAttr>(nn::NnDialect::kAliasesAttr))
    for (auto alias : aliases.getAsRange<StringAttr>())
      value.aliases.push_back(alias.str());
  if (isPadded)
    value.magnitude = nn::getParameterMagnitude(attrs);
  auto offsets = attrs.getAs<DenseI64ArrayAttr>(nn::NnDialect::kParameterOffsetsAttr);
  if (!offsets)
    return success();
  value.offsets = offsets.asArrayRef();
  if (value.offsets.size() != value.shape.size())
    return emitError(main.getLoc(), "parameter '")
           << value.name << "': expected " << value.shape.size() << " offsets, got "
           << value.offsets.size();
  if (int64_t shared = rt::elementsPerByte(value.type); shared > 1) {
    if (value.offsets.back() % shared != 0)
      return emitError(main.getLoc(), "parameter '")
             << value.name << "': expected to begin at an even element of a row, got "
             << value.offsets.back() << ": two elements share a byte";
    value.offsets.back() /= shared;
  }
  return success();
}

LogicalResult SignatureReader::readArgument(unsigned index, rt::EntryDescription &entry) {
  DictionaryAttr attrs = main.getArgAttrDict(index);
  auto find = [&](StringRef name) { return attrs ? attrs.getAs<StringAttr>(name) : StringAttr(); };
  StringAttr input = find(nn::NnDialect::kInputAttr);
  StringAttr parameter = find(nn::NnDialect::kParameterAttr);
  StringAttr state = find(nn::NnDialect::kStateAttr);
  if (!input + !parameter + !state != 2)
    return emitError(main.getLoc(), "argument ")
           << index << " of '" << main.getName() << "' needs one of '" << nn::NnDialect::kInputAttr
           << "', '" << nn::NnDialect::kParameterAttr << "' and '" << nn::NnDialect::kStateAttr
           << "'";
  rt::ProgramValue value;
  value.name = (input ? input : parameter ? parameter : state).str();
  if (failed(readValue(main.getArgument(index).getType(), attrs, "argument '" + value.name + "'",
                       value)))
    return failure();
  if (input) {
    if (auto number = attrs.getAs<TypedAttr>(nn::NnDialect::kDefaultAttr))
      value.defaultElement = nn::getElementBytes(number);
    value.indexBound = getIndexBound(main.getArgument(index));
    value.isWhole = nn::getStatedBatch(main, index) == false;
    entry.arguments.push_back({rt::ProgramArgument::Input, int64_t(entry.inputs.size())});
    entry.inputs.push_back(std::move(value));
    return success();
  }
  if (parameter && failed(readParameter(attrs, value)))
    return failure();
  if (parameter) {
    entry.arguments.push_back({rt::ProgramArgument::Parameter, addParameter(std::move(value))});
    return success();
  }
  FailureOr<int64_t> number = addState(std::move(value));
  if (failed(number))
    return failure();
  entry.arguments.push_back({rt::ProgramArgument::State, *number});
  return success();
}

LogicalResult SignatureReader::readResult(unsigned index, rt::EntryDescription &entry) {
  DictionaryAttr attrs = main.getResultAttrDict(index);
  auto name = attrs ? attrs.getAs<StringAttr>(nn::NnDialect::kOutputAttr) : StringAttr();
  auto state = attrs ? attrs.getAs<StringAttr>(nn::NnDialect::kStateAttr) : StringAttr();
  rt::ProgramValue value;
  value.name = state  ? state.str()
               : name ? name.str()
                      : "output_" + std::to_string(index);
  if (failed(readValue(main.getResultTypes()[index], attrs, "result '" + value.name + "'", value)))
    return failure();
  if (!state) {
    if (!entry.stateResults.empty())
      return emitError(main.getLoc(), "output '")
             << value.name << "' of '" << main.getName()
             << "' follows a state: expected the states last";
    entry.outputs.push_back(std::move(value));
    return success();
  }
  FailureOr<int64_t> number = addState(std::move(value));
  if (failed(number))
    return failure();
  entry.stateResults.push_back(*number);
  return success();
}

LogicalResult SignatureReader::readRanks() {
  auto symbol = dist::getSpmdMeshSymbol(main);
  if (symbol && !mesh)
    return emitError(main.getLoc(), "no mesh named @") << symbol.getValue();
  int64_t ranks = mesh ? mesh.getNumRanks() : 1;
  if (!program.entries.empty() && ranks != program.numRanks)
    return emitError(main.getLoc(), "'")
           << main.getName() << "': expected " << program.numRanks << " ranks, as '"
           << program.entries.front().name << "' has, got " << ranks;
  program.numRanks = ranks;
  return success();
}

FailureOr<rt::EntryDescription> SignatureReader::read() {
  rt::EntryDescription entry;
  entry.name = main.getName();
  if (failed(readRanks()))
    return failure();
  for (unsigned i = 0; i < main.getNumArguments(); ++i)
    if (failed(readArgument(i, entry)))
      return failure();
  for (unsigned i = 0; i < main.getNumResults(); ++i)
    if (failed(readResult(i, entry)))
      return failure();
  return entry;
}

//===----------------------------------------------------------------------===//
// Programs
//===----------------------------------------------------------------------===//

Signatures::Signatures(ModuleOp module, rt::ProgramDescription &program)
    : module(module), program(program) {
  for (auto op : module.getOps<nn::StateOp>()) {
    rt::ProgramState &state = program.states.emplace_back();
    state.value.name = op.getSymName().str();
    state.parameter = op.getInitialParameter().str();
    state.role = op.getRole().value_or("").str();
    state.isTransient = op.getTransient();
    if (TypedAttr fill = op.getFillAttr())
      state.fill = nn::getElementBytes(fill);
  }
  isPlaced.assign(program.states.size(), false);
}

LogicalResult Signatures::add(func::FuncOp function) {
  FailureOr<rt::EntryDescription> entry = SignatureReader(function, program, isPlaced).read();
  if (failed(entry))
    return failure();
  if (program.entries.empty())
    mesh = dist::getSpmdMesh(function);
  program.entries.push_back(std::move(*entry));
  return success();
}

/// Reads a state that no entry uses. Its op has its sharding.
LogicalResult Signatures::readUnused(nn::StateOp op, rt::ProgramValue &value) {
  RankedTensorType type = op.getMemoryType(), packed = getPackedType(type);
  if (!packed)
    return op.emitOpError() << "expected an even last dimension, got " << type
                            << ": two elements share a byte";
  value.type = rt::DType(getTypeCode(type.getElementType()));
  value.shape = value.localShape = packed.getShape();
  auto sharding = op->getAttrOfType<dist::ShardingAttr>(dist::DistDialect::kShardingAttr);
  if (!mesh || !sharding) {
    for (int64_t size : value.shape)
      value.layout.dims.push_back({{size, size, {}}});
    return success();
  }
  FailureOr<dist::Layout> layout =
      dist::getLayout(sharding, mesh, type.getShape(), [&] { return op.emitOpError(); });
  if (failed(layout))
    return failure();
  setLayout(value, *layout, mesh);
  if (failed(packLayout(value.layout, getElementsPerByte(type.getElementType()))))
    return op.emitOpError() << "expected whole bytes on each rank, got the layout "
                            << value.sharding << " of " << type;
  value.localShape = value.layout.getLocalShape();
  return success();
}

/// Reads the steps of an entry, whose functions have been added. A single step is the entry itself.
LogicalResult Signatures::readSteps(rt::EntryDescription &entry) {
  auto function = module.lookupSymbol<func::FuncOp>(entry.name);
  if (failed(nn::verifyCall(function)))
    return failure();
  SmallVector<nn::CallStep> steps = nn::getSteps(function);
  if (steps.size() == 1)
    return success();
  auto getIndex = [](const auto &list, StringRef name) {
    auto isNamed = [&](const auto &known) { return known.name == name; };
    return llvm::find_if(list, isNamed) - list.begin();
  };
  for (nn::CallStep step : steps) {
    int64_t index = getIndex(program.entries, step.function.getName());
    int64_t until = step.until.empty() ? -1 : getIndex(program.entries[index].outputs, step.until);
    entry.steps.push_back({index, step.chunks, step.times, until});
  }
  return success();
}

LogicalResult Signatures::finish() {
  for (rt::EntryDescription &entry : program.entries)
    if (failed(readSteps(entry)))
      return failure();
  size_t next = 0;
  for (auto op : module.getOps<nn::StateOp>()) {
    if (!isPlaced[next] && failed(readUnused(op, program.states[next].value)))
      return failure();
    ++next;
  }
  // A parameter that only the initial value of a state needs has no argument.
  for (const rt::ProgramState &state : program.states) {
    if (state.parameter.empty() || program.findParameter(state.parameter) >= 0)
      continue;
    rt::ProgramValue value;
    value.name = state.parameter;
    value.type = state.value.type;
    value.shape = value.localShape = state.value.shape;
    for (int64_t size : value.shape)
      value.layout.dims.push_back({{size, size, {}}});
    program.parameters.push_back(std::move(value));
  }
  return success();
}

} // namespace meshwright
