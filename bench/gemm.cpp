//===- gemm.cpp - generated products beside oneDNN and the machine --------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// bench/gemm.py runs this program. It measures on one core, in turns, and prints
// JSON. It counts the time during which its thread ran, so that other processes
// disturb it less.
//
//   bench-gemm ROUNDS TARGET M,N,K,TYPE ...
//
//===----------------------------------------------------------------------===//

#include "KernelRunner.h"

#include "meshwright/lib/Codegen/Cpu/Gemm.h"
#include "meshwright/runtime/include/Packing.h"
#include "meshwright/runtime/include/Types.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/Dialect/X86Vector/X86VectorDialect.h"
#include "llvm/Support/raw_ostream.h"

#include <cmath>
#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>

extern "C" void omp_set_num_threads(int count);

using namespace meshwright;
using namespace meshwright::lower;
using test::Kernel;

namespace {

/// Memory in large pages, touched in advance.
class Buffer {
public:
  explicit Buffer(int64_t bytes) : bytes((bytes + (2 << 20)) >> 21 << 21) {
    void *at = mmap(nullptr, this->bytes + (2 << 20), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
      llvm::errs() << "bench-gemm: no memory\n";
      exit(1);
    }
    address =
        reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(at) + (2 << 20) - 1) >> 21 << 21);
    madvise(address, this->bytes, MADV_HUGEPAGE);
    memset(address, 0, this->bytes);
  }
  template <typename T = char> T *get() const { return reinterpret_cast<T *>(address); }
  int64_t bytes;

private:
  char *address;
};

double now() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec + time.tv_nsec * 1e-9;
}

/// Returns the seconds of a call, measured over several calls if one is short.
template <typename F> double measure(F call, double least) {
  int64_t count = 0;
  double begin = now(), end;
  do {
    call();
    ++count;
    end = now();
  } while (end - begin < least);
  return (end - begin) / count;
}

using Builder = mlir::ImplicitLocOpBuilder;

mlir::Value index(Builder &b, int64_t value) {
  return mlir::arith::ConstantIndexOp::create(b, value);
}

/// Sums in `count` registers, `begin` to `end` times.
std::unique_ptr<Kernel> buildLoop(mlir::MLIRContext *context, const Processor &target, int64_t count,
                                  llvm::function_ref<void(Builder &, mlir::Value, mlir::Value,
                                                          llvm::MutableArrayRef<mlir::Value>)>
                                      emitStep) {
  mlir::Builder types(context);
  auto floats = mlir::MemRefType::get({1 << 28}, types.getF32Type());
  mlir::Type none = mlir::MemRefType::get({64}, types.getI8Type());
  return Kernel::build(
      {floats, types.getIndexType(), types.getIndexType(), none}, target,
      [&](Builder &b, mlir::ValueRange arguments) {
        auto vector = mlir::VectorType::get({target.getLanes()}, b.getF32Type());
        mlir::Value zero = mlir::arith::ConstantOp::create(b, b.getZeroAttr(vector));
        auto loop = mlir::scf::ForOp::create(b, arguments[1], arguments[2], index(b, 1),
                                             llvm::SmallVector<mlir::Value>(count, zero),
                                             [&](mlir::OpBuilder &nested, mlir::Location loc,
                                                 mlir::Value i, mlir::ValueRange values) {
                                               Builder b(loc, nested);
                                               llvm::SmallVector<mlir::Value> sums(values);
                                               emitStep(b, arguments[0], i, sums);
                                               mlir::scf::YieldOp::create(b, sums);
                                             });
        mlir::Value sum = zero;
        for (mlir::Value value : loop.getResults())
          sum = mlir::arith::AddFOp::create(b, sum, value);
        mlir::vector::StoreOp::create(b, sum, arguments[0], index(b, 0));
      });
}

