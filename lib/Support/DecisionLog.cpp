//===- DecisionLog.cpp - why a pass did what it did -----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Support/DecisionLog.h"

#include "mlir/IR/BuiltinAttributes.h"

using namespace meshwright;

void DecisionLog::add(llvm::StringRef pass, Outcome outcome, mlir::Location location,
                      std::string message, std::vector<std::pair<std::string, double>> numbers,
                      std::vector<Alternative> alternatives, Subject subject) {
  std::lock_guard<std::mutex> lock(mutex);
  decisions.push_back({pass.str(), outcome, std::move(message), location, std::move(numbers),
                       std::move(alternatives), subject});
}

void DecisionLog::append(const DecisionLog &other) {
  std::vector<Decision> added = other.get();
  std::lock_guard<std::mutex> lock(mutex);
  decisions.insert(decisions.end(), added.begin(), added.end());
}

std::vector<Decision> DecisionLog::get() const {
  std::lock_guard<std::mutex> lock(mutex);
  return decisions;
}

void DecisionLog::clear() {
  std::lock_guard<std::mutex> lock(mutex);
  decisions.clear();
}

SourceLocation meshwright::getSourceLocation(mlir::Location location) {
  SourceLocation result;
  location->walk([&](mlir::Location inner) {
    if (auto name = llvm::dyn_cast<mlir::NameLoc>(inner); name && result.name.empty())
      result.name = name.getName().str();
    if (auto file = llvm::dyn_cast<mlir::FileLineColLoc>(inner); file && result.file.empty()) {
      result.file = file.getFilename().str();
      result.line = file.getLine();
    }
    return mlir::WalkResult::advance();
  });
  return result;
}
