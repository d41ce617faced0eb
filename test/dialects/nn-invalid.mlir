// RUN: sharding-opt %s -split-input-file -verify-diagnostics -o %t

// Elementwise.

func.func @add(%x: tensor<2x7xf32>, %y: tensor<2x7xbf16>) {
  // expected-error@+1 {{'nn.add' op expected rhs of element type 'f32' as lhs, got 'bf16'}}
  %0 = nn.add %x, %y : (tensor<2x7xf32>, tensor<2x7xbf16>) -> tensor<2x7xf32>
  return
}

// -----

func.func @sub(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.sub' op expected result of element type 'f32' as lhs, got 'bf16'}}
  %0 = nn.sub %x, %x : (tensor<2x7xf32>, tensor<2x7xf32>) -> tensor<2x7xbf16>
  return
}

// -----

func.func @mul(%x: tensor<2x7xf32>, %y: tensor<3x7xf32>) {
  // expected-error@+1 {{'nn.mul' op expected operands whose shapes broadcast, got [2, 7], [3, 7]}}
  %0 = nn.mul %x, %y : (tensor<2x7xf32>, tensor<3x7xf32>) -> tensor<2x7xf32>
  return
}

// -----

func.func @div(%x: tensor<2x7xf32>, %y: tensor<7xf32>) {
  // expected-error@+1 {{'nn.div' op expected result of shape [2, 7], got [7]}}
  %0 = nn.div %x, %y : (tensor<2x7xf32>, tensor<7xf32>) -> tensor<7xf32>
  return
}

// -----

func.func @div(%x: tensor<2x7xf32>, %y: tensor<?x7xf32>) {
  // expected-error@+1 {{'nn.div' op operand #1 must be statically shaped tensor of}}
  %0 = nn.div %x, %y : (tensor<2x7xf32>, tensor<?x7xf32>) -> tensor<2x7xf32>
  return
}

// -----

func.func @silu(%x: tensor<2x7xi64>) {
  // expected-error@+1 {{'nn.silu' op operand #0 must be statically shaped tensor of}}
  %0 = nn.silu %x : tensor<2x7xi64>
  return
}

// -----

func.func @compare(%x: tensor<2x7xi64>, %y: tensor<2x7xi32>) {
  // expected-error@+1 {{'nn.compare' op expected rhs of element type 'i64' as lhs, got 'i32'}}
  %0 = nn.compare lt %x, %y : (tensor<2x7xi64>, tensor<2x7xi32>) -> tensor<2x7xi1>
  return
}

// -----

func.func @select(%c: tensor<2x7xi1>, %x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.select' op expected result of element type 'f32' as lhs, got 'f16'}}
  %0 = nn.select %c, %x, %x : (tensor<2x7xi1>, tensor<2x7xf32>, tensor<2x7xf32>) -> tensor<2x7xf16>
  return
}

// -----

func.func @select(%c: tensor<2x7xi1>, %x: tensor<2x7xf32>, %y: tensor<2x7xf16>) {
  // expected-error@+1 {{'nn.select' op expected rhs of element type 'f32' as lhs, got 'f16'}}
  %0 = nn.select %c, %x, %y : (tensor<2x7xi1>, tensor<2x7xf32>, tensor<2x7xf16>) -> tensor<2x7xf32>
  return
}

// -----

func.func @select(%c: tensor<3x7xi1>, %x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.select' op expected operands whose shapes broadcast, got [3, 7], [2, 7], [2, 7]}}
  %0 = nn.select %c, %x, %x : (tensor<3x7xi1>, tensor<2x7xf32>, tensor<2x7xf32>) -> tensor<2x7xf32>
  return
}

// -----

func.func @cast(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.cast' op expected result of shape [2, 7], got [7, 2]}}
  %0 = nn.cast %x : (tensor<2x7xf32>) -> tensor<7x2xf16>
  return
}

// -----

// Constants and shapes.

func.func @constant() {
  // expected-error@+1 {{'nn.constant' op expected dense elements, got}}
  %0 = nn.constant sparse<0, 1.0> : tensor<4xf32>
  return
}

// -----

func.func @iota() {
  // expected-error@+1 {{'nn.iota' op expected dim to be a dimension of result of rank 2, got 2}}
  %0 = nn.iota dim 2 : tensor<2x7xi64>
  return
}

// -----

func.func @reshape(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.reshape' op expected result of element type 'f32' as input, got 'f16'}}
  %0 = nn.reshape %x : (tensor<2x7xf32>) -> tensor<14xf16>
  return
}

// -----

func.func @reshape(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.reshape' op expected result of 14 elements as input [2, 7], got 13 in [13]}}
  %0 = nn.reshape %x : (tensor<2x7xf32>) -> tensor<13xf32>
  return
}

// -----

func.func @reshape(%x: tensor<4294967296x4294967296xf32>) {
  // expected-error@+1 {{'nn.reshape' op expected shapes of less than 2^63 elements, got [4294967296, 4294967296] and [1]}}
  %0 = nn.reshape %x : (tensor<4294967296x4294967296xf32>) -> tensor<1xf32>
  return
}

// -----

func.func @transpose(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.transpose' op expected permutation of the dimensions 0 to 2 (exclusive), got [0]}}
  %0 = nn.transpose %x [0] : (tensor<2x7xf32>) -> tensor<2x7xf32>
  return
}

// -----

func.func @transpose(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.transpose' op expected permutation of the dimensions 0 to 2 (exclusive), got [0, 0]}}
  %0 = nn.transpose %x [0, 0] : (tensor<2x7xf32>) -> tensor<2x7xf32>
  return
}

// -----

func.func @transpose(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.transpose' op expected permutation of the dimensions 0 to 2 (exclusive), got [0, 2]}}
  %0 = nn.transpose %x [0, 2] : (tensor<2x7xf32>) -> tensor<2x7xf32>
  return
}

// -----

func.func @transpose(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.transpose' op expected permutation of the dimensions 0 to 2 (exclusive), got [-1, 0]}}
  %0 = nn.transpose %x [-1, 0] : (tensor<2x7xf32>) -> tensor<2x7xf32>
  return
}

// -----

func.func @transpose(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.transpose' op expected permutation of the dimensions 0 to 2 (exclusive), got [0, 1, 2]}}
  %0 = nn.transpose %x [0, 1, 2] : (tensor<2x7xf32>) -> tensor<2x7xf32>
  return
}

// -----

func.func @transpose(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.transpose' op expected result of shape [7, 2], got [2, 7]}}
  %0 = nn.transpose %x [1, 0] : (tensor<2x7xf32>) -> tensor<2x7xf32>
  return
}

// -----

func.func @transpose(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.transpose' op expected result of element type 'f32' as input, got 'f16'}}
  %0 = nn.transpose %x [1, 0] : (tensor<2x7xf32>) -> tensor<7x2xf16>
  return
}

// -----

func.func @slice(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.slice' op expected 2 starts, one for each dimension of input, got 1}}
  %0 = nn.slice %x starts [0] limits [2, 7] strides [1, 1] : (tensor<2x7xf32>) -> tensor<2x7xf32>
  return
}

// -----

func.func @slice(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.slice' op expected 2 limits, one for each dimension of input, got 3}}
  %0 = nn.slice %x starts [0, 0] limits [2, 7, 1] strides [1, 1] : (tensor<2x7xf32>) -> tensor<2x7xf32>
  return
}

