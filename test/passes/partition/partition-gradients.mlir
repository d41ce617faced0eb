// RUN: sharding-opt %s --split-input-file --partition --verify-placement | FileCheck %s

// The gradient of a weight keeps the weight's layout. It is a partial sum over the axes of the
// tokens alone, which are padded: zero times what the bias gives is zero.

// CHECK-LABEL: func.func @weight
// CHECK: %[[G:.*]] = nn.weight_grad %{{.*}}, %{{.*}} : (tensor<2x3xf32>, tensor<2x8xf32>) -> tensor<3x8xf32>
// CHECK: %[[R:.*]] = dist.all_reduce sum %[[G]] axes ["dp"] : (tensor<3x8xf32>)
// CHECK: return %[[R]]
dist.mesh @mesh = <["dp"=2, "tp"=2]>
func.func @weight(%dy: tensor<3x6xf32> {nn.input = "dy", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {"tp"}]>},
                  %x: tensor<3x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>})
    -> (tensor<6x8xf32> {nn.output = "g"}) {
  %g = nn.weight_grad %dy, %x {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>} : (tensor<3x6xf32>, tensor<3x8xf32>) -> tensor<6x8xf32>
  return %g : tensor<6x8xf32>
}

// -----

// The gradient of a table whose rows are sharded: each rank sums the updates of its own rows. Rows
// that pad the tokens are masked, even if their updates would only not be finite where the true
// ones are not: their index is that of row 0.

// CHECK-LABEL: func.func @table
// CHECK-SAME: -> (tensor<4x8xf32>
// CHECK: %[[U:.*]] = nn.select %{{.*}}, %{{.*}}, %{{.*}}
// CHECK: %[[O:.*]] = dist.axis_index ["tp"] chunk 4 : tensor<i64>
// CHECK: %[[S:.*]] = nn.scatter_add %[[U]], %arg1 offset %[[O]] dim 0 {nn.table_rows = 7 : i64} : (tensor<2x8xf32>, tensor<2xi64>, tensor<i64>) -> tensor<4x8xf32>
// CHECK: dist.all_reduce sum %[[S]] axes ["dp"]
dist.mesh @mesh = <["dp"=2, "tp"=2]>
func.func @table(%dy: tensor<3x8xf32> {nn.input = "dy", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>},
                 %ids: tensor<3xi64> {nn.input = "ids", dist.sharding = #dist.sharding<@mesh, [{"dp"}]>})
    -> (tensor<7x8xf32> {nn.output = "g"}) {
  %one = nn.constant {dist.sharding = #dist.sharding<@mesh, []>} dense<1.0> : tensor<f32>
  %u = nn.add %dy, %one {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>} : (tensor<3x8xf32>, tensor<f32>) -> tensor<3x8xf32>
  %g = nn.scatter_add %u, %ids dim 0 {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>} : (tensor<3x8xf32>, tensor<3xi64>) -> tensor<7x8xf32>
  return %g : tensor<7x8xf32>
}

// -----

// Collectives of backward ops belong to the backward pass.

// CHECK-LABEL: func.func @marked
// CHECK: nn.weight_grad {{.*}} {nn.backward}
// CHECK: dist.all_reduce sum {{.*}} {nn.backward}
dist.mesh @mesh = <["dp"=2]>
func.func @marked(%dy: tensor<4x6xf32> {nn.input = "dy", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>},
                  %x: tensor<4x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>})
    -> (tensor<6x8xf32> {nn.output = "g"}) {
  %g = nn.weight_grad %dy, %x {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, nn.backward} : (tensor<4x6xf32>, tensor<4x8xf32>) -> tensor<6x8xf32>
  %h = nn.exp %g {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, nn.backward} : tensor<6x8xf32>
  return %h : tensor<6x8xf32>
}
