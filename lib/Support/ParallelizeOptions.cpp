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

#include <limits>

using namespace meshwright;
using llvm::failure;
using llvm::FailureOr;
using llvm::LogicalResult;
using llvm::SmallVector;
using llvm::StringRef;
using llvm::success;
using llvm::Twine;

/// Returns true if a shell pattern matches the name.
static bool matchesPattern(StringRef pattern, StringRef name) {
  llvm::Expected<llvm::GlobPattern> glob = llvm::GlobPattern::create(pattern);
  if (!glob) {
    llvm::consumeError(glob.takeError());
    return false;
  }
  return glob->match(name);
}

bool ShardingRule::matches(StringRef name) const { return matchesPattern(pattern, name); }

std::optional<size_t> ReduceTypes::find(StringRef name) const {
  for (auto [i, rule] : llvm::enumerate(rules))
    if (matchesPattern(rule.pattern, name))
      return i;
  return std::nullopt;
}

//===----------------------------------------------------------------------===//
// The list
//===----------------------------------------------------------------------===//

static constexpr OptionDescription meshDescription = {
    "mesh", "name=size[,name=size...] | stage:name=size,...;stage:...",
    "the mesh, axes major to minor, or one for each stage of a composed program; the IR's own "
    "dist.mesh where absent"};

/// The options behind those of kAxisRoles.
static constexpr OptionDescription otherDescriptions[] = {
    {"sequence-parallel", "on | off | auto",
     "shards the residual stream by token along the tensor-parallel axis"},
    {"context-parallel",
     "auto | \"ulysses=axis | none | auto ring=axis | none | auto "
     "order=contiguous | zigzag | striped | auto\"",
     "shards the sequence over both axes; attention moves heads along one, keys along the other"},
    {"fold", "{stage: sp | ulysses | ring | replica | batch | auto | none, ...}",
     "shards a stage of a composed program over the axes of context-parallel"},
    {"shardings", "{\"pattern\": [{\"axis\"}, {}], ...}",
     "shardings of parameters by name; the first pattern that matches wins"},
    {"device", "h100 | h200 | a100 | a800 | cpu | {preset key=number ...}",
     "the device that the cost model assumes"},
    {"overlap", "on | off | auto",
     "runs collectives beside kernels, in chunks of their rows; auto: where it pays by the cost "
     "model"},
    {"shard-optimizer", "on | off | auto",
     "of a model that trains: shards the optimizer's averages over ranks that hold equal "
     "parameters; auto: where it pays by the cost model"},
    {"gtp-align", "rows | auto",
     "with gtp: a shard of a weight has a multiple of so many rows; auto: 16 of bf16 and f16 weights, "
     "else 1"},
    {"gtp-prefetch", "number | auto",
     "with gtp: the most weights that are gathered before the one in use; 0: each gather waits"},
    {"gtp-keep", "on | off | auto",
     "with gtp: keeps gathered weights from the forward to the backward pass; auto: off"},
    {"gtp-reduce", "plain", "with gtp: the type in which gradients travel: as they leave products"},
    {"gtp-gather", "plain", "with gtp: the form in which weights travel"},
    {"shard-saved", "on | off | auto",
     "of a model that trains: keeps values that several ranks hold alike in shards for the backward "
     "pass; auto: off"},
    {"recompute", "none | full | auto",
     "of a model that trains: which values of the forward pass the backward pass computes again; "
     "auto: as few as the memory ceiling allows"},
    {"memory-ceiling", "bytes[K|M|G]", "most memory a rank may use"},
    {"reduce-type", "own | f32 | {\"pattern\": own | f32, ...}",
     "the type in which partial sums of values leave products and travel: the program's, or f32, "
     "which rounds once; by the names of modules, of which the first pattern that matches wins"},
    {"target", "cpu | cpu:NAME",
     "the processor to schedule and compile for, by LLVM's name; this machine's by default"},
};

/// Options of later versions, for which the error says so.
static constexpr StringRef laterOptions[] = {"data-parallel-attention", "expert-parallel"};

