func.func @main(%x: tensor<2x3x7x9xf32> {nn.input = "x"}, %c: tensor<7x6xf32> {nn.input = "c"}) -> (tensor<2x3x7x9xf32> {nn.output = "y"}) {
  %0 = nn.rotary %x, %c, %c {interleaved} : (tensor<2x3x7x9xf32>, tensor<7x6xf32>, tensor<7x6xf32>) -> tensor<2x3x7x9xf32>
  return %0 : tensor<2x3x7x9xf32>
}
