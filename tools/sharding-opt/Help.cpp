//===- Help.cpp - the help of sharding-opt --------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// LLVM's own help lists options by name, and those of all its libraries, so that passes of ours are
// hard to find there. `--help-hidden` prints it.
//
//===----------------------------------------------------------------------===//

#include "Help.h"

#include "meshwright/lib/Support/ParallelizeOptions.h"

#include "mlir/Pass/PassRegistry.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/raw_ostream.h"

using namespace meshwright;

static const char *const kHead =
    "usage: sharding-opt [FILE] [options] [pipelines and passes]\n"
    "\n"
    "Reads MLIR from FILE or standard input, runs pipelines and passes in the order of the command\n"
    "line, and prints the result.\n"
    "\n"
    "  -o FILE                the file for the result (default: standard output)\n"
    "  --report-file=FILE     write a report behind the last pass: JSON if FILE ends in .json, else text; -:\n"
    "                         standard output. sharding-run --report=FILE.html writes a page\n"
    "  --remarks=OUTCOME,...  print the passes' decisions as remarks: applied, declined, note\n"
    "  --help                 this text\n"
    "  --help-parallelize     the options of --parallelize alone\n"
    "  --help-hidden          all options, those of MLIR and LLVM too\n"
    "  --version              the versions of the tool, LLVM and compiled programs\n";

/// Options of mlir-opt that users of our passes need.
static const char *const kTail =
    "\n"
    "Options of mlir-opt work as there, for example\n"
    "  --split-input-file         the parts of FILE between lines `// -----`, one by one\n"
    "  --verify-diagnostics       check diagnostics against `expected-error` in FILE\n"
    "  --mlir-print-ir-after-all  the program after each pass, on standard error\n"
    "  --mlir-timing              the time of each pass\n"
    "  --mlir-print-debuginfo     print locations\n"
    "and so do passes of MLIR: --canonicalize, --cse, --symbol-dce, ...\n"
    "\n"
    "exit status: 0 fine, 1 an error, 2 wrong usage\n";

/// The column of descriptions.
static constexpr size_t kColumn = 44, kWidth = 100;

/// Prints words in lines that begin at the column.
static void printWrapped(llvm::raw_ostream &os, size_t column, llvm::StringRef text) {
  size_t at = column;
  for (llvm::StringRef word : llvm::split(text, ' ')) {
    if (at > column && at + 1 + word.size() > kWidth) {
      os << "\n";
      os.indent(column);
      at = column;
    }
    if (at > column) {
      os << " ";
      ++at;
    }
    os << word;
    at += word.size();
  }
  os << "\n";
}

/// Prints the options of --parallelize: names, values, defaults and effects.
static void printOptions(llvm::raw_ostream &os, size_t indent) {
  constexpr size_t kNames = 26;
  for (const OptionDescription &option : getParallelizeOptionDescriptions()) {
    os.indent(indent) << llvm::left_justify(option.name, kNames);
    std::string values = option.values.str();
    if (!option.defaultValue.empty())
      values += (" (default: " + option.defaultValue + ")").str();
    printWrapped(os, indent + kNames, values);
    os.indent(indent + kNames);
    printWrapped(os, indent + kNames, option.description);
  }
}

/// The names of all registered passes and pipelines. LLVM knows them as values of one option without
/// a name.
static llvm::SmallVector<llvm::StringRef> getNames() {
  llvm::SmallVector<llvm::StringRef> names;
  for (auto &[name, option] : llvm::cl::getRegisteredOptions())
    if (mlir::PassInfo::lookup(name) || mlir::PassPipelineInfo::lookup(name))
      names.push_back(name);
  llvm::sort(names);
  return names;
}

void meshwright::printParallelizeHelp(llvm::raw_ostream &os) {
  os << "usage: sharding-opt [FILE] --parallelize=\"OPTION=VALUE ...\"\n\n"
     << "The options of sharding-run, sharding-compile and Model.parallelize in Python are the same.\n"
     << "Without a default an option has no effect where it is not given.\n\n";
  printOptions(os, 2);
}

void meshwright::printHelp(llvm::raw_ostream &os) {
  llvm::SmallVector<llvm::StringRef> names = getNames();
  os << kHead << "\nPipelines\n";
  for (llvm::StringRef name : names) {
    const mlir::PassPipelineInfo *pipeline = mlir::PassPipelineInfo::lookup(name);
    if (!pipeline)
      continue;
    os.flush();
    pipeline->printHelpStr(/*indent=*/2, kColumn);
    if (name == "parallelize")
      printOptions(os, 6);
  }
  os << "\nPasses\n";
  os.flush();
  for (llvm::StringRef name : names)
    if (const mlir::PassInfo *pass = mlir::PassInfo::lookup(name))
      pass->printHelpStr(/*indent=*/2, kColumn);
  os << kTail;
}