// -----

func.func @slice(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.slice' op expected 2 strides, one for each dimension of input, got 0}}
  %0 = nn.slice %x starts [0, 0] limits [2, 7] strides [] : (tensor<2x7xf32>) -> tensor<2x7xf32>
  return
}

// -----

func.func @slice(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.slice' op expected 0 <= start <= limit <= 7 in dimension 1, got start -1 and limit 7}}
  %0 = nn.slice %x starts [0, -1] limits [2, 7] strides [1, 1] : (tensor<2x7xf32>) -> tensor<2x7xf32>
  return
}

// -----

func.func @slice(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.slice' op expected 0 <= start <= limit <= 7 in dimension 1, got start 0 and limit 8}}
  %0 = nn.slice %x starts [0, 0] limits [2, 8] strides [1, 1] : (tensor<2x7xf32>) -> tensor<2x7xf32>
  return
}

// -----

func.func @slice(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.slice' op expected 0 <= start <= limit <= 2 in dimension 0, got start 2 and limit 1}}
  %0 = nn.slice %x starts [2, 0] limits [1, 7] strides [1, 1] : (tensor<2x7xf32>) -> tensor<2x7xf32>
  return
}

// -----

func.func @slice(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.slice' op expected stride of 1 or more in dimension 1, got 0}}
  %0 = nn.slice %x starts [0, 0] limits [2, 7] strides [1, 0] : (tensor<2x7xf32>) -> tensor<2x7xf32>
  return
}

// -----

func.func @slice(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.slice' op expected result of shape [2, 4], got [2, 7]}}
  %0 = nn.slice %x starts [0, 0] limits [2, 7] strides [1, 2] : (tensor<2x7xf32>) -> tensor<2x7xf32>
  return
}

// -----

func.func @slice(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.slice' op expected result of shape [2, 1], got [2, 7]}}
  %0 = nn.slice %x starts [0, 0] limits [2, 7] strides [1, 9223372036854775807] : (tensor<2x7xf32>) -> tensor<2x7xf32>
  return
}

// -----

func.func @slice(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.slice' op expected result of element type 'f32' as input, got 'f16'}}
  %0 = nn.slice %x starts [0, 0] limits [2, 7] strides [1, 1] : (tensor<2x7xf32>) -> tensor<2x7xf16>
  return
}

// -----

func.func @concat() {
  // expected-error@+1 {{'nn.concat' op expected one input or more, got none}}
  %0 = "nn.concat"() {dim = 0 : i64} : () -> tensor<2xf32>
  return
}

// -----

func.func @concat(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.concat' op expected dim to be a dimension of inputs of rank 2, got -1}}
  %0 = nn.concat %x dim -1 : (tensor<2x7xf32>) -> tensor<2x7xf32>
  return
}

// -----

func.func @concat(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.concat' op expected result of element type 'f32' as inputs, got 'f16'}}
  %0 = nn.concat %x dim 0 : (tensor<2x7xf32>) -> tensor<2x7xf16>
  return
}

// -----

func.func @concat(%x: tensor<2x7xf32>, %y: tensor<2x7xf16>) {
  // expected-error@+1 {{'nn.concat' op expected input 1 of element type 'f32' as input 0, got 'f16'}}
  %0 = nn.concat %x, %y dim 0 : (tensor<2x7xf32>, tensor<2x7xf16>) -> tensor<4x7xf32>
  return
}

// -----

func.func @concat(%x: tensor<2x7xf32>, %y: tensor<2xf32>) {
  // expected-error@+1 {{'nn.concat' op expected input 1 of rank 2, got rank 1}}
  %0 = nn.concat %x, %y dim 0 : (tensor<2x7xf32>, tensor<2xf32>) -> tensor<4x7xf32>
  return
}

// -----

func.func @concat(%x: tensor<2x7xf32>, %y: tensor<2x8xf32>) {
  // expected-error@+1 {{'nn.concat' op expected input 1 of shape [2, 7], got [2, 8]}}
  %0 = nn.concat %x, %y dim 0 : (tensor<2x7xf32>, tensor<2x8xf32>) -> tensor<4x7xf32>
  return
}

// -----

func.func @concat(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.concat' op expected result of shape [4, 7], got [2, 14]}}
  %0 = nn.concat %x, %x dim 0 : (tensor<2x7xf32>, tensor<2x7xf32>) -> tensor<2x14xf32>
  return
}

// -----

func.func @concat(%x: tensor<9223372036854775807x0xf32>) {
  // expected-error@+1 {{'nn.concat' op expected dimension 0 of result of less than 2^63, got more}}
  %0 = nn.concat %x, %x dim 0 : (tensor<9223372036854775807x0xf32>, tensor<9223372036854775807x0xf32>) -> tensor<0x0xf32>
  return
}

// -----

func.func @broadcast(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.broadcast' op expected result of element type 'f32' as input, got 'f16'}}
  %0 = nn.broadcast %x : (tensor<2x7xf32>) -> tensor<2x7xf16>
  return
}

// -----

func.func @broadcast(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.broadcast' op expected input that broadcasts to [7, 2], got [2, 7]}}
  %0 = nn.broadcast %x : (tensor<2x7xf32>) -> tensor<7x2xf32>
  return
}

// -----

func.func @broadcast(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.broadcast' op expected input that broadcasts to [7], got [2, 7]}}
  %0 = nn.broadcast %x : (tensor<2x7xf32>) -> tensor<7xf32>
  return
}

// -----

func.func @gather(%x: tensor<2x7xf32>, %i: tensor<3xi64>) {
  // expected-error@+1 {{'nn.gather' op expected dim to be a dimension of data of rank 2, got 2}}
  %0 = nn.gather %x, %i dim 2 : (tensor<2x7xf32>, tensor<3xi64>) -> tensor<2x3xf32>
  return
}

// -----

func.func @gather(%x: tensor<2x7xf32>, %i: tensor<3xi64>) {
  // expected-error@+1 {{'nn.gather' op expected result of element type 'f32' as data, got 'f16'}}
  %0 = nn.gather %x, %i dim 1 : (tensor<2x7xf32>, tensor<3xi64>) -> tensor<2x3xf16>
  return
}

// -----

func.func @gather(%x: tensor<2x7xf32>, %i: tensor<3xi64>) {
  // expected-error@+1 {{'nn.gather' op expected result of shape [3, 7], got [2, 3]}}
  %0 = nn.gather %x, %i dim 0 : (tensor<2x7xf32>, tensor<3xi64>) -> tensor<2x3xf32>
  return
}

// -----

func.func @take_along(%x: tensor<2x7xf32>, %i: tensor<3xi64>) {
  // expected-error@+1 {{'nn.take_along' op expected dim to be a dimension of data of rank 2, got 2}}
  %0 = nn.take_along %x, %i dim 2 : (tensor<2x7xf32>, tensor<3xi64>) -> tensor<3xf32>
  return
}

// -----

func.func @take_along(%x: tensor<2x7xf32>, %i: tensor<3xi64>) {
  // expected-error@+1 {{'nn.take_along' op expected result of element type 'f32' as data, got 'f16'}}
  %0 = nn.take_along %x, %i dim 0 : (tensor<2x7xf32>, tensor<3xi64>) -> tensor<3xf16>
  return
}

// -----

