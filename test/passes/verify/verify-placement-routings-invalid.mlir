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

// -----

// Rows that ranks send come in the order of the ranks: each has some tokens of both sequences. Those of gathered
// tokens are in the order of the tokens.
dist.mesh @mesh = <["tp"=2]>
!rows = tensor<1x2x4x3xf32, #nn.routed<1>>
func.func @order(
    %x: tensor<2x2x3xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}]>, dist.global = tensor<2x4x3xf32>},
    %w: tensor<2x2x1xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}]>, dist.global = tensor<2x4x1xf32>},
    %i: tensor<2x2x1xi64> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}]>, dist.global = tensor<2x4x1xi64>})
    -> (tensor<2x2x3xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}]>, dist.global = tensor<2x4x3xf32>})
    attributes {dist.spmd = @mesh} {
  %r = nn.dispatch %x, %i : (tensor<2x2x3xf32>, tensor<2x2x1xi64>) -> tensor<2x2x2x3xf32, #nn.routed<1>>
  %m = dist.all_to_all %r axes ["tp"] from [2] to [0] : (tensor<2x2x2x3xf32, #nn.routed<1>>) -> !rows
  %a:2 = dist.all_gather %w, %i axes ["tp"] dims [1, 1] : (tensor<2x2x1xf32>, tensor<2x2x1xi64>) -> (tensor<2x4x1xf32>, tensor<2x4x1xi64>)
  %o = dist.axis_index ["tp"] chunk 1 : tensor<i64>
  %d = nn.dispatch %a#0, %a#1 offset %o {each, nn.table_rows = 2 : i64} : (tensor<2x4x1xf32>, tensor<2x4x1xi64>, tensor<i64>) -> tensor<1x2x4xf32, #nn.routed<1>>
  %e = nn.reshape %d : (tensor<1x2x4xf32, #nn.routed<1>>) -> tensor<1x2x4x1xf32, #nn.routed<1>>
  // expected-error@below {{'nn.mul' op expected operands 0 and 1 to be of rows in one order, got two: rows that other ranks sent are in the order of these}}
  %p = nn.mul %m, %e : (!rows, tensor<1x2x4x1xf32, #nn.routed<1>>) -> !rows
  %b = dist.all_to_all %p axes ["tp"] from [0] to [2] : (!rows) -> tensor<2x2x2x3xf32, #nn.routed<1>>
  %y = nn.combine %b, %i : (tensor<2x2x2x3xf32, #nn.routed<1>>, tensor<2x2x1xi64>) -> tensor<2x2x3xf32>
  return %y : tensor<2x2x3xf32>
}

// -----

// Rows of gathered tokens cannot return as if ranks had sent them.
dist.mesh @mesh = <["tp"=2]>
!rows = tensor<1x2x4x3xf32, #nn.routed<1>>
func.func @returned(
    %x: tensor<2x2x3xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}]>, dist.global = tensor<2x4x3xf32>},
    %i: tensor<2x2x1xi64> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}]>, dist.global = tensor<2x4x1xi64>})
    -> (tensor<2x2x3xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}]>, dist.global = tensor<2x4x3xf32>})
    attributes {dist.spmd = @mesh} {
  %a:2 = dist.all_gather %x, %i axes ["tp"] dims [1, 1] : (tensor<2x2x3xf32>, tensor<2x2x1xi64>) -> (tensor<2x4x3xf32>, tensor<2x4x1xi64>)
  %o = dist.axis_index ["tp"] chunk 1 : tensor<i64>
  %r = nn.dispatch %a#0, %a#1 offset %o {nn.table_rows = 2 : i64} : (tensor<2x4x3xf32>, tensor<2x4x1xi64>, tensor<i64>) -> !rows
  // expected-error@below {{'dist.all_to_all' op expected rows of operand 0 to return in the order in which ranks sent them, got another order}}
  %b = dist.all_to_all %r axes ["tp"] from [0] to [2] : (!rows) -> tensor<2x2x2x3xf32, #nn.routed<1>>
  %y = nn.combine %b, %i : (tensor<2x2x2x3xf32, #nn.routed<1>>, tensor<2x2x1xi64>) -> tensor<2x2x3xf32>
  return %y : tensor<2x2x3xf32>
}

// -----

// The sum over the experts of a rank, at places of the rows of other tokens.
dist.mesh @mesh = <["dp"=2]>
!sent = tensor<2x2x3xf32, #nn.routed<2, shared = 2>>
!received = tensor<1x4x3xf32, #nn.routed<2, shared = 2>>
!chosen = tensor<2x2x2xi64, #nn.routed<2, shared = 2>>
!choices = tensor<1x4x2xi64, #nn.routed<2, shared = 2>>
func.func @shared(
    %x: tensor<2x3xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<4x3xf32>},
    // expected-note@below {{operand 0 is of the choices from here}}
    %i: tensor<2x2xi64> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<4x2xi64>},
    // expected-note@below {{operand 1 is of the choices from here}}
    %k: tensor<2x2xi64> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<4x2xi64>})
    -> (tensor<2x3xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<4x3xf32>})
    attributes {dist.spmd = @mesh} {
  %g = nn.dispatch %x, %i : (tensor<2x3xf32>, tensor<2x2xi64>) -> !sent
  %j = nn.dispatch %i, %i : (tensor<2x2xi64>, tensor<2x2xi64>) -> !chosen
  %h = nn.dispatch %k, %k : (tensor<2x2xi64>, tensor<2x2xi64>) -> !chosen
  %m:3 = dist.all_to_all %g, %j, %h axes ["dp"] from [1, 1, 1] to [0, 0, 0] : (!sent, !chosen, !chosen) -> (!received, !choices, !choices)
  %o = dist.axis_index ["dp"] chunk 2 : tensor<i64>
  %r = nn.dispatch %m#0, %m#1 offset %o {nn.table_rows = 4 : i64} : (!received, !choices, tensor<i64>) -> tensor<2x4x3xf32, #nn.routed<2>>
  // expected-error@below {{'nn.combine' op expected operand 1 to be the choices by which operand 0 was dispatched, got other choices}}
  %s = nn.combine %r, %m#2 offset %o {nn.table_rows = 4 : i64} : (tensor<2x4x3xf32, #nn.routed<2>>, !choices, tensor<i64>) -> !received
  %b = dist.all_to_all %s axes ["dp"] from [0] to [1] : (!received) -> !sent
  %y = nn.combine %b, %i : (!sent, tensor<2x2xi64>) -> tensor<2x3xf32>
  return %y : tensor<2x3xf32>
}

