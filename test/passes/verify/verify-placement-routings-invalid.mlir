// RUN: sharding-opt %s --split-input-file --verify-placement --verify-diagnostics

// Choices that travel stay what they are: those of operand 1 are the rank's own again.
dist.mesh @mesh = <["dp"=2]>
func.func @moved(
    %x: tensor<2x3xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<4x3xf32>},
    %i: tensor<2x1xi64> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<4x1xi64>})
    -> (tensor<2x3xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<4x3xf32>})
    attributes {dist.spmd = @mesh} {
  %r = nn.dispatch %x, %i : (tensor<2x3xf32>, tensor<2x1xi64>) -> tensor<2x2x3xf32, #nn.routed<1>>
  %a = dist.all_gather %i axes ["dp"] dims [0] : (tensor<2x1xi64>) -> tensor<4x1xi64>
  %j = dist.slice %a axes ["dp"] dims [0] : (tensor<4x1xi64>) -> tensor<2x1xi64>
  %y = nn.combine %r, %j : (tensor<2x2x3xf32, #nn.routed<1>>, tensor<2x1xi64>) -> tensor<2x3xf32>
  return %y : tensor<2x3xf32>
}

// -----

// Ranks choose again for all tokens, and with equal ops for their own.
dist.mesh @mesh = <["dp"=2]>
func.func @again(
    %x: tensor<2x3xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<4x3xf32>},
    %s: tensor<2x2xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<4x2xf32>})
    -> (tensor<2x3xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<4x3xf32>})
    attributes {dist.spmd = @mesh} {
  %i = nn.top_k %s {k = 1 : i64} : (tensor<2x2xf32>) -> tensor<2x1xi64>
  %t = dist.all_gather %s axes ["dp"] dims [0] : (tensor<2x2xf32>) -> tensor<4x2xf32>
  %a = nn.top_k %t {k = 1 : i64} : (tensor<4x2xf32>) -> tensor<4x1xi64>
  %j = dist.slice %a axes ["dp"] dims [0] : (tensor<4x1xi64>) -> tensor<2x1xi64>
  %r = nn.dispatch %x, %i : (tensor<2x3xf32>, tensor<2x1xi64>) -> tensor<2x2x3xf32, #nn.routed<1>>
  %y = nn.combine %r, %j : (tensor<2x2x3xf32, #nn.routed<1>>, tensor<2x1xi64>) -> tensor<2x3xf32>
  return %y : tensor<2x3xf32>
}

// -----

// Other choices in the same layout.
dist.mesh @mesh = <["dp"=2]>
func.func @others(
    %x: tensor<2x3xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<4x3xf32>},
    // expected-note@below {{operand 0 is of the choices from here}}
    %i: tensor<2x1xi64> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<4x1xi64>},
    // expected-note@below {{operand 1 is of the choices from here}}
    %k: tensor<4x1xi64> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x1xi64>})
    -> (tensor<2x3xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<4x3xf32>})
    attributes {dist.spmd = @mesh} {
  %r = nn.dispatch %x, %i : (tensor<2x3xf32>, tensor<2x1xi64>) -> tensor<2x2x3xf32, #nn.routed<1>>
  %j = dist.slice %k axes ["dp"] dims [0] : (tensor<4x1xi64>) -> tensor<2x1xi64>
  // expected-error@below {{'nn.combine' op expected operand 1 to be the choices by which operand 0 was dispatched, got other choices}}
  %y = nn.combine %r, %j : (tensor<2x2x3xf32, #nn.routed<1>>, tensor<2x1xi64>) -> tensor<2x3xf32>
  return %y : tensor<2x3xf32>
}

// -----

// Rows that exist, and the places of others.
dist.mesh @mesh = <["dp"=2]>
func.func @places(
    %x: tensor<2x3xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<4x3xf32>},
    // expected-note@below {{operand 0 is of the choices from here}}
    %i: tensor<2x1xi64> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<4x1xi64>},
    // expected-note@below {{operand 1 is of the choices from here}}
    %j: tensor<2x1xi64> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<4x1xi64>})
    -> (tensor<2x3xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<4x3xf32>})
    attributes {dist.spmd = @mesh} {
  %0:3 = nn.route %i {experts = 2 : i64} : (tensor<2x1xi64>) -> (tensor<3xi64>, tensor<2xi64>, tensor<2x1xi64>)
  %1:3 = nn.route %j {experts = 2 : i64} : (tensor<2x1xi64>) -> (tensor<3xi64>, tensor<2xi64>, tensor<2x1xi64>)
  %r = nn.take_rows %x, %0#1 {group = 1 : i64, tokens = 1 : i64} : (tensor<2x3xf32>, tensor<2xi64>) -> tensor<2x1x3xf32>
  %a = nn.silu %r : tensor<2x1x3xf32>
  // expected-error@below {{'nn.sum_rows' op expected operands 0 and 1 to be of one routing, got two}}
  %y = nn.sum_rows %a, %1#2 : (tensor<2x1x3xf32>, tensor<2x1xi64>) -> tensor<2x3xf32>
  return %y : tensor<2x3xf32>
}

