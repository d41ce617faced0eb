// RUN: sharding-opt %s -split-input-file -verify-diagnostics -o %t

// Nothing computes on codes.

func.func @add(%x: tensor<4x8xf8E4M3FN>) {
  // expected-error@+1 {{'nn.add' op operand #0 must be statically shaped tensor of 32-bit float or bfloat16 type or 16-bit float or 64-bit float or 64-bit signless integer or 32-bit signless integer values, but got 'tensor<4x8xf8E4M3FN>'}}
  %0 = nn.add %x, %x : (tensor<4x8xf8E4M3FN>, tensor<4x8xf8E4M3FN>) -> tensor<4x8xf8E4M3FN>
  return
}

// -----

func.func @cast(%x: tensor<4x8xi8>) {
  // expected-error@+1 {{'nn.cast' op operand #0 must be statically shaped tensor of 32-bit float or bfloat16 type or 16-bit float or 64-bit float or 64-bit signless integer or 32-bit signless integer or 1-bit signless integer values, but got 'tensor<4x8xi8>'}}
  %0 = nn.cast %x : (tensor<4x8xi8>) -> tensor<4x8xf32>
  return
}

// -----

func.func @linear(%x: tensor<4x8xf8E5M2>, %w: tensor<2x8xf8E5M2>) {
  // expected-error@+1 {{'nn.linear' op operand #0 must be statically shaped tensor of 32-bit float}}
  %0 = nn.linear %x, %w : (tensor<4x8xf8E5M2>, tensor<2x8xf8E5M2>) -> tensor<4x2xf8E5M2>
  return
}

// -----

func.func @other(%x: tensor<4x8xui8>) {
  // expected-error@+1 {{'nn.transpose' op operand #0 must be statically shaped tensor of}}
  %0 = nn.transpose %x [1, 0] : (tensor<4x8xui8>) -> tensor<8x4xui8>
  return
}

// -----

// Codes have no sums and no maxima.

dist.mesh @mesh = <["tp"=2]>
#whole = #dist.sharding<@mesh, [{}, {}]>
func.func @all_reduce(%x: tensor<4x8xf8E4M3FN> {dist.sharding = #whole, dist.global = tensor<4x8xf8E4M3FN>})
    attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{'dist.all_reduce' op operand 0: expected elements that have sums, got 'tensor<4x8xf8E4M3FN>': programs only store and move 'f8E4M3FN'}}
  %0 = dist.all_reduce sum %x axes ["tp"] : (tensor<4x8xf8E4M3FN>) -> tensor<4x8xf8E4M3FN>
  return
}

// -----

dist.mesh @mesh = <["tp"=2]>
#whole = #dist.sharding<@mesh, [{}, {}]>
func.func @reduce_scatter(%x: tensor<4x8xf32> {dist.sharding = #whole, dist.global = tensor<4x8xf32>},
                          %y: tensor<4x8xi8> {dist.sharding = #whole, dist.global = tensor<4x8xi8>})
    attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{'dist.reduce_scatter' op operand 1: expected elements that have sums, got 'tensor<4x8xi8>': programs only store and move 'i8'}}
  %0:2 = dist.reduce_scatter max %x, %y axes ["tp"] dims [0, 0] : (tensor<4x8xf32>, tensor<4x8xi8>) -> (tensor<2x8xf32>, tensor<2x8xi8>)
  return
}

// -----

dist.mesh @mesh = <["tp"=2]>
#whole = #dist.sharding<@mesh, [{}, {}]>
func.func @partial(%x: tensor<4x8xf8E8M0FNU> {dist.sharding = #whole, dist.global = tensor<4x8xf8E8M0FNU>})
    attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{'dist.partial' op operand 0: expected elements that have sums, got 'tensor<4x8xf8E8M0FNU>'}}
  %0 = dist.partial %x axes ["tp"] : (tensor<4x8xf8E8M0FNU>) -> tensor<4x8xf8E8M0FNU>
  return
}

// -----

// Two elements of four bits share a byte.

func.func @odd(%x: tensor<4x6xf4E2M1FN> {nn.input = "x"}) -> (tensor<4x6xf4E2M1FN> {nn.output = "y"}) {
  // expected-error@+1 {{value: expected an even last dimension, got 'tensor<4x3xf4E2M1FN>': two elements of 'f4E2M1FN' share a byte}}
  %0 = nn.slice %x starts [0, 0] limits [4, 3] strides [1, 1] : (tensor<4x6xf4E2M1FN>) -> tensor<4x3xf4E2M1FN>
  return %x : tensor<4x6xf4E2M1FN>
}
