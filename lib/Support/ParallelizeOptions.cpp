//===- ParallelizeOptions.cpp - the options of a plan ---------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Support/ParallelizeOptions.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/GlobPattern.h"
#include "llvm/Support/raw_ostream.h"

#include <cmath>
#include <limits>

using namespace meshwright;
using llvm::failure;
using llvm::FailureOr;
using llvm::LogicalResult;
using llvm::SmallVector;
using llvm::StringRef;
using llvm::success;
using llvm::Twine;

bool meshwright::matchesPattern(StringRef pattern, StringRef name) {
  llvm::Expected<llvm::GlobPattern> glob = llvm::GlobPattern::create(pattern);
  if (!glob) {
    llvm::consumeError(glob.takeError());
    return false;
  }
  return glob->match(name);
}

bool ShardingRule::matches(StringRef name) const { return matchesPattern(pattern, name); }

//===----------------------------------------------------------------------===//
// Parsing
//===----------------------------------------------------------------------===//

/// All axes of some rules, in the order of their names.
static AxisChoice getAxesOf(const AxisRules &rules) {
  SmallVector<StringRef> all;
  for (const auto &rule : rules.rules) {
    SmallVector<StringRef> own;
    StringRef(rule.value.name).split(own, ',', -1, /*KeepEmpty=*/false);
    for (StringRef axis : own)
      if (!llvm::is_contained(all, axis))
        all.push_back(axis);
  }
  return AxisChoice::get(llvm::join(all, ","));
}

namespace {

/// Finds the first character outside of quotes and brackets for which `stop` holds, or the
/// end of `text`. Fails if a quote or a bracket stays open.
FailureOr<size_t> findOutside(StringRef text, llvm::function_ref<bool(char)> stop) {
  SmallVector<char> open;
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (quote) {
      if (c == '\\')
        ++i;
      else if (c == quote)
        quote = 0;
      continue;
    }
    if (open.empty() && stop(c))
      return i;
    if (c == '"' || c == '\'')
      quote = c;
    else if (c == '{' || c == '[' || c == '(')
      open.push_back(c == '{' ? '}' : c == '[' ? ']' : ')');
    else if (c == '}' || c == ']' || c == ')') {
      if (open.empty() || open.back() != c)
        return failure();
      open.pop_back();
    }
  }
  if (quote || !open.empty())
    return failure();
  return text.size();
}

/// The content of a quoted string, or else the text itself.
std::string unquote(StringRef text) {
  text = text.trim();
  if (text.size() < 2 || (text.front() != '"' && text.front() != '\'') ||
      text.back() != text.front())
    return text.str();
  std::string result;
  StringRef inner = text.drop_front().drop_back();
  for (size_t i = 0; i < inner.size(); ++i) {
    if (inner[i] == '\\' && i + 1 < inner.size())
      ++i;
    result += inner[i];
  }
  return result;
}

struct Parser {
  OptionErrorHandler error;
  ParallelizeOptions options;

  LogicalResult parseMesh(StringRef value) {
    if (value == "auto") {
      options.isMeshAuto = true;
      return success();
    }
    if (!value.contains(':'))
      return parseAxes(value, options.mesh.axes);
    SmallVector<StringRef> stages;
    value.split(stages, ';', -1, /*KeepEmpty=*/false);
    for (StringRef text : stages) {
      auto [name, axes] = text.split(':');
      StageMeshOption stage;
      stage.stage = unquote(name);
      if (stage.stage.empty())
        return error("mesh: cannot read '" + text.trim() +
                     "': expected stage:name=size[,name=size...]");
      if (llvm::any_of(options.mesh.stages,
                       [&](auto &other) { return other.stage == stage.stage; }))
        return error("mesh: stage '" + Twine(stage.stage) + "' is given twice");
      if (failed(parseAxes(axes.trim(), stage.axes)))
        return failure();
      options.mesh.stages.push_back(std::move(stage));
    }
    return success();
  }

