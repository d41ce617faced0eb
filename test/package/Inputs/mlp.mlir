func.func @main(%x: tensor<4x8xf32> {nn.input = "x"},
                %up: tensor<16x8xf32> {nn.parameter = "up.weight"},
                %down: tensor<8x16xf32> {nn.parameter = "down.weight"})
    -> (tensor<4x8xf32> {nn.output = "y"}) {
  %0 = nn.linear %x, %up : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
  %1 = nn.relu %0 : tensor<4x16xf32>
  %2 = nn.linear %1, %down : (tensor<4x16xf32>, tensor<8x16xf32>) -> tensor<4x8xf32>
  return %2 : tensor<4x8xf32>
}
