//===- WriteKernels.cpp - the kernels of a program, in files --------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// For tests of targets that no device of the runtime executes: compiles the kernels of a program
// for one rank and writes them, and the program as a list of launches, to a folder.
//
//   meshwright-test-kernels MODEL.mlir TARGET FOLDER
//
// FOLDER/KERNEL.ptx is the code of a kernel, FOLDER/KERNEL.mlir its source. FOLDER/program.json has
// the bytes of the arena, the constants, the arguments and results, and the launches in order. A buffer is [kind, index, offset in bytes],
// with kind "arena" (index 0), "argument" or "constant".
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Driver/Execute/KernelCompiler.h"
#include "meshwright/lib/Driver/Register/Register.h"
#include "meshwright/passes/Pipeline.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/Path.h"

using namespace llvm;
using namespace meshwright;

static ExitOnError exitOnError("meshwright-test-kernels: ");

namespace {
class ProgramWriter {
public:
  ProgramWriter(mlir::func::FuncOp main, const KernelTarget &target)
      : main(main), builder(target.createBuilder(main.getContext())) {}

  json::Object write();
  std::vector<KernelSource> takeSources() { return builder->takeSources(); }

private:
  json::Array getPlace(mlir::Value value);
  void addConstant(nn::ConstantOp op);
  void addPositions(dist::PositionsOp op);
  void addKernel(rt::KernelOp launch);

  mlir::func::FuncOp main;
  std::unique_ptr<KernelBuilder> builder;
  json::Array launches, constants;
  DenseMap<mlir::Value, json::Array> places;
};
} // namespace

json::Array ProgramWriter::getPlace(mlir::Value value) {
  int64_t offset = 0, more;
  for (mlir::Value last; last != value; offset += more) {
    last = value;
    value = rt::getBuffer(rt::getOuterValue(value), &more);
  }
  json::Array place = places.lookup(value);
  if (place.empty())
    exitOnError(createStringError("a value has no place"));
  place.push_back(offset);
  return place;
}

void ProgramWriter::addConstant(nn::ConstantOp op) {
  auto elements = dyn_cast<mlir::DenseElementsAttr>(op.getValue());
  if (!elements || elements.getElementType().isInteger(1))
    exitOnError(createStringError("a constant cannot be written"));
  std::string bytes(elements.getRawData().begin(), elements.getRawData().end());
  while (!bytes.empty() && int64_t(bytes.size()) < rt::getBufferBytes(op.getType()))
    bytes += std::string(bytes);
  bytes.resize(rt::getBufferBytes(op.getType()));
  places[op.getResult()] = json::Array{"constant", int64_t(constants.size())};
  constants.push_back(toHex(bytes));
}

/// The program is that of the rank whose coordinates are 0.
void ProgramWriter::addPositions(dist::PositionsOp op) {
  int64_t first = lower::getFirstIndex(op, 0);
  places[op.getResult()] = json::Array{"constant", int64_t(constants.size())};
  constants.push_back(toHex(StringRef(reinterpret_cast<const char *>(&first), sizeof(first))));
}

void ProgramWriter::addKernel(rt::KernelOp launch) {
  for (auto [result, offset] : zip_equal(launch.getResults(), *launch.getOffsets()))
    places[result] = json::Array{"arena", offset};
  std::optional<lower::KernelInfo> info = builder->build(launch);
  if (!info)
    exitOnError(createStringError("no kernel for " +
                                  launch.getOps().begin()->getName().getStringRef()));
  json::Array buffers;
  for (mlir::Value input : info->inputs) {
    if (auto positions = input.getDefiningOp<dist::PositionsOp>())
      addPositions(positions);
    buffers.push_back(getPlace(input));
  }
  for (mlir::Value result : launch.getResults())
    buffers.push_back(getPlace(result));
  json::Array maps;
  for (const mw_rt_tensor_map &map : info->tensorMaps) {
    lower::Descriptor fields;
    lower::append(fields, map);
    maps.push_back(json::Array(fields));
  }
  launches.push_back(json::Object{{"kernel", info->name},
                                  {"blocks", info->items},
                                  {"threads", info->grain},
                                  {"shared", info->workspaceBytes},
                                  {"checksIndices", info->checksIndices},
                                  {"scratch", info->scratchBytes},
                                  {"tensorMaps", std::move(maps)},
                                  {"buffers", std::move(buffers)}});
}