func.func @take_along(%x: tensor<2x7xf32>, %i: tensor<3xi64>) {
  // expected-error@+1 {{'nn.take_along' op expected indices of rank 2, got rank 1}}
  %0 = nn.take_along %x, %i dim 0 : (tensor<2x7xf32>, tensor<3xi64>) -> tensor<3xf32>
  return
}

// -----

func.func @take_along(%x: tensor<2x7xf32>, %i: tensor<3x5xi64>) {
  // expected-error@+1 {{'nn.take_along' op expected indices of shape [3, 7], got [3, 5]}}
  %0 = nn.take_along %x, %i dim 0 : (tensor<2x7xf32>, tensor<3x5xi64>) -> tensor<3x5xf32>
  return
}

// -----

func.func @take_along(%x: tensor<2x7xf32>, %i: tensor<3x7xi64>) {
  // expected-error@+1 {{'nn.take_along' op expected result of shape [3, 7], got [2, 7]}}
  %0 = nn.take_along %x, %i dim 0 : (tensor<2x7xf32>, tensor<3x7xi64>) -> tensor<2x7xf32>
  return
}

// -----

func.func @index_copy(%x: tensor<2x7xf32>, %i: tensor<3xi64>, %y: tensor<2x3xf32>) {
  // expected-error@+1 {{'nn.index_copy' op expected dim to be a dimension of data of rank 2, got 2}}
  %0 = nn.index_copy %x, %i, %y dim 2 : (tensor<2x7xf32>, tensor<3xi64>, tensor<2x3xf32>) -> tensor<2x7xf32>
  return
}

// -----

func.func @index_copy(%x: tensor<2x7xf32>, %i: tensor<3xi64>, %y: tensor<2x3xf16>) {
  // expected-error@+1 {{'nn.index_copy' op expected source of element type 'f32' as data, got 'f16'}}
  %0 = nn.index_copy %x, %i, %y dim 1 : (tensor<2x7xf32>, tensor<3xi64>, tensor<2x3xf16>) -> tensor<2x7xf32>
  return
}

// -----

func.func @index_copy(%x: tensor<2x7xf32>, %i: tensor<3xi64>, %y: tensor<2x3xf32>) {
  // expected-error@+1 {{'nn.index_copy' op expected result of element type 'f32' as data, got 'f16'}}
  %0 = nn.index_copy %x, %i, %y dim 1 : (tensor<2x7xf32>, tensor<3xi64>, tensor<2x3xf32>) -> tensor<2x7xf16>
  return
}

// -----

func.func @index_copy(%x: tensor<7x2xf32>, %i: tensor<3x1xi64>, %y: tensor<3x2xf32>) {
  // expected-error@+1 {{'nn.index_copy' op expected indices of rank 1, got rank 2}}
  %0 = nn.index_copy %x, %i, %y dim 0 : (tensor<7x2xf32>, tensor<3x1xi64>, tensor<3x2xf32>) -> tensor<7x2xf32>
  return
}

// -----

func.func @index_copy(%x: tensor<2x7xf32>, %i: tensor<3x1xi64>, %y: tensor<2x3xf32>) {
  // expected-error@+1 {{'nn.index_copy' op expected indices of shape [2, 1], got [3, 1]}}
  %0 = nn.index_copy %x, %i, %y dim 1 : (tensor<2x7xf32>, tensor<3x1xi64>, tensor<2x3xf32>) -> tensor<2x7xf32>
  return
}

// -----

func.func @index_copy(%x: tensor<2x7xf32>, %i: tensor<3xi64>, %y: tensor<2x3xf32>) {
  // expected-error@+1 {{'nn.index_copy' op expected result of shape [2, 7], got [2, 3]}}
  %0 = nn.index_copy %x, %i, %y dim 1 : (tensor<2x7xf32>, tensor<3xi64>, tensor<2x3xf32>) -> tensor<2x3xf32>
  return
}

// -----

func.func @index_copy(%x: tensor<2x7xf32>, %i: tensor<3xi64>, %y: tensor<2x4xf32>) {
  // expected-error@+1 {{'nn.index_copy' op expected source of shape [2, 3], got [2, 4]}}
  %0 = nn.index_copy %x, %i, %y dim 1 : (tensor<2x7xf32>, tensor<3xi64>, tensor<2x4xf32>) -> tensor<2x7xf32>
  return
}

// -----

// Reductions.

func.func @reduce(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.reduce' op expected result of element type 'f32' as input, got 'f16'}}
  %0 = nn.reduce sum %x dims [0] : (tensor<2x7xf32>) -> tensor<7xf16>
  return
}

// -----

func.func @reduce(%x: tensor<2x7xi64>) {
  // expected-error@+1 {{'nn.reduce' op expected a float element type for mean, got 'i64'}}
  %0 = nn.reduce mean %x dims [0] : (tensor<2x7xi64>) -> tensor<7xi64>
  return
}

// -----

func.func @reduce(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.reduce' op expected dim to be a dimension of input of rank 2, got 2}}
  %0 = nn.reduce sum %x dims [2] : (tensor<2x7xf32>) -> tensor<7xf32>
  return
}

// -----

func.func @reduce(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.reduce' op expected each dimension in dims once, got 1 twice}}
  %0 = nn.reduce sum %x dims [1, 1] : (tensor<2x7xf32>) -> tensor<7xf32>
  return
}

// -----

func.func @reduce(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.reduce' op expected result of shape [1, 7], got [7]}}
  %0 = nn.reduce sum %x dims [0] {keep_dims} : (tensor<2x7xf32>) -> tensor<7xf32>
  return
}

// -----

func.func @cumsum(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.cumsum' op expected dim to be a dimension of input of rank 2, got -1}}
  %0 = nn.cumsum %x dim -1 : tensor<2x7xf32>
  return
}

// -----

func.func @cross_entropy_dim(%z: tensor<2x7xf32>, %y: tensor<2xi64>) {
  // expected-error@+1 {{'nn.cross_entropy' op expected dim to be a dimension of logits of rank 2, got 2}}
  %0 = nn.cross_entropy %z, %y dim 2 : (tensor<2x7xf32>, tensor<2xi64>) -> tensor<2xf32>
  return
}

// -----

func.func @cross_entropy_labels(%z: tensor<2x7xf32>, %y: tensor<7xi64>) {
  // expected-error@+1 {{labels: expected the dimensions of the logits 'tensor<2x7xf32>' without dimension 1, got 'tensor<7xi64>'}}
  %0 = nn.cross_entropy %z, %y dim 1 : (tensor<2x7xf32>, tensor<7xi64>) -> tensor<2xf32>
  return
}

// -----

func.func @cross_entropy_result(%z: tensor<2x7xf32>, %y: tensor<2xi64>) {
  // expected-error@+1 {{expected result of element type 'f32', got 'bf16'}}
  %0 = nn.cross_entropy %z, %y dim 1 : (tensor<2x7xf32>, tensor<2xi64>) -> tensor<2xbf16>
  return
}

// -----

func.func @cross_entropy_smoothing(%z: tensor<2x7xf32>, %y: tensor<2xi64>) {
  // expected-error@+1 {{'label_smoothing': expected 0 to 1, got 1.500000e+00}}
  %0 = nn.cross_entropy %z, %y dim 1 {label_smoothing = 1.5 : f64} : (tensor<2x7xf32>, tensor<2xi64>) -> tensor<2xf32>
  return
}

// -----

