//===- Compute.cpp - Results of collectives ---------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "nccl/Communicator.h"
#include "ops/Numeric.h"

namespace fakegpu::nccl {
namespace {

struct Half {
  uint16_t bits;
  static float read(Half h) { return halfToFloat(h.bits); }
  static Half write(float f) { return {floatToHalf(f)}; }
};
struct Bfloat {
  uint16_t bits;
  static float read(Bfloat b) { return bfloatToFloat(b.bits); }
  static Bfloat write(float f) { return {floatToBfloat(f)}; }
};
template <typename T> struct Plain {
  T value;
  static T read(Plain p) { return p.value; }
  static Plain write(T v) { return {v}; }
};

template <typename V> V combine(ncclRedOp_t op, V a, V b) {
  switch (op) {
  case ncclProd: return V(a * b);
  case ncclMax: return b > a || b != b ? b : a; // a NaN stays
  case ncclMin: return b < a || b != b ? b : a;
  default: return V(a + b);
  }
}

/// Reduces in rank order and rounds after each step, as a ring that passes partial sums on does.
template <typename T> void reduce(const Operation &op, unsigned ranks, size_t begin, char *out, const std::function<const char *(unsigned)> &data) {
  auto *result = reinterpret_cast<T *>(out);
  const T *first = reinterpret_cast<const T *>(data(0)) + begin;
  std::copy(first, first + op.count, result);
  for (unsigned r = 1; r < ranks; ++r) {
    const T *other = reinterpret_cast<const T *>(data(r)) + begin;
    for (size_t i = 0; i < op.count; ++i)
      result[i] = T::write(combine(op.reduction, T::read(result[i]), T::read(other[i])));
  }
  if (op.reduction == ncclAvg)
    for (size_t i = 0; i < op.count; ++i)
      result[i] = T::write(decltype(T::read(result[i]))(T::read(result[i]) / decltype(T::read(result[i]))(ranks)));
}

void reduceTyped(const Operation &op, unsigned ranks, size_t begin, char *out, const std::function<const char *(unsigned)> &data) {
  switch (op.type) {
  case ncclInt8: return reduce<Plain<int8_t>>(op, ranks, begin, out, data);
  case ncclUint8: return reduce<Plain<uint8_t>>(op, ranks, begin, out, data);
  case ncclInt32: return reduce<Plain<int32_t>>(op, ranks, begin, out, data);
  case ncclUint32: return reduce<Plain<uint32_t>>(op, ranks, begin, out, data);
  case ncclInt64: return reduce<Plain<int64_t>>(op, ranks, begin, out, data);
  case ncclUint64: return reduce<Plain<uint64_t>>(op, ranks, begin, out, data);
  case ncclFloat16: return reduce<Half>(op, ranks, begin, out, data);
  case ncclFloat32: return reduce<Plain<float>>(op, ranks, begin, out, data);
  case ncclFloat64: return reduce<Plain<double>>(op, ranks, begin, out, data);
  case ncclBfloat16: return reduce<Bfloat>(op, ranks, begin, out, data);
  default: return;
  }
}

} // namespace

size_t sentElements(const Operation &op, unsigned rank, unsigned ranks) {
  switch (op.kind) {
  case Operation::Broadcast: return rank == unsigned(op.peer) ? op.count : 0;
  case Operation::Scatter: return rank == unsigned(op.peer) ? op.count * ranks : 0;
  case Operation::ReduceScatter:
  case Operation::AllToAll: return op.count * ranks;
  case Operation::Receive: return 0;
  default: return op.count;
  }
}

size_t receivedElements(const Operation &op, unsigned rank, unsigned ranks) {
  switch (op.kind) {
  case Operation::Reduce: return rank == unsigned(op.peer) ? op.count : 0;
  case Operation::Gather: return rank == unsigned(op.peer) ? op.count * ranks : 0;
  case Operation::AllGather:
  case Operation::AllToAll: return op.count * ranks;
  case Operation::Send: return 0;
  default: return op.count;
  }
}

void compute(const Request &request, unsigned rank, unsigned ranks, const std::function<const char *(unsigned)> &data) {
  const Operation &op = request.operation;
  size_t bytes = op.count * sizeOf(op.type);
  switch (op.kind) {
  case Operation::AllReduce:
  case Operation::Reduce: return reduceTyped(op, ranks, 0, request.receive, data);
  case Operation::ReduceScatter: return reduceTyped(op, ranks, rank * op.count, request.receive, data);
  case Operation::Broadcast: memcpy(request.receive, data(unsigned(op.peer)), bytes); return;
  case Operation::Scatter: memcpy(request.receive, data(unsigned(op.peer)) + rank * bytes, bytes); return;
  case Operation::AllGather:
  case Operation::Gather:
    for (unsigned r = 0; r < ranks; ++r)
      memcpy(request.receive + r * bytes, data(r), bytes);
    return;
  case Operation::AllToAll:
    for (unsigned r = 0; r < ranks; ++r)
      memcpy(request.receive + r * bytes, data(r) + rank * bytes, bytes);
    return;
  default: return;
  }
}

} // namespace fakegpu::nccl
