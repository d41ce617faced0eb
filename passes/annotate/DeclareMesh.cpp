//===- DeclareMesh.cpp - the mesh that options ask for --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/CostModel/CostModel.h"
#include "meshwright/lib/Factors/FactorAnalysis.h"
#include "meshwright/lib/Stages/StageMeshes.h"
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
    auto meshes = llvm::to_vector(module.getOps<MeshOp>());
    // The cost model treats an unknown device like none, so it is an error here.
    auto checkDevice = [&](StringRef spelling, Location location) {
      std::string error;
      if (getDevice(spelling, &error))
        return true;
      emitError(location) << error;
      return false;
    };
    if (!checkDevice(device, module.getLoc()))
      return signalPassFailure();
    for (MeshOp known : meshes)
      if (!checkDevice(known.getMesh().getDevice(), known.getLoc()))
        return signalPassFailure();
    const MeshOption &wanted = mesh.getValue();
    if (wanted.empty()) {
      if (meshes.empty()) {
        module.emitError() << "no mesh: expected a 'mesh' option or a dist.mesh in the module";
        return signalPassFailure();
      }
      return;
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
          return signalPassFailure();
        stages.push_back({stage.stage, own});
        named.push_back({StringAttr::get(&getContext(), stage.stage), own});
      }
      FailureOr<MeshAttr> joined = joinMeshes(stages, device, emit);
      if (failed(joined))
        return signalPassFailure();
      attr = *joined;
      views = DictionaryAttr::get(&getContext(), named);
    } else {
      attr = makeMesh(wanted.axes, device);
    }
    if (!attr)
      return signalPassFailure();
    if (!meshes.empty()) {
      MeshAttr own = meshes.front().getMesh();
      ArrayRef<MeshAxisAttr> axes = attr.getAxes();
      bool same = meshes.size() == 1 && own.getAxes().size() == axes.size() &&
                  meshes.front()->getAttr(DistDialect::kStageMeshesAttr) == views;
      for (size_t i = 0; same && i < axes.size(); ++i)
        same = own.getAxes()[i].getName() == axes[i].getName() &&
               own.getAxes()[i].getSize() == axes[i].getSize();
      if (!same) {
        meshes.front().emitOpError() << "differs from the 'mesh' option " << attr;
        return signalPassFailure();
      }
      return;
    }
    OpBuilder builder = OpBuilder::atBlockBegin(module.getBody());
    auto meshOp = MeshOp::create(builder, module.getLoc(), "mesh", attr);
    if (!views)
      return;
    meshOp->setAttr(DistDialect::kStageMeshesAttr, views);
    for (func::FuncOp func : getGlobalFunctions(module))
      if (failed(checkStageMeshes(func, meshOp)))
        return signalPassFailure();
  }
};

} // namespace
