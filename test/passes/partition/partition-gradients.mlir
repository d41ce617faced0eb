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

// -----

// The offset of a table counts rows that follow one another. Tokens are no major factor of a flat
// tensor, so each rank sums all rows and keeps those of its tokens.

// CHECK-LABEL: func.func @flat
// CHECK: %[[S:.*]] = nn.scatter_add %arg0, %arg1 dim 0 : (tensor<5xf32>, tensor<5xi64>) -> tensor<96xf32>
// CHECK: dist.slice %{{.*}} axes ["tp"]
// CHECK: return %{{.*}} : tensor<2x3x8xf32>
dist.mesh @mesh = <["tp"=2]>
func.func @flat(%dy: tensor<5xf32> {nn.input = "dy", dist.sharding = #dist.sharding<@mesh, [{}]>}, %i: tensor<5xi64> {nn.input = "i", dist.sharding = #dist.sharding<@mesh, [{}]>})
    -> (tensor<2x6x8xf32> {nn.output = "g"}) {
  %0 = nn.scatter_add %dy, %i dim 0 {dist.sharding = #dist.sharding<@mesh, [(2, 48{"tp"})]>} : (tensor<5xf32>, tensor<5xi64>) -> tensor<96xf32>
  %1 = nn.reshape %0 {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}]>} : (tensor<96xf32>) -> tensor<2x6x8xf32>
  return %1 : tensor<2x6x8xf32>
}

// -----

// Rows of the major factor follow one another.

// CHECK-LABEL: func.func @flat_by_rows
// CHECK: %[[O:.*]] = dist.axis_index ["tp"] chunk 48 : tensor<i64>
// CHECK: nn.scatter_add %arg0, %arg1 offset %[[O]] dim 0 {nn.table_rows = 96 : i64} : (tensor<5xf32>, tensor<5xi64>, tensor<i64>) -> tensor<48xf32>
dist.mesh @mesh = <["tp"=2]>
func.func @flat_by_rows(%dy: tensor<5xf32> {nn.input = "dy", dist.sharding = #dist.sharding<@mesh, [{}]>}, %i: tensor<5xi64> {nn.input = "i", dist.sharding = #dist.sharding<@mesh, [{}]>})
    -> (tensor<2x6x8xf32> {nn.output = "g"}) {
  %0 = nn.scatter_add %dy, %i dim 0 {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>} : (tensor<5xf32>, tensor<5xi64>) -> tensor<96xf32>
  %1 = nn.reshape %0 {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}, {}]>} : (tensor<96xf32>) -> tensor<2x6x8xf32>
  return %1 : tensor<2x6x8xf32>
}
