//===- DecisionLog.h - why a pass did what it did ---------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Every pass that rewrites, or declines to, says so here: what, where in the
// user's source, why, with the numbers compared. Remarks and reports are made
// from it. The log belongs to a context (the dist dialect holds it), so that it
// outlives passes and nothing is global.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_SUPPORT_DECISIONLOG_H
#define MESHWRIGHT_LIB_SUPPORT_DECISIONLOG_H

#include "mlir/IR/Location.h"
#include "llvm/ADT/StringRef.h"

#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace meshwright {

enum class Outcome { Applied, Declined, Note };

llvm::StringRef stringify(Outcome outcome);

/// What a decision is about. Plans report on the program; how its kernels are formed
/// interests those who work on kernels, and is told in remarks only.
enum class Subject { Program, Kernels };

/// One of the choices that a decision compared.
struct Alternative {
  std::string name;
  /// By name, the same names in all alternatives of a decision.
  std::vector<std::pair<std::string, double>> numbers;
  /// Why it was not to be had; empty where it was.
  std::string note;
  bool chosen = false;
};

struct Decision {
  std::string pass;
  Outcome outcome;
  std::string message;
  mlir::Location location;
  /// What was compared, by name: bytes, seconds, counts.
  std::vector<std::pair<std::string, double>> numbers;
  /// The table of what was compared, where there was more than yes or no.
  std::vector<Alternative> alternatives;
  Subject subject = Subject::Program;
};

/// Decisions in the order they were taken. Safe to append to from several
/// threads; function passes run on one function each, so the order within a
/// function is the program's.
class DecisionLog {
public:
  void add(llvm::StringRef pass, Outcome outcome, mlir::Location location, std::string message,
           std::vector<std::pair<std::string, double>> numbers = {},
           std::vector<Alternative> alternatives = {}, Subject subject = Subject::Program);
  std::vector<Decision> get() const;
  void clear();

private:
  mutable std::mutex mutex;
  std::vector<Decision> decisions;
};

/// `location`'s file and line, and the name nearest to the user's source, as
/// far as it has them.
struct SourceLocation {
  std::string file;
  int64_t line = 0;
  std::string name;
};
SourceLocation getSourceLocation(mlir::Location location);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_SUPPORT_DECISIONLOG_H
