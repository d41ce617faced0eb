// RUN: sharding-opt %s --verify-roundtrip | FileCheck %s
// RUN: sharding-opt %s --compact-rows | FileCheck %s --check-prefix=ROWS
// RUN: sharding-opt %s --parallelize="mesh=ep=2" --verify-placement --schedule -o /dev/null
// RUN: sharding-opt %s --parallelize="mesh=dp=2 expert-parallel=dp" --verify-placement --schedule -o /dev/null

// CHECK: nn.dispatch %{{.*}} -> tensor<4x4x7x16xf32, #nn.routed<2, shared = 2>>
// CHECK: nn.dispatch %{{.*}} -> tensor<4x4x7x2xi64, #nn.routed<2, shared = 2>>
// CHECK: nn.dispatch %{{.*}} -> tensor<8x4x7x16xf32, #nn.routed<2>>
// CHECK: nn.combine %{{.*}} -> tensor<4x4x7x16xf32, #nn.routed<2, shared = 2>>
// CHECK: nn.combine %{{.*}} -> tensor<4x7x16xf32>

// Two experts share the rows of a group, which are tokens of both.
// ROWS: %[[OFFSETS:.*]], %[[CHOICES:.*]], %[[PLACES:.*]] = nn.route %[[I:.*]] {experts = 4 : i64, nn.expected_rows = 52 : i64, shared = 2 : i64} : (tensor<4x7x2xi64>) -> (tensor<5xi64>, tensor<56xi64>, tensor<4x7x2xi64>)
// ROWS: %[[G:.*]] = nn.take_rows %{{.*}}, %[[CHOICES]] {group = 2 : i64, tokens = 2 : i64} : {{.*}} -> tensor<56x1x1x16xf32>
// ROWS: %[[J:.*]] = nn.take_rows %[[I]], %[[CHOICES]] {group = 2 : i64, tokens = 2 : i64} : {{.*}} -> tensor<56x1x1x2xi64>
// ROWS: %[[INNER:.*]], %[[TAKEN:.*]], %[[AT:.*]] = nn.route %[[J]] rows %[[OFFSETS]] {experts = 8 : i64, layer = 0 : i64} : (tensor<56x1x1x2xi64>, tensor<5xi64>) -> (tensor<9xi64>, tensor<56xi64>, tensor<56x1x1x2xi64>)
// ROWS: %[[R:.*]] = nn.take_rows %[[G]], %[[TAKEN]] {group = 2 : i64, nested, tokens = 2 : i64} : {{.*}} -> tensor<56x1x1x16xf32>
// ROWS: %[[H:.*]] = nn.grouped_product %[[R]], %{{.*}}, %[[INNER]]
// ROWS: %[[S:.*]] = nn.sum_rows %[[H]], %[[AT]] {nested} : (tensor<56x1x1x16xf32>, tensor<56x1x1x2xi64>) -> tensor<56x1x1x16xf32>
// ROWS: nn.sum_rows %[[S]], %[[PLACES]] : (tensor<56x1x1x16xf32>, tensor<4x7x2xi64>) -> tensor<4x7x16xf32>

!shared = tensor<4x4x7x16xf32, #nn.routed<2, shared = 2>>
!choices = tensor<4x4x7x2xi64, #nn.routed<2, shared = 2>>
!rows = tensor<8x4x7x16xf32, #nn.routed<2>>
func.func @main(%x: tensor<4x7x16xf32> {nn.input = "x"}, %i: tensor<4x7x2xi64> {nn.input = "i"}, %w: tensor<8x16x16xf32> {nn.parameter = "w"}) -> (tensor<4x7x16xf32> {nn.output = "y"}) {
  %g = nn.dispatch %x, %i : (tensor<4x7x16xf32>, tensor<4x7x2xi64>) -> !shared
  %j = nn.dispatch %i, %i : (tensor<4x7x2xi64>, tensor<4x7x2xi64>) -> !choices
  %r = nn.dispatch %g, %j : (!shared, !choices) -> !rows
  %h = nn.grouped_linear %r, %w : (!rows, tensor<8x16x16xf32>) -> !rows
  %s = nn.combine %h, %j : (!rows, !choices) -> !shared
  %y = nn.combine %s, %i : (!shared, tensor<4x7x2xi64>) -> tensor<4x7x16xf32>
  return %y : tensor<4x7x16xf32>
}
