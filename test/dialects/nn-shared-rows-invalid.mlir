// RUN: sharding-opt %s --split-input-file --verify-diagnostics

// expected-error@below {{expected an expert or more that share a row of a routed tensor, got 0}}
func.func @none(%r: tensor<2x5x3xf32, #nn.routed<2, shared = 0>>)

// -----

func.func @routings(%g: tensor<2x5x3xf32, #nn.routed<2, shared = 2>>, %j: tensor<2x5x2xi64, #nn.routed<2, shared = 4>>) {
  // expected-error@below {{expected input of the routing of indices, 'tensor<2x5x2xi64, #nn.routed<2, shared = 4>>', got 'tensor<2x5x3xf32, #nn.routed<2, shared = 2>>'}}
  %r = nn.dispatch %g, %j : (tensor<2x5x3xf32, #nn.routed<2, shared = 2>>, tensor<2x5x2xi64, #nn.routed<2, shared = 4>>) -> tensor<4x5x3xf32, #nn.routed<2>>
  return
}

// -----

func.func @each(%v: tensor<5x2xf32>, %i: tensor<5x2xi64>) {
  // expected-error@below {{expected a row for each choice with each, got rows that experts share, 'tensor<2x5xf32, #nn.routed<2, shared = 2>>'}}
  %r = nn.dispatch %v, %i {each} : (tensor<5x2xf32>, tensor<5x2xi64>) -> tensor<2x5xf32, #nn.routed<2, shared = 2>>
  return
}

// -----

func.func @parts(%g: tensor<2x5x3xf32, #nn.routed<2, shared = 4>>, %j: tensor<2x5x2xi64, #nn.routed<2, shared = 4>>) {
  // expected-error@below {{expected result of a part of the experts that share a row of input, #nn.routed<2, shared = 4>, got #nn.routed<2, shared = 3>}}
  %r = nn.dispatch %g, %j : (tensor<2x5x3xf32, #nn.routed<2, shared = 4>>, tensor<2x5x2xi64, #nn.routed<2, shared = 4>>) -> tensor<2x5x3xf32, #nn.routed<2, shared = 3>>
  return
}

// -----

func.func @experts(%g: tensor<2x5x3xf32, #nn.routed<2, shared = 4>>, %j: tensor<2x5x2xi64, #nn.routed<2, shared = 4>>) {
  // expected-error@below {{expected result of shape [8, 5, 3], got [4, 5, 3]}}
  %r = nn.dispatch %g, %j : (tensor<2x5x3xf32, #nn.routed<2, shared = 4>>, tensor<2x5x2xi64, #nn.routed<2, shared = 4>>) -> tensor<4x5x3xf32, #nn.routed<2>>
  return
}

// -----

func.func @route(%i: tensor<5x2xi64>) {
  // expected-error@below {{expected an expert or more that share a row, got 0}}
  %0:3 = nn.route %i {experts = 2 : i64, shared = 0 : i64} : (tensor<5x2xi64>) -> (tensor<3xi64>, tensor<10xi64>, tensor<5x2xi64>)
  return
}

// -----

func.func @groups(%i: tensor<5x1x2xi64>, %o: tensor<4xi64>) {
  // expected-error@below {{expected experts that divide by the 3 groups of the rows, got 4}}
  %0:3 = nn.route %i rows %o {experts = 4 : i64} : (tensor<5x1x2xi64>, tensor<4xi64>) -> (tensor<5xi64>, tensor<10xi64>, tensor<5x1x2xi64>)
  return
}

// -----

func.func @tokens(%x: tensor<5x2x3xf32>, %c: tensor<4xi64>) {
  // expected-error@below {{input}}
  %0 = nn.take_rows %x, %c {group = 2 : i64, nested, tokens = 1 : i64} : (tensor<5x2x3xf32>, tensor<4xi64>) -> tensor<4x1x3xf32>
  return
}

// -----

func.func @places(%r: tensor<4x1x3xf32>, %p: tensor<5x2x2xi64>) {
  // expected-error@below {{places}}
  %0 = nn.sum_rows %r, %p {nested} : (tensor<4x1x3xf32>, tensor<5x2x2xi64>) -> tensor<5x2x3xf32>
  return
}
