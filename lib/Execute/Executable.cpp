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
#include "meshwright/lib/Launches/IndexBound.h"
#include "meshwright/lib/Program/Lower.h"
#include "meshwright/runtime/include/Cpu.h"
#include "meshwright/runtime/include/Progress.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

using namespace mlir;

namespace meshwright {

namespace {

/// Reads a program's signature into its description.
class SignatureReader {
public:
  SignatureReader(func::FuncOp main, rt::ProgramDescription &description)
      : main(main), mesh(dist::getSpmdMesh(main)), description(description) {}

  LogicalResult read();

private:
  LogicalResult readValue(Type type, DictionaryAttr attrs, const Twine &what, bool isOutput,
                          rt::ProgramValue &value);

  func::FuncOp main;
  dist::MeshAttr mesh;
  rt::ProgramDescription &description;
};

} // namespace

struct Executable::State {
  std::unique_ptr<rt::Program> program;
  std::vector<ProbedValue> probed;
};

//===----------------------------------------------------------------------===//
// Signature
//===----------------------------------------------------------------------===//

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

LogicalResult SignatureReader::readValue(Type type, DictionaryAttr attrs, const Twine &what,
                                         bool isOutput, rt::ProgramValue &value) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  if (!tensor || !tensor.hasStaticShape() || getTypeCode(tensor.getElementType()) < 0)
    return emitError(main.getLoc())
           << what << " is of type " << type << ", expected a tensor of static shape";
  value.type = rt::DType(getTypeCode(tensor.getElementType()));
  value.localShape = tensor.getShape();
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
  // An argument that is a partial sum: the whole value on one rank is as good as parts on all.
  if (layout->isUnreduced() && !isOutput && layout->reduction == dist::ReductionKind::Sum)
    value.unreduced = convertAxes(layout->unreduced, mesh);
  else if (layout->isUnreduced())
    return emitError(main.getLoc())
           << what << " is unreduced over " << dist::toString(layout->unreduced, mesh)
           << ": results must be reduced, and arguments reduced or partial sums";
  value.shape = globalType.getShape();
  value.sharding = dist::toString(*layout, mesh);
  value.layout = convertLayout(*layout, mesh);
  if (value.layout.getLocalShape() != value.localShape ||
      value.layout.getGlobalShape() != value.shape)
    return emitError(main.getLoc()) << what << " has a layout that does not fit its types";
  return success();
}

