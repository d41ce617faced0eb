// RUN: sharding-opt %s -split-input-file -verify-diagnostics -o %t

// expected-error@+1 {{expected nn.sizes on an input, got it on argument 0, which has no nn.input}}
func.func @role(%x: tensor<4x24xf32> {nn.parameter = "x", nn.sizes = ["batch", "tokens"]}) { return }

// -----

// expected-error@+1 {{expected nn.sizes on argument 0 to be a string for each dimension of 'tensor<4x24xf32>', got ["tokens"]}}
func.func @rank(%x: tensor<4x24xf32> {nn.input = "x", nn.sizes = ["tokens"]}) { return }

// -----

// expected-error@+1 {{expected nn.size on an input of type tensor<i64>, got it on argument 0 of type 'tensor<i32>'}}
func.func @type(%n: tensor<i32> {nn.input = "n", nn.size = "tokens"}) { return }

// -----

// expected-error@+1 {{expected nn.size on an input of type tensor<i64>, got it on argument 0 of type 'tensor<i64>'}}
func.func @input(%n: tensor<i64> {nn.parameter = "n", nn.size = "tokens"}) { return }

// -----

// expected-error@+1 {{expected nn.size on argument 0 to be a string that is not empty, got ""}}
func.func @name(%n: tensor<i64> {nn.input = "n", nn.size = ""}) { return }

// -----

// expected-error@+1 {{expected one argument with the run-time size "tokens", got arguments 0 and 1}}
func.func @twice(%n: tensor<i64> {nn.input = "n", nn.size = "tokens"}, %m: tensor<i64> {nn.input = "m", nn.size = "tokens"}) { return }

// -----

func.func @cut(%x: tensor<4x24xf32>) -> tensor<4x24xf32> {
  // expected-error@+1 {{expected a size for each of 2 dimensions, got 1}}
  %0 = nn.cut %x sizes ["tokens"] : tensor<4x24xf32>
  return %0 : tensor<4x24xf32>
}

// -----

func.func @uncut(%x: tensor<4x24xf32>) -> tensor<4x24xf32> {
  // expected-error@+1 {{expected a size for each of 2 dimensions, got 3}}
  %0 = nn.uncut %x sizes ["", "", "tokens"] : tensor<4x24xf32>
  return %0 : tensor<4x24xf32>
}

// -----

dist.mesh @mesh = <["tp"=2]>
func.func @positions() attributes {dist.spmd = @mesh} {
  %n = nn.constant dense<3> : tensor<i64>
  // expected-error@+1 {{gives a size of a factor without a run-time size}}
  %0 = dist.positions <8{"tp"}> of %n : tensor<i64> : tensor<4xi64>
  return
}

// -----

dist.mesh @mesh = <["tp"=2]>
func.func @positions() attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{expected the size of a factor with a run-time size}}
  %0 = dist.positions <8 size @tokens{"tp"}> : tensor<4xi64>
  return
}
