//===- OptionParser.h - typed options of passes -----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// TableGen declares the options of a pass with their C++ types. LLVM reads the text of an
// option with `llvm::cl::parser<T>`. If T is ours, specialise this parser: derive it from
// `TextOptionParser<T>`, as OnOffAuto.h does. An enum lists its texts (Spellings.h). For
// other types the namespace of T has two functions:
//
//   LogicalResult parseOptionText(StringRef text, T &value, OptionErrorHandler error);
//   raw_ostream &operator<<(raw_ostream &, const T &);
//
// The second prints the text that the first reads.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_SUPPORT_OPTIONPARSER_H
#define MESHWRIGHT_LIB_SUPPORT_OPTIONPARSER_H

#include "meshwright/lib/Support/Spellings.h"

#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/LogicalResult.h"

namespace meshwright {

/// Reports an error with this text, and returns failure.
using OptionErrorHandler = llvm::function_ref<llvm::LogicalResult(const llvm::Twine &)>;

/// Reads the text of an enum.
template <typename E, typename = Spelled<E>>
llvm::LogicalResult parseOptionText(llvm::StringRef text, E &value, OptionErrorHandler error) {
  std::optional<E> parsed = parseSpelling<E>(text);
  if (!parsed)
    return error("expected " + llvm::Twine(listSpellings<E>()) + ", got '" + text + "'");
  value = *parsed;
  return llvm::success();
}

/// Reads an option's value by `parseOptionText`.
template <typename T> class TextOptionParser : public llvm::cl::basic_parser<T> {
public:
  using llvm::cl::basic_parser<T>::basic_parser;

  /// Returns true after an error, as parsers of LLVM do.
  bool parse(llvm::cl::Option &option, llvm::StringRef, llvm::StringRef text, T &value) {
    return failed(parseOptionText(text, value, [&](const llvm::Twine &message) {
      option.error(message);
      return llvm::failure();
    }));
  }
  void printOptionDiff(const llvm::cl::Option &option, const T &, const llvm::cl::OptionValue<T> &,
                       size_t width) const {
    this->printOptionName(option, width);
  }
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_SUPPORT_OPTIONPARSER_H
