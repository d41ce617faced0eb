//===- rows.cpp - row kernels, one at a time ------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// bench/rows.py runs this program. It compiles the kernel of each module given. It
// prints the milliseconds to compile it, its useful bytes, and the medians of its
// runs and of a plain copy's runs, which take turns.
//
//===----------------------------------------------------------------------===//

#include "KernelRunner.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Codegen/Cpu/CpuKernelBuilder.h"
#include "meshwright/passes/schedule/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <sys/mman.h>

using namespace meshwright;

/// The time of this thread, which other work on the machine affects less.
static double seconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec + time.tv_nsec * 1e-9;
}

/// Memory in huge pages, like the arena.
static char *allocate(int64_t bytes) {
  constexpr int64_t page = 2 << 20;
  bytes = (std::max<int64_t>(bytes, 1) + page - 1) / page * page;
  auto *memory = static_cast<char *>(std::aligned_alloc(page, bytes));
  madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

/// Numbers near one, of any float type.
static char *allocate(mlir::RankedTensorType type) {
  int64_t size = type.getElementTypeBitWidth() / 8, count = type.getNumElements();
  char *memory = allocate(count * size);
  for (int64_t i = 0; i < count; ++i) {
    float value = 0.5f + float(i * 7919 % 1024) / 1024;
    if (size == 4) {
      std::memcpy(memory + i * 4, &value, 4);
    } else {
      uint32_t bits;
      std::memcpy(&bits, &value, 4);
      uint16_t half = bits >> 16;
      std::memcpy(memory + i * 2, &half, 2);
    }
  }
  return memory;
}

/// A copy with plain vector stores, as a kernel without arithmetic would do it.
__attribute__((noinline)) static void copy(const char *from, char *to, int64_t bytes) {
  typedef float Vector __attribute__((vector_size(64), aligned(64)));
  auto *source = reinterpret_cast<const Vector *>(from);
  auto *target = reinterpret_cast<Vector *>(to);
#pragma GCC unroll 4
  for (int64_t i = 0; i < bytes / 64; ++i) {
    target[i] = source[i];
    // memcpy would choose its stores by size.
    asm volatile("" ::: "memory");
  }
}

static double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int main(int argc, char **argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: bench-rows REPEATS MODULE.mlir...\n");
    return 2;
  }
  int repeats = std::atoi(argv[1]);
  constexpr int64_t copied = 32 << 20;
  char *from = allocate(copied), *to = allocate(copied);
  std::memset(from, 1, copied);
  for (int file = 2; file < argc; ++file) {
    auto context = test::makeContext();
    context
        ->loadDialect<nn::NnDialect, dist::DistDialect, rt::RtDialect, mlir::func::FuncDialect>();
    auto module = mlir::parseSourceFile<mlir::ModuleOp>(argv[file], context.get());
    if (!module)
      return 1;
    mlir::PassManager manager(context.get());
    manager.addNestedPass<mlir::func::FuncOp>(createFormKernelsPass());
    if (failed(manager.run(*module)))
      return 1;
    std::vector<rt::KernelOp> launches;
    module->walk([&](rt::KernelOp launch) { launches.push_back(launch); });
    lower::CpuTarget cpu("cpu", Processor::host());
    lower::CpuKernelBuilder kernels(context.get(), cpu);
    auto info = launches.size() == 1 ? kernels.build(launches[0]) : std::nullopt;
    if (!info) {
      std::fprintf(stderr, "%s: %zu kernels, expected one of rows\n", argv[file], launches.size());
      return 1;
    }
    std::vector<KernelSource> sources = kernels.takeSources();
    std::unique_ptr<test::Kernel> kernel = test::Kernel::compile(sources[0], Processor::host());
    std::vector<const void *> buffers;
    for (mlir::Value input : info->inputs)
      buffers.push_back(allocate(mlir::cast<mlir::RankedTensorType>(input.getType())));
    for (mlir::Value result : launches[0].getResults())
      buffers.push_back(allocate(mlir::cast<mlir::RankedTensorType>(result.getType())));
    char *workspace = allocate(info->workspaceBytes);
    std::vector<double> ours, copies;
    for (int i = 0; i <= repeats; ++i) {
      double begin = seconds();
      (*kernel)(buffers, 0, info->items, workspace);
      double between = seconds();
      copy(from, to, copied);
      double end = seconds();
      if (i == 0)
        continue;
      ours.push_back(between - begin);
      copies.push_back(end - between);
    }
    std::printf("%f,%lld,%.9f,%lld,%.9f\n", kernel->compileMilliseconds, (long long)info->bytes,
                median(ours), (long long)(2 * copied), median(copies));
    std::fflush(stdout);
    for (const void *buffer : buffers)
      std::free(const_cast<void *>(buffer));
    std::free(workspace);
  }
  return 0;
}
