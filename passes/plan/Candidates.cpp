//===- Candidates.cpp - the meshes that a planner compares -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/plan/Candidates.h"

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Nn/Serving.h"
#include "meshwright/lib/CostModel/ProgramCost.h"
#include "meshwright/lib/Weights/Weights.h"

#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/StringExtras.h"

#include <utility>

using namespace mlir;
using namespace meshwright;

int64_t meshwright::countOps(ModuleOp module) {
  int64_t count = 0, forward = 0;
  module.walk<WalkOrder::PreOrder>([&](Operation *op) {
    if (isa<FunctionOpInterface>(op))
      forward = 0;
    // A backward pass has about two ops for each op before it.
    if (isa<nn::GradientOp>(op))
      count += 2 * std::exchange(forward, 0);
    ++count;
    ++forward;
  });
  return count;
}

ProgramExtents::ProgramExtents(ModuleOp module, const Device &device) {
  numOps = countOps(module);
  for (auto state : module.getOps<nn::StateOp>())
    if (state.isTrained()) {
      trains = true;
      weights += getTensorBytes(state.getType());
    }
  for (FunctionOpInterface entry : nn::getEntries(module)) {
    serves |= entry->hasAttr(nn::kServingAttr);
    int64_t parameters = 0;
    WeightFinder finder(entry);
    for (BlockArgument arg : entry.getArguments()) {
      auto type = dyn_cast<RankedTensorType>(arg.getType());
      if (!type)
        continue;
      if (finder.find(arg)) {
        parameters += getTensorBytes(type);
        continue;
      }
      if (type.getRank() > 0)
        batch = std::max(batch, type.getDimSize(0));
      if (type.getRank() > 1)
        tokens = std::max(tokens, type.getDimSize(1));
    }
    weights = std::max(weights, parameters);
  }
  llvm::SetVector<StringRef> known;
  module.walk([&](Operation *op) {
    if (auto stage = op->getAttrOfType<StringAttr>(nn::NnDialect::kStageAttr))
      known.insert(stage.getValue());
  });
  for (StringRef stage : known)
    stages.push_back(stage.str());
  auto lower = [](int64_t &least, int64_t size) { least = least ? std::min(least, size) : size; };
  module.walk([&](Operation *op) {
    hasGradients |= isa<nn::GradientOp>(op);
    if (auto attention = dyn_cast<nn::AttentionOp>(op)) {
      lower(heads, attention.getQuery().getType().getDimSize(1));
      lower(keyValueHeads, attention.getKey().getType().getDimSize(1));
      tokens = std::max({tokens, attention.getQuery().getType().getDimSize(2),
                         attention.getKey().getType().getDimSize(2)});
    }
    if (auto product = dyn_cast<nn::GroupedLinearOp>(op))
      lower(experts, cast<RankedTensorType>(product->getOperand(1).getType()).getDimSize(0));
  });
  linkBandwidth = device.linkBandwidth;
  if (FunctionOpInterface entry = nn::getEntries(module).front(); !entry.isExternal())
    entry.walk([&](Operation *op) {
      double flops = getProductFlops(op);
      if (flops == 0)
        return;
      if (double rate = device.getFlops(getElementTypeOrSelf(op->getResult(0).getType())))
        seconds += flops / rate;
      addBytes(op);
    });
}

void ProgramExtents::addBytes(Operation *op) {
  auto getBytes = [](Value value) { return double(getTensorBytes(value.getType())); };
  double output = getBytes(op->getResult(0));
  if (auto own = dyn_cast<nn::AttentionOp>(op)) {
    double moved = getBytes(own.getKey()) + getBytes(own.getValue());
    keysAndValues += moved;
    attention += moved + getBytes(own.getQuery()) + output;
  } else if (op->getNumOperands() > 1) {
    products += std::min(getBytes(op->getOperand(0)), output);
  }
}

static std::string getAxisName(const ParallelizeOptions &options, AxisRole role) {
  if (AxisChoice choice = options.axes.get(role); choice.kind == AxisChoice::Named)
    return choice.name;
  StringRef usual = getRoleDescription(role).usualAxis;
  return usual.empty() ? stringify(role).str() : usual.str();
}

