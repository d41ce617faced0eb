func.func @main(%x: tensor<4x8xf32> {nn.input = "x"}, %w: tensor<6x8xf32> {nn.parameter = "w"}) -> (tensor<4x6xf32> {nn.output = "y"}) {
  %0 = nn.linear %x, %w : (tensor<4x8xf32>, tensor<6x8xf32>) -> tensor<4x6xf32>
  return %0 : tensor<4x6xf32>
}
