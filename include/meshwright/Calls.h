//===- Calls.h - the calls of Runtime.h, by their structures ----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The lists of calls in meshwright-c/Runtime.h, for C++. The compiler asks them for the calls that
// a program for a device may make. The runtime asks them for the functions of a device.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_CALLS_H
#define MESHWRIGHT_CALLS_H

#include "meshwright-c/Runtime.h"

namespace meshwright {

/// The kind of the call that a structure describes.
template <typename What> struct CallKindOf;
#define MW_RT_KIND(kind, name)                                                                     \
  template <> struct CallKindOf<mw_rt_##name> {                                                    \
    static constexpr int64_t value = MW_RT_CALL_##kind;                                            \
  };
MW_RT_CALLS(MW_RT_KIND)
#undef MW_RT_KIND
template <typename What> constexpr int64_t kCallKind = CallKindOf<What>::value;

/// The calls of each device.
#define MW_RT_KIND(name) kCallKind<mw_rt_##name>,
constexpr int64_t kCpuCalls[] = {MW_RT_CPU_CALLS(MW_RT_KIND)};
constexpr int64_t kGpuCalls[] = {MW_RT_GPU_CALLS(MW_RT_KIND)};
#undef MW_RT_KIND

/// The names of calls, by kind.
#define MW_RT_KIND(kind, name) #name,
constexpr const char *kCallNames[] = {MW_RT_CALLS(MW_RT_KIND)};
#undef MW_RT_KIND

/// The structure of a call. Returns null if the call is of another kind.
template <typename What> const What *asCall(const mw_rt_call &call) {
  return call.kind == kCallKind<What> ? reinterpret_cast<const What *>(&call) : nullptr;
}

/// The integers that follow the structure of a call.
template <typename What> const int64_t *getFollowing(const What &what) {
  return reinterpret_cast<const int64_t *>(&what + 1);
}

} // namespace meshwright

#endif // MESHWRIGHT_CALLS_H