  LogicalResult parseAxes(StringRef value, std::vector<MeshAxisOption> &mesh) {
    if (value.empty())
      return error("mesh is empty: expected name=size[,name=size...], as in mesh=dp=2,tp=4");
    SmallVector<StringRef> axes;
    value.split(axes, ',');
    int64_t ranks = 1;
    for (StringRef axis : axes) {
      auto [nameText, sizeText] = axis.split('=');
      StringRef name = nameText.trim();
      name.consume_front("\"");
      name.consume_back("\"");
      int64_t size = 0;
      if (name.empty() || sizeText.trim().getAsInteger(10, size))
        return error("mesh: cannot read '" + axis.trim() + "': expected name=size, as in tp=4");
      if (size < 1)
        return error("mesh: axis '" + name + "': expected a size of at least 1, got " +
                     Twine(size));
      if (llvm::any_of(mesh, [&](auto &other) { return other.name == name; }))
        return error("mesh: axis '" + name + "' is given twice");
      // Larger meshes would overflow sums of bytes over ranks.
      if (size > (int64_t(1) << 40) / ranks)
        return error("mesh: more than 2^40 ranks");
      ranks *= size;
      mesh.push_back({name.str(), size});
    }
    return success();
  }

  /// Reads a value that is one word.
  template <typename T> LogicalResult parseWord(StringRef key, StringRef value, T &option) {
    return parseOptionText(value, option,
                           [&](const Twine &message) { return error(key + ": " + message); });
  }

  /// Reads `ulysses=AXIS ring=AXIS order=ORDER`.
  LogicalResult parseContext(StringRef text) {
    // Braces enclose a table within other options.
    if (text.consume_front("{") && !text.consume_back("}"))
      return error("context-parallel: a brace stays open");
    text = text.trim();
    if (text == "auto")
      text = "ulysses=auto ring=auto";
    SmallVector<StringRef> pairs;
    llvm::SplitString(text, pairs);
    for (StringRef pair : pairs) {
      auto [key, value] = pair.split('=');
      auto ignore = [](const Twine &) -> LogicalResult { return failure(); };
      std::optional<AxisRole> role = parseSpelling<AxisRole>(key);
      AxisChoice axis;
      LogicalResult isRead = failure();
      if (key == "order")
        isRead = parseOptionText(value, options.sequenceOrder, ignore);
      else if (role == AxisRole::Ulysses || role == AxisRole::Ring)
        isRead = parseOptionText(value, axis, ignore);
      if (failed(isRead))
        return error(
            "context-parallel: cannot read '" + pair +
            "': expected ulysses=axis, ring=axis, order=" + listSpellings<SequenceOrder>());
      if (role)
        options.axes.set(*role, std::move(axis));
    }
    if (!options.shardsSequences())
      return error("context-parallel: expected an axis for ulysses, ring or both, got '" + text +
                   "'");
    AxisChoice ulysses = options.axes.get(AxisRole::Ulysses);
    if (ulysses.kind == AxisChoice::Named && ulysses.name == options.axes.get(AxisRole::Ring).name)
      return error("context-parallel: expected two axes for ulysses and ring, got '" +
                   ulysses.name + "' for both");
    return success();
  }

  LogicalResult parseFold(StringRef value) {
    StringRef rest = value.trim();
    if (!rest.consume_front("{") || !rest.consume_back("}"))
      return error("fold: expected {stage: mode, ...}, got '" + value + "'");
    SmallVector<StringRef> rules;
    rest.split(rules, ',', -1, /*KeepEmpty=*/false);
    for (StringRef text : rules) {
      auto [stage, mode] = text.split(':');
      FoldRule rule{unquote(stage), FoldMode::None};
      // JSON spells Python's None as null.
      std::string spelling = unquote(mode) == "null" ? "none" : unquote(mode);
      auto ignore = [](const Twine &) -> LogicalResult { return failure(); };
      if (rule.stage.empty() || failed(parseOptionText(spelling, rule.mode, ignore)))
        return error("fold: cannot read '" + text.trim() + "': expected a stage and " +
                     listSpellings<FoldMode>());
      if (llvm::any_of(options.fold, [&](auto &other) { return other.stage == rule.stage; }))
        return error("fold: stage '" + rule.stage + "' is given twice");
      options.fold.push_back(std::move(rule));
    }
    return success();
  }