/// The name, element type and shape of an argument or a result.
static json::Object describe(mlir::Type type, mlir::DictionaryAttr attributes) {
  json::Object object;
  for (StringRef name : {nn::NnDialect::kInputAttr, nn::NnDialect::kParameterAttr,
                         nn::NnDialect::kOutputAttr})
    if (auto text = attributes ? attributes.getAs<mlir::StringAttr>(name) : nullptr)
      object["name"] = text.getValue();
  auto tensor = cast<mlir::RankedTensorType>(type);
  std::string element;
  raw_string_ostream(element) << tensor.getElementType();
  object["type"] = element;
  object["shape"] = json::Array(tensor.getShape());
  return object;
}

json::Object ProgramWriter::write() {
  for (auto argument : main.getArguments())
    places[argument] = json::Array{"argument", int64_t(argument.getArgNumber())};
  for (mlir::Operation &op : main.getBody().front()) {
    if (auto constant = dyn_cast<nn::ConstantOp>(op))
      addConstant(constant);
    else if (auto launch = dyn_cast<rt::KernelOp>(op))
      addKernel(launch);
    else if (!isa<rt::GraphBeginOp, rt::GraphEndOp>(op) && !rt::isView(&op) &&
             !op.hasTrait<mlir::OpTrait::IsTerminator>())
      exitOnError(createStringError("not a launch: " + op.getName().getStringRef()));
  }
  json::Array arguments, results;
  for (unsigned i = 0; i < main.getNumArguments(); ++i)
    arguments.push_back(describe(main.getArgumentTypes()[i], main.getArgAttrDict(i)));
  mlir::Operation *end = main.getBody().front().getTerminator();
  for (auto [i, value] : enumerate(end->getOperands())) {
    json::Object result = describe(value.getType(), main.getResultAttrDict(i));
    result["place"] = getPlace(value);
    results.push_back(std::move(result));
  }
  int64_t arena = main->getAttrOfType<mlir::IntegerAttr>(rt::RtDialect::kArenaAttr).getInt();
  return json::Object{{"arena", arena},
                      {"constants", std::move(constants)},
                      {"arguments", std::move(arguments)},
                      {"results", std::move(results)},
                      {"launches", std::move(launches)}};
}

static void writeFile(StringRef folder, const Twine &name, StringRef text) {
  SmallString<128> path(folder);
  sys::path::append(path, name);
  std::error_code error;
  raw_fd_ostream(path, error) << text;
  exitOnError(errorCodeToError(error));
}

int main(int argc, char **argv) {
  if (argc != 4) {
    errs() << "usage: meshwright-test-kernels MODEL.mlir TARGET FOLDER\n";
    return 2;
  }
  mlir::DialectRegistry registry;
  registerAllDialects(registry);
  mlir::MLIRContext context(registry, mlir::MLIRContext::Threading::DISABLED);
  context.loadAllAvailableDialects();
  auto module = mlir::parseSourceFile<mlir::ModuleOp>(argv[1], &context);
  if (!module)
    return 1;
  auto target = exitOnError(getKernelTarget(argv[2]));
  target->loadDialects(context);
  auto function = module->lookupSymbol<mlir::func::FuncOp>("main");
  setTarget(function, target->getName());
  mlir::PassManager manager(&context, mlir::ModuleOp::getOperationName());
  buildSchedulePhase(manager, ScheduleOptions());
  if (failed(manager.run(*module)))
    return 1;
  ProgramWriter writer(function, *target);
  exitOnError(errorCodeToError(sys::fs::create_directories(argv[3])));
  std::string text;
  raw_string_ostream(text) << json::Value(writer.write());
  writeFile(argv[3], "program.json", text);
  auto compiler = exitOnError(KernelCompiler::create(*target));
  for (const KernelSource &source : writer.takeSources()) {
    writeFile(argv[3], source.name + ".mlir", source.text);
    writeFile(argv[3], source.name + ".ptx", exitOnError(compiler->compile(source)));
  }
  return 0;
}
