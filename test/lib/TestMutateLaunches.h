//===- TestMutateLaunches.h - is every race seen? ---------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_TEST_LIB_TESTMUTATELAUNCHES_H
#define MESHWRIGHT_TEST_LIB_TESTMUTATELAUNCHES_H

namespace meshwright::test {

void registerMutateLaunchesPass();

} // namespace meshwright::test

#endif // MESHWRIGHT_TEST_LIB_TESTMUTATELAUNCHES_H
