//===- Compile.cpp - lowered programs to object code ----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Compile.h"

#include "KernelCache.h"
#include "KernelCompiler.h"

#include "meshwright/lib/Codegen/ObjectEmitter.h"
#include "meshwright/runtime/include/Progress.h"

#include "llvm/ADT/StringSet.h"

#include <atomic>
#include <mutex>
#include <pthread.h>
#include <sched.h>
#include <thread>
#include <time.h>

using namespace llvm;

namespace meshwright {

/// The processor time of this thread, which does not depend on other load.
static double getMilliseconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1e3 + now.tv_nsec * 1e-6;
}

size_t countProcessors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0)
    return std::max(CPU_COUNT(&set), 1);
  return std::max(std::thread::hardware_concurrency(), 1u);
}

namespace {

/// The kernels of a program, which any number of threads compile. `next` is the next kernel.
class KernelQueue {
public:
  KernelQueue(ArrayRef<KernelSource> kernels, const KernelTarget &target)
      : kernels(kernels), target(target), objects(kernels.size()) {}

  Error compile(CompileStatistics *statistics);
  std::vector<ObjectCode> take() { return std::move(objects); }

private:
  void work(rt::Progress &progress);
  void fail(const std::string &message) {
    std::lock_guard<std::mutex> lock(mutex);
    if (firstError.empty())
      firstError = message;
    next = missing.size();
  }

  ArrayRef<KernelSource> kernels;
  const KernelTarget &target;
  KernelCache cache;
  std::vector<ObjectCode> objects;
  /// The kernels that are not in the cache: their indices and keys.
  std::vector<std::pair<size_t, std::string>> missing;
  std::vector<double> milliseconds;
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::string firstError;
};

} // namespace

void KernelQueue::work(rt::Progress &progress) {
  auto compiler = KernelCompiler::create(target);
  if (!compiler)
    return fail(toString(compiler.takeError()));
  for (size_t i = next++; i < missing.size(); i = next++) {
    const auto &[index, key] = missing[i];
    double start = getMilliseconds();
    Expected<ObjectCode> object = (*compiler)->compile(kernels[index]);
    if (!object)
      return fail(toString(object.takeError()));
    milliseconds[i] = getMilliseconds() - start;
    cache.insert(key, *object);
    objects[index] = std::move(*object);
    progress.step();
  }
}

Error KernelQueue::compile(CompileStatistics *statistics) {
  std::string targetKey = target.getCodeKey();
  for (size_t i = 0; i < kernels.size(); ++i) {
    std::string key = cache.isOn() ? KernelCache::getKey(kernels[i].text, targetKey) : "";
    if (std::optional<ObjectCode> found = cache.find(key))
      objects[i] = std::move(*found);
    else
      missing.emplace_back(i, std::move(key));
  }
  milliseconds.resize(missing.size());
  if (!missing.empty()) {
    rt::Progress progress("compiling kernels", missing.size());
    // Without exceptions, std::thread ends the process if the system has no more threads.
    std::pair<KernelQueue *, rt::Progress *> given(this, &progress);
    auto help = [](void *argument) -> void * {
      auto [queue, progress] = *static_cast<decltype(given) *>(argument);
      queue->work(*progress);
      return nullptr;
    };
    std::vector<pthread_t> threads;
    for (size_t i = 1; i < std::min(countProcessors(), missing.size()); ++i) {
      pthread_t thread;
      if (pthread_create(&thread, nullptr, help, &given) != 0)
        break;
      threads.push_back(thread);
    }
    work(progress);
    for (pthread_t thread : threads)
      pthread_join(thread, nullptr);
    cache.prune();
  }
  if (statistics) {
    statistics->kernels = kernels.size();
    statistics->cached = kernels.size() - missing.size();
    for (size_t i = 0; i < missing.size(); ++i)
      statistics->compiled.emplace_back(kernels[missing[i].first].purpose, milliseconds[i]);
  }
  if (!firstError.empty())
    return createStringError(firstError);
  return Error::success();
}

/// Compiles the entry. It is long and differs between programs, so only a program that is
/// compiled again finds it in the cache.
static Expected<ObjectCode> compileEntry(mlir::ModuleOp module, const Processor &processor) {
  KernelCache cache;
  std::string key;
  if (cache.isOn()) {
    std::string text;
    raw_string_ostream os(text);
    module->print(os, mlir::OpPrintingFlags().assumeVerified());
    key = KernelCache::getKey(text, "entry\n" + processor.cpu + "\n" + processor.features);
    if (std::optional<ObjectCode> found = cache.find(key))
      return std::move(*found);
  }
  auto emitter = ObjectEmitter::create(processor);
  if (!emitter)
    return emitter.takeError();
  Expected<ObjectCode> entry = (*emitter)->emitEntry(module);
  if (entry)
    cache.insert(key, *entry);
  return entry;
}

Expected<CompiledCode> compileCode(ArrayRef<LoweredProgram> entries, const KernelTarget &target,
                                   CompileStatistics *statistics) {
  std::vector<KernelSource> kernels;
  StringSet<> known;
  for (const LoweredProgram &entry : entries)
    for (const KernelSource &kernel : entry.kernels)
      if (known.insert(kernel.name).second)
        kernels.push_back(kernel);
  KernelQueue queue(kernels, target);
  if (Error error = queue.compile(statistics))
    return std::move(error);
  CompiledCode code;
  if (target.getDeviceChip().empty())
    code.objects = queue.take();
  else
    for (auto [kernel, text] : llvm::zip_equal(kernels, queue.take()))
      code.kernels.emplace_back(kernel.name, std::move(text));
  double start = getMilliseconds();
  for (const LoweredProgram &entry : entries) {
    Expected<ObjectCode> object = compileEntry(*entry.module, target.getHost());
    if (!object)
      return object.takeError();
    code.objects.push_back(std::move(*object));
  }
  if (statistics)
    statistics->entryMilliseconds = getMilliseconds() - start;
  return code;
}

} // namespace meshwright
