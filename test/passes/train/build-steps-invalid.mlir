// RUN: sharding-opt %s --split-input-file --build-steps --verify-diagnostics

// expected-error@+1 {{'main' has no gradients to train by: expected results of nn.gradient (see request-gradients)}}
func.func @main(%w: tensor<f32> {nn.parameter = "w"}) -> (tensor<f32> {nn.output = "loss"}) {
  return %w : tensor<f32>
}

// -----

// expected-error@+2 {{the model has an input 'lr': expected no input of the name of the learning rate}}
func.func @main(%w: tensor<f32> {nn.parameter = "w"},
                %lr: tensor<f32> {nn.input = "lr"})
    -> (tensor<f32> {nn.output = "loss"}, tensor<f32> {nn.output = "grad.w"}) {
  %0 = nn.mul %lr, %w : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %1 = nn.gradient %0 of "w" : (tensor<f32>) -> tensor<f32>
  return %0, %1 : tensor<f32>, tensor<f32>
}

// -----

// expected-error@+1 {{parameter 'w' is a part of a stored tensor, which cannot be trained: expected the whole one}}
func.func @main(%w: tensor<2xf32> {nn.parameter = "w", nn.parameter_offsets = array<i64: 2>})
    -> (tensor<f32> {nn.output = "loss"}, tensor<4xf32> {nn.output = "grad.w"}) {
  %0 = nn.reduce sum %w dims [0] : (tensor<2xf32>) -> tensor<f32>
  %1 = nn.gradient %0 of "w" : (tensor<f32>) -> tensor<4xf32>
  return %0, %1 : tensor<f32>, tensor<4xf32>
}

// -----

// expected-error@+1 {{the loss depends on no parameter that is trained: expected at least one}}
func.func @main(%x: tensor<f32> {nn.input = "x"}, %w: tensor<f32> {nn.parameter = "w"})
    -> (tensor<f32> {nn.output = "loss"}, tensor<f32> {nn.output = "grad.w"}) {
  %0 = nn.stop_gradient %w : tensor<f32>
  %1 = nn.mul %x, %0 : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %2 = nn.gradient %1 of "w" : (tensor<f32>) -> tensor<f32>
  return %1, %2 : tensor<f32>, tensor<f32>
}

// -----

// expected-error@+1 {{expected one global function of one block to train, and at most 'evaluate' besides, got 2 entries}}
module {
  func.func @a() { return }
  func.func @b() { return }
}
