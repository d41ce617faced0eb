//===- main.cpp - sharding-opt --------------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Help.h"
#include "UnknownOption.h"
#include "Version.h"

#include "meshwright/lib/Driver/Register/Register.h"
#include "meshwright/lib/Support/SourceNesting.h"
#include "meshwright/passes/Pipeline.h"
#include "meshwright/passes/report/Passes.h"
#include "meshwright/runtime/include/WholeFile.h"

#include "mlir/IR/DialectRegistry.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Support/FileUtilities.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"
#include "mlir/Transforms/Passes.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/InitLLVM.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/ToolOutputFile.h"

namespace cl = llvm::cl;

/// The exit status.
enum { kFine = 0, kError = 1, kWrongUsage = 2 };

/// Prints a diagnostic without a line of the source, such as an error about an option:
/// MLIR's handler would print `<unknown>:0:` or `file:0:0:` before it. Leaves all others
/// to that handler.
static mlir::LogicalResult printUnlocated(mlir::Diagnostic &diagnostic) {
  auto file = llvm::dyn_cast<mlir::FileLineColLoc>(diagnostic.getLocation());
  if (file ? file.getLine() != 0 : !llvm::isa<mlir::UnknownLoc>(diagnostic.getLocation()))
    return mlir::failure();
  auto print = [](llvm::StringRef file, mlir::Diagnostic &what) {
    static const char *const names[] = {"note", "warning", "error", "remark"};
    if (!file.empty())
      llvm::errs() << file << ": ";
    llvm::errs() << names[int(what.getSeverity())] << ": " << what << "\n";
  };
  print(file ? file.getFilename().getValue() : "", diagnostic);
  for (mlir::Diagnostic &note : diagnostic.getNotes()) {
    auto at = note.getLocation()->findInstanceOf<mlir::FileLineColLoc>();
    print(at && at.getLine() ? (at.getFilename().getValue() + ":" + llvm::Twine(at.getLine())).str()
                             : "",
          note);
  }
  return mlir::success();
}

static int refuse(const llvm::Twine &message) {
  llvm::errs() << "sharding-opt: error: " << message << "\nsee sharding-opt --help\n";
  return kWrongUsage;
}

/// Builds the passes of the command line without running them, to find wrong options of
/// passes and pipelines.
static int checkPasses(const mlir::MlirOptMainConfig &config,
                       const mlir::DialectRegistry &registry) {
  mlir::MLIRContext context(registry, mlir::MLIRContext::Threading::DISABLED);
  std::string error;
  mlir::ScopedDiagnosticHandler handler(&context, [&](mlir::Diagnostic &diagnostic) {
    if (error.empty())
      error = diagnostic.str();
  });
  mlir::PassManager manager(&context);
  if (succeeded(config.setupPassPipeline(manager)))
    return kFine;
  // MLIR adds an empty error to the message of an option's own parser, which is printed already.
  llvm::StringRef text = llvm::StringRef(error).trim();
  if (!text.empty())
    return refuse(text);
  llvm::errs() << "see sharding-opt --help\n";
  return kWrongUsage;
}

