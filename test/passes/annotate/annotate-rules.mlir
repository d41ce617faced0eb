// RUN: sharding-opt %s --annotate-rules='shardings={"w": "[{\"tp\"}]", "o": "[{}, {}]", "*": "[{}]", "zz*": "[{}]"}' 2>&1 | FileCheck %s
// RUN: not sharding-opt %s --annotate-rules='shardings={"w": "[{\"qq\"}]"}' 2>&1 | FileCheck %s --check-prefix=AXIS

// RUN: sharding-opt %s --annotate-rules='shardings={"o": "[{\"tp\"}, {}]", "w": "[{}]"}' --remarks=declined --propagate-shardings --partition --verify-placement 2>&1 | FileCheck %s --check-prefix=ONE

// The first rule that matches wins; one that matches nothing is a warning.

// CHECK: warning: rule "zz*" matches no parameter
// CHECK-LABEL: func.func @main
// CHECK-SAME: tensor<4xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, nn.parameter = "w"}
// AXIS: error: rule "w" on parameter 'w': unknown mesh axis "qq"
// A dimension of size 1 stays whole.
// ONE: remark: [annotate-rules] declined: rule "o" shards nothing of dimension 0 of parameter 'o', which has size 1: each rank holds it whole
// ONE: %{{.*}}: tensor<1x4xf32> {dist.global = tensor<1x4xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}]>, nn.parameter = "o"}
dist.mesh @mesh = <["tp"=2]>
func.func @main(%x: tensor<3x4xf32> {nn.input = "x"}, %m: tensor<3xi1> {nn.input = "m"}, %t: tensor<5xf32> {nn.input = "t"},
                %w: tensor<4xf32> {nn.parameter = "w"}, %o: tensor<1x4xf32> {nn.parameter = "o"})
    -> (tensor<3x4xf32> {nn.output = "y"}, tensor<3x1xf32> {nn.output = "z"}) {
  %y = nn.add %x, %w : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
  %z = nn.linear %y, %o : (tensor<3x4xf32>, tensor<1x4xf32>) -> tensor<3x1xf32>
  return %y, %z : tensor<3x4xf32>, tensor<3x1xf32>
}
