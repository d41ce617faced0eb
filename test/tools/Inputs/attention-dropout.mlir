func.func @main(%q: tensor<1x2x8x4xf32> {nn.input = "q"}, %r: tensor<1x2x8xi64> {nn.input = "r"}, %k: tensor<8xi64> {nn.input = "k"}, %n: tensor<i64> {nn.input = "n"}) -> (tensor<1x2x8x4xf32> {nn.output = "o"}) {
  %o = nn.attention %q, %q, %q drop_at %r, %k seed %n step %n scale 0.5 {dropout = 0.5 : f64, stream = 0 : i64} : (tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>, tensor<1x2x8xi64>, tensor<8xi64>, tensor<i64>, tensor<i64>) -> tensor<1x2x8x4xf32>
  return %o : tensor<1x2x8x4xf32>
}
