// RUN: sharding-opt %s --split-input-file --verify-diagnostics

func.func @index(%x: tensor<2x8xf32>, %i: tensor<4xi64>, %s: tensor<i64>) {
  // expected-error@+1 {{'nn.dropout' op expected index that broadcasts to [2, 8], got [4]}}
  %0 = nn.dropout %x at %i seed %s step %s probability 0.5 stream 0 : (tensor<2x8xf32>, tensor<4xi64>, tensor<i64>, tensor<i64>) -> tensor<2x8xf32>
  return
}

// -----

func.func @seed(%x: tensor<8xf32>, %i: tensor<8xi64>, %s: tensor<1xi64>, %n: tensor<i64>) {
  // expected-error@+1 {{'nn.dropout' op expected seed of shape [], got [1]}}
  %0 = nn.dropout %x at %i seed %s step %n probability 0.5 stream 0 : (tensor<8xf32>, tensor<8xi64>, tensor<1xi64>, tensor<i64>) -> tensor<8xf32>
  return
}

// -----

func.func @step(%x: tensor<8xf32>, %i: tensor<8xi64>, %s: tensor<1xi64>, %n: tensor<i64>) {
  // expected-error@+1 {{'nn.dropout' op expected step of shape [], got [1]}}
  %0 = nn.dropout %x at %i seed %n step %s probability 0.5 stream 0 : (tensor<8xf32>, tensor<8xi64>, tensor<i64>, tensor<1xi64>) -> tensor<8xf32>
  return
}

// -----

func.func @probability(%x: tensor<8xf32>, %i: tensor<8xi64>, %n: tensor<i64>) {
  // expected-error@+1 {{'nn.dropout' op expected a probability from 0 on and below 1, got 1.0}}
  %0 = nn.dropout %x at %i seed %n step %n probability 1.0 stream 0 : (tensor<8xf32>, tensor<8xi64>, tensor<i64>, tensor<i64>) -> tensor<8xf32>
  return
}

// -----

func.func @some(%q: tensor<1x2x8x4xf32>, %r: tensor<1x2x8xi64>, %k: tensor<8xi64>, %n: tensor<i64>) {
  // expected-error@+1 {{'nn.attention' op expected drop_at, seed, step, dropout and stream, or none of them}}
  %0 = nn.attention %q, %q, %q drop_at %r, %k seed %n step %n scale 0.5 {dropout = 0.5 : f64} : (tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>, tensor<1x2x8xi64>, tensor<8xi64>, tensor<i64>, tensor<i64>) -> tensor<1x2x8x4xf32>
  return
}

// -----

func.func @rows(%q: tensor<1x2x8x4xf32>, %r: tensor<2x8xi64>, %k: tensor<8xi64>, %n: tensor<i64>) {
  // expected-error@+1 {{'nn.attention' op expected drop_rows of shape [1, 2, 8], got [2, 8]}}
  %0 = nn.attention %q, %q, %q drop_at %r, %k seed %n step %n scale 0.5 {dropout = 0.5 : f64, stream = 0 : i64} : (tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>, tensor<2x8xi64>, tensor<8xi64>, tensor<i64>, tensor<i64>) -> tensor<1x2x8x4xf32>
  return
}

// -----

func.func @keys(%q: tensor<1x2x8x4xf32>, %r: tensor<1x2x8xi64>, %k: tensor<7xi64>, %n: tensor<i64>) {
  // expected-error@+1 {{'nn.attention' op expected drop_keys of shape [8], got [7]}}
  %0 = nn.attention %q, %q, %q drop_at %r, %k seed %n step %n scale 0.5 {dropout = 0.5 : f64, stream = 0 : i64} : (tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>, tensor<1x2x8xi64>, tensor<7xi64>, tensor<i64>, tensor<i64>) -> tensor<1x2x8x4xf32>
  return
}