  /// Reads {"pattern": value, ...}. `add` takes a pattern and a value without quotes, and returns
  /// what is wrong with them, or an empty text.
  LogicalResult parseRules(StringRef key, StringRef value, StringRef expected,
                           llvm::function_ref<std::string(StringRef, StringRef)> add) {
    StringRef rest = value.trim();
    auto malformed = [&](const Twine &what) {
      return error(key + ": " + what + ": expected " + expected + ", got '" + value + "'");
    };
    if (!rest.consume_front("{") || !rest.consume_back("}"))
      return malformed("no braces around the rules");
    while (!(rest = rest.trim()).empty()) {
      FailureOr<size_t> end = findOutside(rest, [](char c) { return c == ':'; });
      if (failed(end) || *end == rest.size())
        return malformed("no ':' after a pattern");
      std::string pattern = unquote(rest.take_front(*end));
      rest = rest.drop_front(*end + 1).ltrim();
      end = findOutside(rest, [](char c) { return c == ','; });
      if (failed(end))
        return malformed("a bracket or quote stays open");
      std::string own = unquote(rest.take_front(*end));
      rest = rest.drop_front(std::min(*end + 1, rest.size()));
      if (pattern.empty())
        return malformed("an empty pattern");
      if (std::string problem = add(pattern, StringRef(own).trim()); !problem.empty())
        return malformed(problem);
      llvm::Expected<llvm::GlobPattern> glob = llvm::GlobPattern::create(pattern);
      if (!glob)
        return malformed("pattern '" + Twine(pattern) + "': " + llvm::toString(glob.takeError()));
    }
    return success();
  }

  LogicalResult parseShardings(StringRef value) {
    return parseRules("shardings", value, "{\"pattern\": [{\"axis\"}, {}], ...}",
                      [&](StringRef pattern, StringRef sharding) -> std::string {
                        if (!sharding.starts_with("["))
                          return ("the sharding of '" + pattern + "' is '" + sharding + "'").str();
                        options.shardings.rules.push_back({pattern.str(), sharding.str()});
                        return "";
                      });
  }

  /// Rules by name, or one value for all names.
  template <typename E>
  LogicalResult parseNamedRules(StringRef key, StringRef value, NamedRules<E> &rules) {
    if (std::optional<E> all = parseSpelling<E>(value.trim())) {
      if (*all != Spellings<E>::all[0].value)
        rules.rules.push_back({"*", *all});
      return success();
    }
    std::string expected =
        listSpellings<E>() + ", or {\"pattern\": \"" + Spellings<E>::all[1].text.str() + "\", ...}";
    return parseRules(key, value, expected, [&](StringRef pattern, StringRef text) -> std::string {
      std::optional<E> own = parseSpelling<E>(text);
      if (!own)
        return ("the value of '" + pattern + "' is '" + text + "'").str();
      rules.rules.push_back({pattern.str(), *own});
      return "";
    });
  }

  /// Reads {"pattern": ["axis", ...], ...}.
  LogicalResult parseAxisRules(StringRef key, StringRef value, AxisRules &rules) {
    return parseRules(key, value, "{\"pattern\": [\"axis\", ...], ...}",
                      [&](StringRef pattern, StringRef text) -> std::string {
                        AxisChoice axes = AxisChoice::get("");
                        StringRef list = text;
                        if (list.consume_front("[") != list.consume_back("]"))
                          return ("the axes of '" + pattern + "' are '" + text + "'").str();
                        SmallVector<StringRef> names;
                        if (list.trim() != "none")
                          list.split(names, ',', -1, /*KeepEmpty=*/false);
                        for (StringRef name : names) {
                          std::string plain = unquote(name);
                          if (plain.empty() || plain == "none" || plain == "auto")
                            return ("the axes of '" + pattern + "' are '" + text + "'").str();
                          if (("," + axes.name + ",").find("," + plain + ",") != std::string::npos)
                            return ("the axes of '" + pattern + "' have '" + plain + "' twice").str();
                          axes = AxisChoice::get(axes.name + (axes.name.empty() ? "" : ",") + plain);
                        }
                        rules.rules.push_back({pattern.str(), std::move(axes)});
                        return "";
                      });
  }