/// The peak of the arithmetic and the bandwidth of the memory.
class Machine {
public:
  Machine(mlir::MLIRContext *context, const Processor &target, int64_t bytes)
      : target(target), memory(bytes) {
    constexpr int64_t registers = 12;
    auto operands = [](Builder &b, mlir::VectorType type, mlir::Value buffer) {
      return mlir::vector::LoadOp::create(b, type, buffer, index(b, 1024)).getResult();
    };
    fma = buildLoop(
        context, target, registers,
        [&](Builder &b, mlir::Value buffer, mlir::Value, llvm::MutableArrayRef<mlir::Value> sums) {
          auto type = llvm::cast<mlir::VectorType>(sums[0].getType());
          mlir::Value x = operands(b, type, buffer);
          for (mlir::Value &sum : sums)
            sum = mlir::vector::FMAOp::create(b, x, x, sum);
        });
    flops = 2 * registers * target.getLanes();
    dot = nullptr;
    if (target.hasBf16Dot)
      dot = buildLoop(context, target, registers,
                      [&](Builder &b, mlir::Value buffer, mlir::Value,
                          llvm::MutableArrayRef<mlir::Value> sums) {
                        auto type = llvm::cast<mlir::VectorType>(sums[0].getType());
                        mlir::Value x = mlir::vector::BitCastOp::create(
                            b, mlir::VectorType::get({2 * target.getLanes()}, b.getBF16Type()),
                            operands(b, type, buffer));
                        for (mlir::Value &sum : sums)
                          sum = mlir::x86vector::DotBF16Op::create(b, sum, x, x);
                      });
    for (bool prefetches : {false, true})
      read[prefetches] =
          buildLoop(context, target, registers,
                    [&](Builder &b, mlir::Value buffer, mlir::Value i,
                        llvm::MutableArrayRef<mlir::Value> sums) {
                      int64_t lanes = target.getLanes();
                      mlir::Value at =
                          mlir::arith::MulIOp::create(b, i, index(b, lanes * registers));
                      for (auto [r, sum] : llvm::enumerate(sums)) {
                        mlir::Value from = mlir::arith::AddIOp::create(b, at, index(b, r * lanes));
                        if (prefetches) {
                          mlir::Value ahead = mlir::arith::AddIOp::create(b, from, index(b, 2048));
                          mlir::memref::PrefetchOp::create(b, buffer, mlir::ValueRange{ahead},
                                                           false, 3u, true);
                        }
                        mlir::Value loaded = mlir::vector::LoadOp::create(
                            b, llvm::cast<mlir::VectorType>(sum.getType()), buffer, from);
                        sum = mlir::arith::AddFOp::create(b, sum, loaded);
                      }
                    });
    readBytes = registers * target.getLanes() * 4;
  }

  double getFlops() const { return rate(*fma, flops); }
  double getDotFlops() const { return dot ? rate(*dot, 2 * flops) : 0; }
  /// Bytes a second, read from memory that no cache holds.
  double getReadBandwidth() const {
    double best = 0;
    int64_t count = memory.bytes / readBytes - 64;
    for (const auto &kernel : read) {
      double begin = now();
      (*kernel)({memory.get()}, 0, count, nullptr);
      best = std::max(best, count * readBytes / (now() - begin));
    }
    return best;
  }

private:
  double rate(const Kernel &kernel, double perStep) const {
    constexpr int64_t steps = 1 << 22;
    return steps * perStep /
           measure([&] { kernel({memory.get()}, 0, steps, nullptr); }, /*least=*/0.01);
  }

  Processor target;
  Buffer memory;
  std::unique_ptr<Kernel> fma, dot, read[2];
  double flops;
  int64_t readBytes;
};

/// A product by oneDNN, with the weights in the layout that it chooses.
class Library {
public:
  Library(int64_t m, int64_t n, int64_t k, bool isBf16, const Buffer &a, const Buffer &b, Buffer &c,
          int64_t copies)
      : stream(engine) {
    using Type = dnnl::memory::data_type;
    using Tag = dnnl::memory::format_tag;
    auto type = isBf16 ? Type::bf16 : Type::f32;
    dnnl::memory::desc any({k, n}, type, Tag::any), plain({k, n}, type, Tag::ab);
    dnnl::memory::desc left({m, k}, type, Tag::ab), right({m, n}, type, Tag::ab);
    dnnl::matmul::primitive_desc description(dnnl::matmul::desc(left, any, right), engine);
    primitive = dnnl::matmul(description);
    left_ = dnnl::memory(left, engine, a.get());
    result = dnnl::memory(right, engine, c.get());
    dnnl::memory from(plain, engine, b.get());
    for (int64_t i = 0; i < copies; ++i) {
      storage.emplace_back(description.weights_desc().get_size());
      weights.emplace_back(description.weights_desc(), engine, storage.back().get());
      dnnl::reorder(from, weights.back()).execute(stream, from, weights.back());
    }
    stream.wait();
  }
  void run() {
    primitive.execute(stream, {{DNNL_ARG_SRC, left_},
                               {DNNL_ARG_WEIGHTS, weights[next++ % weights.size()]},
                               {DNNL_ARG_DST, result}});
    stream.wait();
  }

private:
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream;
  dnnl::matmul primitive;
  dnnl::memory left_, result;
  std::vector<Buffer> storage;
  std::vector<dnnl::memory> weights;
  size_t next = 0;
};

