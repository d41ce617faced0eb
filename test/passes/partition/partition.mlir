// RUN: sharding-opt %s --split-input-file --partition | FileCheck %s

// A partial sum is reduced straight into the layout its reader asks for, and a
// bias is added once, behind the reduction.

// CHECK-LABEL: func.func @reduce_into_reader_layout
// CHECK-SAME: tensor<4x4xf32> {dist.global = tensor<4x8xf32>
// CHECK-SAME: tensor<6x4xf32> {dist.global = tensor<6x8xf32>
// CHECK-SAME: dist.spmd = @mesh
// CHECK: %[[P:.*]] = nn.linear %{{.*}}, %{{.*}} : (tensor<4x4xf32>, tensor<6x4xf32>) -> tensor<4x6xf32>
// CHECK: %[[R:.*]] = dist.reduce_scatter sum %[[P]] axes ["tp"] dims [0]
// CHECK: %[[S:.*]] = nn.add %[[R]], %arg2 {nn.id = 7 : i64} : (tensor<2x6xf32>, tensor<6xf32>)
// CHECK: return %[[S]] : tensor<2x6xf32>
dist.mesh @mesh = <["tp"=2]>
func.func @reduce_into_reader_layout(%x: tensor<4x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>},
                %w: tensor<6x8xf32> {nn.parameter = "w", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>},
                %b: tensor<6xf32> {nn.parameter = "b", dist.sharding = #dist.sharding<@mesh, [{}]>})
    -> (tensor<4x6xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>}) {
  %y = nn.linear %x, %w bias %b {nn.id = 7 : i64, dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>}
    : (tensor<4x8xf32>, tensor<6x8xf32>, tensor<6xf32>) -> tensor<4x6xf32>
  return %y : tensor<4x6xf32>
}

// -----

// Partial sums that are added share one reduction; the residual waits for it.

// CHECK-LABEL: func.func @shared_reduction
// CHECK: %[[A:.*]] = nn.linear %arg0, %arg1
// CHECK: %[[B:.*]] = nn.linear %arg0, %arg2
// CHECK: %[[AB:.*]] = nn.add %[[A]], %[[B]]
// CHECK: %[[R:.*]] = dist.all_reduce sum %[[AB]] axes ["tp"]
// CHECK-NOT: dist.all_reduce
// CHECK: nn.add %[[R]], %arg3
dist.mesh @mesh = <["tp"=2]>
func.func @shared_reduction(%x: tensor<4x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>},
                %w: tensor<6x8xf32> {nn.parameter = "w", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>},
                %v: tensor<6x8xf32> {nn.parameter = "v", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>},
                %r: tensor<4x6xf32> {nn.input = "r", dist.sharding = #dist.sharding<@mesh, [{}, {}]>})
    -> (tensor<4x6xf32> {nn.output = "y"}) {
  %a = nn.linear %x, %w {dist.sharding = #dist.sharding<@mesh, [{}, {}]>} : (tensor<4x8xf32>, tensor<6x8xf32>) -> tensor<4x6xf32>
  %b = nn.linear %x, %v {dist.sharding = #dist.sharding<@mesh, [{}, {}]>} : (tensor<4x8xf32>, tensor<6x8xf32>) -> tensor<4x6xf32>
  %ra = nn.add %r, %a {dist.sharding = #dist.sharding<@mesh, [{}, {}]>} : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
  %y = nn.add %ra, %b {dist.sharding = #dist.sharding<@mesh, [{}, {}]>} : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
  return %y : tensor<4x6xf32>
}

// -----

// A vocabulary that the axis does not divide is padded at its tail; ids of other
// ranks' rows give zeros.

// CHECK-LABEL: func.func @padded_vocabulary
// CHECK-SAME: tensor<4x8xf32> {dist.global = tensor<7x8xf32>
// CHECK: %[[O:.*]] = dist.axis_index ["tp"] chunk 4 : tensor<i64>
// CHECK: %[[E:.*]] = nn.embedding %arg0, %arg1 offset %[[O]] {nn.table_rows = 7 : i64}
// CHECK: dist.all_reduce sum %[[E]] axes ["tp"]
dist.mesh @mesh = <["tp"=2]>
func.func @padded_vocabulary(%ids: tensor<3xi64> {nn.input = "ids", dist.sharding = #dist.sharding<@mesh, [{}]>},
                %w: tensor<7x8xf32> {nn.parameter = "w", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>})
    -> (tensor<3x8xf32> {nn.output = "y"}) {
  %y = nn.embedding %ids, %w {dist.sharding = #dist.sharding<@mesh, [{}, {}]>} : (tensor<3xi64>, tensor<7x8xf32>) -> tensor<3x8xf32>
  return %y : tensor<3x8xf32>
}

// -----

// The results' shardings count for the padding of their dimensions.

// CHECK-LABEL: func.func @results_count_for_padding
// CHECK-SAME: -> (tensor<2xf32>
// CHECK: dist.slice
dist.mesh @mesh = <["x"=4]>
func.func @results_count_for_padding(%x: tensor<7xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}]>})
    -> (tensor<7xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{"x"}]>}) {
  return %x : tensor<7xf32>
}

// -----

// Parts of an axis that do not fit (6 = 2 x 3 and 3 x 2): the cheapest way, here a
// gather of what is small.

// CHECK-LABEL: func.func @parts_that_do_not_fit
// CHECK: dist.all_gather %{{.*}} axes ["x":(1)2] dims [0]
// CHECK: dist.slice %{{.*}} axes ["x":(3)2] dims [0]
dist.mesh @mesh = <["x"=6]>
func.func @parts_that_do_not_fit(%x: tensor<4xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"x":(1)2}]>})
    -> (tensor<4xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{"x":(3)2}]>}) {
  return %x : tensor<4xf32>
}