  LogicalResult parseRanks(StringRef value) {
    // The planner prices each mesh of the ranks.
    constexpr int64_t most = int64_t(1) << 20;
    if (value.getAsInteger(10, options.ranks) || options.ranks < 1 || options.ranks > most)
      return error("ranks: expected a number from 1 to " + Twine(most) + ", got '" + value + "'");
    return success();
  }

  /// Checks options against each other.
  LogicalResult check() {
    if (options.ranks == 0)
      return success();
    if (!options.mesh.stages.empty())
      return error("ranks and a mesh for each stage are both given: expected ranks, with or without axes "
                   "that all stages share, or the meshes");
    int64_t stated = 1;
    for (const MeshAxisOption &axis : options.mesh.axes)
      stated *= axis.size;
    if (options.ranks % stated != 0)
      return error("ranks: expected a multiple of " + Twine(stated) + ", the ranks of the axes that mesh states, got " +
                   Twine(options.ranks));
    return success();
  }

  LogicalResult parseMemoryCeiling(StringRef value) {
    StringRef digits = value;
    int64_t unit = 1;
    if (digits.consume_back_insensitive("K"))
      unit = int64_t(1) << 10;
    else if (digits.consume_back_insensitive("M"))
      unit = int64_t(1) << 20;
    else if (digits.consume_back_insensitive("G"))
      unit = int64_t(1) << 30;
    int64_t count = 0;
    double number = 0;
    constexpr int64_t most = std::numeric_limits<int64_t>::max();
    // Digits behind a point count parts of the unit.
    bool isParts = unit > 1 && digits.contains('.') && !digits.getAsDouble(number) &&
                   number * double(unit) >= 1 && number * double(unit) < double(most);
    if (isParts) {
      options.memoryCeiling = int64_t(number * double(unit));
      return success();
    }
    if (digits.getAsInteger(10, count) || count < 1 || count > most / unit)
      return error("memory-ceiling: expected a positive number of bytes, with K, M or G behind it "
                   "or not, got '" +
                   value + "'");
    options.memoryCeiling = count * unit;
    return success();
  }

  LogicalResult parseFactor(StringRef key, StringRef value, double &factor) {
    if (value.getAsDouble(factor) || !(factor > 0) || !std::isfinite(factor))
      return error(key + ": expected a number above 0, got '" + value + "'");
    return success();
  }

  LogicalResult parseLoad(StringRef key, StringRef value, double &load) {
    if (value.getAsDouble(load) || !(load >= 1) || !std::isfinite(load))
      return error(key + ": expected a number from 1 on, got '" + value + "'");
    return success();
  }

