//===- KernelTarget.cpp - a target that kernels are written for -----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/KernelTarget.h"

#include "meshwright/lib/Codegen/Cpu/CpuTarget.h"
#include "meshwright/lib/Codegen/Gpu/GpuTarget.h"
#include "meshwright/lib/Codegen/RuntimeCalls.h"

#include "llvm/ADT/StringMap.h"
#include "llvm/TargetParser/Host.h"
#include "llvm/TargetParser/Triple.h"

#include <mutex>

using namespace llvm;

namespace meshwright {

KernelTarget::~KernelTarget() = default;

bool KernelTarget::isLibraryOp(mlir::Operation *op) const {
  std::optional<int64_t> kind = lower::getCallKind(op);
  return kind && is_contained(getCalls(), *kind);
}

static Expected<std::shared_ptr<const KernelTarget>> createTarget(StringRef text) {
  static constexpr StringLiteral kSupported =
      "expected cpu, or cpu: and a processor's name, as in cpu:x86-64-v3, or gpu: and a chip, as "
      "in gpu:sm_90a";
  auto [kind, name] = text.split(':');
  if (kind == "gpu") {
    Expected<lower::Chip> chip = lower::Chip::get(name);
    if (!chip)
      return createStringError("target '" + text + "': " + toString(chip.takeError()));
    // The host's code only makes calls. Each processor of the architecture can run it, also one of
    // another machine.
    bool isX86 = Triple(sys::getDefaultTargetTriple()).isX86();
    Expected<Processor> host = Processor::get(isX86 ? "x86-64" : "generic");
    if (!host)
      return createStringError("target '" + text + "': " + toString(host.takeError()));
    return std::make_shared<lower::GpuTarget>(text.str(), *host, *chip);
  }
  if (kind != "cpu" || (text.contains(':') && name.empty()))
    return createStringError("unknown target '" + text + "': " + kSupported);
  Expected<Processor> processor = Processor::get(name);
  if (!processor)
    return createStringError("target '" + text + "': " + toString(processor.takeError()));
  return std::make_shared<lower::CpuTarget>(text.str(), *processor);
}

Expected<std::shared_ptr<const KernelTarget>> getKernelTarget(StringRef text) {
  // Passes ask for the target of each function, and again for each order that they try.
  static std::mutex mutex;
  static StringMap<std::shared_ptr<const KernelTarget>> known;
  if (text.empty())
    text = "cpu";
  std::lock_guard<std::mutex> lock(mutex);
  if (auto found = known.find(text); found != known.end())
    return found->second;
  Expected<std::shared_ptr<const KernelTarget>> target = createTarget(text);
  if (target)
    known[text] = *target;
  return target;
}

std::shared_ptr<const KernelTarget> getKernelTarget(mlir::Operation *func, StringRef text) {
  auto noted = func->getAttrOfType<mlir::StringAttr>(rt::RtDialect::kTargetAttr);
  Expected<std::shared_ptr<const KernelTarget>> target =
      getKernelTarget(text.empty() && noted ? noted.getValue() : text);
  if (target)
    return *target;
  func->emitError() << toString(target.takeError());
  return nullptr;
}

void setTarget(mlir::Operation *func, StringRef name) {
  if (name.empty() || name == "cpu")
    func->removeAttr(rt::RtDialect::kTargetAttr);
  else
    func->setAttr(rt::RtDialect::kTargetAttr, mlir::StringAttr::get(func->getContext(), name));
}

} // namespace meshwright
