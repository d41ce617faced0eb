// RUN: sharding-opt %s --bind-sizes -split-input-file -verify-diagnostics -o %t

// expected-error@+1 {{expected an argument with nn.size = "tokens", the run-time size of a dimension of missing}}
func.func @missing(%x: tensor<24xf32> {nn.input = "x", nn.sizes = ["tokens"]},
                   %n: tensor<i64> {nn.input = "n", nn.size = "rows"}) -> tensor<f32> {
  %0 = nn.reduce mean %x dims [0] : (tensor<24xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// expected-error@+1 {{dimension 0 has the run-time size @tokens, and the program takes it apart into factors of 4 and 6: expected ops that leave it whole}}
func.func @apart(%x: tensor<24xf32> {nn.input = "x", nn.sizes = ["tokens"]},
                 %n: tensor<i64> {nn.input = "n", nn.size = "tokens"}) -> tensor<4x6xf32> {
  %0 = nn.reshape %x : (tensor<24xf32>) -> tensor<4x6xf32>
  return %0 : tensor<4x6xf32>
}

// -----

func.func @two(%x: tensor<24xf32> {nn.input = "x", nn.sizes = ["text"]},
               // expected-error@+1 {{dimension 0 has the run-time size @image, and is tied to one of size @text}}
               %y: tensor<24xf32> {nn.input = "y", nn.sizes = ["image"]},
               %n: tensor<i64> {nn.input = "n", nn.size = "text"},
               %m: tensor<i64> {nn.input = "m", nn.size = "image"}) -> tensor<24xf32> {
  %0 = nn.add %x, %y : (tensor<24xf32>, tensor<24xf32>) -> tensor<24xf32>
  return %0 : tensor<24xf32>
}
