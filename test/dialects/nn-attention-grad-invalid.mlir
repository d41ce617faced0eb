// RUN: sharding-opt %s --split-input-file --verify-diagnostics

// The operands of the scores are those of nn.attention (nn-invalid.mlir).

func.func @f(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x7x8xf32>, %l: tensor<2x4x7xf32>, %d: tensor<2x4x7xf32>, %c: tensor<2x4x7x8xf32>) {
  // expected-error@+1 {{'nn.attention_grad' op expected value of shape [2, 2, 9, 8], got [2, 2, 7, 8]}}
  %r:3 = nn.attention_grad %q, %k, %v lse %l delta %d cotangent %c scale 1.0 : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x7x8xf32>, tensor<2x4x7xf32>, tensor<2x4x7xf32>, tensor<2x4x7x8xf32>) -> (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>)
  return
}

// -----

func.func @f(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x9x8xf32>, %l: tensor<2x4x9xf32>, %d: tensor<2x4x7xf32>, %c: tensor<2x4x7x8xf32>) {
  // expected-error@+1 {{'nn.attention_grad' op expected lse of shape [2, 4, 7], got [2, 4, 9]}}
  %r:3 = nn.attention_grad %q, %k, %v lse %l delta %d cotangent %c scale 1.0 : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>, tensor<2x4x9xf32>, tensor<2x4x7xf32>, tensor<2x4x7x8xf32>) -> (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>)
  return
}

// -----

func.func @f(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x9x8xf32>, %l: tensor<2x4x7xbf16>, %d: tensor<2x4x7xf32>, %c: tensor<2x4x7x8xf32>) {
  // expected-error@+1 {{'nn.attention_grad' op expected lse of element type f32 or f64, got 'bf16'}}
  %r:3 = nn.attention_grad %q, %k, %v lse %l delta %d cotangent %c scale 1.0 : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>, tensor<2x4x7xbf16>, tensor<2x4x7xf32>, tensor<2x4x7x8xf32>) -> (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>)
  return
}

// -----

func.func @f(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x9x8xf32>, %l: tensor<2x4x7xf32>, %d: tensor<2x4x1xf32>, %c: tensor<2x4x7x8xf32>) {
  // expected-error@+1 {{'nn.attention_grad' op expected delta of shape [2, 4, 7], got [2, 4, 1]}}
  %r:3 = nn.attention_grad %q, %k, %v lse %l delta %d cotangent %c scale 1.0 : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>, tensor<2x4x7xf32>, tensor<2x4x1xf32>, tensor<2x4x7x8xf32>) -> (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>)
  return
}

// -----

func.func @f(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x9x8xf32>, %l: tensor<2x4x7xf32>, %d: tensor<2x4x7xf64>, %c: tensor<2x4x7x8xf32>) {
  // expected-error@+1 {{'nn.attention_grad' op expected delta of element type 'f32', got 'f64'}}
  %r:3 = nn.attention_grad %q, %k, %v lse %l delta %d cotangent %c scale 1.0 : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>, tensor<2x4x7xf32>, tensor<2x4x7xf64>, tensor<2x4x7x8xf32>) -> (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>)
  return
}

// -----

func.func @f(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x9x8xf32>, %l: tensor<2x4x7xf32>, %d: tensor<2x4x7xf32>, %c: tensor<2x4x7x16xf32>) {
  // expected-error@+1 {{'nn.attention_grad' op expected cotangent of shape [2, 4, 7, 8], got [2, 4, 7, 16]}}
  %r:3 = nn.attention_grad %q, %k, %v lse %l delta %d cotangent %c scale 1.0 : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>, tensor<2x4x7xf32>, tensor<2x4x7xf32>, tensor<2x4x7x16xf32>) -> (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>)
  return
}

// -----

