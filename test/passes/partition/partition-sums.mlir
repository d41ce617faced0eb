// RUN: sharding-opt %s --split-input-file --propagate-shardings --partition --verify-placement | FileCheck %s

// The gradient of a weight goes from its partial sum to the layout of the result in one step.
// CHECK-LABEL: func.func @main
// CHECK: %[[T:.*]] = nn.transpose {{.*}} : (tensor<48x12xf32>) -> tensor<12x48xf32>
// CHECK: %[[P:.*]] = nn.matmul %[[T]], {{.*}} : (tensor<12x48xf32>, tensor<48x16xf32>) -> tensor<12x16xf32>
// CHECK-NEXT: %[[R:.*]] = dist.reduce_scatter sum %[[P]] axes ["dp"] dims [1] : (tensor<12x16xf32>) -> tensor<12x8xf32>
// CHECK-NEXT: return %[[R]]
dist.mesh @mesh = <["dp"=2, "tp"=2]>
func.func @main(%dy: tensor<96x24xf32> {nn.input = "dy", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {"tp"}]>},
                %x: tensor<96x16xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>})
    -> (tensor<24x16xf32> {nn.output = "dw", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {"dp"}]>}) {
  %t = nn.transpose %dy [1, 0] : (tensor<96x24xf32>) -> tensor<24x96xf32>
  %dw = nn.matmul %t, %x : (tensor<24x96xf32>, tensor<96x16xf32>) -> tensor<24x16xf32>
  return %dw : tensor<24x16xf32>
}

// -----

// A result may stay unreduced: no collective.
// CHECK-LABEL: func.func @main
// CHECK-SAME: -> (tensor<24x16xf32> {dist.global = tensor<24x16xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"dp"}>
// CHECK-NOT: = dist.
// CHECK: return
dist.mesh @mesh = <["dp"=2]>
func.func @main(%dy: tensor<96x24xf32> {nn.input = "dy", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>},
                %x: tensor<96x16xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>})
    -> (tensor<24x16xf32> {nn.output = "dw", dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"dp"}>}) {
  %t = nn.transpose %dy [1, 0] : (tensor<96x24xf32>) -> tensor<24x96xf32>
  %dw = nn.matmul %t, %x : (tensor<24x96xf32>, tensor<96x16xf32>) -> tensor<24x16xf32>
  return %dw : tensor<24x16xf32>
}

// -----

// A constraint keeps a sum unreduced over one of two axes, and its only user reduces the other.
// CHECK-LABEL: func.func @main
// CHECK: %[[P:.*]] = nn.linear
// CHECK-NEXT: %[[A:.*]] = dist.all_reduce sum %[[P]] axes ["tp"]
// CHECK-NEXT: %[[B:.*]] = dist.reduce_scatter sum %[[A]] axes ["cp"] dims [0] : (tensor<4x6xf32>) -> tensor<2x6xf32>
// CHECK-NEXT: return %[[B]]
dist.mesh @mesh = <["cp"=2, "tp"=2]>
func.func @main(%x: tensor<4x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {"cp", "tp"}]>},
                %w: tensor<6x8xf32> {nn.parameter = "w", dist.sharding = #dist.sharding<@mesh, [{}, {"cp", "tp"}]>})
    -> (tensor<4x6xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{"cp"}, {}]>}) {
  %y = nn.linear %x, %w : (tensor<4x8xf32>, tensor<6x8xf32>) -> tensor<4x6xf32>
  %z = dist.constrain %y <@mesh, [{}, {}], unreduced = {"cp"}> : tensor<4x6xf32>
  return %z : tensor<4x6xf32>
}

// -----

