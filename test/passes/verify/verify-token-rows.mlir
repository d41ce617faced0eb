// RUN: sharding-opt %s --split-input-file --verify-placement --verify-diagnostics

// A group of three tokens, of which a step may have fewer. Ops that compute each token by itself are right.

module attributes {nn.serving = {deal = 1 : i64, groups = 1 : i64, max_length = 8 : i64, page_size = 2 : i64, pages = 8 : i64, requests = 2 : i64, vocabulary = 9 : i64}} {
  dist.mesh @mesh = <["tp"=2]>
  func.func @apart(%t: tensor<1x3xi64> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<1x3xi64>, nn.input = "tokens"},
                   %s: tensor<1x3xi64> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<1x3xi64>, nn.input = "starts"},
                   %e: tensor<9x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<9x4xf32>})
      -> (tensor<2x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<2x4xf32>}) attributes {dist.spmd = @mesh} {
    %0 = nn.reshape %t : (tensor<1x3xi64>) -> tensor<3xi64>
    %1 = nn.embedding %0, %e : (tensor<3xi64>, tensor<9x4xf32>) -> tensor<3x4xf32>
    %2 = nn.softmax %1 dim 1 : tensor<3x4xf32>
    %3 = nn.reshape %2 : (tensor<3x4xf32>) -> tensor<3x2x2xf32>
    %4 = nn.reduce max %3 dims [2] {keep_dims} : (tensor<3x2x2xf32>) -> tensor<3x2x1xf32>
    %5 = nn.sub %3, %4 : (tensor<3x2x2xf32>, tensor<3x2x1xf32>) -> tensor<3x2x2xf32>
    %6 = nn.reshape %5 : (tensor<3x2x2xf32>) -> tensor<3x4xf32>
    %7 = nn.slice %s starts [0, 1] limits [1, 3] strides [1, 1] : (tensor<1x3xi64>) -> tensor<1x2xi64>
    %8 = nn.reshape %7 : (tensor<1x2xi64>) -> tensor<2xi64>
    %9 = nn.gather %6, %8 dim 0 : (tensor<3x4xf32>, tensor<2xi64>) -> tensor<2x4xf32>
    return %9 : tensor<2x4xf32>
  }
}

// -----

// Rows behind the tokens of a group would be summed.

module attributes {nn.serving = {deal = 1 : i64, groups = 2 : i64, max_length = 8 : i64, page_size = 2 : i64, pages = 8 : i64, requests = 2 : i64, vocabulary = 9 : i64}} {
  dist.mesh @mesh = <["tp"=2]>
  func.func @summed(%t: tensor<2x3xi64> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<2x3xi64>, nn.input = "tokens"},
                    %e: tensor<9x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<9x4xf32>})
      -> (tensor<1x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<1x4xf32>}) attributes {dist.spmd = @mesh} {
    %0 = nn.reshape %t : (tensor<2x3xi64>) -> tensor<6xi64>
    // expected-note@below {{operand 0 is from here}}
    %1 = nn.embedding %0, %e : (tensor<6xi64>, tensor<9x4xf32>) -> tensor<6x4xf32>
    // expected-error@below {{'nn.reduce' op joins rows of tokens along dimension 0 of operand 0, of which those behind the tokens of a group would count: expected an op that computes each token by itself}}
    %2 = nn.reduce sum %1 dims [0] {keep_dims} : (tensor<6x4xf32>) -> tensor<1x4xf32>
    return %2 : tensor<1x4xf32>
  }
}

// -----

// Rows of tokens in another order: a token gets what another one has.

module attributes {nn.serving = {deal = 1 : i64, groups = 1 : i64, max_length = 8 : i64, page_size = 2 : i64, pages = 8 : i64, requests = 2 : i64, vocabulary = 9 : i64}} {
  dist.mesh @mesh = <["tp"=2]>
  // expected-note@below {{operand 0 is from here}}
  func.func @moved(%t: tensor<1x3xi64> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<1x3xi64>, nn.input = "tokens"})
      -> (tensor<1x2xi64> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<1x2xi64>}) attributes {dist.spmd = @mesh} {
    // expected-error@below {{'nn.slice' op joins rows of tokens along dimension 1 of operand 0}}
    %0 = nn.slice %t starts [0, 1] limits [1, 3] strides [1, 1] : (tensor<1x3xi64>) -> tensor<1x2xi64>
    return %0 : tensor<1x2xi64>
  }
}