func.func @softmax(%x: tensor<2x7xf32>) {
  // expected-error@+1 {{'nn.softmax' op expected dim to be a dimension of input of rank 2, got 2}}
  %0 = nn.softmax %x dim 2 : tensor<2x7xf32>
  return
}

// -----

func.func @matmul(%x: tensor<2x7xf32>, %y: tensor<7x2xf16>) {
  // expected-error@+1 {{'nn.matmul' op expected rhs of element type 'f32' as lhs, got 'f16'}}
  %0 = nn.matmul %x, %y : (tensor<2x7xf32>, tensor<7x2xf16>) -> tensor<2x2xf32>
  return
}

// -----

func.func @matmul(%x: tensor<2x7xf32>, %y: tensor<7x2xf32>) {
  // expected-error@+1 {{'nn.matmul' op expected result of element type 'f32' as lhs, got 'f16'}}
  %0 = nn.matmul %x, %y : (tensor<2x7xf32>, tensor<7x2xf32>) -> tensor<2x2xf16>
  return
}

// -----

func.func @matmul(%x: tensor<7xf32>, %y: tensor<7x2xf32>) {
  // expected-error@+1 {{'nn.matmul' op expected lhs of rank 2 or more, got rank 1}}
  %0 = nn.matmul %x, %y : (tensor<7xf32>, tensor<7x2xf32>) -> tensor<2xf32>
  return
}

// -----

func.func @matmul(%x: tensor<2x7xf32>, %y: tensor<7xf32>) {
  // expected-error@+1 {{'nn.matmul' op expected rhs of rank 2 or more, got rank 1}}
  %0 = nn.matmul %x, %y : (tensor<2x7xf32>, tensor<7xf32>) -> tensor<2xf32>
  return
}

// -----

func.func @matmul(%x: tensor<2x7xf32>, %y: tensor<8x2xf32>) {
  // expected-error@+1 {{'nn.matmul' op expected lhs and rhs to agree in the dimension that is summed, got 7 and 8}}
  %0 = nn.matmul %x, %y : (tensor<2x7xf32>, tensor<8x2xf32>) -> tensor<2x2xf32>
  return
}

// -----

func.func @matmul(%x: tensor<3x2x7xf32>, %y: tensor<4x7x2xf32>) {
  // expected-error@+1 {{'nn.matmul' op expected batch dimensions that broadcast, got [3] and [4]}}
  %0 = nn.matmul %x, %y : (tensor<3x2x7xf32>, tensor<4x7x2xf32>) -> tensor<3x2x2xf32>
  return
}

// -----

func.func @matmul(%x: tensor<3x2x7xf32>, %y: tensor<7x5xf32>) {
  // expected-error@+1 {{'nn.matmul' op expected result of shape [3, 2, 5], got [2, 5]}}
  %0 = nn.matmul %x, %y : (tensor<3x2x7xf32>, tensor<7x5xf32>) -> tensor<2x5xf32>
  return
}

// -----

func.func @linear(%x: tensor<2x8xf32>, %w: tensor<16x8xf16>) {
  // expected-error@+1 {{'nn.linear' op expected weight of element type 'f32' as input, got 'f16'}}
  %0 = nn.linear %x, %w : (tensor<2x8xf32>, tensor<16x8xf16>) -> tensor<2x16xf32>
  return
}

// -----

func.func @linear(%x: tensor<2x8xf32>, %w: tensor<16x8xf32>) {
  // expected-error@+1 {{'nn.linear' op expected result of element type 'f32' as input, got 'f16'}}
  %0 = nn.linear %x, %w : (tensor<2x8xf32>, tensor<16x8xf32>) -> tensor<2x16xf16>
  return
}

// -----

func.func @linear(%x: tensor<f32>, %w: tensor<16x8xf32>) {
  // expected-error@+1 {{'nn.linear' op expected input of rank 1 or more, got rank 0}}
  %0 = nn.linear %x, %w : (tensor<f32>, tensor<16x8xf32>) -> tensor<16xf32>
  return
}

// -----

func.func @linear(%x: tensor<2x8xf32>, %w: tensor<8xf32>) {
  // expected-error@+1 {{'nn.linear' op expected weight of rank 2, got rank 1}}
  %0 = nn.linear %x, %w : (tensor<2x8xf32>, tensor<8xf32>) -> tensor<2x16xf32>
  return
}

// -----

func.func @linear(%x: tensor<2x8xf32>, %w: tensor<16x7xf32>) {
  // expected-error@+1 {{'nn.linear' op expected input of 7 features as weight, got 8}}
  %0 = nn.linear %x, %w : (tensor<2x8xf32>, tensor<16x7xf32>) -> tensor<2x16xf32>
  return
}

// -----

func.func @linear(%x: tensor<2x8xf32>, %w: tensor<16x8xf32>) {
  // expected-error@+1 {{'nn.linear' op expected input of 16 features as weight, got 8}}
  %0 = nn.linear %x, %w {in_out} : (tensor<2x8xf32>, tensor<16x8xf32>) -> tensor<2x8xf32>
  return
}

// -----

func.func @linear(%x: tensor<2x8xf32>, %w: tensor<16x8xf32>, %b: tensor<16xf16>) {
  // expected-error@+1 {{'nn.linear' op expected bias of element type 'f32' as input, got 'f16'}}
  %0 = nn.linear %x, %w bias %b : (tensor<2x8xf32>, tensor<16x8xf32>, tensor<16xf16>) -> tensor<2x16xf32>
  return
}

// -----

func.func @linear(%x: tensor<2x8xf32>, %w: tensor<16x8xf32>, %b: tensor<8xf32>) {
  // expected-error@+1 {{'nn.linear' op expected bias of shape [16], got [8]}}
  %0 = nn.linear %x, %w bias %b : (tensor<2x8xf32>, tensor<16x8xf32>, tensor<8xf32>) -> tensor<2x16xf32>
  return
}

// -----

func.func @linear(%x: tensor<2x8xf32>, %w: tensor<16x8xf32>) {
  // expected-error@+1 {{'nn.linear' op expected result of shape [2, 16], got [2, 8]}}
  %0 = nn.linear %x, %w : (tensor<2x8xf32>, tensor<16x8xf32>) -> tensor<2x8xf32>
  return
}

// -----

func.func @embedding(%i: tensor<2xi64>, %t: tensor<9x8xf32>, %o: tensor<1xi64>) {
  // expected-error@+1 {{'nn.embedding' op expected result of element type 'f32' as table, got 'f16'}}
  %0 = nn.embedding %i, %t : (tensor<2xi64>, tensor<9x8xf32>) -> tensor<2x8xf16>
  return
}

// -----

func.func @embedding(%i: tensor<2xi64>, %t: tensor<9xf32>) {
  // expected-error@+1 {{'nn.embedding' op expected table of rank 2, got rank 1}}
  %0 = nn.embedding %i, %t : (tensor<2xi64>, tensor<9xf32>) -> tensor<2xf32>
  return
}

// -----

func.func @embedding(%i: tensor<2xi64>, %t: tensor<9x8xf32>, %o: tensor<1xi64>) {
  // expected-error@+1 {{'nn.embedding' op expected offset of rank 0, got rank 1}}
  %0 = nn.embedding %i, %t offset %o : (tensor<2xi64>, tensor<9x8xf32>, tensor<1xi64>) -> tensor<2x8xf32>
  return
}

// -----

