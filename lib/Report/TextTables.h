//===- TextTables.h - tables and names in reports for people ----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Tables of aligned columns, and entries of repeated layers that share a line.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_REPORT_TEXTTABLES_H
#define MESHWRIGHT_LIB_REPORT_TEXTTABLES_H

#include "meshwright/lib/Support/DecisionLog.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/raw_ostream.h"

#include <set>

namespace meshwright::text {

/// A pattern of names that differ only in layer numbers: model.layers.{0..79}.mlp.
class Pattern {
public:
  /// Replaces each number between dots in `name`. `numbers` receives them.
  static std::string generalize(llvm::StringRef name, llvm::SmallVectorImpl<int64_t> &numbers) {
    llvm::SmallVector<llvm::StringRef> parts;
    name.split(parts, '.');
    std::string pattern;
    for (llvm::StringRef part : parts) {
      pattern += pattern.empty() ? "" : ".";
      int64_t number;
      if (part.getAsInteger(10, number)) {
        pattern += part;
        continue;
      }
      pattern += '\x01';
      numbers.push_back(number);
    }
    return pattern;
  }

  void add(llvm::StringRef name) {
    llvm::SmallVector<int64_t> found;
    text = generalize(name, found);
    numbers.resize(found.size());
    for (auto [set, number] : llvm::zip_equal(numbers, found))
      set.insert(number);
  }

  std::string str() const {
    std::string result;
    size_t next = 0;
    for (char c : text) {
      if (c != '\x01' || next == numbers.size())
        result += c;
      else
        result += range(numbers[next++]);
    }
    return result;
  }

private:
  static std::string range(const std::set<int64_t> &set) {
    if (set.size() == 1)
      return std::to_string(*set.begin());
    std::string result = "{";
    for (auto it = set.begin(); it != set.end();) {
      int64_t first = *it, last = first;
      while (++it != set.end() && *it == last + 1)
        ++last;
      result += result.size() > 1 ? "," : "";
      result += std::to_string(first);
      if (last != first)
        result += (last == first + 1 ? "," : "..") + std::to_string(last);
    }
    return result + "}";
  }

  std::string text;
  llvm::SmallVector<std::set<int64_t>, 1> numbers;
};

inline std::string generalize(llvm::StringRef name) {
  llvm::SmallVector<int64_t> ignored;
  return Pattern::generalize(name, ignored);
}

/// Replaces the layer numbers in the names that a message quotes.
inline std::string generalizeMessage(llvm::StringRef message) {
  llvm::SmallVector<llvm::StringRef> words;
  message.split(words, ' ');
  return llvm::join(llvm::map_range(words,
                                    [](llvm::StringRef word) {
                                      return word.count('.') >= 2 ? generalize(word) : word.str();
                                    }),
                    " ");
}

/// A place that the user knows. A name as "<LlamaForCausalLM>" stands for the text of an import.
inline std::string formatFile(const SourceLocation &location) {
  if (location.file.empty() || llvm::StringRef(location.file).starts_with("<"))
    return "";
  return (llvm::sys::path::filename(location.file) + ":" + llvm::Twine(location.line)).str();
}

/// A table with columns as wide as their widest cell. The last column is not padded.
class Table {
public:
  /// `alignment` has one character for each column: 'l' or 'r'.
  explicit Table(llvm::StringRef alignment) : alignment(alignment) {}

  void row(std::vector<std::string> cells) { rows.push_back(std::move(cells)); }

  void print(llvm::raw_ostream &os) const {
    std::vector<size_t> widths(alignment.size());
    for (const auto &cells : rows)
      for (size_t i = 0; i < cells.size(); ++i)
        widths[i] = std::max(widths[i], cells[i].size());
    for (const auto &cells : rows) {
      std::string line = " ";
      for (size_t i = 0; i < cells.size(); ++i) {
        size_t gap = widths[i] - cells[i].size();
        line += ' ';
        if (alignment[i] == 'r')
          line.append(gap, ' ');
        line += cells[i];
        if (alignment[i] == 'l')
          line.append(gap, ' ');
        line += ' ';
      }
      os << llvm::StringRef(line).rtrim() << "\n";
    }
  }

private:
  llvm::StringRef alignment;
  std::vector<std::vector<std::string>> rows;
};

/// Entries of a report that differ only in layer numbers.
template <typename Entry> struct Group {
  Entry first;
  Pattern name;
  std::set<std::string> places;
  int64_t count = 0;
};

template <typename Entry> class Groups {
public:
  Group<Entry> &get(const Entry &entry, const std::string &key) {
    auto [it, isNew] = index.try_emplace(key, groups.size());
    if (isNew)
      groups.push_back({entry, {}, {}, 0});
    Group<Entry> &group = groups[it->second];
    group.name.add(entry.location.name);
    if (std::string file = formatFile(entry.location); !file.empty())
      group.places.insert(file);
    ++group.count;
    return group;
  }
  llvm::ArrayRef<Group<Entry>> get() const { return groups; }
  /// "model.layers.{0..3}.mlp (modeling_llama.py:171)".
  static std::string where(const Group<Entry> &group) {
    std::string name = group.name.str(), places = llvm::join(group.places, ", ");
    if (name.empty() || places.empty())
      return name + places;
    return name + " (" + places + ")";
  }

private:
  llvm::StringMap<size_t> index;
  std::vector<Group<Entry>> groups;
};

} // namespace meshwright::text

#endif // MESHWRIGHT_LIB_REPORT_TEXTTABLES_H
