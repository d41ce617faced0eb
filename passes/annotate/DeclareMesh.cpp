//===- DeclareMesh.cpp - the mesh that options ask for --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/CostModel/AssumedDevice.h"
#include "meshwright/lib/Factors/FactorAnalysis.h"
#include "meshwright/lib/Stages/RoleAxes.h"
#include "meshwright/lib/Support/DecisionLog.h"
#include "meshwright/passes/annotate/Passes.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace meshwright {
#define GEN_PASS_DEF_DECLAREMESHPASS
#include "meshwright/passes/annotate/Passes.h.inc"
} // namespace meshwright

namespace {

struct DeclareMeshPass : meshwright::impl::DeclareMeshPassBase<DeclareMeshPass> {
  using DeclareMeshPassBase::DeclareMeshPassBase;
  void runOnOperation() override {
    ModuleOp module = getOperation();
    if (failed(findDevice(module)) || failed(checkDevices(module)) || failed(declareMesh(module)))
      return signalPassFailure();
    if (roles.getValue().empty())
      return;
    auto meshOp = getOnlyMesh(module);
    if (failed(meshOp) || failed(declareRoles(*meshOp)))
      return signalPassFailure();
  }

private:
  /// Finds the device of the option, and reads its file if it has one.
  LogicalResult findDevice(ModuleOp module);
  LogicalResult checkDevices(ModuleOp module);
  /// Adds the mesh of the option, or compares it with the mesh that the module has.
  LogicalResult declareMesh(ModuleOp module);
  /// Gives the module's own mesh the device of the option, if it is to have it.
  void replaceDevice(ArrayRef<MeshOp> meshes);
  LogicalResult declareRoles(MeshOp meshOp);
  LogicalResult checkNames(MeshOp meshOp);
  LogicalResult checkStorage(MeshOp meshOp);

  /// The device as a mesh spells it.
  std::string spelling;
};

} // namespace

LogicalResult DeclareMeshPass::findDevice(ModuleOp module) {
  if (device.empty())
    return success();
  std::string error;
  std::optional<AssumedDevice> found = meshwright::findDevice(device, target, error);
  if (!found)
    return emitError(module.getLoc()) << error;
  spelling = std::move(found->spelling);
  auto meshes = module.getOps<MeshOp>();
  bool isUsed = meshes.empty() || replacesDevice;
  if (!isUsed)
    return success();
  if (!found->warning.empty())
    emitWarning(module.getLoc()) << found->warning;
  DistDialect::getDecisionLog(&getContext())
      .add(getArgument(), Outcome::Note, module.getLoc(), found->name + ": " + found->reason);
  return success();
}

/// The cost model treats an unknown device like none, so it is an error here.
LogicalResult DeclareMeshPass::checkDevices(ModuleOp module) {
  auto check = [](StringRef spelling, Location location) -> LogicalResult {
    std::string error;
    if (getDevice(spelling, &error))
      return success();
    return emitError(location) << error;
  };
  if (failed(check(spelling, module.getLoc())))
    return failure();
  for (auto known : module.getOps<MeshOp>())
    if (failed(check(known.getMesh().getDevice(), known.getLoc())))
      return failure();
  return success();
}

/// Returns true if the module's only mesh has these axes and stages. Its links and roles may
/// differ.
static bool isLike(ArrayRef<MeshOp> meshes, MeshAttr wanted, DictionaryAttr wantedStages) {
  MeshOp own = meshes.front();
  ArrayRef<MeshAxisAttr> axes = own.getMesh().getAxes();
  if (meshes.size() > 1 || hasStageMeshes(own) != bool(wantedStages) ||
      !llvm::equal(axes, wanted.getAxes(), [](MeshAxisAttr a, MeshAxisAttr b) {
        return a.getName() == b.getName() && a.getSize() == b.getSize();
      }))
    return false;
  SmallVector<StageMesh> stages = getStageMeshes(own);
  return !wantedStages ||
         (stages.size() == wantedStages.size() && llvm::all_of(stages, [&](const StageMesh &view) {
            return view.mesh.withoutRoles() == wantedStages.get(view.stage);
          }));
}

void DeclareMeshPass::replaceDevice(ArrayRef<MeshOp> meshes) {
  if (!replacesDevice || meshes.size() != 1)
    return;
  MeshOp own = meshes.front();
  own.setMeshAttr(MeshAttr::get(&getContext(), own.getMesh().getAxes(), spelling));
}

