// RUN: sharding-opt %s --split-input-file --differentiate-gradients --verify-diagnostics

func.func @independent(%x: tensor<f32> {nn.input = "x"}, %w: tensor<4xf32> {nn.parameter = "w"}) -> tensor<4xf32> {
  // expected-error@below {{the loss depends on no parameter by which it is to be differentiated: expected it to depend on at least one of 1, such as 'w'}}
  %0 = nn.exp %x : tensor<f32>
  %g = nn.gradient %0 of "w" : (tensor<f32>) -> tensor<4xf32>
  return %g : tensor<4xf32>
}

// -----

// A comparison is constant: the loss does not depend on its operands.
func.func @constant(%w: tensor<4xf32> {nn.parameter = "w"}) -> tensor<4xf32> {
  %0 = nn.compare gt %w, %w : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  %1 = nn.cast %0 : (tensor<4xi1>) -> tensor<4xf32>
  // expected-error@below {{the loss depends on no parameter}}
  %2 = nn.reduce sum %1 dims [0] : (tensor<4xf32>) -> tensor<f32>
  %g = nn.gradient %2 of "w" : (tensor<f32>) -> tensor<4xf32>
  return %g : tensor<4xf32>
}

// -----

func.func @refused(%w: tensor<1x2x4x8xf32> {nn.parameter = "w"}, %l: tensor<1x2x4xf32> {nn.input = "l"}) -> tensor<1x2x4x8xf32> {
  // expected-error@below {{'nn.merge_attention' op cannot be differentiated}}
  %0:2 = nn.merge_attention %w, %l, %w, %l : (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  %1 = nn.reduce sum %0#0 dims [0, 1, 2, 3] : (tensor<1x2x4x8xf32>) -> tensor<f32>
  %g = nn.gradient %1 of "w" : (tensor<f32>) -> tensor<1x2x4x8xf32>
  return %g : tensor<1x2x4x8xf32>
}

// -----

func.func @foreign(%w: tensor<4xf32> {nn.parameter = "w"}) -> tensor<4xf32> {
  // expected-error@below {{'tensor.cast' op cannot be differentiated: expected an op of the nn dialect}}
  %0 = tensor.cast %w : tensor<4xf32> to tensor<4xf32>
  %1 = nn.reduce sum %0 dims [0] : (tensor<4xf32>) -> tensor<f32>
  %g = nn.gradient %1 of "w" : (tensor<f32>) -> tensor<4xf32>
  return %g : tensor<4xf32>
}

// -----

// expected-error@below {{'func.func' op expected one block, got 2}}
func.func @blocks(%w: tensor<f32> {nn.parameter = "w"}) -> tensor<f32> {
  %g = nn.gradient %w of "w" : (tensor<f32>) -> tensor<f32>
  return %g : tensor<f32>
^other:
  return %w : tensor<f32>
}
