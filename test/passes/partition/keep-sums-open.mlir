// RUN: sharding-opt %s --split-input-file --bind-state --propagate-shardings --keep-sums-open --verify-roundtrip | FileCheck %s
// RUN: sharding-opt %s --split-input-file --bind-state --propagate-shardings --keep-sums-open --partition | FileCheck %s --check-prefix=SPMD

// The terms of a sum over calls differ along dp. Each rank adds up its own. The function that
// reads the sum reduces it, directly to the layout that it asks for.

// CHECK: nn.state @sum {dist.sharding = #dist.sharding<@mesh, [{}], unreduced = {"dp"}>
// CHECK-LABEL: func.func private @repeated
// CHECK-SAME: nn.state = "sum"
// CHECK-SAME: unreduced = {"dp"}
// CHECK: return
// CHECK-LABEL: func.func @update
// CHECK-SAME: unreduced = {"dp"}

// SPMD-LABEL: func.func private @repeated
// SPMD: %[[R:.+]] = nn.reduce sum
// SPMD-NOT: dist.
// SPMD: nn.add {{.*}}%[[R]]
// SPMD-LABEL: func.func @update
// SPMD-NEXT: dist.reduce_scatter sum %{{.+}} axes ["dp"]
// SPMD-NEXT: nn.relu
dist.mesh @mesh = <["dp"=2, "tp"=2]>
nn.state @sum {fill = 0.0 : f32, transient, dist.sharding = #dist.sharding<@mesh, [{}]>} : tensor<8xf32>
func.func private @repeated(%x: tensor<4x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>}) {
  %0 = nn.read @sum : tensor<8xf32>
  %1 = nn.reduce sum %x dims [0] : (tensor<4x8xf32>) -> tensor<8xf32>
  %2 = nn.add %0, %1 : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  nn.write @sum, %2 : tensor<8xf32>
  return
}
func.func @update() -> (tensor<8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{"dp"}]>}) {
  %0 = nn.read @sum : tensor<8xf32>
  %1 = dist.constrain %0 <@mesh, [{"dp"}]> : tensor<8xf32>
  %2 = nn.relu %1 : tensor<8xf32>
  %3 = nn.constant dense<0.0> : tensor<8xf32>
  nn.write @sum, %3 : tensor<8xf32>
  return %2 : tensor<8xf32>
}

// -----

// Axes that shard a dimension of the sum stay there. A product by a number and a reshape pass
// the terms on; another op reads the reduced term.

// CHECK: nn.state @scaled {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}], unreduced = {"dp"}>
// CHECK: nn.state @squared {dist.sharding = #dist.sharding<@mesh, [{}]>
dist.mesh @mesh = <["dp"=2, "tp"=2]>
nn.state @scaled {fill = 0.0 : f32, transient} : tensor<8x1xf32>
nn.state @squared {fill = 0.0 : f32, transient} : tensor<8xf32>
func.func private @repeated(%x: tensor<4x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {"tp"}]>},
                            %y: tensor<4x8xf32> {nn.input = "y", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>},
                            %k: tensor<f32> {nn.input = "k"}) {
  %0 = nn.read @scaled : tensor<8x1xf32>
  %1 = nn.reduce sum %x dims [0] : (tensor<4x8xf32>) -> tensor<8xf32>
  %2 = nn.mul %k, %1 : (tensor<f32>, tensor<8xf32>) -> tensor<8xf32>
  %3 = nn.reshape %2 : (tensor<8xf32>) -> tensor<8x1xf32>
  %4 = nn.add %3, %0 : (tensor<8x1xf32>, tensor<8x1xf32>) -> tensor<8x1xf32>
  nn.write @scaled, %4 : tensor<8x1xf32>
  %5 = nn.read @squared : tensor<8xf32>
  %6 = nn.reduce sum %y dims [0] : (tensor<4x8xf32>) -> tensor<8xf32>
  %7 = nn.mul %6, %6 : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %8 = nn.add %5, %7 : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  nn.write @squared, %8 : tensor<8xf32>
  return
}

// -----

// Partial sums are concatenated, as the gradients of a fused projection are.

// SPMD-LABEL: func.func private @joined
// SPMD: %[[A:.+]] = nn.reduce sum
// SPMD-NEXT: %[[B:.+]] = nn.reduce sum
// SPMD-NEXT: %[[C:.+]] = nn.concat %[[A]], %[[B]]
// SPMD-NEXT: nn.add %{{.+}}, %[[C]]
// SPMD-NEXT: return
dist.mesh @mesh = <["dp"=2]>
nn.state @joint {fill = 0.0 : f32, transient, dist.sharding = #dist.sharding<@mesh, [{}]>} : tensor<16xf32>
func.func private @joined(%x: tensor<4x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>},
                          %y: tensor<4x8xf32> {nn.input = "y", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>}) {
  %0 = nn.read @joint : tensor<16xf32>
  %1 = nn.reduce sum %x dims [0] : (tensor<4x8xf32>) -> tensor<8xf32>
  %2 = nn.reduce sum %y dims [0] : (tensor<4x8xf32>) -> tensor<8xf32>
  %3 = nn.concat %1, %2 dim 0 : (tensor<8xf32>, tensor<8xf32>) -> tensor<16xf32>
  %4 = nn.add %0, %3 : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
  nn.write @joint, %4 : tensor<16xf32>
  return
}

// -----

// A state that is kept, one that is read twice, a maximum and one with another new value keep
// their layouts.

// CHECK: nn.state @kept {dist.sharding = #dist.sharding<@mesh, [{}]>
// CHECK: nn.state @seen {dist.sharding = #dist.sharding<@mesh, [{}]>
// CHECK: nn.state @largest {dist.sharding = #dist.sharding<@mesh, [{}]>
// CHECK: nn.state @replaced {dist.sharding = #dist.sharding<@mesh, [{}]>
dist.mesh @mesh = <["dp"=2]>
nn.state @kept {fill = 0.0 : f32} : tensor<8xf32>
nn.state @seen {fill = 0.0 : f32, transient} : tensor<8xf32>
nn.state @largest {fill = 0.0 : f32, transient} : tensor<8xf32>
nn.state @replaced {fill = 0.0 : f32, transient} : tensor<8xf32>
func.func @main(%x: tensor<4x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>})
    -> (tensor<8xf32> {nn.output = "y"}) {
  %kept = nn.read @kept : tensor<8xf32>
  %seen = nn.read @seen : tensor<8xf32>
  %largest = nn.read @largest : tensor<8xf32>
  %sum = nn.reduce sum %x dims [0] : (tensor<4x8xf32>) -> tensor<8xf32>
  %max = nn.reduce max %x dims [0] : (tensor<4x8xf32>) -> tensor<8xf32>
  %0 = nn.add %kept, %sum : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %1 = nn.add %seen, %sum : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %2 = nn.maximum %largest, %max : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  nn.write @kept, %0 : tensor<8xf32>
  nn.write @seen, %1 : tensor<8xf32>
  nn.write @largest, %2 : tensor<8xf32>
  nn.write @replaced, %sum : tensor<8xf32>
  return %seen : tensor<8xf32>
}