class Generated {
public:
  Generated(mlir::MLIRContext *context, const Processor &target, int64_t m, int64_t n, int64_t k,
            bool isBf16, const Buffer &a, const Buffer &b, Buffer &c, int64_t copies)
      : a(a), c(c) {
    mlir::Builder builder(context);
    mlir::Type type = isBf16 ? mlir::Type(builder.getBF16Type()) : builder.getF32Type();
    mw_rt_packing packing = choosePacking(type, k, n, false, target);
    GemmSpec spec;
    spec.type = spec.resultType = type;
    spec.m = m;
    spec.n = n;
    spec.k = k;
    plan = planGemm(spec, packing.panel, target);
    workspace = std::make_unique<Buffer>(plan.workspaceBytes);
    int64_t size = isBf16 ? 2 : 4;
    // The first call allocates; only later calls are measured.
    for (int i = 0; i < 2; ++i)
      kernel = Kernel::build({mlir::MemRefType::get({m, k}, type),
                              mlir::MemRefType::get({rt::sizeOfPacked(packing) / size}, type),
                              mlir::MemRefType::get({m, n}, type), builder.getIndexType(),
                              builder.getIndexType(),
                              mlir::MemRefType::get({plan.workspaceBytes}, builder.getI8Type())},
                             target, [&](Builder &b, mlir::ValueRange arguments) {
                               emitGemm(b, spec, plan,
                                        {arguments[0], arguments[1], mlir::Value(), arguments[2],
                                         arguments[3], arguments[4], arguments[5]});
                             });
    for (int64_t i = 0; i < copies; ++i) {
      weights.emplace_back(rt::sizeOfPacked(packing));
      double begin = now();
      rt::pack(packing, b.get(), weights.back().get());
      packSeconds = now() - begin;
    }
  }
  void run() {
    (*kernel)({a.get(), weights[next++ % weights.size()].get(), c.get()}, 0, plan.items,
              workspace->get());
  }
  double getCompileMilliseconds() const { return kernel->compileMilliseconds; }
  double packSeconds = 0;

private:
  const Buffer &a;
  Buffer &c;
  GemmPlan plan;
  std::unique_ptr<Buffer> workspace;
  std::unique_ptr<Kernel> kernel;
  std::vector<Buffer> weights;
  size_t next = 0;
};

void fill(const Buffer &buffer, bool isBf16) {
  int64_t count = buffer.bytes / (isBf16 ? 2 : 4);
  for (int64_t i = 0; i < count; ++i) {
    float value = float((i * 2654435761u >> 7) % 255) / 127 - 1;
    if (isBf16)
      buffer.get<uint16_t>()[i] = rt::floatToBf16(value);
    else
      buffer.get<float>()[i] = value;
  }
}

/// The largest difference, relative to the largest result.
double compare(const Buffer &x, const Buffer &y, int64_t count, bool isBf16) {
  double worst = 0, largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    auto load = [&](const Buffer &buffer) {
      return isBf16 ? rt::bf16ToFloat(buffer.get<uint16_t>()[i]) : buffer.get<float>()[i];
    };
    worst = std::max(worst, std::abs(double(load(x)) - load(y)));
    largest = std::max(largest, std::abs(double(load(y))));
  }
  return worst / largest;
}

} // namespace

int main(int count, char **arguments) {
  if (count < 4) {
    llvm::errs() << "usage: bench-gemm ROUNDS TARGET M,N,K,f32|bf16 ...\n";
    return 2;
  }
  int core = sched_getcpu();
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  sched_setaffinity(0, sizeof(cores), &cores);
  omp_set_num_threads(1);

  auto context = test::makeContext();
  Processor target = llvm::cantFail(Processor::get(arguments[2]));
  Machine machine(context.get(), target, 512 << 20);
  llvm::outs() << "[";
  for (int i = 3; i < count; ++i) {
    long m, n, k;
    char name[8] = {};
    if (sscanf(arguments[i], "%ld,%ld,%ld,%7s", &m, &n, &k, name) != 4) {
      llvm::errs() << "bench-gemm: " << arguments[i] << ": expected M,N,K,f32|bf16\n";
      return 2;
    }
    bool isBf16 = !strcmp(name, "bf16");
    int64_t size = isBf16 ? 2 : 4;
    Buffer a(m * k * size), b(k * n * size), c(m * n * size), d(m * n * size);
    fill(a, isBf16);
    fill(b, isBf16);
    // Products of few rows read their weights from memory.
    bool isStreamed = m <= 16;
    int64_t copies = isStreamed ? std::max<int64_t>(1, (256 << 20) / (k * n * size)) : 1;
    Generated ours(context.get(), target, m, n, k, isBf16, a, b, c, copies);
    Library theirs(m, n, k, isBf16, a, b, d, copies);
    ours.run();
    theirs.run();
    double error = compare(c, d, m * n, isBf16);
    llvm::outs() << (i > 3 ? ",\n" : "\n")
                 << llvm::format("{\"m\": %ld, \"n\": %ld, \"k\": %ld, \"dtype\": \"%s\", "
                                 "\"compile_ms\": %.1f, \"pack_gbps\": %.2f, "
                                 "\"difference\": %.2g, \"rounds\": [",
                                 m, n, k, name, ours.getCompileMilliseconds(),
                                 k * n * size / ours.packSeconds * 1e-9, error);
    double least = isStreamed ? 0.03 : 0.02;
    for (int round = 0; round < atoi(arguments[1]); ++round) {
      double flops = isBf16 && target.hasBf16Dot ? machine.getDotFlops() : machine.getFlops();
      double bandwidth = machine.getReadBandwidth();
      double own = measure([&] { ours.run(); }, least);
      double library = measure([&] { theirs.run(); }, least);
      llvm::outs() << (round ? ", " : "")
                   << llvm::format("{\"peak\": %.6g, \"bandwidth\": %.6g, \"ours\": %.6g, "
                                   "\"onednn\": %.6g}",
                                   flops, bandwidth, own, library);
      llvm::outs().flush();
    }
    llvm::outs() << "]}";
  }
  llvm::outs() << "\n]\n";
}
