func.func @main(%x: tensor<4x8xf32> {nn.input = "x"}, %i: tensor<2xi64> {nn.input = "i"}, %y: tensor<2x8xf32> {nn.input = "y"}) -> (tensor<4x8xf32> {nn.output = "z"}) {
  %0 = nn.index_copy %x, %i, %y dim 0 : (tensor<4x8xf32>, tensor<2xi64>, tensor<2x8xf32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}
