//===- Cpu.cpp - the instruction set of this processor --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Cpu.h"

#include <cstdint>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace meshwright::rt {

#if defined(__x86_64__)

namespace {

enum Register { EAX, EBX, ECX, EDX };
/// A set of registers, which the system must save when it switches threads.
enum SavedSet { None, Avx, Avx512, Amx };

struct Feature {
  const char *name;
  uint32_t leaf, subleaf;
  Register reg;
  int bit;
  SavedSet saved;
};

} // namespace

static const Feature features[] = {
    {"sse3", 1, 0, ECX, 0, None},
    {"ssse3", 1, 0, ECX, 9, None},
    {"sse4.1", 1, 0, ECX, 19, None},
    {"sse4.2", 1, 0, ECX, 20, None},
    {"cx16", 1, 0, ECX, 13, None},
    {"movbe", 1, 0, ECX, 22, None},
    {"popcnt", 1, 0, ECX, 23, None},
    {"aes", 1, 0, ECX, 25, None},
    {"pclmul", 1, 0, ECX, 1, None},
    {"sahf", 0x80000001, 0, ECX, 0, None},
    {"lzcnt", 0x80000001, 0, ECX, 5, None},
    {"bmi", 7, 0, EBX, 3, None},
    {"bmi2", 7, 0, EBX, 8, None},
    {"adx", 7, 0, EBX, 19, None},
    {"gfni", 7, 0, ECX, 8, None},
    {"movdiri", 7, 0, ECX, 27, None},
    {"avx", 1, 0, ECX, 28, Avx},
    {"avx2", 7, 0, EBX, 5, Avx},
    {"fma", 1, 0, ECX, 12, Avx},
    {"f16c", 1, 0, ECX, 29, Avx},
    {"fma4", 0x80000001, 0, ECX, 16, Avx},
    {"xop", 0x80000001, 0, ECX, 11, Avx},
    {"tbm", 0x80000001, 0, ECX, 21, None},
    {"vaes", 7, 0, ECX, 9, Avx},
    {"vpclmulqdq", 7, 0, ECX, 10, Avx},
    {"avxvnni", 7, 1, EAX, 4, Avx},
    {"avxifma", 7, 1, EAX, 23, Avx},
    {"avxvnniint8", 7, 1, EDX, 4, Avx},
    {"avxneconvert", 7, 1, EDX, 5, Avx},
    {"avxvnniint16", 7, 1, EDX, 10, Avx},
    {"avx512f", 7, 0, EBX, 16, Avx512},
    {"avx512dq", 7, 0, EBX, 17, Avx512},
    {"avx512ifma", 7, 0, EBX, 21, Avx512},
    {"avx512cd", 7, 0, EBX, 28, Avx512},
    {"avx512bw", 7, 0, EBX, 30, Avx512},
    {"avx512vl", 7, 0, EBX, 31, Avx512},
    {"avx512vbmi", 7, 0, ECX, 1, Avx512},
    {"avx512vbmi2", 7, 0, ECX, 6, Avx512},
    {"avx512vnni", 7, 0, ECX, 11, Avx512},
    {"avx512bitalg", 7, 0, ECX, 12, Avx512},
    {"avx512vpopcntdq", 7, 0, ECX, 14, Avx512},
    {"avx512vp2intersect", 7, 0, EDX, 8, Avx512},
    {"avx512fp16", 7, 0, EDX, 23, Avx512},
    {"avx512bf16", 7, 1, EAX, 5, Avx512},
    {"amx-bf16", 7, 0, EDX, 22, Amx},
    {"amx-tile", 7, 0, EDX, 24, Amx},
    {"amx-int8", 7, 0, EDX, 25, Amx},
    {"amx-fp16", 7, 1, EAX, 21, Amx},
    {"avx10.1", 7, 1, EDX, 19, Avx512},
    {"avx10.2", 0x24, 0, EBX, 1, Avx512},
    {"egpr", 7, 1, EDX, 21, None},
};

std::string getArchitecture() { return "x86-64"; }

/// Returns true if the system saves the registers.
static bool isSaved(SavedSet set) {
  if (set == None)
    return true;
  uint32_t registers[4];
  if (!__get_cpuid(1, &registers[EAX], &registers[EBX], &registers[ECX], &registers[EDX]) ||
      !(registers[ECX] >> 27 & 1))
    return false;
  uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  uint32_t needed = set == Avx ? 0x6 : set == Avx512 ? 0xe6 : 0x60000;
  return (low & needed) == needed;
}

bool hasFeature(const std::string &name) {
  for (const Feature &feature : features) {
    if (name != feature.name)
      continue;
    uint32_t registers[4];
    return __get_cpuid_count(feature.leaf, feature.subleaf, &registers[EAX], &registers[EBX],
                             &registers[ECX], &registers[EDX]) &&
           registers[feature.reg] >> feature.bit & 1 && isSaved(feature.saved);
  }
  return false;
}

const std::vector<std::string> &getKnownFeatures() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> names;
    for (const Feature &feature : features)
      names.push_back(feature.name);
    return names;
  }();
  return names;
}

#else

#if defined(__aarch64__)
std::string getArchitecture() { return "aarch64"; }
#else
std::string getArchitecture() { return "unknown"; }
#endif

const std::vector<std::string> &getKnownFeatures() {
  static const std::vector<std::string> none;
  return none;
}

bool hasFeature(const std::string &) { return false; }

#endif

std::string getMissingFeatures(const std::vector<std::string> &names) {
  std::string missing;
  for (const std::string &name : names)
    if (!hasFeature(name))
      missing += (missing.empty() ? "" : ", ") + name;
  return missing;
}

} // namespace meshwright::rt
