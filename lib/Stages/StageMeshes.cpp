//===- StageMeshes.cpp - a mesh for each stage ----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Stages/StageMeshes.h"

#include "meshwright/dialects/Nn/Nn.h"

#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

SmallVector<StageMesh> meshwright::getStageMeshes(MeshOp meshOp) {
  SmallVector<StageMesh> stages;
  if (auto views = meshOp->getAttrOfType<DictionaryAttr>(DistDialect::kStageMeshesAttr)) {
    for (NamedAttribute view : views)
      if (auto mesh = dyn_cast<MeshAttr>(view.getValue()))
        stages.push_back({view.getName().getValue(), mesh});
    return stages;
  }
  stages.push_back({"", meshOp.getMesh()});
  return stages;
}

void meshwright::replaceStageMeshes(MeshOp meshOp, function_ref<MeshAttr(MeshAttr)> replace) {
  if (!hasStageMeshes(meshOp)) {
    meshOp.setMeshAttr(replace(meshOp.getMesh()));
    return;
  }
  SmallVector<NamedAttribute> views;
  for (const StageMesh &view : getStageMeshes(meshOp))
    views.emplace_back(StringAttr::get(meshOp.getContext(), view.stage), replace(view.mesh));
  meshOp->setAttr(DistDialect::kStageMeshesAttr, DictionaryAttr::get(meshOp.getContext(), views));
}

void meshwright::clearRoles(MeshOp meshOp) {
  auto clear = [](MeshAttr mesh) { return mesh.withoutRoles(); };
  replaceStageMeshes(meshOp, clear);
  meshOp.setMeshAttr(clear(meshOp.getMesh()));
}

/// The number of ranks, and then the stride of each axis: borders[i] / borders[i + 1] is the
/// size of axis i.
static SmallVector<int64_t> getBorders(MeshAttr mesh) {
  SmallVector<int64_t> borders{1};
  for (MeshAxisAttr axis : llvm::reverse(mesh.getAxes()))
    borders.push_back(borders.back() * axis.getSize());
  std::reverse(borders.begin(), borders.end());
  return borders;
}

std::optional<Axis> meshwright::findAxis(MeshOp meshOp, const StageMesh &view, StringRef name) {
  int index = view.mesh.getAxisIndex(name);
  if (index < 0)
    return std::nullopt;
  int64_t size = view.mesh.getAxes()[index].getSize();
  MeshAttr mesh = meshOp.getMesh();
  if (view.mesh == mesh)
    return Axis{index, 1, size};
  if (size == 1)
    return Axis{0, 1, 1};
  int64_t low = getBorders(view.mesh)[index + 1], high = low * size;
  SmallVector<int64_t> borders = getBorders(mesh);
  for (int i = 0, e = mesh.getAxes().size(); i < e; ++i)
    if (high <= borders[i] && low >= borders[i + 1])
      return Axis{i, borders[i] / high, size};
  return std::nullopt;
}

bool meshwright::anyHasAxis(MeshOp meshOp, StringRef name) {
  return llvm::any_of(getStageMeshes(meshOp),
                      [&](const StageMesh &view) { return view.mesh.getAxisIndex(name) >= 0; });
}

InFlightDiagnostic meshwright::emitMissingAxis(MeshOp meshOp, StringRef name, StringRef purpose) {
  llvm::SmallSetVector<StringRef, 4> axes;
  for (const StageMesh &view : getStageMeshes(meshOp))
    for (MeshAxisAttr axis : view.mesh.getAxes())
      axes.insert(axis.getName());
  InFlightDiagnostic diagnostic = meshOp->emitOpError()
                                  << "has no axis \"" << name << "\" " << purpose;
  diagnostic << (axes.empty() ? ": it has no axes" : ": expected one of ");
  llvm::interleaveComma(axes, diagnostic,
                        [&](StringRef axis) { diagnostic << '"' << axis << '"'; });
  return diagnostic;
}

