// RUN: sharding-opt %s --split-input-file --verify-placement --verify-diagnostics

// The scales of another rank's blocks.
#rows = #dist.sharding<@mesh, [{"tp"}, {}]>
dist.mesh @mesh = <["tp"=2]>
// expected-note @below {{operand 0 is from here, and has layout}}
func.func @moved(%c: tensor<256x256xf8E4M3FN> {dist.global = tensor<512x256xf8E4M3FN>, dist.sharding = #rows, nn.parameter = "c"},
                 %s: tensor<2x2xf32> {dist.global = tensor<4x2xf32>, dist.sharding = #rows, nn.parameter = "s"})
    -> (tensor<256x256xf32> {dist.global = tensor<512x256xf32>, dist.sharding = #rows, nn.output = "y"}) attributes {dist.spmd = @mesh} {
  %0 = dist.permute %s axes ["tp"] shift 1 : (tensor<2x2xf32>) -> tensor<2x2xf32>
  // expected-error @below {{does not split into the factors that the op reads}}
  %1 = nn.dequantize %c, %0 {block = [128, 128]} : (tensor<256x256xf8E4M3FN>, tensor<2x2xf32>) -> tensor<256x256xf32>
  return %1 : tensor<256x256xf32>
}

// -----

// Each rank takes the scales of the first blocks.
#rows = #dist.sharding<@mesh, [{"tp"}, {}]>
#whole = #dist.sharding<@mesh, [{}, {}]>
dist.mesh @mesh = <["tp"=2]>
// expected-note @below {{operand 0 is from here, and has layout}}
func.func @first(%c: tensor<256x256xf8E4M3FN> {dist.global = tensor<512x256xf8E4M3FN>, dist.sharding = #rows, nn.parameter = "c"},
                 %s: tensor<4x2xf32> {dist.global = tensor<4x2xf32>, dist.sharding = #whole, nn.parameter = "s"})
    -> (tensor<256x256xf32> {dist.global = tensor<512x256xf32>, dist.sharding = #rows, nn.output = "y"}) attributes {dist.spmd = @mesh} {
  %0 = nn.slice %s starts [0, 0] limits [2, 2] strides [1, 1] : (tensor<4x2xf32>) -> tensor<2x2xf32>
  // expected-error @below {{does not split into the factors that the op reads}}
  %1 = nn.dequantize %c, %0 {block = [128, 128]} : (tensor<256x256xf8E4M3FN>, tensor<2x2xf32>) -> tensor<256x256xf32>
  return %1 : tensor<256x256xf32>
}

// -----

// The codes are cut, and their scales are not.
#columns = #dist.sharding<@mesh, [{}, {"tp"}]>
#whole = #dist.sharding<@mesh, [{}, {}]>
dist.mesh @mesh = <["tp"=2]>
// expected-note @below {{operand 0 is from here, and has layout}}
func.func @cut(%c: tensor<256x128xf8E4M3FN> {dist.global = tensor<256x256xf8E4M3FN>, dist.sharding = #columns, nn.parameter = "c"},
               %s: tensor<2x2xf32> {dist.global = tensor<2x2xf32>, dist.sharding = #whole, nn.parameter = "s"})
    -> (tensor<256x128xf32> {dist.global = tensor<256x256xf32>, dist.sharding = #columns, nn.output = "y"}) attributes {dist.spmd = @mesh} {
  // expected-error @below {{does not split into the factors that the op reads}}
  %1 = nn.dequantize %c, %s {block = [128, 64]} : (tensor<256x128xf8E4M3FN>, tensor<2x2xf32>) -> tensor<256x128xf32>
  return %1 : tensor<256x128xf32>
}

// -----

// A product cannot read codes.
func.func @read(%x: tensor<4x256xf32>, %c: tensor<512x256xf8E4M3FN>) {
  // expected-error @below {{operand #1 must be}}
  %0 = nn.linear %x, %c : (tensor<4x256xf32>, tensor<512x256xf8E4M3FN>) -> tensor<4x512xf32>
  return
}
