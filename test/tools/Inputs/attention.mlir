func.func @main(%q: tensor<1x4x2x8xf32> {nn.input = "q"}) -> (tensor<1x4x2x8xf32> {nn.output = "y"}) {
  %0 = nn.attention %q, %q, %q scale 1.0 : (tensor<1x4x2x8xf32>, tensor<1x4x2x8xf32>, tensor<1x4x2x8xf32>) -> tensor<1x4x2x8xf32>
  return %0 : tensor<1x4x2x8xf32>
}
