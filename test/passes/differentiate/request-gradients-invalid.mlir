// RUN: sharding-opt %s --split-input-file --request-gradients="parameters=a.*,n" --verify-diagnostics

// expected-error@below {{loss 'y': expected a scalar, got 'tensor<4xf32>'}}
func.func @not_scalar(%a: tensor<4xf32> {nn.parameter = "a.w"}) -> (tensor<4xf32> {nn.output = "y"}) {
  return %a : tensor<4xf32>
}

// -----

// expected-error@below {{loss 'n': expected a float, got the integer type 'i64'}}
func.func @integer_loss(%n: tensor<i64> {nn.input = "n"}, %a: tensor<4xf32> {nn.parameter = "a.w"}) -> (tensor<i64> {nn.output = "n"}) {
  return %n : tensor<i64>
}

// -----

// expected-error@below {{parameter 'n': expected a float to differentiate by, got the integer type 'i64'}}
func.func @integer_parameter(%a: tensor<f32> {nn.parameter = "a.w"}, %n: tensor<4xi64> {nn.parameter = "n"}) -> (tensor<f32> {nn.output = "y"}) {
  return %a : tensor<f32>
}

// -----

// expected-error@below {{pattern 'a.*' matches no parameter of float type of 'no_match' that has a gradient}}
func.func @no_match(%a: tensor<f32> {nn.parameter = "b"}, %n: tensor<4xf32> {nn.parameter = "n"}) -> (tensor<f32> {nn.output = "y"}) {
  return %a : tensor<f32>
}

// -----

// expected-error@below {{'name' has an output 'grad.a.w' already}}
func.func @name(%a: tensor<f32> {nn.parameter = "a.w"}, %n: tensor<f32> {nn.parameter = "n"})
    -> (tensor<f32> {nn.output = "y"}, tensor<f32> {nn.output = "grad.a.w"}) {
  return %a, %n : tensor<f32>, tensor<f32>
}

// -----

// expected-error@below {{'func.func' op expected one block, got 2}}
func.func @blocks(%a: tensor<f32> {nn.parameter = "a.w"}) -> (tensor<f32> {nn.output = "y"}) {
  return %a : tensor<f32>
^other:
  return %a : tensor<f32>
}

// -----

// expected-error@below {{expected a module with a global function to differentiate}}
module {}