int64_t meshwright::getAxisSize(const ParallelizeOptions &options, AxisRole role) {
  if (!options.axes.mayHave(role))
    return 1;
  int64_t size = 1;
  std::string names = getAxisName(options, role);
  for (const MeshAxisOption &axis : options.mesh.axes)
    if (llvm::is_contained(llvm::split(names, ','), axis.name))
      size *= axis.size;
  return size;
}

bool meshwright::givesEachRankWork(const ParallelizeOptions &options,
                                   const ProgramExtents &extents) {
  auto size = [&](AxisRole role) { return getAxisSize(options, role); };
  // Ranks have equal parts, so the last ones may have none.
  auto reachesAll = [](int64_t extent, int64_t ranks) {
    return extent == 0 || llvm::divideCeil(extent, ranks) * (ranks - 1) < uint64_t(extent);
  };
  return reachesAll(extents.batch, size(AxisRole::Data) * size(AxisRole::Gtp)) &&
         reachesAll(extents.tokens, size(AxisRole::Ring) * size(AxisRole::Ulysses)) &&
         reachesAll(extents.heads, size(AxisRole::Ulysses) * size(AxisRole::Tensor));
}

/// The roles with an axis of their own, in the order of the axes.
static std::vector<AxisRole> getRoles(const ParallelizeOptions &request,
                                      const ProgramExtents &extents, bool storesShards) {
  std::vector<AxisRole> roles;
  // An axis of the request has its size.
  auto isStated = [&](AxisRole role) {
    return llvm::any_of(request.mesh.axes, [&](const MeshAxisOption &axis) {
      return axis.name == getAxisName(request, role);
    });
  };
  auto add = [&](AxisRole role, bool isUseful) {
    AxisChoice choice = request.axes.get(role);
    bool isContext = role == AxisRole::Ring || role == AxisRole::Ulysses;
    bool isOpen = isContext && !request.shardsSequences() ? true : choice.kind != AxisChoice::None;
    // Lists, and axes of other roles, are no axes of their own.
    if (choice.kind == AxisChoice::Named)
      isOpen &= !StringRef(choice.name).contains(',') &&
                llvm::none_of(roles, [&](AxisRole other) {
                  return getAxisName(request, other) == choice.name;
                });
    if (isUseful && isOpen && !isStated(role))
      roles.push_back(role);
  };
  bool hasSequences = extents.keyValueHeads > 0 && !extents.serves;
  add(AxisRole::Data, true);
  add(AxisRole::Gtp, storesShards);
  add(AxisRole::Expert, extents.experts > 1);
  add(AxisRole::Ring, hasSequences);
  add(AxisRole::Ulysses, hasSequences);
  add(AxisRole::Tensor, true);
  return roles;
}

/// The options with a mesh of axes of these sizes.
static ParallelizeOptions withMesh(const ParallelizeOptions &request, ArrayRef<AxisRole> roles,
                                   ArrayRef<int64_t> sizes) {
  ParallelizeOptions options = request;
  options.forgetPlanner();
  for (auto [role, size] : llvm::zip_equal(roles, sizes)) {
    std::string name = getAxisName(request, role);
    if (size > 1)
      options.mesh.axes.push_back({name, size});
    if (role == AxisRole::Ring || role == AxisRole::Ulysses)
      options.axes.set(role, AxisChoice::get(size > 1 ? name : ""));
    else if (size == 1 && request.axes.get(role).kind == AxisChoice::Named)
      options.axes.set(role, AxisChoice::get(""));
  }
  if (options.mesh.axes.empty())
    options.mesh.axes.push_back({getAxisName(request, roles.front()), 1});
  return options;
}

