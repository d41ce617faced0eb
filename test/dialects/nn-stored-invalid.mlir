// RUN: sharding-opt %s --split-input-file --verify-diagnostics

func.func @scales(%c: tensor<320x192xf8E4M3FN>, %s: tensor<2x2xf32>) {
  // expected-error @below {{expected scales of shape [3, 2], got [2, 2]}}
  %0 = nn.dequantize %c, %s {block = [128, 128]} : (tensor<320x192xf8E4M3FN>, tensor<2x2xf32>) -> tensor<320x192xf32>
  return
}

// -----

func.func @result(%c: tensor<64x64xf8E4M3FN>, %s: tensor<2x2xf32>) {
  // expected-error @below {{expected result of shape [64, 64], got [64, 32]}}
  %0 = nn.dequantize %c, %s {block = [32, 32]} : (tensor<64x64xf8E4M3FN>, tensor<2x2xf32>) -> tensor<64x32xf32>
  return
}

// -----

func.func @scales_as_codes(%c: tensor<64x64xf8E8M0FNU>, %s: tensor<2x2xf32>) {
  // expected-error @below {{expected codes of numbers, got scales: 'tensor<64x64xf8E8M0FNU>'}}
  %0 = nn.dequantize %c, %s {block = [32, 32]} : (tensor<64x64xf8E8M0FNU>, tensor<2x2xf32>) -> tensor<64x64xf32>
  return
}

// -----

func.func @block(%c: tensor<64xi8>, %s: tensor<2x2xf32>) {
  // expected-error @below {{expected codes of rank 2 or more, got rank 1}}
  %0 = nn.dequantize %c, %s {block = [32, 32]} : (tensor<64xi8>, tensor<2x2xf32>) -> tensor<64xf32>
  return
}

// -----

func.func @no_block(%c: tensor<64xi8>, %s: tensor<64xf32>) {
  // expected-error @below {{expected block of one size or more, got none}}
  %0 = nn.dequantize %c, %s {block = []} : (tensor<64xi8>, tensor<64xf32>) -> tensor<64xf32>
  return
}

// -----

func.func @empty_block(%c: tensor<64xi8>, %s: tensor<64xf32>) {
  // expected-error @below {{expected sizes of a block of 1 or more, got [0]}}
  %0 = nn.dequantize %c, %s {block = [0]} : (tensor<64xi8>, tensor<64xf32>) -> tensor<64xf32>
  return
}

// -----

func.func @parts(%c: tensor<64x64xi8>, %s: tensor<2x2xf32>) {
  // expected-error @below {{expected parts of equal size of a block [32, 32], got [32, 12]}}
  %0 = nn.dequantize %c, %s {block = [32, 32], parts = [32, 12]} : (tensor<64x64xi8>, tensor<2x2xf32>) -> tensor<64x64xf32>
  return
}

// -----

func.func @whole(%c: tensor<64x64xi8>, %s: tensor<2x2xf32>, %w: tensor<1xf32>) {
  // expected-error @below {{expected number of the whole of shape [], got [1]}}
  %0 = nn.dequantize %c, %s, %w {block = [32, 32]} : (tensor<64x64xi8>, tensor<2x2xf32>, tensor<1xf32>) -> tensor<64x64xf32>
  return
}

// -----

func.func @table(%c: tensor<64x64xf4E2M1FN>, %s: tensor<2x2xf32>, %t: tensor<8xf32>) {
  // expected-error @below {{expected table of shape [16], got [8]}}
  %0 = nn.dequantize %c, %s table %t {block = [32, 32]} : (tensor<64x64xf4E2M1FN>, tensor<2x2xf32>, tensor<8xf32>) -> tensor<64x64xf32>
  return
}

// -----

func.func @table_of_f8(%c: tensor<64x64xf8E4M3FN>, %s: tensor<2x2xf32>, %t: tensor<256xf32>) {
  // expected-error @below {{expected codes of i8 or f4E2M1FN for a table, got 'f8E4M3FN'}}
  %0 = nn.dequantize %c, %s table %t {block = [32, 32]} : (tensor<64x64xf8E4M3FN>, tensor<2x2xf32>, tensor<256xf32>) -> tensor<64x64xf32>
  return
}

// -----

func.func @half(%c: tensor<4x1xf8E4M3FN>, %h: tensor<2xi32>) {
  // expected-error @below {{expected bytes of i8 whose halves are codes, got 'tensor<4x1xf8E4M3FN>'}}
  %0 = nn.widen %c half %h : (tensor<4x1xf8E4M3FN>, tensor<2xi32>) -> tensor<4x2xf32>
  return
}