llvm::ArrayRef<OptionDescription> meshwright::getParallelizeOptionDescriptions() {
  static const std::vector<OptionDescription> all = [] {
    std::vector<OptionDescription> list{meshDescription};
    for (const AxisRoleDescription &role : kAxisRoles)
      if (!role.option.empty())
        list.push_back({role.option, role.values, role.help});
    llvm::append_range(list, otherDescriptions);
    return list;
  }();
  return all;
}

//===----------------------------------------------------------------------===//
// Parsing
//===----------------------------------------------------------------------===//

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
        return error("context-parallel: cannot read '" + pair +
                     "': expected ulysses=axis, ring=axis, order=" + listSpellings<SequenceOrder>());
      if (role)
        options.axes.set(*role, std::move(axis));
    }
    if (!options.shardsSequences())
      return error("context-parallel: expected an axis for ulysses, ring or both, got '" + text +
                   "'");
    AxisChoice ulysses = options.axes.get(AxisRole::Ulysses);
    if (ulysses.kind == AxisChoice::Named &&
        ulysses.name == options.axes.get(AxisRole::Ring).name)
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

  LogicalResult parseReduceTypes(StringRef value) {
    std::vector<ReduceRule> &rules = options.reduceTypes.rules;
    auto ignore = [](const Twine &) -> LogicalResult { return failure(); };
    if (ReduceType type; succeeded(parseOptionText(value.trim(), type, ignore))) {
      if (type != ReduceType::Own)
        rules.push_back({"*", type});
      return success();
    }
    return parseRules("reduce-type", value, "own, f32 or {\"pattern\": \"f32\", ...}",
                      [&](StringRef pattern, StringRef text) -> std::string {
                        ReduceType type;
                        if (failed(parseOptionText(text, type, ignore)))
                          return ("the type of '" + pattern + "' is '" + text + "'").str();
                        rules.push_back({pattern.str(), type});
                        return "";
                      });
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
    if (digits.getAsInteger(10, count) || count < 1 ||
        count > std::numeric_limits<int64_t>::max() / unit)
      return error("memory-ceiling: expected a positive number of bytes, with K, M or G behind it "
                   "or not, got '" +
                   value + "'");
    options.memoryCeiling = count * unit;
    return success();
  }

  LogicalResult parseOption(StringRef key, StringRef value) {
    if (key == "mesh")
      return parseMesh(value);
    for (const AxisRoleDescription &known : kAxisRoles)
      if (!known.option.empty() && key == known.option) {
        AxisChoice axis;
        if (failed(parseWord(key, value, axis)))
          return failure();
        options.axes.set(known.role, std::move(axis));
        return success();
      }
    if (key == "sequence-parallel")
      return parseWord(key, value, options.sequenceParallel);
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
      return parseWord(key, value, options.gtpGather);
    if (key == "shard-saved")
      return parseWord(key, value, options.shardSaved);
    if (key == "recompute")
      return parseWord(key, value, options.recompute);
    if (key == "overlap")
      return parseWord(key, value, options.overlap);
    if (key == "memory-ceiling")
      return parseMemoryCeiling(value);
    if (key == "reduce-type")
      return parseReduceTypes(value);
    if (key == "target") {
      if (value.empty())
        return error("target is empty: expected cpu or cpu:NAME, as in target=cpu:x86-64-v3");
      options.target = value.str();
      return success();
    }
    if (key == "target-cpu")
      return error("option 'target-cpu' is now 'target': expected target=cpu:NAME, as in "
                   "target=cpu:x86-64-v3");
    if (llvm::is_contained(laterOptions, key))
      return error("option '" + key + "' is not supported yet; supported are " + supported());
    return error("unknown option '" + key + "'; supported are " + supported());
  }

  static std::string supported() {
    return llvm::join(
        llvm::map_range(getParallelizeOptionDescriptions(),
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
  }
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

LogicalResult meshwright::parseOptionText(StringRef text, ReduceTypes &types,
                                          OptionErrorHandler error) {
  Parser parser{error, {}};
  // Pass pipelines remove the braces of rules.
  bool isRules = text.contains(':') && !text.starts_with("{");
  if (failed(parser.parseReduceTypes(isRules ? ("{" + text + "}").str() : text.str())))
    return failure();
  types = std::move(parser.options.reduceTypes);
  return success();
}

//===----------------------------------------------------------------------===//
// Printing
//===----------------------------------------------------------------------===//

llvm::raw_ostream &meshwright::operator<<(llvm::raw_ostream &os, const MeshOption &mesh) {
  auto print = [&](const std::vector<MeshAxisOption> &axes) {
    llvm::interleave(
        axes, os, [&](const MeshAxisOption &axis) { os << axis.name << "=" << axis.size; }, ",");
  };
  print(mesh.axes);
  llvm::interleave(
      mesh.stages, os,
      [&](const StageMeshOption &stage) {
        os << stage.stage << ":";
        print(stage.axes);
      },
      ";");
  return os;
}

static void printQuoted(llvm::raw_ostream &os, StringRef text) {
  os << '"';
  for (char c : text)
    os << (c == '"' || c == '\\' ? "\\" : "") << c;
  os << '"';
}

llvm::raw_ostream &meshwright::operator<<(llvm::raw_ostream &os, const ShardingRules &shardings) {
  os << "{";
  llvm::interleaveComma(shardings.rules, os, [&](const ShardingRule &rule) {
    printQuoted(os, rule.pattern);
    os << ": " << rule.sharding;
  });
  return os << "}";
}

llvm::raw_ostream &meshwright::operator<<(llvm::raw_ostream &os, const ReduceTypes &types) {
  if (types.rules.empty())
    return os << ReduceType::Own;
  os << "{";
  llvm::interleaveComma(types.rules, os, [&](const ReduceRule &rule) {
    printQuoted(os, rule.pattern);
    os << ": " << rule.type;
  });
  return os << "}";
}

std::string ParallelizeOptions::str() const {
  std::string result;
  llvm::raw_string_ostream os(result);
  llvm::ListSeparator space(" ");
  if (!mesh.empty())
    os << space << "mesh=" << mesh;
  for (const AxisRoleDescription &known : kAxisRoles)
    if (AxisChoice axis = axes.get(known.role);
        !known.option.empty() && axis.kind != AxisChoices().get(known.role).kind)
      os << space << known.option << "=" << axis;
  os << space << "sequence-parallel=" << sequenceParallel;
  if (shardsSequences()) {
    os << space << "context-parallel={";
    for (AxisRole role : {AxisRole::Ulysses, AxisRole::Ring})
      if (axes.mayHave(role))
        os << role << "=" << axes.get(role) << " ";
    os << "order=" << sequenceOrder << "}";
  }
  if (!fold.empty()) {
    os << space << "fold={";
    llvm::interleaveComma(fold, os,
                          [&](const FoldRule &rule) { os << rule.stage << ": " << rule.mode; });
    os << "}";
  }
  if (!shardings.rules.empty())
    os << space << "shardings=" << shardings;
  if (!device.empty())
    os << space << "device={" << device << "}";
  if (shardOptimizer != OnOffAuto::Auto)
    os << space << "shard-optimizer=" << shardOptimizer;
  if (gtpAlign.number)
    os << space << "gtp-align=" << gtpAlign;
  if (gtpPrefetch.number)
    os << space << "gtp-prefetch=" << gtpPrefetch;
  if (gtpKeep != OnOffAuto::Auto)
    os << space << "gtp-keep=" << gtpKeep;
  if (shardSaved != OnOffAuto::Auto)
    os << space << "shard-saved=" << shardSaved;
  if (recompute != RecomputeMode::Auto)
    os << space << "recompute=" << recompute;
  if (overlap != OnOffAuto::Auto)
    os << space << "overlap=" << overlap;
  if (memoryCeiling)
    os << space << "memory-ceiling=" << *memoryCeiling;
  if (!reduceTypes.rules.empty())
    os << space << "reduce-type=" << reduceTypes;
  if (!target.empty())
    os << space << "target=" << target;
  return result;
}
