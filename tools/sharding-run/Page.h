//===- Page.h - pages of sharding-run ---------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_TOOLS_SHARDING_RUN_PAGE_H
#define MESHWRIGHT_TOOLS_SHARDING_RUN_PAGE_H

#include "Model.h"

namespace meshwright::run {

/// Returns true for the name of a page: it ends in `.html` or `.htm`.
bool isPage(const std::string &path);

/// Checks that `python3` on the PATH has the package that writes pages.
Status checkPages(const std::string &path);

/// Writes a page on the facts of a plan, and on a trace if its path is not empty. The Python package does
/// it: `python3 -m meshwright.pages`.
Status writePage(const std::string &facts, const std::string &path, const std::string &trace);

} // namespace meshwright::run

#endif // MESHWRIGHT_TOOLS_SHARDING_RUN_PAGE_H
