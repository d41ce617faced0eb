//===- ServeTests.cpp - requests, pages and batches -----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ServeTest.h"
namespace {
TEST(X, Y) {}
}