// -----

// Experts of another rank: the offset counts one expert a rank, where two share a row.
dist.mesh @mesh = <["dp"=2]>
!sent = tensor<2x2x3xf32, #nn.routed<2, shared = 2>>
!received = tensor<1x4x3xf32, #nn.routed<2, shared = 2>>
!chosen = tensor<2x2x2xi64, #nn.routed<2, shared = 2>>
!choices = tensor<1x4x2xi64, #nn.routed<2, shared = 2>>
func.func @offset(
    %x: tensor<2x3xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<4x3xf32>},
    %i: tensor<2x2xi64> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<4x2xi64>})
    -> (tensor<2x3xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<4x3xf32>})
    attributes {dist.spmd = @mesh} {
  %g = nn.dispatch %x, %i : (tensor<2x3xf32>, tensor<2x2xi64>) -> !sent
  %j = nn.dispatch %i, %i : (tensor<2x2xi64>, tensor<2x2xi64>) -> !chosen
  %m:2 = dist.all_to_all %g, %j axes ["dp"] from [1, 1] to [0, 0] : (!sent, !chosen) -> (!received, !choices)
  // expected-note@below {{operand 2 is from here}}
  %o = dist.axis_index ["dp"] chunk 1 : tensor<i64>
  // expected-error@below {{expected an offset of 2 rows a rank, got 1}}
  %r = nn.dispatch %m#0, %m#1 offset %o {nn.table_rows = 4 : i64} : (!received, !choices, tensor<i64>) -> tensor<2x4x3xf32, #nn.routed<2>>
  %s = nn.combine %r, %m#1 offset %o {nn.table_rows = 4 : i64} : (tensor<2x4x3xf32, #nn.routed<2>>, !choices, tensor<i64>) -> !received
  %b = dist.all_to_all %s axes ["dp"] from [0] to [1] : (!received) -> !sent
  %y = nn.combine %b, %i : (!sent, tensor<2x2xi64>) -> tensor<2x3xf32>
  return %y : tensor<2x3xf32>
}