// A replicated value becomes a partial sum where a result asks for one.
// CHECK-LABEL: func.func @main
// CHECK: %[[R:.*]] = nn.relu
// CHECK-NEXT: %[[P:.*]] = dist.partial %[[R]] axes ["tp"]
// CHECK-NEXT: return %[[P]]
dist.mesh @mesh = <["tp"=2]>
func.func @main(%x: tensor<4xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}]>})
    -> (tensor<4xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}], unreduced = {"tp"}>}) {
  %y = nn.relu %x : tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

// The tokens of one operand are sharded over a prefix of the axes of the other one. A slice of
// the first is free; a gather of the second is not.
// CHECK-LABEL: func.func @main
// CHECK: dist.slice {{.*}} axes ["cp"] dims [0] : (tensor<48x16xf32>) -> tensor<24x16xf32>
// CHECK: nn.matmul {{.*}} : (tensor<12x24xf32>, tensor<24x16xf32>) -> tensor<12x16xf32>
// CHECK-NEXT: dist.all_reduce sum {{.*}} axes ["dp", "cp"]
// CHECK-NEXT: return
dist.mesh @mesh = <["dp"=2, "cp"=2, "tp"=2]>
func.func @main(%dy: tensor<96x24xf32> {nn.input = "dy", dist.sharding = #dist.sharding<@mesh, [{"dp", "cp"}, {"tp"}]>},
                %x: tensor<96x16xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>})
    -> (tensor<24x16xf32> {nn.output = "dw", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>}) {
  %t = nn.transpose %dy [1, 0] : (tensor<96x24xf32>) -> tensor<24x96xf32>
  %dw = nn.matmul %t, %x : (tensor<24x96xf32>, tensor<96x16xf32>) -> tensor<24x16xf32>
  return %dw : tensor<24x16xf32>
}

// -----

// The tokens of x are sharded over the axis of the output features of dy. The sum is over dp
// alone, and x is gathered over tp: the other way would move dy and sum over both axes.
// CHECK-LABEL: func.func @main
// CHECK: dist.all_gather %{{.*}} axes ["tp"] dims [0] : (tensor<24x16xf32>) -> tensor<48x16xf32>
// CHECK: nn.matmul {{.*}} : (tensor<12x48xf32>, tensor<48x16xf32>) -> tensor<12x16xf32>
// CHECK-NEXT: dist.all_reduce sum {{.*}} axes ["dp"]
dist.mesh @mesh = <["dp"=2, "tp"=2]>
func.func @main(%dy: tensor<96x24xf32> {nn.input = "dy", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {"tp"}]>},
                %x: tensor<96x16xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"dp", "tp"}, {}]>})
    -> (tensor<24x16xf32> {nn.output = "dw", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>}) {
  %t = nn.transpose %dy [1, 0] : (tensor<96x24xf32>) -> tensor<24x96xf32>
  %dw = nn.matmul %t, %x : (tensor<24x96xf32>, tensor<96x16xf32>) -> tensor<24x16xf32>
  return %dw : tensor<24x16xf32>
}

// -----

// A reshape that cuts other chunks does not pass a sum on: it reads the dimension whole.
// CHECK-LABEL: func.func @main
// CHECK: %[[P:.*]] = nn.linear
// CHECK: %[[R:.*]] = dist.all_gather
// CHECK: nn.reshape %[[R]] : (tensor<4x3x2xf32>) -> tensor<3x8xf32>
dist.mesh @mesh = <["dp"=2, "tp"=2]>
func.func @main(%x: tensor<4x3x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}, {"tp"}]>},
                %w: tensor<2x8xf32> {nn.parameter = "w", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>})
    -> (tensor<3x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}]>}) {
  %y = nn.linear %x, %w : (tensor<4x3x8xf32>, tensor<2x8xf32>) -> tensor<4x3x2xf32>
  %z = nn.reshape %y : (tensor<4x3x2xf32>) -> tensor<3x8xf32>
  return %z : tensor<3x8xf32>
}

// -----

// Partial sums that a concatenation joins share one reduction, which scatters them.

// CHECK-LABEL: func.func @parts
// CHECK-NOT: dist.all_reduce
// CHECK: %[[C:.*]] = nn.concat
// CHECK-NEXT: dist.reduce_scatter sum %[[C]] axes ["dp"] dims [0] : (tensor<8x4xf32>) -> tensor<4x4xf32>
dist.mesh @mesh = <["dp"=2]>
func.func @parts(%x: tensor<8x4xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>},
                 %y: tensor<8x4xf32> {nn.input = "y", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>})
    -> (tensor<8x4xf32> {nn.output = "g", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>}) {
  %0 = nn.weight_grad %x, %y {dist.sharding = #dist.sharding<@mesh, [{}, {}]>} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %1 = nn.weight_grad %y, %y {dist.sharding = #dist.sharding<@mesh, [{}, {}]>} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %2 = nn.concat %0, %1 dim 0 {dist.sharding = #dist.sharding<@mesh, [{}, {}]>} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  return %2 : tensor<8x4xf32>
}
