// RUN: sharding-opt %s --declare-mesh="mesh=target:dp=2,tp=3;draft:dp=3,tp=2" --annotate-data-parallel --annotate-tensor-parallel | FileCheck %s --check-prefix=ANNOTATED
// RUN: sharding-opt %s --parallelize="mesh=target:dp=2,tp=3;draft:dp=3,tp=2 sequence-parallel=off device=h100" | FileCheck %s --check-prefix=SPMD
// RUN: sharding-opt %s --declare-mesh="mesh=target:dp=2,tp=4;draft:dp=2,tp=2,x=2" | FileCheck %s --check-prefix=COMMON
// RUN: not sharding-opt %s --declare-mesh="mesh=target:dp=2,tp=3;draft:dp=4" 2>&1 | FileCheck %s --check-prefix=RANKS
// RUN: not sharding-opt %s --declare-mesh="mesh=target:dp=2;darft:dp=2" 2>&1 | FileCheck %s --check-prefix=STAGE
// RUN: not sharding-opt %s --declare-mesh="mesh=target:dp=2" 2>&1 | FileCheck %s --check-prefix=MISSING
// RUN: not sharding-opt %s --declare-mesh="mesh=target:host=2,tp=3;draft:dp=3,tp=2" 2>&1 | FileCheck %s --check-prefix=HOST
// RUN: not sharding-opt %s --declare-mesh="mesh=target:dp=2,tp=3;draft:dp=3,tp=2" --fold-encoder="stage=draft ulysses=tp" 2>&1 | FileCheck %s --check-prefix=FOLD
// RUN: not sharding-opt %s --declare-mesh="mesh=target:dp=2,tp=3;draft:dp=3,tp=2" --annotate-tensor-parallel="axis=sp" 2>&1 | FileCheck %s --check-prefix=AXIS

// Two stages on the same six ranks, each by axes of its own.

// ANNOTATED: dist.mesh @mesh = <["ranks"=6]> {dist.stages = {draft = #dist.mesh<["dp"=3, "tp"=2]>, target = #dist.mesh<["dp"=2, "tp"=3]>}}
// ANNOTATED-LABEL: func.func @main
// ANNOTATED-SAME: [{"ranks":(1)2}, {}]>, nn.input = "target.x"
// ANNOTATED-SAME: [{"ranks":(2)3}, {}]>, nn.parameter = "target.up"
// ANNOTATED-SAME: [{}, {"ranks":(2)3}]>, nn.parameter = "target.down"
// ANNOTATED-SAME: [{"ranks":(1)3}, {}]>, nn.input = "draft.y"
// ANNOTATED-SAME: [{"ranks":(3)2}, {}]>, nn.parameter = "draft.up"
// ANNOTATED-SAME: [{}, {"ranks":(3)2}]>, nn.parameter = "draft.down"
// ANNOTATED: dist.constrain %{{.*}} <@mesh, [{"ranks":(1)3}, {}]> {nn.stage = "draft"}

// The sum over the target's ranks, then across, by what costs least: six chunks are
// a slice away.

// SPMD-LABEL: func.func @main
// SPMD: %[[SUM:.*]] = dist.all_reduce sum %{{.*}} axes ["ranks":(2)3] : (tensor<6x16xf32>) -> tensor<6x16xf32>
// SPMD: %[[CUT:.*]] = dist.slice %[[SUM]] axes ["ranks":(2)3] dims [0] : (tensor<6x16xf32>) -> tensor<2x16xf32>
// SPMD: dist.all_gather %[[CUT]] axes ["ranks":(3)2] dims [0] : (tensor<2x16xf32>) -> tensor<4x16xf32>
// SPMD: dist.all_reduce sum %{{.*}} axes ["ranks":(3)2]
// SPMD-NOT: dist.all_gather

// An axis that is the same in all stages keeps its name.

// COMMON: dist.mesh @mesh = <["dp"=2, "ranks"=4]> {dist.stages

// RANKS: error: stage 'draft': expected a mesh of 6 ranks, as stage 'target' has, got 4: all stages run on the same
// STAGE: error: 'func.func' op has no stage 'darft', for which there is a mesh: expected one of target, draft
// MISSING: error: 'func.func' op stage 'draft' has no mesh: expected one for each stage, got meshes for target
// HOST: error: stage 'target' has an axis "host" that other stages cut otherwise: expected the same one in all
// FOLD: error: 'dist.mesh' op has a mesh for each stage, and stage 'draft' cannot be folded: expected one mesh of all stages
// AXIS: error: 'dist.mesh' op has no axis "sp" for tensor parallelism

func.func @main(%x: tensor<12x16xf32> {nn.input = "target.x"},
    %up: tensor<48x16xf32> {nn.parameter = "target.up"}, %down: tensor<16x48xf32> {nn.parameter = "target.down"},
    %y: tensor<12x16xf32> {nn.input = "draft.y"},
    %up2: tensor<32x16xf32> {nn.parameter = "draft.up"}, %down2: tensor<16x32xf32> {nn.parameter = "draft.down"})
    -> (tensor<12x16xf32> {nn.output = "z"}) {
  %0 = nn.linear %x, %up {nn.stage = "target"} : (tensor<12x16xf32>, tensor<48x16xf32>) -> tensor<12x48xf32>
  %1 = nn.relu %0 {nn.stage = "target"} : tensor<12x48xf32>
  %2 = nn.linear %1, %down {nn.stage = "target"} : (tensor<12x48xf32>, tensor<16x48xf32>) -> tensor<12x16xf32>
  %3 = nn.add %y, %2 {nn.stage = "draft"} : (tensor<12x16xf32>, tensor<12x16xf32>) -> tensor<12x16xf32>
  %4 = nn.linear %3, %up2 {nn.stage = "draft"} : (tensor<12x16xf32>, tensor<32x16xf32>) -> tensor<12x32xf32>
  %5 = nn.relu %4 {nn.stage = "draft"} : tensor<12x32xf32>
  %6 = nn.linear %5, %down2 {nn.stage = "draft"} : (tensor<12x32xf32>, tensor<16x32xf32>) -> tensor<12x16xf32>
  return %6 : tensor<12x16xf32>
}