// -----

// A weight of each choice, dispatched by others.
dist.mesh @mesh = <["dp"=2]>
func.func @weights(
    %x: tensor<2x3xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<4x3xf32>},
    %w: tensor<2x1xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<4x1xf32>},
    // expected-note@below {{operand 0 is of the choices from here}}
    %i: tensor<2x1xi64> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<4x1xi64>},
    // expected-note@below {{operand 1 is of the choices from here}}
    %j: tensor<2x1xi64> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<4x1xi64>})
    -> (tensor<2x3xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<4x3xf32>})
    attributes {dist.spmd = @mesh} {
  %0:3 = nn.route %i {experts = 2 : i64} : (tensor<2x1xi64>) -> (tensor<3xi64>, tensor<2xi64>, tensor<2x1xi64>)
  %1:3 = nn.route %j {experts = 2 : i64} : (tensor<2x1xi64>) -> (tensor<3xi64>, tensor<2xi64>, tensor<2x1xi64>)
  %r = nn.take_rows %x, %0#1 {group = 1 : i64, tokens = 1 : i64} : (tensor<2x3xf32>, tensor<2xi64>) -> tensor<2x1x3xf32>
  %v = nn.take_rows %w, %1#1 {each, group = 1 : i64, tokens = 1 : i64} : (tensor<2x1xf32>, tensor<2xi64>) -> tensor<2x1xf32>
  %v3 = nn.reshape %v : (tensor<2x1xf32>) -> tensor<2x1x1xf32>
  // expected-error@below {{'nn.mul' op expected operands 0 and 1 to be of one routing, got two}}
  %p = nn.mul %r, %v3 : (tensor<2x1x3xf32>, tensor<2x1x1xf32>) -> tensor<2x1x3xf32>
  %y = nn.sum_rows %p, %0#2 : (tensor<2x1x3xf32>, tensor<2x1xi64>) -> tensor<2x3xf32>
  return %y : tensor<2x3xf32>
}

// -----

// Tokens are no rows, though they are as many.
dist.mesh @mesh = <["dp"=2]>
func.func @tokens(
    // expected-note@below {{operand 1 is from here, and no op of the function routes it}}
    %x: tensor<4x3xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x3xf32>},
    // expected-note@below {{operand 0 is of the choices from here}}
    %i: tensor<4x1xi64> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x1xi64>})
    -> (tensor<4x3xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x3xf32>})
    attributes {dist.spmd = @mesh} {
  %0:3 = nn.route %i {experts = 1 : i64} : (tensor<4x1xi64>) -> (tensor<2xi64>, tensor<4xi64>, tensor<4x1xi64>)
  %r = nn.take_rows %x, %0#1 {group = 1 : i64, tokens = 1 : i64} : (tensor<4x3xf32>, tensor<4xi64>) -> tensor<4x1x3xf32>
  %q = nn.reshape %r : (tensor<4x1x3xf32>) -> tensor<4x3xf32>
  // expected-error@below {{'nn.add' op expected operands 0 and 1 to be of one routing, got two}}
  %p = nn.add %q, %x : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
  %s = nn.reshape %p : (tensor<4x3xf32>) -> tensor<4x1x3xf32>
  %y = nn.sum_rows %s, %0#2 : (tensor<4x1x3xf32>, tensor<4x1xi64>) -> tensor<4x3xf32>
  return %y : tensor<4x3xf32>
}
