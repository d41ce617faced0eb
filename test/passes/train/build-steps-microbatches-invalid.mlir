// RUN: sharding-opt %s --build-steps="optimizer=sgd microbatches=2" --split-input-file --verify-diagnostics

// expected-error@+1 {{output 'count': expected a float, which has a mean over microbatches, or rows, got 'tensor<i64>'}}
func.func @main(%x: tensor<4xf32> {nn.input = "x"}, %n: tensor<4xi64> {nn.input = "n"}, %w: tensor<4xf32> {nn.parameter = "w"})
    -> (tensor<f32> {nn.output = "loss"}, tensor<i64> {nn.output = "count"}, tensor<4xf32> {nn.output = "grad.w"}) {
  %0 = nn.mul %x, %w : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = nn.reduce sum %0 dims [0] : (tensor<4xf32>) -> tensor<f32>
  %2 = nn.reduce sum %n dims [0] : (tensor<4xi64>) -> tensor<i64>
  %3 = nn.gradient %1 of "w" : (tensor<f32>) -> tensor<4xf32>
  return %1, %2, %3 : tensor<f32>, tensor<i64>, tensor<4xf32>
}
