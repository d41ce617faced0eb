//===- TriedPrograms.cpp - launches and orders that are kept --------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/TriedPrograms.h"

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/passes/schedule/Pipeline.h"

using namespace mlir;
using namespace meshwright;

static std::shared_ptr<void> &getKept(MLIRContext *context) {
  return context->getOrLoadDialect<dist::DistDialect>()->getKept(TypeID::get<TriedPrograms>());
}

TriedPrograms &TriedPrograms::of(MLIRContext *context) {
  static std::mutex making;
  std::lock_guard<std::mutex> lock(making);
  std::shared_ptr<void> &kept = getKept(context);
  if (!kept) {
    auto made = std::make_shared<TriedPrograms>(context);
    // Tried programs are tried in their own context. The pointer owns nothing.
    getKept(made->context.get()) = std::shared_ptr<void>(std::shared_ptr<void>(), made.get());
    kept = std::move(made);
  }
  return *static_cast<TriedPrograms *>(kept.get());
}

void TriedPrograms::dropLaunches(MLIRContext *context) {
  if (auto *tried = static_cast<TriedPrograms *>(getKept(context).get()))
    tried->launches.clear();
}

const TriedPrograms::Order *TriedPrograms::find(const Request &request) const {
  auto it = orders.find(request);
  return it == orders.end() ? nullptr : &it->second;
}

ModuleOp TriedPrograms::getLaunches(func::FuncOp func, ProgramDigest digest) {
  auto known = llvm::find_if(launches, [&](const auto &entry) { return entry.first == digest; });
  if (known != launches.end()) {
    std::rotate(launches.begin(), known, known + 1);
    return *launches.front().second;
  }
  // The whole module without other functions.
  auto whole = func->getParentOfType<ModuleOp>();
  OwningOpRef<ModuleOp> module = cast<ModuleOp>(whole->cloneWithoutRegions());
  OpBuilder builder = OpBuilder::atBlockBegin(&module->getBodyRegion().emplaceBlock());
  for (Operation &op : *whole.getBody())
    if (&op == func || !isa<func::FuncOp>(op))
      builder.clone(op);
  if (failed(context.run(*module, [](OpPassManager &pm) { buildKernelPipeline(pm); })))
    return nullptr;
  // Decisions about tried programs have no reader.
  dist::DistDialect::getDecisionLog(context.get()).clear();
  launches.emplace_front(digest, std::move(module));
  if (launches.size() > kMostLaunches)
    launches.pop_back();
  return *launches.front().second;
}
