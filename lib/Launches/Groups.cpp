//===- Groups.cpp - the ranks that a collective joins ---------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Launches/Groups.h"

#include "llvm/ADT/SmallBitVector.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

AxisList meshwright::getGroupAxes(Operation *collective, MeshAttr mesh) {
  AxisList axes;
  auto redistribute = dyn_cast<RedistributeOp>(collective);
  if (!redistribute) {
    axes = getAxes(collective->getAttrOfType<ArrayAttr>("axes"), mesh);
    llvm::sort(axes);
    return axes;
  }
  llvm::SmallBitVector touched(mesh.getAxes().size());
  for (ArrayAttr list : {redistribute.getFrom(), redistribute.getTo()})
    for (auto sharding : list.getAsRange<ShardingAttr>()) {
      // Between two meshes any rank may send to any.
      MeshAttr own = lookupMesh(collective, sharding.getMesh());
      if (own != mesh) {
        touched.set();
        continue;
      }
      for (DimShardingAttr dim : sharding.getDims())
        for (FactorShardingAttr factor : dim.getFactors())
          for (AxisRefAttr axis : factor.getAxes())
            touched.set(getAxis(axis, mesh).axis);
    }
  for (int i : touched.set_bits())
    axes.push_back({i, 1, mesh.getAxes()[i].getSize()});
  return axes;
}
