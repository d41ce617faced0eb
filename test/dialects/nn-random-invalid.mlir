// RUN: sharding-opt %s --split-input-file --verify-diagnostics

func.func @index(%i: tensor<4xi64>, %s: tensor<i64>) {
  // expected-error@+1 {{'nn.random' op expected index that broadcasts to [2, 8], got [4]}}
  %0 = nn.random at %i seed %s step %s stream 0 : (tensor<4xi64>, tensor<i64>, tensor<i64>) -> tensor<2x8xf32>
  return
}

// -----

func.func @seed(%i: tensor<8xi64>, %s: tensor<1xi64>, %n: tensor<i64>) {
  // expected-error@+1 {{'nn.random' op expected seed of shape [], got [1]}}
  %0 = nn.random at %i seed %s step %n stream 0 : (tensor<8xi64>, tensor<1xi64>, tensor<i64>) -> tensor<8xf32>
  return
}

// -----

func.func @step(%i: tensor<8xi64>, %s: tensor<1xi64>, %n: tensor<i64>) {
  // expected-error@+1 {{'nn.random' op expected step of shape [], got [1]}}
  %0 = nn.random at %i seed %n step %s stream 0 : (tensor<8xi64>, tensor<i64>, tensor<1xi64>) -> tensor<8xf32>
  return
}
