// RUN: sharding-opt %s --split-input-file --pack-elements -verify-diagnostics -o %t

func.func @slice(%x: tensor<4x8xf4E2M1FN>) {
  // expected-error@+1 {{'nn.slice' op takes the elements 1 to 5 with stride 1 of the rows of 'tensor<4x8xf4E2M1FN>': expected whole bytes, as two elements share one}}
  %0 = nn.slice %x starts [0, 1] limits [4, 5] strides [1, 1] : (tensor<4x8xf4E2M1FN>) -> tensor<4x4xf4E2M1FN>
  return
}

// -----

func.func @strided(%x: tensor<4x8xf4E2M1FN>) {
  // expected-error@+1 {{'nn.slice' op takes the elements 0 to 8 with stride 2 of the rows of}}
  %0 = nn.slice %x starts [0, 0] limits [4, 8] strides [1, 2] : (tensor<4x8xf4E2M1FN>) -> tensor<4x4xf4E2M1FN>
  return
}

// -----

func.func @transpose(%x: tensor<4x8xf4E2M1FN>) {
  // expected-error@+1 {{'nn.transpose' op moves the last dimension of 'tensor<4x8xf4E2M1FN>': expected whole bytes}}
  %0 = nn.transpose %x [1, 0] : (tensor<4x8xf4E2M1FN>) -> tensor<8x4xf4E2M1FN>
  return
}

// -----

func.func @gather(%x: tensor<4x8xf4E2M1FN>, %i: tensor<2xi64>) {
  // expected-error@+1 {{'nn.gather' op takes single elements of the rows of 'tensor<4x8xf4E2M1FN>': expected whole bytes}}
  %0 = nn.gather %x, %i dim 1 : (tensor<4x8xf4E2M1FN>, tensor<2xi64>) -> tensor<4x2xf4E2M1FN>
  return
}

// -----

func.func @take_along(%x: tensor<4x8xf4E2M1FN>, %i: tensor<2x8xi64>) {
  // expected-error@+1 {{'nn.take_along' op takes single elements of the rows of 'tensor<4x8xf4E2M1FN>': expected whole bytes}}
  %0 = nn.take_along %x, %i dim 0 : (tensor<4x8xf4E2M1FN>, tensor<2x8xi64>) -> tensor<2x8xf4E2M1FN>
  return
}

// -----

#whole = #dist.sharding<@mesh, [{}, {}]>
dist.mesh @mesh = <["tp"=2]>
func.func @mask(%x: tensor<4x8xf4E2M1FN> {dist.sharding = #whole, dist.global = tensor<4x8xf4E2M1FN>})
    attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{'dist.mask_padding' op has the true size 13 in the rows of 'tensor<4x8xf4E2M1FN>': expected whole bytes}}
  %0 = dist.mask_padding %x axes ["tp"] dim 1 size 13 value 0.0 : tensor<4x8xf4E2M1FN>
  return
}

// -----

#split = #dist.sharding<@mesh, [{}, (8{"tp"}, 3)]>
dist.mesh @mesh = <["tp"=2]>
// expected-error@+1 {{'func.func' op expected whole bytes on each rank, got the layout #dist.sharding<@mesh, [{}, (8{"tp"}, 3)]> of 'tensor<4x12xf4E2M1FN>'}}
func.func @layout(%x: tensor<4x12xf4E2M1FN> {dist.sharding = #split, dist.global = tensor<4x24xf4E2M1FN>})
    attributes {dist.spmd = @mesh} {
  return
}