func.func @f(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x9x8xf32>, %l: tensor<2x4x7xf32>, %d: tensor<2x4x7xf32>, %c: tensor<2x4x7x8xbf16>) {
  // expected-error@+1 {{'nn.attention_grad' op expected cotangent of element type 'f32' as query, got 'bf16'}}
  %r:3 = nn.attention_grad %q, %k, %v lse %l delta %d cotangent %c scale 1.0 : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>, tensor<2x4x7xf32>, tensor<2x4x7xf32>, tensor<2x4x7x8xbf16>) -> (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>)
  return
}

// -----

func.func @f(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x9x8xf32>, %l: tensor<2x4x7xf32>, %d: tensor<2x4x7xf32>, %c: tensor<2x4x7x8xf32>) {
  // expected-error@+1 {{'nn.attention_grad' op expected query_grad of shape [2, 4, 7, 16], got [2, 4, 7, 8]}}
  %r:3 = nn.attention_grad %q, %k, %v lse %l delta %d cotangent %c scale 1.0 : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>, tensor<2x4x7xf32>, tensor<2x4x7xf32>, tensor<2x4x7x8xf32>) -> (tensor<2x4x7x8xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>)
  return
}

// -----

func.func @f(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x9x8xf32>, %l: tensor<2x4x7xf32>, %d: tensor<2x4x7xf32>, %c: tensor<2x4x7x8xf32>) {
  // expected-error@+1 {{'nn.attention_grad' op expected key_grad of shape [2, 2, 9, 16], got [2, 4, 9, 16]}}
  %r:3 = nn.attention_grad %q, %k, %v lse %l delta %d cotangent %c scale 1.0 : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>, tensor<2x4x7xf32>, tensor<2x4x7xf32>, tensor<2x4x7x8xf32>) -> (tensor<2x4x7x16xf32>, tensor<2x4x9x16xf32>, tensor<2x2x9x8xf32>)
  return
}

// -----

func.func @f(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x9x8xf32>, %l: tensor<2x4x7xf32>, %d: tensor<2x4x7xf32>, %c: tensor<2x4x7x8xf32>) {
  // expected-error@+1 {{'nn.attention_grad' op expected value_grad of element type 'f32', got 'bf16'}}
  %r:3 = nn.attention_grad %q, %k, %v lse %l delta %d cotangent %c scale 1.0 : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>, tensor<2x4x7xf32>, tensor<2x4x7xf32>, tensor<2x4x7x8xf32>) -> (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xbf16>)
  return
}

// -----

func.func @f(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x9x8xf32>, %l: tensor<2x4x7xf32>, %d: tensor<2x4x7xf32>, %c: tensor<2x4x7x8xf32>) {
  // expected-error@+1 {{'nn.attention_grad' op expected three results without a bias, got the gradient of a bias}}
  %r:4 = nn.attention_grad %q, %k, %v lse %l delta %d cotangent %c scale 1.0 : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>, tensor<2x4x7xf32>, tensor<2x4x7xf32>, tensor<2x4x7x8xf32>) -> (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>, tensor<7x9xf32>)
  return
}

// -----

func.func @f(%q: tensor<2x4x7x16xf32>, %k: tensor<2x2x9x16xf32>, %v: tensor<2x2x9x8xf32>, %b: tensor<7x9xf32>, %l: tensor<2x4x7xf32>, %d: tensor<2x4x7xf32>, %c: tensor<2x4x7x8xf32>) {
  // expected-error@+1 {{'nn.attention_grad' op expected bias_grad of shape [7, 9], got [4, 7, 9]}}
  %r:4 = nn.attention_grad %q, %k, %v bias %b lse %l delta %d cotangent %c scale 1.0 : (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>, tensor<7x9xf32>, tensor<2x4x7xf32>, tensor<2x4x7xf32>, tensor<2x4x7x8xf32>) -> (tensor<2x4x7x16xf32>, tensor<2x2x9x16xf32>, tensor<2x2x9x8xf32>, tensor<4x7x9xf32>)
  return
}