LogicalResult DeclareMeshPass::declareMesh(ModuleOp module) {
  auto meshes = llvm::to_vector(module.getOps<MeshOp>());
  const MeshOption &wanted = mesh.getValue();
  if (wanted.empty()) {
    if (meshes.empty())
      return module.emitError() << "no mesh: expected a 'mesh' option or a dist.mesh in the module";
    replaceDevice(meshes);
    return success();
  }
  auto emit = [&] { return module.emitError(); };
  auto makeMesh = [&](ArrayRef<MeshAxisOption> list, StringRef spelling) {
    SmallVector<MeshAxisAttr> axes;
    for (const MeshAxisOption &axis : list)
      axes.push_back(MeshAxisAttr::get(&getContext(), axis.name, axis.size));
    return MeshAttr::getChecked(emit, &getContext(), ArrayRef<MeshAxisAttr>(axes), spelling);
  };
  MeshAttr attr;
  DictionaryAttr views;
  if (!wanted.stages.empty()) {
    SmallVector<StageMesh> stages;
    SmallVector<NamedAttribute> named;
    for (const StageMeshOption &stage : wanted.stages) {
      MeshAttr own = makeMesh(stage.axes, "");
      if (!own)
        return failure();
      stages.push_back({stage.stage, own});
      named.push_back({StringAttr::get(&getContext(), stage.stage), own});
    }
    FailureOr<MeshAttr> joined = joinMeshes(stages, spelling, emit);
    if (failed(joined))
      return failure();
    attr = *joined;
    views = DictionaryAttr::get(&getContext(), named);
  } else {
    attr = makeMesh(wanted.axes, spelling);
  }
  if (!attr)
    return failure();
  if (!meshes.empty()) {
    if (!isLike(meshes, attr, views))
      return meshes.front().emitOpError() << "differs from the 'mesh' option " << attr
                                          << ": expected the module's own, "
                                          << meshes.front().getMesh().withoutRoles();
    replaceDevice(meshes);
    return success();
  }
  OpBuilder builder = OpBuilder::atBlockBegin(module.getBody());
  auto meshOp = MeshOp::create(builder, module.getLoc(), "mesh", attr);
  if (!views)
    return success();
  meshOp->setAttr(DistDialect::kStageMeshesAttr, views);
  for (func::FuncOp func : getGlobalFunctions(module))
    if (failed(checkStageMeshes(func, meshOp)))
      return failure();
  return success();
}

/// Checks that no option names an axis twice.
LogicalResult DeclareMeshPass::checkNames(MeshOp meshOp) {
  for (const AxisRoleDescription &known : kAxisRoles)
    for (const StageMesh &view : getStageMeshes(meshOp)) {
      RoleAxes axes(known.role, roles.getValue().get(known.role));
      SmallVector<StringRef> names = axes.getNames(view);
      for (auto [i, name] : llvm::enumerate(names))
        if (!known.option.empty() && llvm::is_contained(ArrayRef(names).take_front(i), name))
          return emitError(meshOp.getLoc())
                 << known.option << ": axis \"" << name << "\" is named twice";
    }
  return success();
}

/// Checks that no axis that stores shards of weights also cuts weights where they are used.
LogicalResult DeclareMeshPass::checkStorage(MeshOp meshOp) {
  for (const StageMesh &view : getStageMeshes(meshOp)) {
    RoleAxes tensorAxes(AxisRole::Tensor, roles.getValue().get(AxisRole::Tensor));
    RoleAxes storageAxes(AxisRole::Gtp, roles.getValue().get(AxisRole::Gtp));
    SmallVector<StringRef> tensor = tensorAxes.getNames(view), names = storageAxes.getNames(view);
    for (StringRef name : names) {
      if (llvm::is_contained(tensor, name) && view.mesh.getAxisIndex(name) >= 0)
        return emitError(meshOp.getLoc())
               << "gtp: expected axes that do not shard the weights themselves, got \"" << name
               << "\", the axis of tensor parallelism";
    }
  }
  return success();
}

/// Ranks that store different shards may as well see different rows of the batch: an axis without
/// another role has that of data.
static MeshAttr splitBatchOver(MeshAttr mesh, ArrayRef<StringRef> storage) {
  SmallVector<StringRef> data = mesh.getAxesWithRole(AxisRole::Data);
  for (StringRef name : storage) {
    int64_t index = mesh.getAxisIndex(name);
    if (index < 0)
      continue;
    AxisRoles others = mesh.getAxes()[index].getRoles().value_or(AxisRoles());
    others.erase(AxisRole::Gtp);
    if (others.empty())
      data.push_back(name);
  }
  return mesh.withRole(AxisRole::Data, data);
}

/// Writes to the mesh, or to those of the stages, which axes have each role.
LogicalResult DeclareMeshPass::declareRoles(MeshOp meshOp) {
  for (const AxisRoleDescription &known : kAxisRoles) {
    AxisChoice choice = roles.getValue().get(known.role);
    if (choice.kind == AxisChoice::Named && failed(RoleAxes(known.role, choice).check(meshOp)))
      return failure();
  }
  if (failed(checkNames(meshOp)) || failed(checkStorage(meshOp)))
    return failure();
  replaceStageMeshes(meshOp, [&](MeshAttr given) {
    MeshAttr declared = given;
    for (const AxisRoleDescription &known : kAxisRoles) {
      RoleAxes axes(known.role, roles.getValue().get(known.role));
      declared = declared.withRole(known.role, axes.getNames({"", given}));
    }
    RoleAxes storage(AxisRole::Gtp, roles.getValue().get(AxisRole::Gtp));
    return splitBatchOver(declared, storage.getNames({"", given}));
  });
  return success();
}
