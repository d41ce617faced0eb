// RUN: sharding-opt %s --split-input-file --annotate-data-parallel --annotate-tensor-parallel --annotate-scatter-modes=mode=on | FileCheck %s
// RUN: sharding-opt %s --split-input-file --annotate-data-parallel --annotate-tensor-parallel=axis=c --annotate-scatter-modes="axis=c mode=on" | FileCheck %s --check-prefix=NAMED
// RUN: sharding-opt %s --split-input-file --annotate-data-parallel=axis=none --annotate-tensor-parallel=axis=none | FileCheck %s --check-prefix=NONE

// Policies look up axes by role: here the batch is split over two axes.

// CHECK-LABEL: func.func @declared
// CHECK-SAME: tensor<8x16x32xf32> {dist.sharding = #dist.sharding<@mesh, [{"b", "a"}, {}, {}]>
// CHECK-SAME: [{"tp"}, {}]>, nn.parameter = "up"
// CHECK-SAME: [{}, {"tp"}]>, nn.parameter = "down"
// CHECK: nn.linear {{.*}}[{"b", "a"}, {"tp"}, {}]>

// An option that names an axis wins over roles.

// NAMED-LABEL: func.func @declared
// NAMED-SAME: [{"b", "a"}, {}, {}]>
// NAMED-SAME: [{"c"}, {}]>, nn.parameter = "up"
// NAMED-SAME: [{}, {"c"}]>, nn.parameter = "down"
// NAMED: nn.linear {{.*}}[{"b", "a"}, {"c"}, {}]>

// NONE-LABEL: func.func @declared
// NONE-SAME: [{}, {}, {}]>
// NONE-NOT: dist.sharding
// NONE: return
dist.mesh @mesh = <["b"=2 {roles = [data]}, "tp"=2 {roles = [tensor]}, "a"=2 {roles = [data]}, "c"=2 {roles = []}]>
func.func @declared(%x: tensor<8x16x32xf32> {nn.input = "x"}, %up: tensor<64x32xf32> {nn.parameter = "up"},
                    %down: tensor<32x64xf32> {nn.parameter = "down"}) -> (tensor<8x16x32xf32> {nn.output = "y"}) {
  %0 = nn.linear %x, %up : (tensor<8x16x32xf32>, tensor<64x32xf32>) -> tensor<8x16x64xf32>
  %1 = nn.relu %0 : tensor<8x16x64xf32>
  %2 = nn.linear %1, %down : (tensor<8x16x64xf32>, tensor<32x64xf32>) -> tensor<8x16x32xf32>
  return %2 : tensor<8x16x32xf32>
}

// -----

// A role without an axis is no error, and no name stands in for it: "dp" and "tp" have no role.

// CHECK-LABEL: func.func @without
// CHECK-SAME: [{}, {}]>, nn.input = "x"
// CHECK-SAME: tensor<32x32xf32> {nn.parameter = "w"}
dist.mesh @mesh = <["dp"=2 {roles = []}, "tp"=2 {roles = []}, "c"=2 {roles = []}]>
func.func @without(%x: tensor<8x32xf32> {nn.input = "x"}, %w: tensor<32x32xf32> {nn.parameter = "w"})
    -> (tensor<8x32xf32> {nn.output = "y"}) {
  %0 = nn.linear %x, %w : (tensor<8x32xf32>, tensor<32x32xf32>) -> tensor<8x32xf32>
  return %0 : tensor<8x32xf32>
}

// -----

// Several axes scatter tokens together.

// CHECK-LABEL: func.func @both
// CHECK: nn.linear
// CHECK: nn.linear {{.*}}[{}, {"tp", "c"}, {}]>
dist.mesh @mesh = <["tp"=2 {roles = [tensor]}, "c"=2 {roles = [tensor]}]>
func.func @both(%x: tensor<8x16x32xf32> {nn.input = "x"}, %up: tensor<64x32xf32> {nn.parameter = "up"},
                %down: tensor<32x64xf32> {nn.parameter = "down"}) -> (tensor<8x16x32xf32> {nn.output = "y"}) {
  %0 = nn.linear %x, %up : (tensor<8x16x32xf32>, tensor<64x32xf32>) -> tensor<8x16x64xf32>
  %1 = nn.relu %0 : tensor<8x16x64xf32>
  %2 = nn.linear %1, %down : (tensor<8x16x64xf32>, tensor<32x64xf32>) -> tensor<8x16x32xf32>
  return %2 : tensor<8x16x32xf32>
}
