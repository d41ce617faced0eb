// Padding of experts and tokens has no rows: ops that add it and leave it out vanish.
// RUN: sharding-opt %s --split-input-file --verify-diagnostics --compact-rows | FileCheck %s

// 3 experts are 4 on 2 ranks, and 3 tokens are 4.

// CHECK-LABEL: func.func @uneven
// CHECK: %[[OFFSETS:.+]], %{{.+}}, %[[PLACES:.+]] = nn.route %{{.+}} {experts = 3 : i64, layer = 0 : i64}
// CHECK-NEXT: %[[ROWS:.+]] = nn.take_rows
// CHECK-NEXT: %[[SENT:.+]], %[[PARTS:.+]], %{{.+}} = nn.send_rows %[[ROWS]], %[[OFFSETS]] {{.*}} -> (tensor<3x1x8xf32>, tensor<5xi64>, tensor<3xi64>)
// CHECK-NEXT: %[[RELU:.+]] = nn.relu %[[SENT]]
// CHECK-NEXT: %[[BACK:.+]] = nn.return_rows %[[RELU]], %[[PARTS]], %[[OFFSETS]]
// CHECK-NEXT: nn.sum_rows %[[BACK]], %[[PLACES]]
dist.mesh @mesh = <["dp"=2]>
func.func @uneven(%x: tensor<2x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<3x8xf32>},
                  %i: tensor<2x1xi64> {nn.input = "i", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<3x1xi64>})
    -> (tensor<2x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<3x8xf32>}) attributes {dist.spmd = @mesh} {
  %p = dist.positions <3 pad 4{"dp"}> : tensor<2xi64>
  %zero = nn.constant dense<0> : tensor<i64>
  %true = nn.compare ge %p, %zero : (tensor<2xi64>, tensor<i64>) -> tensor<2xi1>
  %mask = nn.reshape %true : (tensor<2xi1>) -> tensor<2x1xi1>
  %none = nn.constant dense<-1> : tensor<i64>
  %c = nn.select %mask, %i, %none : (tensor<2x1xi1>, tensor<2x1xi64>, tensor<i64>) -> tensor<2x1xi64>
  %r = nn.dispatch %x, %c : (tensor<2x8xf32>, tensor<2x1xi64>) -> tensor<3x2x8xf32, #nn.routed<1>>
  %p0 = dist.pad %r dims [0] : (tensor<3x2x8xf32, #nn.routed<1>>) -> tensor<4x2x8xf32, #nn.routed<1>>
  %s = dist.all_to_all %p0 axes ["dp"] from [1] to [0] : (tensor<4x2x8xf32, #nn.routed<1>>) -> tensor<2x4x8xf32, #nn.routed<1>>
  %own = nn.slice %s starts [0, 0, 0] limits [2, 3, 8] strides [1, 1, 1] : (tensor<2x4x8xf32, #nn.routed<1>>) -> tensor<2x3x8xf32, #nn.routed<1>>
  %h = nn.relu %own : tensor<2x3x8xf32, #nn.routed<1>>
  %p1 = dist.pad %h dims [1] : (tensor<2x3x8xf32, #nn.routed<1>>) -> tensor<2x4x8xf32, #nn.routed<1>>
  %b = dist.all_to_all %p1 axes ["dp"] from [0] to [1] : (tensor<2x4x8xf32, #nn.routed<1>>) -> tensor<4x2x8xf32, #nn.routed<1>>
  %all = nn.slice %b starts [0, 0, 0] limits [3, 2, 8] strides [1, 1, 1] : (tensor<4x2x8xf32, #nn.routed<1>>) -> tensor<3x2x8xf32, #nn.routed<1>>
  %y = nn.combine %all, %c : (tensor<3x2x8xf32, #nn.routed<1>>, tensor<2x1xi64>) -> tensor<2x8xf32>
  return %y : tensor<2x8xf32>
}

// -----

// Tokens that exist are not padding.

func.func @tokens(%x: tensor<4x8xf32>, %i: tensor<4x1xi64>) -> tensor<3x3x8xf32, #nn.routed<1>> {
  %r = nn.dispatch %x, %i : (tensor<4x8xf32>, tensor<4x1xi64>) -> tensor<3x4x8xf32, #nn.routed<1>>
  // expected-error@below {{leaves out experts or tokens of routed rows: expected padding behind 3 of dimension 1, of size 4}}
  %s = nn.slice %r starts [0, 0, 0] limits [3, 3, 8] strides [1, 1, 1] : (tensor<3x4x8xf32, #nn.routed<1>>) -> tensor<3x3x8xf32, #nn.routed<1>>
  return %s : tensor<3x3x8xf32, #nn.routed<1>>
}

// -----

func.func @first(%r: tensor<3x4x8xf32, #nn.routed<1>>) {
  // expected-error@below {{expected to treat the rows of operand 0, which is routed, one by one}}
  %s = nn.slice %r starts [0, 1, 0] limits [3, 4, 8] strides [1, 1, 1] : (tensor<3x4x8xf32, #nn.routed<1>>) -> tensor<3x3x8xf32, #nn.routed<1>>
  return
}