func.func @embedding(%i: tensor<2xi64>, %t: tensor<9x8xf32>, %o: tensor<i64>) {
  // expected-error@+1 {{'nn.embedding' op expected nn.table_rows to be an i64 integer from 1 on, got 0 : i64}}
  %0 = nn.embedding %i, %t offset %o {nn.table_rows = 0 : i64} : (tensor<2xi64>, tensor<9x8xf32>, tensor<i64>) -> tensor<2x8xf32>
  return
}

// -----

func.func @embedding(%t: tensor<9x8xf32>) {
  // expected-error@+1 {{'nn.relu' op expected nn.table_rows on an op that takes an offset in a table}}
  %0 = nn.relu %t {nn.table_rows = 9 : i64} : tensor<9x8xf32>
  return
}

// -----

func.func @embedding(%i: tensor<2xi64>, %t: tensor<9x8xf32>, %o: tensor<1xi64>) {
  // expected-error@+1 {{'nn.embedding' op expected result of shape [2, 8], got [2, 9]}}
  %0 = nn.embedding %i, %t : (tensor<2xi64>, tensor<9x8xf32>) -> tensor<2x9xf32>
  return
}

// -----

func.func @rms_norm(%x: tensor<2x8xf32>) {
  // expected-error@+1 {{'nn.rms_norm' op expected result of element type 'f32' as input, got 'f16'}}
  %0 = nn.rms_norm %x eps 0.0 : (tensor<2x8xf32>) -> tensor<2x8xf16>
  return
}

// -----

func.func @rms_norm(%x: tensor<f32>) {
  // expected-error@+1 {{'nn.rms_norm' op expected input of rank 1 or more, got rank 0}}
  %0 = nn.rms_norm %x eps 0.0 : (tensor<f32>) -> tensor<f32>
  return
}

// -----

func.func @rms_norm(%x: tensor<2x8xf32>) {
  // expected-error@+1 {{'nn.rms_norm' op expected result of shape [2, 8], got [8, 2]}}
  %0 = nn.rms_norm %x eps 0.0 : (tensor<2x8xf32>) -> tensor<8x2xf32>
  return
}

// -----

func.func @rms_norm(%x: tensor<2x8xf32>) {
  // expected-error@+1 {{'nn.rms_norm' op expected eps to be finite and not negative, got -1.000000e+00}}
  %0 = nn.rms_norm %x eps -1.0 : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return
}

// -----

func.func @rms_norm(%x: tensor<2x8xf32>) {
  // expected-error@+1 {{'nn.rms_norm' op expected eps to be finite and not negative, got nan}}
  %0 = nn.rms_norm %x eps 0x7FF8000000000000 : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return
}

// -----

func.func @rms_norm(%x: tensor<2x8xf32>) {
  // expected-error@+1 {{'nn.rms_norm' op expected weight with unit_offset, got none}}
  %0 = nn.rms_norm %x eps 0.0 {unit_offset} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return
}

// -----

func.func @rms_norm(%x: tensor<2x8xf32>, %w: tensor<8xf16>) {
  // expected-error@+1 {{'nn.rms_norm' op expected weight of element type 'f32' as input, got 'f16'}}
  %0 = nn.rms_norm %x weight %w eps 0.0 : (tensor<2x8xf32>, tensor<8xf16>) -> tensor<2x8xf32>
  return
}

// -----

func.func @rms_norm(%x: tensor<2x8xf32>, %w: tensor<2xf32>) {
  // expected-error@+1 {{'nn.rms_norm' op expected weight of shape [8], got [2]}}
  %0 = nn.rms_norm %x weight %w eps 0.0 : (tensor<2x8xf32>, tensor<2xf32>) -> tensor<2x8xf32>
  return
}

// -----

func.func @layer_norm(%x: tensor<2x8xf32>) {
  // expected-error@+1 {{'nn.layer_norm' op expected eps to be finite and not negative, got -1.000000e+00}}
  %0 = nn.layer_norm %x eps -1.0 : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return
}

// -----

func.func @layer_norm(%x: tensor<2x8xf32>, %w: tensor<2xf32>) {
  // expected-error@+1 {{'nn.layer_norm' op expected weight of shape [8], got [2]}}
  %0 = nn.layer_norm %x weight %w eps 0.0 : (tensor<2x8xf32>, tensor<2xf32>) -> tensor<2x8xf32>
  return
}

// -----

func.func @layer_norm(%x: tensor<2x8xf32>, %w: tensor<8x1xf32>) {
  // expected-error@+1 {{'nn.layer_norm' op expected bias of shape [8], got [8, 1]}}
  %0 = nn.layer_norm %x bias %w eps 0.0 : (tensor<2x8xf32>, tensor<8x1xf32>) -> tensor<2x8xf32>
  return
}

// -----

func.func @rotary(%x: tensor<2x8xf32>, %c: tensor<8xf16>, %s: tensor<8xf32>) {
  // expected-error@+1 {{'nn.rotary' op expected cos of element type 'f32' as input, got 'f16'}}
  %0 = nn.rotary %x, %c, %s : (tensor<2x8xf32>, tensor<8xf16>, tensor<8xf32>) -> tensor<2x8xf32>
  return
}

// -----

func.func @rotary(%x: tensor<2x8xf32>, %c: tensor<8xf32>, %s: tensor<8xf16>) {
  // expected-error@+1 {{'nn.rotary' op expected sin of element type 'f32' as input, got 'f16'}}
  %0 = nn.rotary %x, %c, %s : (tensor<2x8xf32>, tensor<8xf32>, tensor<8xf16>) -> tensor<2x8xf32>
  return
}

// -----

func.func @rotary(%x: tensor<2x8xf32>, %c: tensor<8xf32>, %s: tensor<8xf32>) {
  // expected-error@+1 {{'nn.rotary' op expected result of element type 'f32' as input, got 'f16'}}
  %0 = nn.rotary %x, %c, %s : (tensor<2x8xf32>, tensor<8xf32>, tensor<8xf32>) -> tensor<2x8xf16>
  return
}

// -----

func.func @rotary(%x: tensor<2x8xf32>, %c: tensor<8xf32>, %s: tensor<8xf32>) {
  // expected-error@+1 {{'nn.rotary' op expected result of shape [2, 8], got [2, 4]}}
  %0 = nn.rotary %x, %c, %s : (tensor<2x8xf32>, tensor<8xf32>, tensor<8xf32>) -> tensor<2x4xf32>
  return
}

// -----

func.func @rotary(%x: tensor<f32>, %c: tensor<8xf32>, %s: tensor<8xf32>) {
  // expected-error@+1 {{'nn.rotary' op expected input of rank 1 or more, got rank 0}}
  %0 = nn.rotary %x, %c, %s : (tensor<f32>, tensor<8xf32>, tensor<8xf32>) -> tensor<f32>
  return
}

// -----

func.func @rotary(%x: tensor<2x8xf32>, %c: tensor<f32>, %s: tensor<8xf32>) {
  // expected-error@+1 {{'nn.rotary' op expected cos of rank 1 or more, got rank 0}}
  %0 = nn.rotary %x, %c, %s : (tensor<2x8xf32>, tensor<f32>, tensor<8xf32>) -> tensor<2x8xf32>
  return
}

// -----

func.func @rotary(%x: tensor<2x8xf32>, %c: tensor<8xf32>, %s: tensor<f32>) {
  // expected-error@+1 {{'nn.rotary' op expected sin of rank 1 or more, got rank 0}}
  %0 = nn.rotary %x, %c, %s : (tensor<2x8xf32>, tensor<8xf32>, tensor<f32>) -> tensor<2x8xf32>
  return
}