int main(int argc, char **argv) {
  llvm::InitLLVM init(argc, argv);
  mlir::DialectRegistry registry;
  meshwright::registerAllDialects(registry);
  meshwright::registerAllPasses();
  auto isGiven = [&](std::initializer_list<llvm::StringRef> options) {
    auto isOne = [&](const char *argument) { return llvm::is_contained(options, argument); };
    return llvm::any_of(llvm::ArrayRef(argv, argc).drop_front(), isOne);
  };
  if (isGiven({"--help-parallelize"})) {
    meshwright::printParallelizeHelp(llvm::outs());
    return kFine;
  }
  // Help lists the passes that are registered until here. Passes of MLIR follow.
  bool showsHelp = isGiven({"--help", "-help", "-h"});
  if (!showsHelp)
    mlir::registerTransformsPasses();

  std::string help = mlir::registerCLIOptions("Meshwright's optimizer\n", registry);
  // Diagnostics do not print operations by default, because a model's function has thousands of
  // lines.
  auto found = cl::getRegisteredOptions().find("mlir-print-op-on-diagnostic");
  if (found != cl::getRegisteredOptions().end())
    static_cast<cl::opt<bool> *>(found->second)->setInitialValue(false);
  cl::opt<std::string> input(cl::Positional, cl::desc("<input file>"), cl::init("-"));
  cl::opt<std::string> output("o", cl::desc("Output file"), cl::value_desc("file"), cl::init("-"));
  cl::opt<std::string> reportFile(
      "report-file",
      cl::desc("Write a report behind the last pass: JSON if it ends in .json; -: standard output"),
      cl::value_desc("file"));
  cl::list<meshwright::Outcome> remarks(
      "remarks", cl::desc("Emit the passes' decisions as remarks: applied, declined, note"),
      cl::value_desc("outcomes"), cl::CommaSeparated);
  if (showsHelp) {
    meshwright::printHelp(llvm::outs());
    return kFine;
  }
  cl::SetVersionPrinter(
      [](llvm::raw_ostream &os) { os << "sharding-opt" << meshwright::kVersionText; });
  if (std::string unknown = meshwright::findUnknownOption(llvm::ArrayRef(argv, argc).drop_front()); !unknown.empty())
    return refuse(unknown);
  if (!cl::ParseCommandLineOptions(argc, argv, help, &llvm::errs()))
    return kWrongUsage;

  mlir::MlirOptMainConfig config = mlir::MlirOptMainConfig::createFromCLOptions();
  if (config.shouldShowDialects() || config.shouldListPasses())
    return mlir::asMainReturnCode(mlir::MlirOptMain(argc, argv, input, output, registry));

  // Opening the output deletes the file that is there, and a failing pass deletes the output.
  std::string error;
  auto named = [](llvm::StringRef path) { return path == "-" ? "" : path.str(); };
  if (!meshwright::rt::checkDistinct({{"-o", named(output)}, {"--report-file", named(reportFile)}},
                                     {{"the input", named(input)}}, error))
    return refuse(error);
  if (error = meshwright::checkReportFile(reportFile); !error.empty())
    return refuse(error);
  // Tests that verify diagnostics expect errors of options, too.
  if (!config.shouldVerifyDiagnostics())
    if (int status = checkPasses(config, registry))
      return status;

  // The report comes after all passes of the command line.
  mlir::MlirOptMainConfig passes = config;
  config.setPassPipelineSetupFn([&](mlir::PassManager &manager) -> mlir::LogicalResult {
    // Tests that verify diagnostics expect those without a place as MLIR reports them.
    if (!config.shouldVerifyDiagnostics())
      manager.getContext()->getDiagEngine().registerHandler(printUnlocated);
    if (failed(passes.setupPassPipeline(manager)))
      return mlir::failure();
    if (!remarks.empty()) {
      meshwright::ReportDecisionsPassOptions options;
      options.outcomes.assign(remarks.begin(), remarks.end());
      manager.addPass(meshwright::createReportDecisionsPass(options));
    }
    if (!reportFile.empty())
      meshwright::addReport(manager, reportFile);
    return mlir::success();
  });

  std::unique_ptr<llvm::MemoryBuffer> buffer = mlir::openInputFile(input, &error);
  std::unique_ptr<llvm::ToolOutputFile> file;
  if (buffer)
    file = mlir::openOutputFile(output, &error);
  if (!file) {
    llvm::errs() << "sharding-opt: error: " << error << "\n";
    return kError;
  }
  if (auto deep = meshwright::findDeepNesting(buffer->getBuffer())) {
    llvm::errs() << input << ":" << deep->line << ":" << deep->column
                 << ": error: " << meshwright::kDeepNesting << "\n";
    return kError;
  }
  if (failed(mlir::MlirOptMain(file->os(), std::move(buffer), registry, config)))
    return kError;
  file->keep();
  return kFine;
}