FailureOr<MeshAttr> meshwright::joinMeshes(ArrayRef<StageMesh> stages, StringRef device,
                                           function_ref<InFlightDiagnostic()> emitError) {
  const StageMesh &first = stages.front();
  int64_t ranks = first.mesh.getNumRanks();
  for (const StageMesh &stage : stages.drop_front())
    if (stage.mesh.getNumRanks() != ranks)
      return emitError() << "stage '" << stage.stage << "': expected a mesh of " << ranks
                         << " ranks, as stage '" << first.stage << "' has, got "
                         << stage.mesh.getNumRanks() << ": all stages run on the same";
  SmallVector<SmallVector<int64_t>> borders;
  for (const StageMesh &stage : stages)
    borders.push_back(getBorders(stage.mesh));
  // Axes of the joined mesh, major to minor: between strides that all stages have.
  struct Run {
    int64_t size;
    StringRef name;
  };
  SmallVector<Run> runs;
  int64_t high = ranks;
  for (int64_t low : ArrayRef<int64_t>(borders.front()).drop_front()) {
    if (low == high ||
        !llvm::all_of(borders, [&](auto &own) { return llvm::is_contained(own, low); }))
      continue;
    Run run{high / low, {}};
    for (auto [i, stage] : llvm::enumerate(stages)) {
      StringRef name;
      for (auto [a, axis] : llvm::enumerate(stage.mesh.getAxes()))
        if (axis.getSize() > 1 && borders[i][a] == high && borders[i][a + 1] == low)
          name = axis.getName();
      // An axis named "host" has its own links, so it must stay an axis.
      for (auto [a, axis] : llvm::enumerate(stage.mesh.getAxes()))
        if (axis.getName() == "host" && borders[i][a] <= high && borders[i][a + 1] >= low &&
            axis.getSize() > 1 && name != "host")
          return emitError() << "stage '" << stage.stage
                             << "' has an axis \"host\" that other stages cut otherwise: expected "
                                "the same one in all";
      run.name = i == 0 || run.name == name ? name : StringRef();
    }
    runs.push_back(run);
    high = low;
  }
  MLIRContext *context = first.mesh.getContext();
  SmallVector<MeshAxisAttr> axes;
  int64_t unnamed = llvm::count_if(runs, [](const Run &run) { return run.name.empty(); });
  for (const Run &run : runs) {
    std::string name = run.name.str();
    if (name.empty())
      name = unnamed == 1 ? "ranks" : "ranks" + std::to_string(axes.size());
    axes.push_back(MeshAxisAttr::get(context, name, run.size));
  }
  if (axes.empty())
    axes.push_back(MeshAxisAttr::get(context, "ranks", 1));
  auto mesh = MeshAttr::getChecked(emitError, context, ArrayRef<MeshAxisAttr>(axes), device);
  if (!mesh)
    return failure();
  return mesh;
}

LogicalResult meshwright::checkStageMeshes(func::FuncOp func, MeshOp meshOp) {
  if (!hasStageMeshes(meshOp))
    return success();
  SmallVector<StringRef> stages = getStages(func);
  if (stages.empty())
    return func.emitOpError() << "was not composed of stages: expected one mesh for all, since the "
                                 "mesh option gives stages meshes of their own";
  SmallVector<StringRef> known;
  for (const StageMesh &view : getStageMeshes(meshOp)) {
    known.push_back(view.stage);
    if (!llvm::is_contained(stages, view.stage))
      return func.emitOpError() << "has no stage '" << view.stage
                                << "', for which there is a mesh: expected one of "
                                << llvm::join(stages, ", ");
  }
  for (StringRef stage : stages)
    if (!llvm::is_contained(known, stage))
      return func.emitOpError() << "stage '" << stage
                                << "' has no mesh: expected one for each stage, got meshes for "
                                << llvm::join(known, ", ");
  return success();
}

StringRef meshwright::getStage(BlockArgument input) {
  auto func = dyn_cast<func::FuncOp>(input.getOwner()->getParentOp());
  auto name =
      func ? func.getArgAttrOfType<StringAttr>(input.getArgNumber(), nn::NnDialect::kInputAttr)
           : StringAttr();
  return name && name.getValue().contains('.') ? name.getValue().split('.').first : StringRef();
}

bool meshwright::isCrossing(ConstrainOp op) {
  StringRef stage = getStage(op.getOperation());
  if (stage.empty())
    return false;
  if (auto argument = dyn_cast<BlockArgument>(op.getInput()))
    return getStage(argument) != stage;
  return getStage(op.getInput().getDefiningOp()) != stage;
}
