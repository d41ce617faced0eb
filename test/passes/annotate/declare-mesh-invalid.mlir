// RUN: sharding-opt %s --declare-mesh="mesh=dp=4" --verify-diagnostics

// expected-error @below {{'dist.mesh' op differs from the 'mesh' option #dist.mesh<["dp"=4]>}}
dist.mesh @mesh = <["dp"=2]>
func.func @main(%x: tensor<3x4xf32> {nn.input = "x"}, %m: tensor<3xi1> {nn.input = "m"}, %t: tensor<5xf32> {nn.input = "t"},
                %w: tensor<4xf32> {nn.parameter = "w"}) -> (tensor<3x4xf32> {nn.output = "y"}) {
  %y = nn.add %x, %w : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
  return %y : tensor<3x4xf32>
}