  LogicalResult parseOption(StringRef key, StringRef value) {
    if (key == "mesh")
      return parseMesh(value);
    if (key == "ranks")
      return parseRanks(value);
    if (key == "objective")
      return parseWord(key, value, options.objective.emplace());
    for (const AxisRoleDescription &known : kAxisRoles)
      if (!known.option.empty() && key == known.option) {
        AxisChoice axis;
        if (known.role == AxisRole::Gtp && value.trim().starts_with("{")) {
          if (failed(parseAxisRules(key, value, options.gtpAxes)))
            return failure();
          options.axes.set(known.role, getAxesOf(options.gtpAxes));
          return success();
        }
        if (failed(parseWord(key, value, axis)))
          return failure();
        options.axes.set(known.role, std::move(axis));
        return success();
      }
    if (key == "sequence-parallel")
      return parseWord(key, value, options.sequenceParallel);
    if (key == "cache-sharding")
      return parseWord(key, value, options.cacheSharding);
    if (key == "data-parallel-attention")
      return parseWord(key, value, options.dpAttention.groups);
    if (key == "dense-tp")
      return parseWord(key, value, options.dpAttention.denseTp);
    if (key == "dp-lm-head")
      return parseWord(key, value, options.dpAttention.lmHead);
    if (key == "token-gather")
      return parseWord(key, value, options.dpAttention.gather);
    if (key == "context-parallel")
      return parseContext(value);
    if (key == "fold")
      return parseFold(value);
    if (key == "shardings")
      return parseShardings(value);
    if (key == "device") {
      if (value.empty())
        return error("device is empty: expected a preset's name or a table in braces");
      // A table has spaces, so braces enclose it.
      if (value.consume_front("{") && !value.consume_back("}"))
        return error("device: a brace stays open");
      options.device = value.trim().str();
      return success();
    }
    if (key == "shard-optimizer")
      return parseWord(key, value, options.shardOptimizer);
    if (key == "gtp-align")
      return parseWord(key, value, options.gtpAlign);
    if (key == "gtp-prefetch")
      return parseWord(key, value, options.gtpPrefetch);
    if (key == "gtp-keep")
      return parseWord(key, value, options.gtpKeep);
    if (key == "gtp-reduce")
      return parseWord(key, value, options.gtpReduce);
    if (key == "gtp-gather")
      return parseNamedRules(key, value, options.gtpGather);
    if (key == "shard-saved")
      return parseWord(key, value, options.shardSaved);
    if (key == "recompute")
      return parseWord(key, value, options.recompute);
    if (key == "overlap")
      return parseWord(key, value, options.overlap);
    if (key == "memory-ceiling")
      return parseMemoryCeiling(value);
    if (key == "expert-capacity")
      return value == "none" ? success() : parseFactor(key, value, options.expertCapacity);
    if (key == "expert-load")
      return parseLoad(key, value, options.expertLoad);
    if (key == "stored-weights")
      return parseWord(key, value, options.storedWeights);
    if (key == "reduce-type")
      return parseNamedRules(key, value, options.reduceTypes);
    if (key == "target") {
      if (value.empty())
        return error("target is empty: expected cpu or cpu:NAME, as in target=cpu:x86-64-v3");
      options.target = value.str();
      return success();
    }
    if (key == "target-cpu")
      return error("option 'target-cpu' is now 'target': expected target=cpu:NAME, as in "
                   "target=cpu:x86-64-v3");
    return error("unknown option '" + key + "'; supported are " + supported());
  }

  static std::string supported() {
    return llvm::join(llvm::map_range(getParallelizeOptionDescriptions(),
                                      [](const OptionDescription &d) { return d.name; }),
                      ", ");
  }
};

} // namespace

FailureOr<ParallelizeOptions> meshwright::parseParallelizeOptions(StringRef text,
                                                                  OptionErrorHandler error) {
  Parser parser{error, {}};
  llvm::StringSet<> seen;
  StringRef rest = text.trim();
  while (!rest.empty()) {
    FailureOr<size_t> end = findOutside(rest, [](char c) { return llvm::isSpace(c); });
    if (failed(end))
      return error("a bracket or quote stays open in options '" + text + "'");
    auto [keyText, value] = rest.take_front(*end).split('=');
    rest = rest.drop_front(*end).ltrim();
    std::string key = keyText.trim().str();
    std::replace(key.begin(), key.end(), '_', '-');
    if (keyText.size() == text.size() && value.empty())
      return error("cannot read options '" + text + "': expected key=value pairs; supported are " +
                   Parser::supported());
    if (!seen.insert(key).second)
      return error("option '" + Twine(key) + "' is given twice");
    // Removes quotes around the whole value. Braces and brackets stay.
    std::string plain = unquote(value);
    if (failed(parser.parseOption(key, plain)))
      return failure();
    // An axis of context parallelism may be auto.
    bool isAuto = plain == "auto";
    for (StringRef part : llvm::split(StringRef(plain).trim("{}"), ' '))
      isAuto |= key == "context-parallel" && (part == "ulysses=auto" || part == "ring=auto");
    if (isAuto && llvm::is_contained(getPlannedOptions(), key))
      parser.options.statedAuto.push_back(key);
  }
  if (failed(parser.check()))
    return failure();
  return std::move(parser.options);
}

