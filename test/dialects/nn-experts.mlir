// RUN: sharding-opt %s --verify-roundtrip | FileCheck %s
// RUN: sharding-opt %s --compact-rows | FileCheck %s --check-prefix=ROWS
// RUN: sharding-opt %s --parallelize="mesh=ep=2" | FileCheck %s --check-prefix=EP
// RUN: sharding-opt %s --parallelize="mesh=tp=2 sequence-parallel=off" | FileCheck %s --check-prefix=TP
// RUN: sharding-opt %s --parallelize="mesh=dp=2 expert-parallel=dp" | FileCheck %s --check-prefix=DP

// CHECK: nn.top_k %{{.*}} {k = 2 : i64} : (tensor<3x7x8xf32>) -> tensor<3x7x2xi64>
// CHECK: nn.dispatch %{{.*}}, %{{.*}} : (tensor<3x7x16xf32>, tensor<3x7x2xi64>) -> tensor<8x3x7x16xf32, #nn.routed<2>>
// CHECK: nn.dispatch %{{.*}}, %{{.*}} {each} : (tensor<3x7x2xf32>, tensor<3x7x2xi64>) -> tensor<8x3x7xf32, #nn.routed<2>>

// Each op on rows is one on the rows that exist. A bias has a row for each row.
// ROWS: %[[OFFSETS:.*]], %[[CHOICES:.*]], %[[PLACES:.*]] = nn.route %{{.*}} {experts = 8 : i64, layer = 0 : i64} : (tensor<3x7x2xi64>) -> (tensor<9xi64>, tensor<42xi64>, tensor<3x7x2xi64>)
// ROWS-NOT: nn.route
// ROWS: nn.take_rows %{{.*}}, %[[CHOICES]] {group = 2 : i64, tokens = 2 : i64} : (tensor<3x7x16xf32>, tensor<42xi64>) -> tensor<42x1x1x16xf32>
// ROWS: nn.take_rows %{{.*}}, %[[CHOICES]] {each, group = 2 : i64, tokens = 2 : i64} : (tensor<3x7x2xf32>, tensor<42xi64>) -> tensor<42x1x1xf32>
// ROWS: nn.grouped_product %{{.*}}, %{{.*}}, %[[OFFSETS]]
// ROWS: nn.repeat_rows %{{.*}}, %[[OFFSETS]] : (tensor<8x1x1x24xf32>, tensor<9xi64>) -> tensor<42x1x1x24xf32>
// ROWS: nn.sum_rows %{{.*}}, %[[PLACES]] : (tensor<42x1x1x16xf32>, tensor<3x7x2xi64>) -> tensor<3x7x16xf32>

// A rank has the rows of its own experts, and the sum over experts is reduced once.
// EP: %[[I:.*]] = nn.top_k
// EP: nn.dispatch %{{.*}}, %[[I]] offset %{{.*}} {nn.table_rows = 8 : i64} : {{.*}} -> tensor<4x3x7x16xf32, #nn.routed<2>>
// EP: nn.grouped_linear %{{.*}} : (tensor<4x3x7x16xf32, #nn.routed<2>>, tensor<4x24x16xf32>)
// EP: %[[SUM:.*]] = nn.combine %{{.*}}, %[[I]] offset %{{.*}} {nn.table_rows = 8 : i64}
// EP: dist.all_reduce sum %[[SUM]] axes ["ep"]
// EP-NOT: dist.all_reduce

// Without an axis for experts, the inner features of each are split. Rows stay partial sums.
// TP: nn.grouped_linear %{{.*}} -> tensor<8x3x7x12xf32, #nn.routed<2>>
// TP-NOT: dist.all_reduce
// TP: %[[SUM:.*]] = nn.combine
// TP: dist.all_reduce sum %[[SUM]] axes ["tp"]

// Choices of padding tokens go nowhere: 3 sequences are 4 on 2 ranks.
// DP: %[[SENT:.*]]:2 = dist.all_to_all %{{.*}}, %{{.*}} axes ["dp"] from [1, 1] to [0, 0]
// DP: nn.slice %[[SENT]]#1 starts [0, 0, 0, 0] limits [1, 3, 7, 16] strides [1, 1, 1, 1]
// DP: nn.dispatch %{{.*}} offset %{{.*}} -> tensor<4x3x7x16xf32, #nn.routed<2>>
// DP: dist.pad
// DP: dist.all_to_all %{{.*}} axes ["dp"] from [0] to [1]
func.func @main(%x: tensor<3x7x16xf32> {nn.input = "x"}, %r: tensor<8x16xf32> {nn.parameter = "router"},
                %up: tensor<8x24x16xf32> {nn.parameter = "up"}, %b: tensor<8x24xf32> {nn.parameter = "b"},
                %down: tensor<8x16x24xf32> {nn.parameter = "down"}) -> (tensor<3x7x16xf32> {nn.output = "y"}) {
  %s = nn.linear %x, %r : (tensor<3x7x16xf32>, tensor<8x16xf32>) -> tensor<3x7x8xf32>
  %p = nn.softmax %s dim 2 : tensor<3x7x8xf32>
  %i = nn.top_k %p {k = 2 : i64} : (tensor<3x7x8xf32>) -> tensor<3x7x2xi64>
  %w = nn.take_along %p, %i dim 2 : (tensor<3x7x8xf32>, tensor<3x7x2xi64>) -> tensor<3x7x2xf32>
  %rows = nn.dispatch %x, %i : (tensor<3x7x16xf32>, tensor<3x7x2xi64>) -> tensor<8x3x7x16xf32, #nn.routed<2>>
  %wr = nn.dispatch %w, %i {each} : (tensor<3x7x2xf32>, tensor<3x7x2xi64>) -> tensor<8x3x7xf32, #nn.routed<2>>
  %h = nn.grouped_linear %rows, %up : (tensor<8x3x7x16xf32, #nn.routed<2>>, tensor<8x24x16xf32>) -> tensor<8x3x7x24xf32, #nn.routed<2>>
  %b4 = nn.reshape %b : (tensor<8x24xf32>) -> tensor<8x1x1x24xf32>
  %hb = nn.add %h, %b4 : (tensor<8x3x7x24xf32, #nn.routed<2>>, tensor<8x1x1x24xf32>) -> tensor<8x3x7x24xf32, #nn.routed<2>>
  %a = nn.silu %hb : tensor<8x3x7x24xf32, #nn.routed<2>>
  %o = nn.grouped_linear %a, %down : (tensor<8x3x7x24xf32, #nn.routed<2>>, tensor<8x16x24xf32>) -> tensor<8x3x7x16xf32, #nn.routed<2>>
  %w4 = nn.reshape %wr : (tensor<8x3x7xf32, #nn.routed<2>>) -> tensor<8x3x7x1xf32, #nn.routed<2>>
  %ow = nn.mul %o, %w4 : (tensor<8x3x7x16xf32, #nn.routed<2>>, tensor<8x3x7x1xf32, #nn.routed<2>>) -> tensor<8x3x7x16xf32, #nn.routed<2>>
  %y = nn.combine %ow, %i : (tensor<8x3x7x16xf32, #nn.routed<2>>, tensor<3x7x2xi64>) -> tensor<3x7x16xf32>
  return %y : tensor<3x7x16xf32>
}
