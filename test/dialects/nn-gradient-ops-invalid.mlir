// RUN: sharding-opt %s --split-input-file --verify-diagnostics

func.func @gradient(%x: tensor<2xf32>, %w: tensor<2xf32> {nn.parameter = "w"}) {
  // expected-error@+1 {{'nn.gradient' op expected a loss with one element, got 'tensor<2xf32>'}}
  %0 = nn.gradient %x of "w" : (tensor<2xf32>) -> tensor<2xf32>
  return
}

// -----

func.func @gradient(%x: tensor<f32>, %w: tensor<2xf32> {nn.parameter = "w"}) {
  // expected-error@+1 {{'nn.gradient' op expected a parameter of the function, got 'v'}}
  %0 = nn.gradient %x of "v" : (tensor<f32>) -> tensor<2xf32>
  return
}

// -----

func.func @gradient(%x: tensor<f32>, %w: tensor<2xi64> {nn.parameter = "w"}) {
  // expected-error@+1 {{'nn.gradient' op expected parameter 'w' to be of float type, got 'tensor<2xi64>'}}
  %0 = nn.gradient %x of "w" : (tensor<f32>) -> tensor<2xf32>
  return
}

// -----

func.func @gradient(%x: tensor<f32>, %w: tensor<2xbf16> {nn.parameter = "w"}) {
  // expected-error@+1 {{'nn.gradient' op expected result of type 'tensor<2xf32>', got 'tensor<3xf32>'}}
  %0 = nn.gradient %x of "w" : (tensor<f32>) -> tensor<3xf32>
  return
}

// -----

func.func @weight_grad(%x: tensor<2x7xf32>, %y: tensor<2x7xf16>) {
  // expected-error@+1 {{'nn.weight_grad' op expected rhs of element type 'f32' as lhs, got 'f16'}}
  %0 = nn.weight_grad %x, %y : (tensor<2x7xf32>, tensor<2x7xf16>) -> tensor<7x7xf32>
  return
}

// -----

func.func @weight_grad(%x: tensor<f32>, %y: tensor<f32>) {
  // expected-error@+1 {{'nn.weight_grad' op expected lhs of rank 1 or more, got rank 0}}
  %0 = nn.weight_grad %x, %y : (tensor<f32>, tensor<f32>) -> tensor<1x1xf32>
  return
}

// -----

func.func @weight_grad(%x: tensor<2x7xf32>, %y: tensor<7xf32>) {
  // expected-error@+1 {{'nn.weight_grad' op expected rhs of rank 2, got rank 1}}
  %0 = nn.weight_grad %x, %y : (tensor<2x7xf32>, tensor<7xf32>) -> tensor<7x7xf32>
  return
}

// -----

func.func @weight_grad(%x: tensor<2x7xf64>, %y: tensor<2x5xf64>) {
  // expected-error@+1 {{'nn.weight_grad' op expected result of element type 'f64', the type of sums of lhs, got 'f32'}}
  %0 = nn.weight_grad %x, %y : (tensor<2x7xf64>, tensor<2x5xf64>) -> tensor<7x5xf32>
  return
}

// -----

func.func @weight_grad(%x: tensor<2x7xf32>, %y: tensor<3x5xf32>) {
  // expected-error@+1 {{'nn.weight_grad' op expected rhs of shape [2, 5], got [3, 5]}}
  %0 = nn.weight_grad %x, %y : (tensor<2x7xf32>, tensor<3x5xf32>) -> tensor<7x5xf32>
  return
}

// -----

func.func @weight_grad(%x: tensor<2x7xf32>, %y: tensor<2x5xf32>) {
  // expected-error@+1 {{'nn.weight_grad' op expected result of shape [7, 5], got [5, 7]}}
  %0 = nn.weight_grad %x, %y : (tensor<2x7xf32>, tensor<2x5xf32>) -> tensor<5x7xf32>
  return
}

// -----

func.func @scatter_add(%u: tensor<2x7x8xf32>, %i: tensor<2x7xi64>) {
  // expected-error@+1 {{'nn.scatter_add' op expected dim to be a dimension of result of rank 2, got 2}}
  %0 = nn.scatter_add %u, %i dim 2 : (tensor<2x7x8xf32>, tensor<2x7xi64>) -> tensor<32x8xf32>
  return
}

