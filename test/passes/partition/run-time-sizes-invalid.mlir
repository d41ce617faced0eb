// RUN: sharding-opt %s --parallelize="mesh=tp=2" -split-input-file -verify-diagnostics -o %t

// expected-note@+1 {{operand 0 is from here}}
func.func @rows(%x: tensor<24x8xf32> {nn.input = "x", nn.sizes = ["tokens", ""]},
                %n: tensor<i64> {nn.input = "n", nn.size = "tokens"}) -> tensor<3x8xf32> {
  // expected-error@+1 {{takes rows 21 to 24 of dimension 0 of operand 0, which has the run-time size @tokens: expected the first row alone, or a gather}}
  %0 = nn.slice %x starts [21, 0] limits [24, 8] strides [1, 1] : (tensor<24x8xf32>) -> tensor<3x8xf32>
  return %0 : tensor<3x8xf32>
}

// -----

// expected-note@+1 {{operand 0 is from here}}
func.func @joined(%x: tensor<24x8xf32> {nn.input = "x", nn.sizes = ["tokens", ""]},
                  %n: tensor<i64> {nn.input = "n", nn.size = "tokens"}) -> tensor<48x8xf32> {
  // expected-error@+1 {{joins operand 0 in dimension 0, of which the size is a number at run time}}
  %0 = nn.concat %x, %x dim 0 : (tensor<24x8xf32>, tensor<24x8xf32>) -> tensor<48x8xf32>
  return %0 : tensor<48x8xf32>
}

// -----

// expected-note@+1 {{operand 0 is from here}}
func.func @chosen(%x: tensor<8x24xf32> {nn.input = "x", nn.sizes = ["", "tokens"]},
                  %n: tensor<i64> {nn.input = "n", nn.size = "tokens"}) -> tensor<8x2xi64> {
  // expected-error@+1 {{reads the padding behind the @tokens true of at most 24 rows}}
  %0 = nn.top_k %x {k = 2 : i64} : (tensor<8x24xf32>) -> tensor<8x2xi64>
  return %0 : tensor<8x2xi64>
}
