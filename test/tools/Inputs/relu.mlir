func.func @main(%x: tensor<4x8xf32> {nn.input = "x"}) -> (tensor<4x8xf32> {nn.output = "y"}) {
  %0 = nn.relu %x : tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}