/// The time of the products of a rank, and of the bytes that it sends.
/// - Tensor parallelism sums activations at about each second product.
/// - Ulysses exchanges operands and results of attention, and a ring passes keys and values on.
/// - Shards of weights are gathered for each pass, and gradients are summed.
static double getRoughSeconds(const ParallelizeOptions &options, const ProgramExtents &extents) {
  auto size = [&](AxisRole role) { return double(getAxisSize(options, role)); };
  auto share = [](int64_t extent, double ranks) {
    return double(llvm::divideCeil(extent, int64_t(ranks))) / double(extent);
  };
  double gtp = size(AxisRole::Gtp), tensor = size(AxisRole::Tensor);
  double ring = size(AxisRole::Ring), ulysses = size(AxisRole::Ulysses);
  double rows = share(extents.batch, size(AxisRole::Data) * gtp) * share(extents.tokens, ring * ulysses);
  // Others have the rest of what a rank lacks.
  auto lacks = [](double ranks) { return (ranks - 1) / ranks; };
  double passes = extents.hasGradients || extents.trains ? 3 : 1;
  double bytes = passes * rows *
                 (extents.products * lacks(tensor) + extents.attention / tensor * lacks(ulysses) +
                  extents.keysAndValues / tensor * (ring - 1));
  bytes += passes * double(extents.weights) / tensor * lacks(gtp);
  if (extents.trains)
    bytes += 2 * double(extents.weights) / (tensor * gtp) * lacks(size(AxisRole::Data) * ring * ulysses);
  double seconds = passes * extents.seconds * rows / tensor;
  return seconds + (extents.linkBandwidth ? bytes / extents.linkBandwidth : 0);
}

/// Adds a mesh, and variants of the options that go with it.
static void addCandidates(ParallelizeOptions options, const ProgramExtents &extents,
                          std::vector<Candidate> &found) {
  auto size = [&](AxisRole role) { return getAxisSize(options, role); };
  auto share = [](int64_t extent, int64_t ranks) {
    return double(llvm::divideCeil(extent, ranks)) / double(extent);
  };
  int64_t data = size(AxisRole::Data) * size(AxisRole::Gtp), tensor = size(AxisRole::Tensor);
  int64_t sequence = size(AxisRole::Ring) * size(AxisRole::Ulysses);
  Candidate candidate;
  candidate.roughSeconds = getRoughSeconds(options, extents);
  // Experts, stages and rules of a user may divide work in other ways.
  bool isPlain = !extents.experts && options.fold.empty() && options.shardings.rules.empty() &&
                 !options.dpAttention.areSet();
  if (isPlain) {
    // A backward pass has at least one more product for each.
    candidate.leastSeconds = (extents.hasGradients ? 2 : 1) * extents.seconds * share(extents.batch, data) *
                             share(extents.tokens, sequence) / double(tensor);
    candidate.leastWeights = extents.weights / (size(AxisRole::Gtp) * tensor);
  }
  candidate.options = options;
  int64_t ofExperts = size(AxisRole::Expert);
  if (extents.experts && ofExperts > extents.experts)
    return;
  found.push_back(candidate);
  if (extents.experts && ofExperts == 1 && options.axes.get(AxisRole::Expert).kind == AxisChoice::Auto)
    for (const SmallVector<AxisRole, 2> &roles :
         std::initializer_list<SmallVector<AxisRole, 2>>{
             {AxisRole::Tensor}, {AxisRole::Data}, {AxisRole::Data, AxisRole::Tensor}}) {
      std::vector<std::string> names;
      int64_t ranks = 1;
      for (AxisRole role : roles) {
        names.push_back(getAxisName(options, role));
        ranks *= size(role);
      }
      if (ranks > extents.experts ||
          llvm::any_of(roles, [&](AxisRole role) { return size(role) == 1; }))
        continue;
      found.push_back(candidate);
      found.back().options.axes.set(AxisRole::Expert, AxisChoice::get(llvm::join(names, ",")));
    }
  if (extents.keyValueHeads && tensor > extents.keyValueHeads && extents.batch > 1 &&
      !extents.serves && !options.dpAttention.areSet() && sequence == 1) {
    found.push_back(candidate);
    found.back().options.dpAttention.groups.number = std::nullopt;
  }
}

/// Returns true if an option gives the axis a role.
static bool hasRole(const ParallelizeOptions &options, StringRef axis) {
  return llvm::any_of(kAxisRoles, [&](const AxisRoleDescription &known) {
    AxisChoice choice = options.axes.get(known.role);
    if (choice.kind == AxisChoice::Auto)
      return axis == getAxisName(options, known.role);
    return choice.kind == AxisChoice::Named &&
           llvm::is_contained(llvm::split(choice.name, ','), axis);
  });
}