// -----

func.func @rotary(%x: tensor<2x8xf32>, %c: tensor<0xf32>, %s: tensor<8xf32>) {
  // expected-error@+1 {{'nn.rotary' op expected cos to end in an even number of features from 2 to 8, got 0}}
  %0 = nn.rotary %x, %c, %s : (tensor<2x8xf32>, tensor<0xf32>, tensor<8xf32>) -> tensor<2x8xf32>
  return
}

// -----

func.func @rotary(%x: tensor<2x8xf32>, %c: tensor<3xf32>, %s: tensor<8xf32>) {
  // expected-error@+1 {{'nn.rotary' op expected cos to end in an even number of features from 2 to 8, got 3}}
  %0 = nn.rotary %x, %c, %s : (tensor<2x8xf32>, tensor<3xf32>, tensor<8xf32>) -> tensor<2x8xf32>
  return
}

// -----

func.func @rotary(%x: tensor<2x8xf32>, %c: tensor<10xf32>, %s: tensor<8xf32>) {
  // expected-error@+1 {{'nn.rotary' op expected cos to end in an even number of features from 2 to 8, got 10}}
  %0 = nn.rotary %x, %c, %s : (tensor<2x8xf32>, tensor<10xf32>, tensor<8xf32>) -> tensor<2x8xf32>
  return
}

// -----

func.func @rotary(%x: tensor<2x8xf32>, %c: tensor<8xf32>, %s: tensor<4xf32>) {
  // expected-error@+1 {{'nn.rotary' op expected sin to end in 8 features as cos, got 4}}
  %0 = nn.rotary %x, %c, %s : (tensor<2x8xf32>, tensor<8xf32>, tensor<4xf32>) -> tensor<2x8xf32>
  return
}

// -----

func.func @rotary(%x: tensor<2x8xf32>, %c: tensor<3x4xf32>, %s: tensor<4xf32>) {
  // expected-error@+1 {{'nn.rotary' op expected cos that broadcasts to [2, 4], got [3, 4]}}
  %0 = nn.rotary %x, %c, %s : (tensor<2x8xf32>, tensor<3x4xf32>, tensor<4xf32>) -> tensor<2x8xf32>
  return
}

// -----

func.func @rotary(%x: tensor<2x8xf32>, %c: tensor<4xf32>, %s: tensor<1x2x4xf32>) {
  // expected-error@+1 {{'nn.rotary' op expected sin that broadcasts to [2, 4], got [1, 2, 4]}}
  %0 = nn.rotary %x, %c, %s : (tensor<2x8xf32>, tensor<4xf32>, tensor<1x2x4xf32>) -> tensor<2x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x9x8xf32>) {
  // expected-error@+1 {{'nn.attention' op expected query of rank 4, got rank 3}}
  %0 = nn.attention %q, %k, %v scale 1.0 : (tensor<4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>) -> tensor<2x4x7x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf16>, %v: tensor<2x2x9x8xf32>) {
  // expected-error@+1 {{'nn.attention' op expected key of element type 'f32' as query, got 'f16'}}
  %0 = nn.attention %q, %k, %v scale 1.0 : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf16>, tensor<2x2x9x8xf32>) -> tensor<2x4x7x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x9x8xf32>) {
  // expected-error@+1 {{'nn.attention' op expected value of rank 4, got rank 3}}
  %0 = nn.attention %q, %k, %v scale 1.0 : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x9x8xf32>) -> tensor<2x4x7x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x9x8xf32>) {
  // expected-error@+1 {{'nn.attention' op expected result of element type 'f32' as query, got 'f16'}}
  %0 = nn.attention %q, %k, %v scale 1.0 : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>) -> tensor<2x4x7x8xf16>
  return
}

// -----

func.func @attention(%q: tensor<2x4x7x16xf32>, %k: tensor<2x3x9x16xf32>, %v: tensor<2x2x9x8xf32>) {
  // expected-error@+1 {{'nn.attention' op expected a number of query heads that is a multiple of the key's, got 4 and 3}}
  %0 = nn.attention %q, %k, %v scale 1.0 : (tensor<2x4x7x16xf32>, tensor<2x3x9x16xf32>, tensor<2x2x9x8xf32>) -> tensor<2x4x7x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<2x4x7x16xf32>, %k: tensor<2x0x9x16xf32>, %v: tensor<2x2x9x8xf32>) {
  // expected-error@+1 {{'nn.attention' op expected a number of query heads that is a multiple of the key's, got 4 and 0}}
  %0 = nn.attention %q, %k, %v scale 1.0 : (tensor<2x4x7x16xf32>, tensor<2x0x9x16xf32>, tensor<2x2x9x8xf32>) -> tensor<2x4x7x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x8xf32>, %v: tensor<2x2x9x8xf32>) {
  // expected-error@+1 {{'nn.attention' op expected key of shape [2, 2, 9, 16], got [2, 2, 9, 8]}}
  %0 = nn.attention %q, %k, %v scale 1.0 : (tensor<2x4x7x16xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x8xf32>) -> tensor<2x4x7x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x7x8xf32>) {
  // expected-error@+1 {{'nn.attention' op expected value of shape [2, 2, 9, 8], got [2, 2, 7, 8]}}
  %0 = nn.attention %q, %k, %v scale 1.0 : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x7x8xf32>) -> tensor<2x4x7x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x9x8xf32>) {
  // expected-error@+1 {{'nn.attention' op expected result of shape [2, 4, 7, 8], got [2, 4, 7, 16]}}
  %0 = nn.attention %q, %k, %v scale 1.0 : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>) -> tensor<2x4x7x16xf32>
  return
}

// -----

