// RUN: sharding-opt %s --annotate-rules='shardings={"w": "[{\"tp\"}]", "*": "[{}]", "zz*": "[{}]"}' 2>&1 | FileCheck %s
// RUN: not sharding-opt %s --annotate-rules='shardings={"w": "[{\"qq\"}]"}' 2>&1 | FileCheck %s --check-prefix=AXIS

// The first rule that matches wins; one that matches nothing is a warning.

// CHECK: warning: rule "zz*" matches no parameter
// CHECK-LABEL: func.func @main
// CHECK-SAME: tensor<4xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, nn.parameter = "w"}
// AXIS: error: rule "w" on parameter 'w': unknown mesh axis "qq"
dist.mesh @mesh = <["tp"=2]>
func.func @main(%x: tensor<3x4xf32> {nn.input = "x"}, %m: tensor<3xi1> {nn.input = "m"}, %t: tensor<5xf32> {nn.input = "t"},
                %w: tensor<4xf32> {nn.parameter = "w"}) -> (tensor<3x4xf32> {nn.output = "y"}) {
  %y = nn.add %x, %w : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
  return %y : tensor<3x4xf32>
}