/// The request with each role for the axes of its mesh that have none.
static std::vector<ParallelizeOptions> giveRoles(const ParallelizeOptions &request,
                                                 const ProgramExtents &extents, bool storesShards) {
  std::vector<ParallelizeOptions> all{request};
  for (const MeshAxisOption &axis : request.mesh.axes) {
    if (hasRole(request, axis.name))
      continue;
    std::vector<ParallelizeOptions> given;
    for (const ParallelizeOptions &options : all) {
      auto give = [&](AxisRole role, const std::string &name) {
        // A role that an option names has its axis.
        if (options.axes.get(role).kind == AxisChoice::Named || request.axes.isSet(role))
          return;
        given.push_back(options);
        given.back().axes.set(role, AxisChoice::get(name));
        if (role == AxisRole::Ring && !request.axes.isSet(AxisRole::Ulysses))
          given.back().axes.set(AxisRole::Ulysses, AxisChoice());
      };
      give(AxisRole::Data, axis.name);
      if (extents.keyValueHeads > 0 && !extents.serves && axis.name != getAxisName(options, AxisRole::Ulysses))
        give(AxisRole::Ring, axis.name);
      if (storesShards) {
        give(AxisRole::Gtp, axis.name);
        give(AxisRole::Gtp, axis.name + "," + getAxisName(options, AxisRole::Gtp));
      }
    }
    all = std::move(given);
  }
  return all;
}

/// Each rank of a ring is a step of each attention. So a long ring makes a long program, which pays only for many tokens.
static bool mayRing(int64_t ranks, const ProgramExtents &extents) {
  constexpr int64_t kShortRing = 16, kTokensOfRank = 128;
  return ranks <= kShortRing || extents.tokens / ranks >= kTokensOfRank;
}

std::vector<Candidate> meshwright::listCandidates(const ParallelizeOptions &request, int64_t ranks,
                                                  const ProgramExtents &extents,
                                                  int64_t memoryLimit) {
  bool savesMemory = request.objective && *request.objective != Objective::Time;
  bool storesShards = extents.trains || savesMemory || (memoryLimit && extents.weights > memoryLimit / 2);
  int64_t stated = 1;
  for (const MeshAxisOption &axis : request.mesh.axes)
    stated *= axis.size;
  std::vector<Candidate> found;
  for (const ParallelizeOptions &options : giveRoles(request, extents, storesShards)) {
    std::vector<AxisRole> roles = getRoles(options, extents, storesShards);
    SmallVector<int64_t> sizes(roles.size(), 1);
    auto divide = [&](auto &&self, size_t i, int64_t rest) -> void {
      if (i == roles.size()) {
        if (rest == 1 && (i > 0 || stated > 1))
          addCandidates(withMesh(options, roles, sizes), extents, found);
        return;
      }
      for (int64_t size = 1; size <= rest; ++size)
        if (rest % size == 0 && (roles[i] != AxisRole::Ring || mayRing(size, extents))) {
          sizes[i] = size;
          self(self, i + 1, rest / size);
        }
    };
    divide(divide, 0, ranks / stated);
  }
  llvm::stable_sort(found, [](const Candidate &a, const Candidate &b) {
    return a.options.mesh.axes.size() < b.options.mesh.axes.size();
  });
  return found;
}

/// The axes of the mesh of the options, or else of the program; none if there are several meshes.
static std::vector<MeshAxisOption> getAxes(ModuleOp module, const ParallelizeOptions &options) {
  if (!options.mesh.empty())
    return options.mesh.axes;
  std::vector<MeshAxisOption> axes;
  auto meshes = module.getOps<dist::MeshOp>();
  if (llvm::hasSingleElement(meshes))
    for (dist::MeshAxisAttr axis : (*meshes.begin()).getMesh().getAxes())
      axes.push_back({axis.getName().str(), axis.getSize()});
  return axes;
}

