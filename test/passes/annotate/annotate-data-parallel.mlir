// RUN: sharding-opt %s --annotate-data-parallel | FileCheck %s
// RUN: sharding-opt %s --annotate-data-parallel="axis=tp optional" | FileCheck %s --check-prefix=NONE
// RUN: not sharding-opt %s --annotate-data-parallel=axis=tp 2>&1 | FileCheck %s --check-prefix=MISSING

// Inputs as long as the first are split, others and parameters are not.

// CHECK-LABEL: func.func @main
// CHECK-SAME: tensor<3x4xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, nn.input = "x"}
// CHECK-SAME: tensor<3xi1> {dist.sharding = #dist.sharding<@mesh, [{"dp"}]>, nn.input = "m"}
// CHECK-SAME: tensor<5xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, nn.input = "t"}
// CHECK-SAME: tensor<4xf32> {nn.parameter = "w"}
// NONE-LABEL: func.func @main
// NONE-NOT: "dp"
// MISSING: error: 'dist.mesh' op has no axis "tp" to split the batch over
dist.mesh @mesh = <["dp"=2]>
func.func @main(%x: tensor<3x4xf32> {nn.input = "x"}, %m: tensor<3xi1> {nn.input = "m"}, %t: tensor<5xf32> {nn.input = "t"},
                %w: tensor<4xf32> {nn.parameter = "w"}) -> (tensor<3x4xf32> {nn.output = "y"}) {
  %y = nn.add %x, %w : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
  return %y : tensor<3x4xf32>
}

// A statement decides about its input, and the first input that is stated to be the batch has its size.

// CHECK-LABEL: func.func @stated
// CHECK-SAME: tensor<6xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, nn.batch = false, nn.input = "weights"}
// CHECK-SAME: tensor<4x3xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, nn.batch = true, nn.input = "x"}
// CHECK-SAME: tensor<8xi64> {dist.sharding = #dist.sharding<@mesh, [{"dp"}]>, nn.batch = true, nn.input = "labels"}
// CHECK-SAME: tensor<4xi64> {dist.sharding = #dist.sharding<@mesh, [{}]>, nn.batch = false, nn.input = "queue"}
// CHECK-SAME: tensor<4xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}]>, nn.input = "scale"}
func.func @stated(%w: tensor<6xf32> {nn.input = "weights", nn.batch = false}, %x: tensor<4x3xf32> {nn.input = "x", nn.batch = true},
                  %l: tensor<8xi64> {nn.input = "labels", nn.batch = true}, %q: tensor<4xi64> {nn.input = "queue", nn.batch = false},
                  %s: tensor<4xf32> {nn.input = "scale"}) -> (tensor<4x3xf32> {nn.output = "y"}) {
  return %x : tensor<4x3xf32>
}