func.func @attention(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x9x8xf32>, %m: tensor<2x7xi1>) {
  // expected-error@+1 {{'nn.attention' op expected key_padding of shape [2, 9], got [2, 7]}}
  %0 = nn.attention %q, %k, %v key_padding %m scale 1.0 : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>, tensor<2x7xi1>) -> tensor<2x4x7x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x9x8xf32>, %b: tensor<7x9xf16>) {
  // expected-error@+1 {{'nn.attention' op expected bias of element type 'f32' as query, got 'f16'}}
  %0 = nn.attention %q, %k, %v bias %b scale 1.0 : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>, tensor<7x9xf16>) -> tensor<2x4x7x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x9x8xf32>, %b: tensor<2x7x9xf32>) {
  // expected-error@+1 {{'nn.attention' op expected bias that broadcasts to [2, 4, 7, 9], got [2, 7, 9]}}
  %0 = nn.attention %q, %k, %v bias %b scale 1.0 : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>, tensor<2x7x9xf32>) -> tensor<2x4x7x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x9x8xf32>) {
  // expected-error@+1 {{'nn.attention' op expected scale to be finite, got INF}}
  %0 = nn.attention %q, %k, %v scale 0x7FF0000000000000 : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>) -> tensor<2x4x7x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x9x8xf32>) {
  // expected-error@+1 {{'nn.attention' op expected soft_cap to be finite and positive, got 0.000000e+00}}
  %0 = nn.attention %q, %k, %v scale 1.0 {soft_cap = 0.0} : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>) -> tensor<2x4x7x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x9x8xf32>) {
  // expected-error@+1 {{'nn.attention' op expected window_left not to be negative, got -1}}
  %0 = nn.attention %q, %k, %v scale 1.0 {window_left = -1 : i64} : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>) -> tensor<2x4x7x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x9x8xf32>) {
  // expected-error@+1 {{'nn.attention' op expected window_right not to be negative, got -1}}
  %0 = nn.attention %q, %k, %v scale 1.0 {window_right = -1 : i64} : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>) -> tensor<2x4x7x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x9x8xf32>) {
  // expected-error@+1 {{'nn.attention' op expected kv_length from 0 to the 9 keys, got 10}}
  %0 = nn.attention %q, %k, %v scale 1.0 {kv_length = 10 : i64} : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>) -> tensor<2x4x7x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x9x8xf32>) {
  // expected-error@+1 {{'nn.attention' op expected kv_length from 0 to the 9 keys, got -1}}
  %0 = nn.attention %q, %k, %v scale 1.0 {kv_length = -1 : i64} : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>) -> tensor<2x4x7x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x9x8xf32>, %kp: tensor<9xi64>) {
  // expected-error@+1 {{'nn.attention' op expected q_positions of shape [7], got [9]}}
  %0 = nn.attention %q, %k, %v positions %kp, %kp scale 1.0 {causal} : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>, tensor<9xi64>, tensor<9xi64>) -> tensor<2x4x7x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x9x8xf32>, %qp: tensor<7xi64>) {
  // expected-error@+1 {{'nn.attention' op expected kv_positions of shape [9], got [7]}}
  %0 = nn.attention %q, %k, %v positions %qp, %qp scale 1.0 {causal} : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>, tensor<7xi64>, tensor<7xi64>) -> tensor<2x4x7x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x9x8xf32>, %qp: tensor<7xi64>, %kp: tensor<1x9xi64>) {
  // expected-error@+1 {{'nn.attention' op expected kv_positions of shape [2, 9], got [1, 9]}}
  %0 = nn.attention %q, %k, %v positions %qp, %kp scale 1.0 {causal} : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>, tensor<7xi64>, tensor<1x9xi64>) -> tensor<2x4x7x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x9x8xf32>, %n: tensor<9xi64>) {
  // expected-error@+1 {{'nn.attention' op expected kv_lengths of shape [2], got [9]}}
  %0 = nn.attention %q, %k, %v kv_lengths %n scale 1.0 : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>, tensor<9xi64>) -> tensor<2x4x7x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x9x8xf32>, %qp: tensor<7xi64>) {
  // expected-error@+1 {{'nn.attention' op expected positions of queries and keys, or of neither}}
  %0 = "nn.attention"(%q, %k, %v, %qp) <{operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0>, scale = 1.0 : f64}> : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>, tensor<7xi64>) -> tensor<2x4x7x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x9x8xf32>) {
  // expected-error@+1 {{'nn.attention' op expected lse of shape [2, 4, 7], got [2, 7, 4]}}
  %0:2 = nn.attention %q, %k, %v scale 1.0 : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>) -> (tensor<2x4x7x8xf32>, tensor<2x7x4xf32>)
  return
}

// -----

func.func @attention(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x9x8xf32>) {
  // expected-error@+1 {{'nn.attention' op expected lse of element type f32 or f64, got 'f16'}}
  %0:2 = nn.attention %q, %k, %v scale 1.0 : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>) -> (tensor<2x4x7x8xf32>, tensor<2x4x7xf16>)
  return
}

// -----

// Attributes.

// expected-error@+1 {{expected nn.input on argument 0 to be a string that is not empty, got 3 : i64}}
func.func @input(%x: tensor<2xf32> {nn.input = 3 : i64}) { return }

// -----

// expected-error@+1 {{expected nn.parameter on argument 0 to be a string that is not empty, got ""}}
func.func @parameter(%x: tensor<2xf32> {nn.parameter = ""}) { return }

// -----

// expected-error@+1 {{expected argument 0 to be an input, a parameter or a state, got both nn.input and nn.parameter}}
func.func @both(%x: tensor<2xf32> {nn.input = "x", nn.parameter = "y"}) { return }

// -----

// expected-error@+1 {{expected one of nn.input, nn.default, nn.sizes, nn.size, nn.parameter, nn.state, nn.aliases, nn.batch, nn.parameter_offsets, nn.magnitude on argument 0, got nn.imput}}
func.func @unknown(%x: tensor<2xf32> {nn.imput = "x"}) { return }

// -----

// expected-error@+1 {{expected nn.aliases on a parameter, got it on argument 0, which has no nn.parameter}}
func.func @aliases(%x: tensor<2xf32> {nn.input = "x", nn.aliases = ["y"]}) { return }

// -----

// expected-error@+1 {{expected nn.aliases on argument 0 to be an array of strings, got "y"}}
func.func @aliases(%x: tensor<2xf32> {nn.parameter = "x", nn.aliases = "y"}) { return }

// -----

// expected-error@+1 {{expected nn.magnitude on argument 0 to be a number that is not negative, got "large"}}
func.func @magnitude(%x: tensor<2xf32> {nn.parameter = "x", nn.magnitude = "large"}) { return }

// -----

// expected-error@+1 {{expected nn.parameter_offsets on argument 0 to be array<i64> with one index, not negative, for each dimension of 'tensor<2xf32>', got array<i64: 0, 1>}}
func.func @offsets(%x: tensor<2xf32> {nn.parameter = "x", nn.parameter_offsets = array<i64: 0, 1>}) { return }

// -----

// expected-error@+1 {{for each dimension of 'tensor<2xf32>', got array<i64: -1>}}
func.func @offsets(%x: tensor<2xf32> {nn.parameter = "x", nn.parameter_offsets = array<i64: -1>}) { return }

// -----

// expected-error@+1 {{expected nn.output on result 0 to be a string that is not empty, got unit}}
func.func @output(%x: tensor<2xf32>) -> (tensor<2xf32> {nn.output}) { return %x : tensor<2xf32> }

// -----

// expected-error@+1 {{expected nn.output or nn.state on result 0, got nn.input}}
func.func @output(%x: tensor<2xf32>) -> (tensor<2xf32> {nn.input = "x"}) { return %x : tensor<2xf32> }

// -----

func.func @id(%x: tensor<2xf32>) {
  // expected-error@+1 {{expected nn.id to be an i64 integer, got 1 : i32}}
  %0 = nn.neg %x {nn.id = 1 : i32} : tensor<2xf32>
  return
}

// -----

func.func @misplaced(%x: tensor<2xf32>) {
  // expected-error@+1 {{expected nn.output on an argument or a result of a function, got it on an operation}}
  %0 = nn.neg %x {nn.output = "y"} : tensor<2xf32>
  return
}

// -----

func.func @misplaced_magnitude(%x: tensor<2xf32>) {
  // expected-error@+1 {{expected nn.magnitude on an argument or a result of a function, got it on an operation}}
  %0 = nn.neg %x {nn.magnitude = 2.0 : f64} : tensor<2xf32>
  return
}

// -----

func.func @misplaced_rows(%x: tensor<2xf32>) {
  // expected-error@+1 {{expected nn.expected_rows on an op that moves rows of experts}}
  %0 = nn.neg %x {nn.expected_rows = 2 : i64} : tensor<2xf32>
  return
}

// -----