std::vector<Candidate> meshwright::listContexts(ModuleOp module,
                                                const ParallelizeOptions &options) {
  std::vector<Candidate> found{{options}};
  bool isOpen = llvm::any_of(ArrayRef({AxisRole::Ulysses, AxisRole::Ring}), [&](AxisRole role) {
    return options.axes.get(role).kind == AxisChoice::Auto;
  });
  if (!isOpen)
    return found;
  ParallelizeOptions others = options;
  for (AxisRole role : {AxisRole::Ulysses, AxisRole::Ring})
    others.axes.set(role, AxisChoice::get(""));
  std::vector<std::string> free{""};
  for (const MeshAxisOption &axis : getAxes(module, options))
    if (axis.size > 1 && !hasRole(others, axis.name))
      free.push_back(axis.name);
  auto getChoices = [&](AxisRole role) {
    AxisChoice own = options.axes.get(role);
    return own.kind == AxisChoice::Auto
               ? free
               : std::vector<std::string>{own.kind == AxisChoice::Named ? own.name : ""};
  };
  for (const std::string &ulysses : getChoices(AxisRole::Ulysses))
    for (const std::string &ring : getChoices(AxisRole::Ring)) {
      if (ulysses == ring)
        continue;
      found.push_back({options});
      found.back().options.axes.set(AxisRole::Ulysses, AxisChoice::get(ulysses));
      found.back().options.axes.set(AxisRole::Ring, AxisChoice::get(ring));
    }
  return found;
}

/// No axis, each axis, and for roles that may have several each set of them.
static std::vector<AxisChoice> listAxes(const AxisRoleDescription &known, ArrayRef<MeshAxisOption> axes) {
  std::vector<AxisChoice> found;
  for (unsigned set = 0; set < 1u << axes.size(); ++set) {
    SmallVector<StringRef> names;
    for (size_t i = 0; i < axes.size(); ++i)
      if (set >> i & 1)
        names.push_back(axes[i].name);
    if (names.size() <= 1 || !known.isSingle)
      found.push_back(AxisChoice::get(llvm::join(names, ",")));
  }
  return found;
}

std::vector<ParallelizeOptions> meshwright::listChoices(ModuleOp module, const ParallelizeOptions &request,
                                                        const ParallelizeOptions &options,
                                                        const ProgramExtents &extents) {
  auto isStated = [&](StringRef name) { return llvm::is_contained(request.statedAuto, name); };
  std::vector<ParallelizeOptions> found;
  auto change = [&](auto &&set) {
    found.push_back(options);
    set(found.back());
  };
  std::vector<MeshAxisOption> axes = getAxes(module, options);
  llvm::erase_if(axes, [](const MeshAxisOption &axis) { return axis.size == 1; });
  for (const AxisRoleDescription &known : kAxisRoles) {
    if (!known.option.empty() && isStated(known.option) && request.axes.get(known.role).kind == AxisChoice::Auto)
      for (const AxisChoice &choice : listAxes(known, axes))
        change([&](ParallelizeOptions &changed) { changed.axes.set(known.role, choice); });
  }
  // A model that serves has its groups already.
  if (extents.serves)
    return found;
  ParallelizeOptions onMesh = options;
  onMesh.mesh.axes = axes;
  int64_t tensor = getAxisSize(onMesh, AxisRole::Tensor);
  auto changeGroups = [&](auto &&set) { change([&](ParallelizeOptions &changed) { set(changed.dpAttention); }); };
  if (isStated("data-parallel-attention"))
    for (int64_t groups = 1; groups <= tensor; ++groups)
      if (tensor % groups == 0)
        changeGroups([&](DpAttentionOptions &own) { own.groups.number = groups; });
  if (isStated("dense-tp"))
    for (int64_t ranks : {int64_t(1), tensor})
      changeGroups([&](DpAttentionOptions &own) { own.denseTp.number = ranks; });
  if (isStated("dp-lm-head"))
    for (OnOffAuto head : {OnOffAuto::On, OnOffAuto::Off})
      changeGroups([&](DpAttentionOptions &own) { own.lmHead = head; });
  return found;
}