// -----

func.func @scatter_add(%u: tensor<2x7x8xbf16>, %i: tensor<2x7xi64>) {
  // expected-error@+1 {{'nn.scatter_add' op expected result of element type 'f32', the type of sums of updates, got 'f64'}}
  %0 = nn.scatter_add %u, %i dim 0 : (tensor<2x7x8xbf16>, tensor<2x7xi64>) -> tensor<32x8xf64>
  return
}

// -----

func.func @scatter_add(%u: tensor<2x7x8xf32>, %i: tensor<2x7xi64>, %o: tensor<1xi64>) {
  // expected-error@+1 {{'nn.scatter_add' op expected offset of rank 0, got rank 1}}
  %0 = nn.scatter_add %u, %i offset %o dim 0 : (tensor<2x7x8xf32>, tensor<2x7xi64>, tensor<1xi64>) -> tensor<32x8xf32>
  return
}

// -----

func.func @scatter_add(%u: tensor<7x8xf32>, %i: tensor<2x7xi64>) {
  // expected-error@+1 {{'nn.scatter_add' op expected updates of rank 3, got rank 2}}
  %0 = nn.scatter_add %u, %i dim 0 : (tensor<7x8xf32>, tensor<2x7xi64>) -> tensor<32x8xf32>
  return
}

// -----

func.func @scatter_add(%u: tensor<2x7x8xf32>, %i: tensor<2x6xi64>) {
  // expected-error@+1 {{'nn.scatter_add' op expected indices of shape [2, 7], got [2, 6]}}
  %0 = nn.scatter_add %u, %i dim 0 : (tensor<2x7x8xf32>, tensor<2x6xi64>) -> tensor<32x8xf32>
  return
}

// -----

func.func @scatter_add(%u: tensor<2x7xf32>, %i: tensor<2xi64>) {
  // expected-error@+1 {{'nn.scatter_add' op expected indices of shape [2, 7], got [2]}}
  %0 = nn.scatter_add %u, %i dim 0 {along} : (tensor<2x7xf32>, tensor<2xi64>) -> tensor<5x7xf32>
  return
}

// -----

func.func @scatter_add(%u: tensor<2x7x8xf32>, %i: tensor<2x7xi64>) {
  // expected-error@+1 {{'nn.scatter_add' op expected result of shape [32, 8], got [32, 9]}}
  %0 = nn.scatter_add %u, %i dim 0 : (tensor<2x7x8xf32>, tensor<2x7xi64>) -> tensor<32x9xf32>
  return
}

// -----

func.func @pad(%x: tensor<2x3xf32>) {
  // expected-error@+1 {{'nn.pad' op expected result of element type 'f32' as input, got 'f64'}}
  %0 = nn.pad %x low [0, 1] high [0, 2] interior [0, 0] : (tensor<2x3xf32>) -> tensor<2x6xf64>
  return
}

// -----

func.func @pad(%x: tensor<2x3xf32>) {
  // expected-error@+1 {{'nn.pad' op expected 2 numbers in high, one for each dimension of input, got 1}}
  %0 = nn.pad %x low [0, 1] high [0] interior [0, 0] : (tensor<2x3xf32>) -> tensor<2x4xf32>
  return
}

// -----

func.func @pad(%x: tensor<2x3xf32>) {
  // expected-error@+1 {{'nn.pad' op expected low not to be negative, got -1}}
  %0 = nn.pad %x low [0, -1] high [0, 0] interior [0, 0] : (tensor<2x3xf32>) -> tensor<2x2xf32>
  return
}

// -----

func.func @pad(%x: tensor<2x3xf32>) {
  // expected-error@+1 {{'nn.pad' op expected dimension 1 of result of less than 2^63, got more}}
  %0 = nn.pad %x low [0, 0] high [0, 0] interior [0, 9223372036854775807] : (tensor<2x3xf32>) -> tensor<2x3xf32>
  return
}

// -----

func.func @pad(%x: tensor<2x3xf32>) {
  // expected-error@+1 {{'nn.pad' op expected result of shape [3, 6], got [2, 6]}}
  %0 = nn.pad %x low [0, 1] high [0, 2] interior [1, 0] : (tensor<2x3xf32>) -> tensor<2x6xf32>
  return
}