// -----

// And here one launch.

// CHECK-LABEL: func.func @one_launch
// CHECK-SAME: %[[X:.*]]: tensor<6x2x16xf32>
// CHECK-NEXT: %[[Y:.*]] = dist.redistribute %[[X]]
// CHECK-SAME: from [#dist.sharding<@mesh, [{"x":(1)2}, {"x":(2)3}, {}]>]
// CHECK-SAME: to [#dist.sharding<@mesh, [{"x":(1)3}, {"x":(3)2}, {}]>]
// CHECK-SAME: (tensor<6x2x16xf32>) -> tensor<4x3x16xf32>
// CHECK-NEXT: return %[[Y]]
dist.mesh @mesh = <["x"=6]>
func.func @one_launch(%x: tensor<7x5x16xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"x":(1)2}, {"x":(2)3}, {}]>})
    -> (tensor<7x5x16xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{"x":(1)3}, {"x":(3)2}, {}]>}) {
  return %x : tensor<7x5x16xf32>
}

// -----

// A constant is made in each layout, not moved.

// CHECK-LABEL: func.func @constant_in_each_layout
// CHECK: nn.constant dense<-5.000000e-01> : tensor<2xf32>
// CHECK-NOT: = dist.
// CHECK: return
dist.mesh @mesh = <["x"=2]>
func.func @constant_in_each_layout(%x: tensor<4xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"x"}]>})
    -> (tensor<4xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{"x"}]>}) {
  %c = nn.constant {dist.sharding = #dist.sharding<@mesh, [{}]>} dense<-0.5> : tensor<4xf32>
  %y = nn.add %x, %c {dist.sharding = #dist.sharding<@mesh, [{"x"}]>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

// An index that is computed from padding may be in no table: it is set to zero. That of an
// input is zero already.

// CHECK-LABEL: func.func @indices_from_padding
// CHECK: nn.embedding %arg0, %arg1
// CHECK: %[[I:.*]] = nn.sub %arg0
// CHECK: %[[P:.*]] = dist.positions <3 pad 4{"dp"}> : tensor<2xi64>
// CHECK: %[[T:.*]] = nn.compare ge %[[P]], %{{.*}} -> tensor<2xi1>
// CHECK: %[[C:.*]] = nn.reshape %[[T]] : (tensor<2xi1>) -> tensor<2x1xi1>
// CHECK: %[[M:.*]] = nn.select %[[C]], %[[I]], %{{.*}} -> tensor<2x5xi64>
// CHECK: nn.embedding %[[M]], %arg1
dist.mesh @mesh = <["dp"=2]>
func.func @indices_from_padding(%i: tensor<3x5xi64> {nn.input = "i", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>},
                %e: tensor<31x8xf32> {nn.parameter = "e", dist.sharding = #dist.sharding<@mesh, [{}, {}]>})
    -> (tensor<3x5x8xf32> {nn.output = "a", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}, {}]>},
        tensor<3x5x8xf32> {nn.output = "b", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}, {}]>}) {
  %one = nn.constant {dist.sharding = #dist.sharding<@mesh, []>} dense<1> : tensor<i64>
  %a = nn.embedding %i, %e {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}, {}]>} : (tensor<3x5xi64>, tensor<31x8xf32>) -> tensor<3x5x8xf32>
  %j = nn.sub %i, %one {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>} : (tensor<3x5xi64>, tensor<i64>) -> tensor<3x5xi64>
  %b = nn.embedding %j, %e {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}, {}]>} : (tensor<3x5xi64>, tensor<31x8xf32>) -> tensor<3x5x8xf32>
  return %a, %b : tensor<3x5x8xf32>, tensor<3x5x8xf32>
}
