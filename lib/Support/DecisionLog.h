//===- DecisionLog.h - why a pass did what it did ---------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Every pass that rewrites the program, or declines to, adds a decision to a log: the
// rewrite, its place in the user's source, the reason, and the numbers that the pass
// compared. Remarks and reports show the log. It belongs to a context (the dist dialect
// holds it), so it outlives passes without a global variable.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_SUPPORT_DECISIONLOG_H
#define MESHWRIGHT_LIB_SUPPORT_DECISIONLOG_H

#include "meshwright/lib/Support/Spellings.h"

#include "mlir/IR/Location.h"
#include "llvm/ADT/StringRef.h"

#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace meshwright {

enum class Outcome { Applied, Declined, Note };

template <> struct Spellings<Outcome> {
  static constexpr Spelling<Outcome> all[] = {{Outcome::Applied, "applied"},
                                              {Outcome::Declined, "declined"},
                                              {Outcome::Note, "note"}};
};

/// The subject of a decision. Reports of plans have decisions on the program. Decisions on
/// how kernels are formed are shown by remarks only.
enum class Subject { Program, Kernels };

/// One of the choices that a decision compares.
struct Alternative {
  std::string name;
  /// Names are in snake_case with their unit, and are the same in all alternatives of a
  /// decision.
  std::vector<std::pair<std::string, double>> numbers;
  /// The reason why this choice is impossible; empty if it is possible.
  std::string note;
  bool chosen = false;
};

struct Decision {
  std::string pass;
  Outcome outcome;
  std::string message;
  mlir::Location location;
  /// The numbers that the pass compared, by name in snake_case with its unit.
  std::vector<std::pair<std::string, double>> numbers;
  /// The choices, if there are more than yes and no.
  std::vector<Alternative> alternatives;
  Subject subject = Subject::Program;
};

/// The decisions of a context.
///
/// - Several threads may add decisions.
/// - Decisions are in the order in which they were added. A function pass runs on one
///   function at a time, so within a function the order is that of the pass.
class DecisionLog {
public:
  void add(llvm::StringRef pass, Outcome outcome, mlir::Location location, std::string message,
           std::vector<std::pair<std::string, double>> numbers = {},
           std::vector<Alternative> alternatives = {}, Subject subject = Subject::Program);
  /// Adds the decisions of another log.
  void append(const DecisionLog &other);
  std::vector<Decision> get() const;
  void clear();

private:
  mutable std::mutex mutex;
  std::vector<Decision> decisions;
};

/// The file and line of a location, and the name that is closest to the user's source;
/// empty where the location has none.
struct SourceLocation {
  std::string file;
  int64_t line = 0;
  std::string name;
};
SourceLocation getSourceLocation(mlir::Location location);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_SUPPORT_DECISIONLOG_H
