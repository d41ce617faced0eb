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
