// RUN: sharding-opt %s --split-input-file --verify-routings --verify-diagnostics
// RUN: sharding-opt %s --split-input-file --parallelize="mesh=ep=2" --verify-diagnostics

// expected-note@below {{operand 0 is of the choices from here}}
// expected-note@below {{operand 1 is of the choices from here}}
func.func @combine(%x: tensor<4x3xf32> {nn.input = "x"}, %i: tensor<4x1xi64> {nn.input = "i"}, %j: tensor<4x1xi64> {nn.input = "j"}) -> (tensor<4x3xf32> {nn.output = "y"}) {
  %r = nn.dispatch %x, %i : (tensor<4x3xf32>, tensor<4x1xi64>) -> tensor<2x4x3xf32, #nn.routed<1>>
  // expected-error@below {{'nn.combine' op expected operand 1 to be the choices by which operand 0 was dispatched, got other choices}}
  %y = nn.combine %r, %j : (tensor<2x4x3xf32, #nn.routed<1>>, tensor<4x1xi64>) -> tensor<4x3xf32>
  return %y : tensor<4x3xf32>
}

// -----

// The weights of another layer.

func.func @weights(%x: tensor<4x3xf32> {nn.input = "x"}, %v: tensor<4x1xf32> {nn.input = "v"}, %s: tensor<4x2xf32> {nn.input = "s"}, %t: tensor<4x2xf32> {nn.input = "t"}) -> (tensor<4x3xf32> {nn.output = "y"}) {
  // expected-note@below {{operand 0 is of the choices from here}}
  %i = nn.top_k %s {k = 1 : i64} : (tensor<4x2xf32>) -> tensor<4x1xi64>
  // expected-note@below {{operand 1 is of the choices from here}}
  %j = nn.top_k %t {k = 1 : i64} : (tensor<4x2xf32>) -> tensor<4x1xi64>
  %r = nn.dispatch %x, %i : (tensor<4x3xf32>, tensor<4x1xi64>) -> tensor<2x4x3xf32, #nn.routed<1>>
  %d = nn.dispatch %v, %j {each} : (tensor<4x1xf32>, tensor<4x1xi64>) -> tensor<2x4xf32, #nn.routed<1>>
  %w = nn.reshape %d : (tensor<2x4xf32, #nn.routed<1>>) -> tensor<2x4x1xf32, #nn.routed<1>>
  // expected-error@below {{'nn.mul' op expected operands 0 and 1 to be of one routing, got two}}
  %p = nn.mul %r, %w : (tensor<2x4x3xf32, #nn.routed<1>>, tensor<2x4x1xf32, #nn.routed<1>>) -> tensor<2x4x3xf32, #nn.routed<1>>
  %y = nn.combine %p, %i : (tensor<2x4x3xf32, #nn.routed<1>>, tensor<4x1xi64>) -> tensor<4x3xf32>
  return %y : tensor<4x3xf32>
}

// -----

// The choices that an expert takes are others.

func.func @limit(%x: tensor<4x3xf32> {nn.input = "x"}, %g: tensor<4x3xf32> {nn.input = "g"}, %s: tensor<4x2xf32> {nn.input = "s"}) -> (tensor<2x3x3xf32> {nn.output = "w"}) {
  %i = nn.top_k %s {k = 1 : i64} : (tensor<4x2xf32>) -> tensor<4x1xi64>
  // expected-note@below {{operand 1 is of the choices from here}}
  %l = nn.limit %i {capacity = 3 : i64} : tensor<4x1xi64>
  // expected-note@below {{operand 0 is of the choices from here}}
  %k = nn.limit %i {capacity = 2 : i64} : tensor<4x1xi64>
  %r = nn.dispatch %x, %l : (tensor<4x3xf32>, tensor<4x1xi64>) -> tensor<2x4x3xf32, #nn.routed<1>>
  %d = nn.dispatch %g, %k : (tensor<4x3xf32>, tensor<4x1xi64>) -> tensor<2x4x3xf32, #nn.routed<1>>
  // expected-error@below {{'nn.grouped_weight_grad' op expected operands 0 and 1 to be of one routing, got two}}
  %w = nn.grouped_weight_grad %d, %r : (tensor<2x4x3xf32, #nn.routed<1>>, tensor<2x4x3xf32, #nn.routed<1>>) -> tensor<2x3x3xf32>
  return %w : tensor<2x3x3xf32>
}

// -----

// No choices of the function are those of an argument.

// expected-note@below {{operand 0 is from here, and no op of the function routes it}}
// expected-note@below {{operand 1 is of the choices from here}}
func.func @given(%r: tensor<2x4x3xf32, #nn.routed<1>> {nn.input = "r"}, %i: tensor<4x1xi64> {nn.input = "i"}) -> (tensor<4x3xf32> {nn.output = "y"}) {
  // expected-error@below {{'nn.combine' op expected operand 1 to be the choices by which operand 0 was dispatched, got other choices}}
  %y = nn.combine %r, %i : (tensor<2x4x3xf32, #nn.routed<1>>, tensor<4x1xi64>) -> tensor<4x3xf32>
  return %y : tensor<4x3xf32>
}

// -----

// Rows that experts share, of one routing, and choices that went with those of another.

!shared = tensor<2x5x3xf32, #nn.routed<2, shared = 2>>
!choices = tensor<2x5x2xi64, #nn.routed<2, shared = 2>>
// expected-note@below {{operand 0 is of the routing from here}}
// expected-note@below {{the choices are of the routing from here}}
func.func @tokens(%x: tensor<5x3xf32> {nn.input = "x"}, %i: tensor<5x2xi64> {nn.input = "i"}, %k: tensor<5x2xi64> {nn.input = "k"}) -> (tensor<4x5x3xf32, #nn.routed<2>> {nn.output = "r"}) {
  %g = nn.dispatch %x, %i : (tensor<5x3xf32>, tensor<5x2xi64>) -> !shared
  %j = nn.dispatch %k, %k : (tensor<5x2xi64>, tensor<5x2xi64>) -> !choices
  // expected-error@below {{'nn.dispatch' op expected operand 0 to be rows of the routing of its choices, got rows of another routing}}
  %r = nn.dispatch %g, %j : (!shared, !choices) -> tensor<4x5x3xf32, #nn.routed<2>>
  return %r : tensor<4x5x3xf32, #nn.routed<2>>
}

// -----

// Other choices in the place of those by which rows were dispatched.

!shared = tensor<2x5x3xf32, #nn.routed<2, shared = 2>>
!choices = tensor<2x5x2xi64, #nn.routed<2, shared = 2>>
func.func @went(%x: tensor<5x3xf32> {nn.input = "x"}, %i: tensor<5x2xi64> {nn.input = "i"}, %k: tensor<5x2xi64> {nn.input = "k"}) -> (tensor<4x5x3xf32, #nn.routed<2>> {nn.output = "r"}) {
  %g = nn.dispatch %x, %i : (tensor<5x3xf32>, tensor<5x2xi64>) -> !shared
  %j = nn.dispatch %k, %i : (tensor<5x2xi64>, tensor<5x2xi64>) -> !choices
  // expected-error@below {{'nn.dispatch' op expected operand 1, which is routed, to be the choices by which it was dispatched}}
  %r = nn.dispatch %g, %j : (!shared, !choices) -> tensor<4x5x3xf32, #nn.routed<2>>
  return %r : tensor<4x5x3xf32, #nn.routed<2>>
}

// -----

// A sum over experts by the choices of other tokens.

!shared = tensor<2x5x3xf32, #nn.routed<2, shared = 2>>
!choices = tensor<2x5x2xi64, #nn.routed<2, shared = 2>>
// expected-note@below {{operand 0 is of the choices from here}}
// expected-note@below {{operand 1 is of the choices from here}}
func.func @sums(%x: tensor<5x3xf32> {nn.input = "x"}, %i: tensor<5x2xi64> {nn.input = "i"}, %k: tensor<5x2xi64> {nn.input = "k"}) -> (tensor<5x3xf32> {nn.output = "y"}) {
  %r = nn.dispatch %x, %i : (tensor<5x3xf32>, tensor<5x2xi64>) -> tensor<4x5x3xf32, #nn.routed<2>>
  %j = nn.dispatch %k, %k : (tensor<5x2xi64>, tensor<5x2xi64>) -> !choices
  // expected-error@below {{'nn.combine' op expected operand 1 to be the choices by which operand 0 was dispatched, got other choices}}
  %s = nn.combine %r, %j : (tensor<4x5x3xf32, #nn.routed<2>>, !choices) -> !shared
  %y = nn.combine %s, %k : (!shared, tensor<5x2xi64>) -> tensor<5x3xf32>
  return %y : tensor<5x3xf32>
}
