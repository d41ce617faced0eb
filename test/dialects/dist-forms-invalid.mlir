// RUN: sharding-opt %s --split-input-file --verify-diagnostics

// expected-error @below {{form: expected mxfp8 or nvfp4, got plain}}
func.func @plain(%w: tensor<64x16xf32, #dist.form<plain>>) { return }

// -----

// expected-error @below {{form nvfp4: expected no dimension along which a product contracts, got 1}}
func.func @along(%w: tensor<64x16xf4E2M1FN, #dist.form<nvfp4 along 1>>) { return }

// -----

// expected-error @below {{failed to parse Dist_FormAttr parameter 'kind'}}
// expected-error @below {{expected the form plain, mxfp8 or nvfp4, got 'mxfp6'}}
func.func @unknown(%w: tensor<64x16xf32, #dist.form<mxfp6>>) { return }

// -----

func.func @other_shape(%w: tensor<64x16xf32>) -> tensor<32x16xf8E4M3FN, #dist.form<mxfp8 along 1>> {
  // expected-error @below {{expected the result to be 'tensor<64x16xf8E4M3FN, #dist.form<mxfp8 along 1>>', got 'tensor<32x16xf8E4M3FN, #dist.form<mxfp8 along 1>>'}}
  %0 = dist.encode %w : (tensor<64x16xf32>) -> tensor<32x16xf8E4M3FN, #dist.form<mxfp8 along 1>>
  return %0 : tensor<32x16xf8E4M3FN, #dist.form<mxfp8 along 1>>
}

// -----

func.func @other_codes(%w: tensor<64x16xf32>) -> tensor<64x16xf4E2M1FN, #dist.form<mxfp8 along 1>> {
  // expected-error @below {{expected the result to be 'tensor<64x16xf8E4M3FN, #dist.form<mxfp8 along 1>>'}}
  %0 = dist.encode %w : (tensor<64x16xf32>) -> tensor<64x16xf4E2M1FN, #dist.form<mxfp8 along 1>>
  return %0 : tensor<64x16xf4E2M1FN, #dist.form<mxfp8 along 1>>
}

// -----

func.func @no_dimension(%w: tensor<64x16xf32>) -> tensor<64x16xf8E4M3FN, #dist.form<mxfp8>> {
  // expected-error @below {{expected the form of the result to name the dimension of its blocks}}
  %0 = dist.encode %w : (tensor<64x16xf32>) -> tensor<64x16xf8E4M3FN, #dist.form<mxfp8>>
  return %0 : tensor<64x16xf8E4M3FN, #dist.form<mxfp8>>
}

// -----

func.func @no_form(%w: tensor<64x16xf32>) -> tensor<64x16xf8E4M3FN> {
  // expected-error @below {{expected the result to have a form (#dist.form), got 'tensor<64x16xf8E4M3FN>'}}
  %0 = dist.encode %w : (tensor<64x16xf32>) -> tensor<64x16xf8E4M3FN>
  return %0 : tensor<64x16xf8E4M3FN>
}

// -----

func.func @no_matrix(%w: tensor<4x16x16xf32>) -> tensor<4x16x16xf32> {
  // expected-error @below {{expected the weight to be a matrix of f32, bf16, f16 or f64, got 'tensor<4x16x16xf32>'}}
  %0 = dist.round %w form <nvfp4> : tensor<4x16x16xf32>
  return %0 : tensor<4x16x16xf32>
}

// -----

func.func @largest_of_mxfp8(%w: tensor<64x16xf32>, %a: tensor<f32>) -> tensor<64x16xf8E4M3FN, #dist.form<mxfp8 along 0>> {
  // expected-error @below {{expected no largest magnitude for #dist.form<mxfp8 along 0>, got one}}
  %0 = dist.encode %w largest %a : (tensor<64x16xf32>, tensor<f32>) -> tensor<64x16xf8E4M3FN, #dist.form<mxfp8 along 0>>
  return %0 : tensor<64x16xf8E4M3FN, #dist.form<mxfp8 along 0>>
}

// -----

func.func @decode_plain(%w: tensor<64x16xf32>) -> tensor<64x16xf32> {
  // expected-error @below {{expected the operand to have a form (#dist.form), got 'tensor<64x16xf32>'}}
  %0 = dist.decode %w : (tensor<64x16xf32>) -> tensor<64x16xf32>
  return %0 : tensor<64x16xf32>
}

// -----

func.func @vector_largest(%w: tensor<64x16xf32>) -> tensor<1xf32> {
  // expected-error @below {{expected the result to be tensor<f32>, got 'tensor<1xf32>'}}
  %0 = dist.largest %w : (tensor<64x16xf32>) -> tensor<1xf32>
  return %0 : tensor<1xf32>
}