LogicalResult meshwright::parseOptionText(StringRef text, MeshOption &mesh,
                                          OptionErrorHandler error) {
  Parser parser{error, {}};
  if (failed(parser.parseMesh(text)))
    return failure();
  mesh = std::move(parser.options.mesh);
  return success();
}

LogicalResult meshwright::parseOptionText(StringRef text, ShardingRules &shardings,
                                          OptionErrorHandler error) {
  Parser parser{error, {}};
  // Pass pipelines remove the braces.
  std::string rules = text.starts_with("{") ? text.str() : ("{" + text + "}").str();
  if (failed(parser.parseShardings(rules)))
    return failure();
  shardings = std::move(parser.options.shardings);
  return success();
}

template <typename E>
static LogicalResult parseNamedRules(StringRef key, StringRef text, NamedRules<E> &rules,
                                     OptionErrorHandler error) {
  Parser parser{error, {}};
  // Pass pipelines remove the braces of rules.
  bool isRules = text.contains(':') && !text.starts_with("{");
  return parser.parseNamedRules(key, isRules ? ("{" + text + "}").str() : text.str(), rules);
}

LogicalResult meshwright::parseOptionText(StringRef text, ReduceTypes &types,
                                          OptionErrorHandler error) {
  return parseNamedRules("reduce-type", text, types, error);
}

LogicalResult meshwright::parseOptionText(StringRef text, AxisRules &rules,
                                          OptionErrorHandler error) {
  Parser parser{error, {}};
  if (text.trim().empty())
    return success();
  // Pass pipelines remove the braces of rules.
  return parser.parseAxisRules("gtp", text.starts_with("{") ? text.str() : ("{" + text + "}").str(),
                               rules);
}

LogicalResult meshwright::parseOptionText(StringRef text, GatherRules &rules,
                                          OptionErrorHandler error) {
  return parseNamedRules("gtp-gather", text, rules, error);
}

/// Returns true if options give an axis of this name the role.
static bool hasRole(const AxisChoices &axes, AxisRole role, StringRef name) {
  AxisChoice choice = axes.get(role);
  if (choice.kind == AxisChoice::Auto)
    return name == getRoleDescription(role).usualAxis;
  return choice.kind == AxisChoice::Named &&
         llvm::is_contained(llvm::split(choice.name, ','), name);
}

int64_t ParallelizeOptions::countGroups() const {
  int64_t groups = dpAttention.groups.number.value_or(1);
  for (const MeshAxisOption &axis : mesh.axes) {
    // Ranks that store different shards see different requests, unless the axis has another role.
    bool hasOther = llvm::any_of(kAxisRoles, [&](const AxisRoleDescription &known) {
      return known.role != AxisRole::Gtp && hasRole(axes, known.role, axis.name);
    });
    if (hasRole(axes, AxisRole::Data, axis.name) ||
        (hasRole(axes, AxisRole::Gtp, axis.name) && !hasOther))
      groups *= axis.size;
  }
  return groups;
}

int64_t ParallelizeOptions::countDealt() const {
  if (cacheSharding != CacheSharding::Sequence)
    return 1;
  int64_t ranks = 1;
  for (const MeshAxisOption &axis : mesh.axes)
    if (hasRole(axes, AxisRole::Tensor, axis.name))
      ranks *= axis.size;
  int64_t groups = dpAttention.groups.number.value_or(1);
  return ranks % groups == 0 ? ranks / groups : 1;
}

TokenGather ParallelizeOptions::getTokenGather() const {
  TokenGather gather = dpAttention.gather;
  if (dpAttention.groups.number.value_or(1) == 1)
    return TokenGather::Max;
  // Graphs of a GPU repeat messages of fixed sizes.
  if (gather == TokenGather::Auto && StringRef(target).starts_with("gpu"))
    return TokenGather::Max;
  return gather;
}