func.func @negative_rows(%x: tensor<4x1x8xf32>, %o: tensor<3xi64>) {
  // expected-error@+1 {{expected nn.expected_rows to be an i64 integer from 0 on, got -1 : i64}}
  %0:3 = nn.send_rows %x, %o axes [#dist.axis_ref<"ep">] {nn.expected_rows = -1 : i64} : (tensor<4x1x8xf32>, tensor<3xi64>) -> (tensor<8x1x8xf32>, tensor<3xi64>, tensor<2xi64>)
  return
}

// -----

// expected-error@+1 {{expected nn.model on a module, a dictionary with strings 'parameters' and 'operations', got {parameters = "1"}}}
module attributes {nn.model = {parameters = "1"}} {
}

// -----

func.func @unknown(%x: tensor<2xf32>) {
  // expected-error@+1 {{unknown attribute 'nn.stages': expected nn.backward, nn.call, nn.expected_rows, nn.id, nn.model, nn.serving, nn.stage, nn.table_rows or nn.whole_keys}}
  %0 = nn.neg %x {nn.stages = "encoder"} : tensor<2xf32>
  return
}

// -----

func.func @stage(%x: tensor<2xf32>) {
  // expected-error@+1 {{expected nn.stage on an operation to be a string that is not empty, got ""}}
  %0 = nn.neg %x {nn.stage = ""} : tensor<2xf32>
  return
}

// -----

// expected-error@+1 {{expected nn.stage on an operation inside a function}}
func.func @stage_of_function(%x: tensor<2xf32>) attributes {nn.stage = "encoder"} { return }

// -----

func.func @whole_keys(%x: tensor<2xf32>) {
  // expected-error@+1 {{expected nn.whole_keys on an nn.attention or nn.attention_grad}}
  %0 = nn.neg %x {nn.whole_keys} : tensor<2xf32>
  return
}

// -----

func.func @whole_keys_value(%q: tensor<1x2x4x8xf32>) {
  // expected-error@+1 {{expected nn.whole_keys to be a unit attribute, got true}}
  %0 = nn.attention %q, %q, %q scale 0.5 {nn.whole_keys = true} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  return
}

// -----

// expected-error@+1 {{expected nn.batch on an input, got it on argument 0, which has no nn.input}}
func.func @batch_of_parameter(%x: tensor<2xf32> {nn.parameter = "x", nn.batch = true}) { return }

// -----

// expected-error@+1 {{expected nn.batch on argument 0 to be true or false, got 1 : i64}}
func.func @batch_type(%x: tensor<2xf32> {nn.input = "x", nn.batch = 1 : i64}) { return }

// -----

// expected-error@+1 {{expected nn.batch on argument 0 to be false, since it has no dimensions, got true}}
func.func @batch_scalar(%x: tensor<f32> {nn.input = "x", nn.batch = true}) { return }

// -----

// expected-error@+1 {{expected nn.default on an input, got it on argument 0, which has no nn.input}}
func.func @default_of_parameter(%x: tensor<2xf32> {nn.parameter = "x", nn.default = 1.0 : f32}) { return }

// -----

// expected-error@+1 {{expected nn.default on argument 0 to be a number of type 'f32', got 1 : i64}}
func.func @default_type(%x: tensor<2xf32> {nn.input = "x", nn.default = 1 : i64}) { return }

// -----

// expected-error@+1 {{expected nn.default on argument 0 to be a number of type 'f32', got dense<1.000000e+00> : tensor<2xf32>}}
func.func @default_tensor(%x: tensor<2xf32> {nn.input = "x", nn.default = dense<1.0> : tensor<2xf32>}) { return }

// -----

func.func @call_of_an_op(%x: tensor<2xf32>) {
  // expected-error@+1 {{expected nn.call on a function}}
  %0 = nn.neg %x {nn.call = #nn.call<[<@f>]>} : tensor<2xf32>
  return
}

// -----

// expected-error@+1 {{expected nn.call to be #nn.call<[<@function>, ...]>, got "f"}}
func.func @call_of_text() attributes {nn.call = "f"} { return }

// -----

// expected-error@+2 {{step of 'f': expected positive numbers with a product below 2^63, got 0 chunks and 1 runs}}
// expected-error@+1 {{failed to parse Nn_CallAttr parameter 'steps'}}
func.func @call_never() attributes {nn.call = #nn.call<[<@f chunks 0>, <@call_never>]>} { return }

// -----

// expected-error@+2 {{step of 'f': expected positive numbers with a product below 2^63, got 4294967296 chunks and 4294967296 runs}}
// expected-error@+1 {{failed to parse Nn_CallAttr parameter 'steps'}}
func.func @call_forever() attributes {nn.call = #nn.call<[<@f chunks 4294967296 times 4294967296>, <@call_forever>]>} { return }

// -----

// expected-error@+2 {{step of 'f': expected several runs until a named output, got 1 until "done"}}
// expected-error@+1 {{failed to parse Nn_CallAttr parameter 'steps'}}
func.func @call_until() attributes {nn.call = #nn.call<[<@f until "done">, <@call_until>]>} { return }

// -----

// expected-error@+2 {{step of 'f': expected several runs until a named output, got 3 until ""}}
// expected-error@+1 {{failed to parse Nn_CallAttr parameter 'steps'}}
func.func @call_until_nothing() attributes {nn.call = #nn.call<[<@f times 3 until "">, <@call_until_nothing>]>} { return }

// -----

// expected-error@+1 {{expected the last step <@call_of_another>, the function itself, once, got #nn.step<@f>}}
func.func @call_of_another() attributes {nn.call = #nn.call<[<@f>]>} { return }

// -----

// expected-error@+1 {{expected the last step <@call_twice>, the function itself, once, got #nn.step<@call_twice chunks 2>}}
func.func @call_twice() attributes {nn.call = #nn.call<[<@call_twice chunks 2>]>} { return }

// -----

// expected-error@+1 {{runs itself in a step before the last one: expected another function}}
func.func @call_of_itself() attributes {nn.call = #nn.call<[<@call_of_itself>, <@call_of_itself>]>} { return }

// -----

func.func @backward(%x: tensor<2xf32>) {
  // expected-error@+1 {{expected nn.backward to be a unit attribute, got true}}
  %0 = nn.neg %x {nn.backward = true} : tensor<2xf32>
  return
}

// -----

// expected-error@+1 {{expected nn.backward on an operation inside a function}}
func.func @backward() attributes {nn.backward} {
  return
}

// -----

// Sizes whose bytes overflow.

// expected-error@+1 {{a value is 'tensor<4611686018427387904x8xf32>', of more than 2^60 bytes}}
func.func @input(%x: tensor<4611686018427387904x8xf32> {nn.input = "x"}) -> (tensor<f32> {nn.output = "y"}) {
  %0 = nn.reduce sum %x dims [0, 1] : (tensor<4611686018427387904x8xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

func.func @between(%x: tensor<1x1x1xf32> {nn.input = "x"}) -> (tensor<f32> {nn.output = "y"}) {
  // expected-error@+1 {{a value is 'tensor<2097152x2097152x2097152xf32>', of more than 2^60 bytes}}
  %0 = nn.broadcast %x : (tensor<1x1x1xf32>) -> tensor<2097152x2097152x2097152xf32>
  %1 = nn.reduce sum %0 dims [0, 1, 2] : (tensor<2097152x2097152x2097152xf32>) -> tensor<f32>
  return %1 : tensor<f32>
}
