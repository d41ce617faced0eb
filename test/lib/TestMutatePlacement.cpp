//===- TestMutatePlacement.cpp - does the placement verifier see it? ------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Injects faults at random places of SPMD programs and counts those that the
// placement verifier catches. Some make the placement of another program: those
// are told apart. With `apply`, leaves one fault in the program, to
// look at. With `write`, writes each faulty program that the verifier accepts
// to a folder: a run shows whether it computes something else.
//
//===----------------------------------------------------------------------===//

#include "PlacementFaults.h"
#include "TestMutateLaunches.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Placement/CountedRows.h"
#include "meshwright/lib/Placement/Pages.h"
#include "meshwright/lib/Placement/TokenRows.h"

#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Pass/Pass.h"
#include "mlir/Pass/PassRegistry.h"
#include "mlir/Tools/Plugins/PassPlugin.h"
#include "llvm/Config/llvm-config.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/raw_ostream.h"

#include <random>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::test;

namespace {

struct TestMutatePlacementPass : PassWrapper<TestMutatePlacementPass, OperationPass<ModuleOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(TestMutatePlacementPass)

  TestMutatePlacementPass() = default;
  TestMutatePlacementPass(const TestMutatePlacementPass &other) : PassWrapper(other) {}

  StringRef getArgument() const override { return "test-mutate-placement"; }
  StringRef getDescription() const override {
    return "injects placement faults and counts those that are caught";
  }

  void getDependentDialects(DialectRegistry &registry) const override {
    registry.insert<nn::NnDialect, scf::SCFDialect, tensor::TensorDialect>();
  }

  Option<unsigned> seed{*this, "seed", llvm::cl::desc("of the random choice"), llvm::cl::init(1)};
  Option<unsigned> count{*this, "count", llvm::cl::desc("faults of each kind; 0: every one"),
                         llvm::cl::init(20)};
  Option<std::string> kind{*this, "kind", llvm::cl::desc("one kind only")};
  Option<std::string> entry{*this, "entry", llvm::cl::desc("one function only")};
  Option<std::string> write{*this, "write", llvm::cl::desc("folder for accepted programs")};
  Option<bool> apply{*this, "apply", llvm::cl::desc("leave one fault in the program")};

  enum class Result { Caught, Excused, Escaped, Invalid };

  /// The fault numbered `choice`, made in a copy of the module.
  Result tryFault(const FaultKind &faultKind, StringRef name, size_t choice,
                  std::string &description) {
    OwningOpRef<ModuleOp> copy = getOperation().clone();
    auto func = copy->lookupSymbol<func::FuncOp>(name);
    FailureOr<PlacementAnalysis> analysis = PlacementAnalysis::run(func);
    std::vector<Fault> faults;
    faultKind.collect(func, *analysis, faults);
    llvm::raw_string_ostream os(description);
    os << faults[choice].description << " at " << faults[choice].location;
    StringRef excuse = faults[choice].excuse;
    if (!excuse.empty())
      os << ", " << excuse;
    faults[choice].inject();
    ScopedDiagnosticHandler silent(&getContext(), [](Diagnostic &) { return success(); });
    if (failed(verify(*copy)))
      return Result::Invalid;
    // As the pass `verify-placement` does.
    FailureOr<PlacementAnalysis> changed = PlacementAnalysis::run(func);
    if (failed(changed) || failed(verifyCountedRows(func, *changed)) ||
        failed(verifyTokenRows(func, *changed)) || failed(verifyPages(func, *changed)))
      return Result::Caught;
    if (!write.empty())
      writeProgram(*copy, faultKind.name, description, !excuse.empty());
    return excuse.empty() ? Result::Escaped : Result::Excused;
  }

  /// Writes an accepted program. Its first line tells the fault.
  void writeProgram(ModuleOp module, StringRef kindName, StringRef description, bool isExcused) {
    std::error_code error;
    llvm::raw_fd_ostream file(write + "/" + std::to_string(written++) + ".mlir", error);
    if (error)
      module.emitError() << "cannot write to '" << write << "': " << error.message();
    file << "// " << (isExcused ? "other " : "same ") << kindName << ": " << description << "\n";
    module.print(file);
  }
  unsigned written = 0;

  void runOnOperation() override {
    std::mt19937_64 random(seed);
    for (auto func : getOperation().getOps<func::FuncOp>()) {
      if (!func->hasAttr(dist::DistDialect::kSpmdAttr) ||
          (!entry.empty() && entry != func.getName()))
        continue;
      FailureOr<PlacementAnalysis> analysis = PlacementAnalysis::run(func);
      if (failed(analysis))
        return signalPassFailure();
      for (const FaultKind &faultKind : getFaultKinds()) {
        if (!kind.empty() && kind != faultKind.name)
          continue;
        std::vector<Fault> faults;
        faultKind.collect(func, *analysis, faults);
        if (faults.empty())
          continue;
        if (apply) {
          faults[random() % faults.size()].inject();
          return;
        }
        std::vector<size_t> choices(faults.size());
        for (size_t i = 0; i < choices.size(); ++i)
          choices[i] = i;
        std::shuffle(choices.begin(), choices.end(), random);
        if (count && choices.size() > count)
          choices.resize(count);
        unsigned caught = 0, excused = 0, injected = 0;
        std::string escapes;
        for (size_t choice : choices) {
          std::string description;
          Result result = tryFault(faultKind, func.getName(), choice, description);
          if (result == Result::Invalid)
            continue;
          ++injected;
          caught += result == Result::Caught;
          excused += result == Result::Excused;
          if (result == Result::Escaped)
            escapes += "  escaped: " + description + "\n";
          if (result == Result::Excused)
            escapes += "  another program: " + description + "\n";
        }
        llvm::outs() << func.getName() << " " << faultKind.name << ": " << caught << " of "
                     << injected << " caught, " << excused << " make another program, "
                     << faults.size() << " places\n"
                     << escapes;
      }
    }
  }
};

} // namespace

extern "C" LLVM_ATTRIBUTE_WEAK PassPluginLibraryInfo mlirGetPassPluginInfo() {
  return {MLIR_PLUGIN_API_VERSION, "MeshwrightTest", LLVM_VERSION_STRING, [] {
            PassRegistration<TestMutatePlacementPass>();
            test::registerMutateLaunchesPass();
          }};
}