LogicalResult SignatureReader::read() {
  if (auto symbol = dist::getSpmdMeshSymbol(main)) {
    if (!mesh)
      return emitError(main.getLoc(), "no mesh named @") << symbol.getValue();
    description.numRanks = mesh.getNumRanks();
  }
  for (unsigned i = 0; i < main.getNumArguments(); ++i) {
    DictionaryAttr attrs = main.getArgAttrDict(i);
    auto input = attrs ? attrs.getAs<StringAttr>(nn::NnDialect::kInputAttr) : StringAttr();
    auto parameter = attrs ? attrs.getAs<StringAttr>(nn::NnDialect::kParameterAttr) : StringAttr();
    if (!input == !parameter)
      return emitError(main.getLoc(), "argument ")
             << i << " of 'main' needs one of '" << nn::NnDialect::kInputAttr << "' and '"
             << nn::NnDialect::kParameterAttr << "'";
    rt::ProgramValue value;
    value.name = (input ? input : parameter).str();
    if (failed(readValue(main.getArgument(i).getType(), attrs, "argument '" + value.name + "'",
                         /*isOutput=*/false, value)))
      return failure();
    if (input)
      value.indexBound = getIndexBound(main.getArgument(i));
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
    auto &list = input ? description.inputs : description.parameters;
    description.arguments.push_back({/*isParameter=*/!input, int64_t(list.size())});
    list.push_back(std::move(value));
  }
  for (unsigned i = 0; i < main.getNumResults(); ++i) {
    DictionaryAttr attrs = main.getResultAttrDict(i);
    auto name = attrs ? attrs.getAs<StringAttr>(nn::NnDialect::kOutputAttr) : StringAttr();
    rt::ProgramValue value;
    value.name = name ? name.str() : "output_" + std::to_string(i);
    if (failed(readValue(main.getResultTypes()[i], attrs, "result '" + value.name + "'",
                         /*isOutput=*/true, value)))
      return failure();
    description.outputs.push_back(std::move(value));
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Compile
//===----------------------------------------------------------------------===//

/// Bytes that own their data.
static rt::Bytes own(std::vector<char> data) {
  auto owner = std::make_shared<std::vector<char>>(std::move(data));
  return {std::shared_ptr<const void>(owner, owner->data()), int64_t(owner->size())};
}

FailureOr<CompiledProgram> compileProgram(ModuleOp module, const CompileOptions &options) {
  auto main = module.lookupSymbol<func::FuncOp>("main");
  if (!main)
    return emitError(module.getLoc(), "the module has no function 'main'");
  rt::Progress progress("compiling");
  CompiledProgram program;
  rt::ProgramDescription &description = program.description;
  if (failed(SignatureReader(main, description).read()))
    return failure();
  std::shared_ptr<const KernelTarget> target = getKernelTarget(main, options.target);
  if (!target)
    return failure();
  LowerOptions lowering;
  lowering.probes = options.probes;
  lowering.schedule = options.schedule;
  lowering.target = target;
  FailureOr<LoweredProgram> lowered = lowerProgram(main, lowering);
  if (failed(lowered))
    return failure();
  auto objects = compileObjects(*lowered, *target, &program.statistics);
  if (!objects)
    return emitError(main.getLoc()) << llvm::toString(objects.takeError());
  program.objects = std::move(*objects);
  program.probes = std::move(lowered->probes);
  description.targetCpu = target->getHost().cpu;
  description.targetFeatures = target->getHost().select(rt::getKnownFeatures());
  description.arenaBytes = lowered->arenaBytes;
  for (const PreparedParameter &prepared : lowered->prepared)
    description.prepared.push_back({prepared.argument, prepared.offset, prepared.packing});
  for (auto [argument, isRead] : llvm::zip_equal(description.arguments, lowered->isRead))
    argument.isRead = isRead;
  description.ops = std::move(lowered->ops);
  description.fused = std::move(lowered->fused);
  for (std::vector<char> &constant : lowered->constants)
    description.constants.push_back(own(std::move(constant)));
  return program;
}

FailureOr<std::unique_ptr<Executable>> Executable::compile(ModuleOp module,
                                                           const CompileOptions &options) {
  FailureOr<CompiledProgram> compiled = compileProgram(module, options);
  if (failed(compiled))
    return failure();
  std::string missing = rt::getMissingFeatures(compiled->description.targetFeatures);
  if (!missing.empty())
    return emitError(module.getLoc()) << "cannot run code for '" << compiled->description.targetCpu
                                      << "' here: this processor has no " << missing;
  auto code = LoadedCode::load(compiled->objects);
  if (!code)
    return emitError(module.getLoc(), "cannot be loaded: ") << llvm::toString(code.takeError());
  auto state = std::make_unique<State>();
  std::string error;
  mw_rt_entry entry = (*code)->getEntry();
  state->program = rt::Program::create(std::move(compiled->description), entry, std::move(*code),
                                       options.backend, error);
  if (!state->program)
    return emitError(module.getLoc()) << error;
  for (const ProbedOp &probe : compiled->probes) {
    ProbedValue value{probe.id, probe.name, rt::DType(probe.type), probe.shape, {}};
    value.values.resize(state->program->getDescription().numRanks);
    state->probed.push_back(std::move(value));
  }
  if (options.probes) {
    State *raw = state.get();
    state->program->getWorld().setProbe([raw](int64_t rank, int64_t probe, const void *data) {
      ProbedValue &value = raw->probed[probe];
      auto *bytes = static_cast<const char *>(data);
      value.values[rank].assign(bytes,
                                bytes + rt::countOf(value.localShape) * rt::sizeOf(value.type));
    });
  }
  return std::unique_ptr<Executable>(new Executable(std::move(state)));
}

Executable::Executable(std::unique_ptr<State> state) : state(std::move(state)) {}
Executable::~Executable() = default;

rt::Program &Executable::getProgram() { return *state->program; }
const rt::ProgramDescription &Executable::getDescription() const {
  return state->program->getDescription();
}
const std::vector<Executable::ProbedValue> &Executable::getProbedValues() const {
  return state->probed;
}

} // namespace meshwright
